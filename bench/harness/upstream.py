"""What the proxies stand in front of. Two stand-ins for kube-apiserver: nginx serves bodies, watch_server serves
watches. Both speak HTTP/1.1 over TLS 1.3, ask for a client certificate, and send load reports of their own that a
proxy has to remove."""

import contextlib
import getpass
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Literal

from bench.harness.loadgen import BUILD
from bench.harness.pki import Pair, Pki
from bench.harness.process import await_port, free_port, running
from bench.harness.traffic import BODY_BYTES, ECHO, GET_2K, GET_5M, GET_64K, GROUPS, OPT_IN, UPSTREAM_REPORT

UpstreamKind = Literal["bodies", "watches", "kube-apiserver"]

_NGINX_TEMPLATE = Path(__file__).resolve().parents[1] / "upstream" / "nginx.conf"
_MAX_SECONDS = 600


@dataclass(frozen=True)
class Upstream:
    port: int
    pid: int
    pid_file: Path
    pki: Pki
    direct_caller: Pair
    """What a load that goes to it directly presents."""
    groups: tuple[str, ...] = GROUPS
    """Of the user that the load speaks for."""
    sends_reports: bool = True


@contextlib.contextmanager
def nginx_upstream(folder: Path, pki: Pki, cpus: set[int] | None) -> Iterator[Upstream]:
    port = free_port()
    folder.mkdir()
    for target in (GET_64K, GET_5M):
        (folder / target.rpartition("/")[2]).write_bytes(b"x" * BODY_BYTES[target])
    values = {
        "user": getpass.getuser(),
        "folder": folder,
        "port": port,
        "cert": pki.serving.cert,
        "key": pki.serving.key,
        "client_ca": pki.both_cas,
        "get_2k": GET_2K,
        "get_64k": GET_64K,
        "get_5m": GET_5M,
        "echo": ECHO,
        "body_2k": "x" * BODY_BYTES[GET_2K],
        "report": UPSTREAM_REPORT,
        "opt_in_variable": "$http_" + OPT_IN.replace("-", "_"),
    }
    config = folder / "nginx.conf"
    config.write_text(Template(_NGINX_TEMPLATE.read_text()).substitute(values))
    command: list[str | Path] = ["nginx", "-p", folder, "-c", config, "-e", folder / "error.log"]
    with running("upstream-nginx", [*command, "-g", "daemon off;"], folder, cpus) as program:
        await_port(program, port)
        yield Upstream(port, program.process.pid, folder / "nginx.pid", pki, pki.load_balancer)


@contextlib.contextmanager
def watch_upstream(folder: Path, pki: Pki, cpus: set[int] | None, rate: float) -> Iterator[Upstream]:
    """Every open watch gets `rate` events of 1 KiB a second; any other target but /readyz is an object of 2 KiB."""
    port = free_port()
    command: list[str | Path] = [BUILD / "watch_server", "--listen", f"127.0.0.1:{port}"]
    command += ["--cert", pki.serving.cert, "--key", pki.serving.key, "--client-ca", pki.both_cas]
    command += ["--rate", str(rate), "--max-seconds", str(_MAX_SECONDS)]
    with running("upstream-watch", command, folder, cpus) as program:
        pid_file = folder / "watch_server.pid"
        pid_file.write_text(f"{program.process.pid}\n")
        await_port(program, port)
        yield Upstream(port, program.process.pid, pid_file, pki, pki.load_balancer)
