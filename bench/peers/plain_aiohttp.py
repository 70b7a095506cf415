"""The plain aiohttp proxy (plain_aiohttp_proxy.py) on two event loops."""

import platform
import ssl
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.harness.pki import SERVER_NAME
from bench.harness.traffic import CONSTANT_REPORT, OPT_IN, REPORT, REPORT_BINARY
from bench.peers.job import Job, Peer

_PROGRAM = Path(__file__).with_name("plain_aiohttp_proxy.py")


def _peer(loop: str, name: str, title: str) -> Peer:
    def prepare(job: Job) -> Sequence[str | Path]:
        options: dict[str, str | Path | int] = {
            "loop": loop,
            "port": job.port,
            "upstream-port": job.upstream_port,
            "serving-pair": job.pki.serving.both,
            "client-ca": job.pki.front_proxy_ca,
            "client-pair": job.pki.front_proxy_client.both,
            "ca": job.pki.ca,
            "server-name": SERVER_NAME,
            "opt-in": OPT_IN,
            "report": REPORT,
            "report-binary": REPORT_BINARY,
            "constant": CONSTANT_REPORT,
        }
        # -P: this folder, with modules named as libraries are, stays out of the import path
        return [sys.executable, "-P", _PROGRAM, *(f"--{key}={value}" for key, value in options.items())]

    def describe() -> str:
        extra = f", uvloop {version('uvloop')}" if loop == "uvloop" else ""
        tls = " ".join(ssl.OPENSSL_VERSION.split()[:2])
        return f"aiohttp {version('aiohttp')}{extra}, CPython {platform.python_version()} ({tls})"

    return Peer(name=name, title=title, prepare=prepare, version=describe, speed=0.4)


AIOHTTP = _peer("asyncio", "aiohttp", "plain aiohttp proxy")
AIOHTTP_UVLOOP = _peer("uvloop", "aiohttp-uvloop", "plain aiohttp proxy, uvloop")
