"""The two upstreams: nginx serves bodies, watch_server serves watches. Both speak HTTP/1.1 over TLS 1.3, ask for a
client certificate, and send load reports of their own that a proxy has to remove."""

import contextlib
import getpass
from collections.abc import Iterator
from pathlib import Path
from string import Template

from bench.harness.loadgen import BUILD
from bench.harness.pki import Pki
from bench.harness.process import await_port, free_port, running
from bench.harness.traffic import BODY_BYTES, ECHO, GET_2K, GET_5M, GET_64K, OPT_IN, UPSTREAM_REPORT

_NGINX_TEMPLATE = Path(__file__).resolve().parents[1] / "upstream" / "nginx.conf"
_MAX_SECONDS = 600


@contextlib.contextmanager
def nginx_upstream(folder: Path, pki: Pki, cpus: set[int] | None) -> Iterator[tuple[int, Path]]:
    """Yields (port, file with the pid of the master process)."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
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
    command: list[str | Path] = [
        "nginx",
        "-p",
        folder,
        "-c",
        config,
        "-e",
        folder / "error.log",
        "-g",
        "daemon off;",
    ]
    with running("upstream-nginx", command, folder, cpus) as program:
        await_port(program, port)
        yield port, folder / "nginx.pid"


@contextlib.contextmanager
def watch_upstream(folder: Path, pki: Pki, cpus: set[int] | None, rate: float) -> Iterator[int]:
    """Yields the port; every open watch gets `rate` events of 1 KiB a second."""
    port = free_port()
    command: list[str | Path] = [
        BUILD / "watch_server",
        "--listen",
        f"127.0.0.1:{port}",
        "--cert",
        pki.serving.cert,
    ]
    command += ["--key", pki.serving.key, "--client-ca", pki.both_cas, "--rate", str(rate)]
    with running("upstream-watch", [*command, "--max-seconds", str(_MAX_SECONDS)], folder, cpus) as program:
        await_port(program, port)
        yield port
