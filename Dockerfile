# orca-sidecar as a static pod's image. Two stages: the venv is built with pip, the image runs without it.
#   docker build -t orca-sidecar .
FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md ./
COPY orca_sidecar ./orca_sidecar
# The demo reads the shipped Envoy configuration through a link in the package.
COPY config ./config
RUN python -m venv /opt/orca-sidecar && /opt/orca-sidecar/bin/pip install --no-cache-dir .

FROM python:3.13-slim-trixie
COPY --from=build /opt/orca-sidecar /opt/orca-sidecar
# One arena: glibc's default of eight per core keeps freed memory of bursts apart, and this is a single thread.
ENV PATH=/opt/orca-sidecar/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1
# No USER: kubeadm's keys belong to root with mode 0600. The static pod drops every capability instead.
ENTRYPOINT ["orca-sidecar"]
CMD ["run", "--config", "/etc/orca-sidecar/config.yaml"]
