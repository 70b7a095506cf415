"""HAProxy (Debian): one frontend, one backend."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.harness.pki import SERVER_NAME
from bench.harness.traffic import CONSTANT_REPORT, OPT_IN, REPORT, REPORT_BINARY
from bench.peers.job import Job, Peer

_CONFIG = """
global
    nbthread {threads}
    maxconn {connections}
    ssl-default-bind-options ssl-min-ver TLSv1.3
    ssl-default-bind-curves X25519
    ssl-default-server-options ssl-min-ver TLSv1.3

defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-keep-alive 1h
    option http-keep-alive
    {streaming}
    http-reuse always

frontend downstream
    bind 127.0.0.1:{port} ssl crt {serving} ca-file {front_proxy_ca} verify required alpn http/1.1
    http-request del-header {opt_in}
    http-response del-header {report_binary}
    http-response set-header {report} "{constant}"
    default_backend upstream

backend upstream
    server upstream 127.0.0.1:{upstream} ssl verify required ca-file {ca} verifyhost {name} sni str({name}) crt {client}
"""


def _prepare(job: Job) -> Sequence[str | Path]:
    config = job.folder / "haproxy.cfg"
    text = _CONFIG.format(
        threads=job.workers,
        connections=(job.open_files - 128) // 2,
        streaming="option http-no-delay" if job.streaming else "",
        port=job.port,
        serving=job.pki.serving.both,
        front_proxy_ca=job.pki.front_proxy_ca,
        opt_in=OPT_IN,
        report=REPORT,
        report_binary=REPORT_BINARY,
        constant=CONSTANT_REPORT,
        upstream=job.upstream_port,
        ca=job.pki.ca,
        name=SERVER_NAME,
        client=job.pki.front_proxy_client.both,
    )
    config.write_text("\n".join(line for line in text.splitlines() if line.strip()) + "\n")
    return ["haproxy", "-db", "-f", config]


def _version() -> str:
    output = subprocess.run(["haproxy", "-vv"], capture_output=True, text=True, check=True).stdout
    tls = next(line for line in output.splitlines() if line.startswith("Running on OpenSSL version"))
    return f"HAProxy {output.split()[2]} ({' '.join(tls.split(':')[1].split()[:2])})"


HAPROXY = Peer(name="haproxy", title="HAProxy", prepare=_prepare, version=_version)
