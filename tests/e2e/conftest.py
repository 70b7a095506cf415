"""Session fixtures: one control plane, the sidecar and Envoy in front of it, each started when first asked for."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.callers import ANONYMOUS, Callers, who
from tests.e2e.control_plane import Authorities, ControlPlane
from tests.e2e.fronts import Envoy, Sidecar
from tests.e2e.kubectl import Kubectl
from tests.e2e.kubelet import Kubelet
from tests.e2e.processes import wait_until
from tests.e2e.rbac import OBJECTS
from tests.e2e.tools.build import ProgramsError, programs
from tests.e2e.wire import Route


def pytest_configure() -> None:
    # SIGTERM ends a run as Ctrl-C does: through the fixtures, so that no program is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test also waits for the programs to start (and to be built, without `build.py` before).
    for item in items:
        item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def binaries() -> dict[str, Path]:
    try:
        return programs()
    except ProgramsError as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orca-sidecar-e2e-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def authorities(folder: Path) -> Authorities:
    return Authorities.make(folder / "pki")


@pytest.fixture(scope="session")
def control_plane(
    binaries: dict[str, Path], folder: Path, authorities: Authorities
) -> Iterator[ControlPlane]:
    """A kube-apiserver with kubeadm's flags: it takes no UID from a front proxy."""
    with ControlPlane(binaries, folder / "kubeadm", authorities) as plane:
        yield plane


@pytest.fixture(scope="session")
def uid_control_plane(
    binaries: dict[str, Path], folder: Path, authorities: Authorities, control_plane: ControlPlane
) -> Iterator[ControlPlane]:
    """A second kube-apiserver over the same etcd, started with --requestheader-uid-headers."""
    with ControlPlane(
        binaries,
        folder / "uid",
        authorities,
        etcd_url=control_plane.etcd_url,
        extra_flags=["--requestheader-uid-headers=X-Remote-Uid"],
    ) as plane:
        yield plane


@pytest.fixture(scope="session")
def sidecar(control_plane: ControlPlane) -> Iterator[Sidecar]:
    with Sidecar(control_plane) as started:
        yield started
    started.assert_ended_well()


@pytest.fixture(scope="session")
def uid_sidecar(uid_control_plane: ControlPlane) -> Iterator[Sidecar]:
    with Sidecar(uid_control_plane) as started:
        yield started
    started.assert_ended_well()


@pytest.fixture(scope="session")
def envoy(sidecar: Sidecar, authorities: Authorities, folder: Path) -> Iterator[Envoy]:
    with Envoy(sidecar, authorities, folder) as started:
        yield started


@pytest.fixture(scope="session")
def kubelet(control_plane: ControlPlane) -> Iterator[Kubelet]:
    """A Ready node and a Running pod to open streams into."""
    with Kubelet(control_plane) as started:
        yield started


@pytest.fixture(scope="session")
def direct(control_plane: ControlPlane) -> Route:
    return control_plane.direct


@pytest.fixture(scope="session")
def through(sidecar: Sidecar) -> Route:
    return sidecar.route


@pytest.fixture(scope="session")
def admin(control_plane: ControlPlane) -> Kubectl:
    """kubectl as system:masters on a direct connection, to arrange what a test needs."""
    return control_plane.kubectl(control_plane.direct, token="admin-token")


@pytest.fixture(scope="session")
def callers(authorities: Authorities) -> Callers:
    return Callers(authorities)


@pytest.fixture(scope="session")
def rbac(admin: Kubectl, direct: Route) -> None:
    """The roles of the identity suites, in force."""
    admin("apply", "-f", "-", stdin=yaml.safe_dump_all(OBJECTS))
    # kube-apiserver reads roles from a cache that follows etcd.
    wait_until(lambda: who(direct) == ANONYMOUS, "the anonymous caller may ask who it is")
    config_maps = "/api/v1/namespaces/default/configmaps"
    wait_until(
        lambda: direct.get(config_maps, token="joe-token").status == 200, "developers may read ConfigMaps"
    )
