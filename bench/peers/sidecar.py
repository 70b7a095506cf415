"""The product itself, as installed, every feature on: the load balancer is a front proxy whose X-Remote-* are asserted
to the upstream, every request opts in and gets a report, the sampler and the metrics run."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.harness.pki import SERVER_NAME
from bench.peers.job import Job, Peer

_PROGRAM = Path(os.environ.get("BENCH_SIDECAR") or Path(sys.prefix) / "bin" / "orca-sidecar")
"""BENCH_SIDECAR names another installation's program, such as that of another interpreter."""


def _prepare(job: Job) -> Sequence[str | Path]:
    pki = job.pki
    configuration = {
        "apiVersion": "orca-sidecar.dev/v1alpha1",
        "kind": "SidecarConfiguration",
        "listener": {
            "address": f"127.0.0.1:{job.port}",
            "tls": {"certFile": str(pki.serving.cert), "keyFile": str(pki.serving.key)},
            "clientCAFile": str(pki.ca),
            "maxConnections": (job.open_files - 128) // 2,
        },
        "upstream": {
            "address": f"127.0.0.1:{job.upstream_port}",
            "tls": {"caFile": str(pki.ca), "serverName": SERVER_NAME},
            "frontProxyClient": {
                "certFile": str(pki.front_proxy_client.cert),
                "keyFile": str(pki.front_proxy_client.key),
            },
        },
        "frontProxy": {"clientCAFile": str(pki.front_proxy_ca), "allowedNames": ["load-balancer"]},
        "loadMetrics": {"enabled": True, "sampler": {"target": {"pidFile": str(job.watched_pid_file)}}},
        "admin": {"address": f"127.0.0.1:{job.admin_port}"},
        "workers": job.workers,
        "shutdown": {"delay": "0s", "gracePeriod": "1s"},
    }
    path = job.folder / "sidecar.yaml"
    path.write_text(json.dumps(configuration, indent=1))  # JSON is YAML
    return [_PROGRAM, "run", "--config", path]


def _version() -> str:
    return subprocess.run([_PROGRAM, "version"], capture_output=True, text=True, check=True).stdout.strip()


SIDECAR = Peer(
    name="sidecar", title="orca-sidecar", prepare=_prepare, version=_version, refuses_strangers=False
)
