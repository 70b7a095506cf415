"""A real etcd and kube-apiserver as the upstream, found or built by the end-to-end tests' own means."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.harness.pki import Pair, Pki
from bench.harness.process import BenchError, on_cpus
from bench.harness.traffic import BODY_BYTES, GET_2K
from bench.harness.upstream import Upstream
from tests.e2e.control_plane import Authorities, ControlPlane
from tests.e2e.tools.build import ProgramsError, programs
from tests.pki import Credential

ADMIN_TOKEN = "admin-token"  # of a control plane that lives for one trial
GROUPS = ("system:masters",)


@contextlib.contextmanager
def kube_upstream(folder: Path, cpus: set[int] | None) -> Iterator[Upstream]:
    """A fresh control plane with the object of GET_2K in it; BenchError where the programs are not to be had."""
    folder.mkdir()
    try:
        found = programs()
    except ProgramsError as error:
        raise BenchError(str(error)) from error
    authorities = Authorities.make(folder / "pki")
    with contextlib.ExitStack() as stack:
        try:
            with on_cpus(cpus):
                plane = stack.enter_context(ControlPlane(found, folder / "control-plane", authorities))
            _create_object(plane)
        except AssertionError as error:  # how the fixtures say that a program did not start
            raise BenchError(f"no control plane: {error}") from error
        pid = plane.apiserver.process.pid
        pid_file = folder / "kube-apiserver.pid"
        pid_file.write_text(f"{pid}\n")
        pki = _as_pki(folder / "pki", authorities)
        yield Upstream(
            port=plane.port,
            pid=pid,
            pid_file=pid_file,
            pki=pki,
            direct_caller=pki.front_proxy_client,
            groups=GROUPS,
            sends_reports=False,
        )


def _create_object(plane: ControlPlane) -> None:
    kubectl = plane.kubectl(plane.direct, token=ADMIN_TOKEN)
    namespace, name = GET_2K.split("/")[4], GET_2K.rpartition("/")[2]
    data = "x" * BODY_BYTES[GET_2K]
    kubectl("create", "configmap", name, "--namespace", namespace, f"--from-literal=data={data}")


def _as_pki(folder: Path, authorities: Authorities) -> Pki:
    def pair(credential: Credential) -> Pair:
        both = credential.cert_file.with_suffix(".pem")
        both.touch(mode=0o600)
        both.write_bytes(credential.cert_file.read_bytes() + credential.key_file.read_bytes())
        return Pair(credential.cert_file, credential.key_file, both)

    both_cas = folder / "both-cas.pem"
    cas = (authorities.ca.cert_file, authorities.front_proxy_ca.cert_file)
    both_cas.write_bytes(b"".join(path.read_bytes() for path in cas))
    return Pki(
        ca=authorities.ca.cert_file,
        front_proxy_ca=authorities.front_proxy_ca.cert_file,
        both_cas=both_cas,
        serving=pair(authorities.listener),
        load_balancer=pair(authorities.load_balancer),
        front_proxy_client=pair(authorities.front_proxy_client),
    )
