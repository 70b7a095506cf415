"""mitmproxy in reverse mode, from the bench's own virtual environment (`make -C bench peers`). It asks for a client
certificate but verifies none."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.harness.process import BenchError
from bench.harness.traffic import CONSTANT_REPORT, OPT_IN, REPORT, REPORT_BINARY
from bench.peers.job import Job, Peer

_MITMDUMP = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "mitmdump"
_ADDON = f'''
class Headers:
    def requestheaders(self, flow):
        flow.request.headers.pop("{OPT_IN}", None)

    def responseheaders(self, flow):
        flow.response.headers.pop("{REPORT_BINARY}", None)
        flow.response.headers["{REPORT}"] = "{CONSTANT_REPORT}"
        flow.response.stream = True


addons = [Headers()]
'''


def _installed() -> Path:
    if not _MITMDUMP.exists():
        raise BenchError("mitmproxy is not installed: run `make -C bench peers`")
    return _MITMDUMP


def _prepare(job: Job) -> Sequence[str | Path]:
    addon = job.folder / "headers_addon.py"
    addon.write_text(_ADDON)
    settings = {
        "confdir": job.folder,
        "certs": job.pki.serving.both,
        "request_client_cert": "true",
        "client_certs": job.pki.front_proxy_client.both,
        "ssl_verify_upstream_trusted_ca": job.pki.ca,
        "http2": "false",
        "keep_host_header": "true",
        "tls_version_client_min": "TLS1_3",
    }
    command: list[str | Path] = [
        _installed(),
        "-q",
        "--mode",
        f"reverse:https://localhost:{job.upstream_port}",
    ]
    command += ["--listen-host", "127.0.0.1", "-p", str(job.port), "-s", addon]
    return [*command, *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))]


def _version() -> str:
    output = subprocess.run([_installed(), "--version"], capture_output=True, text=True, check=True).stdout
    found = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    return f"mitmproxy {found['Mitmproxy'].strip()} ({' '.join(found['OpenSSL'].split()[:2])})"


MITMPROXY = Peer(
    name="mitmproxy",
    title="mitmproxy",
    prepare=_prepare,
    version=_version,
    refuses_strangers=False,
    speed=0.05,
)
