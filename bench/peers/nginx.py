"""nginx (Debian nginx-light) as a reverse proxy."""

import getpass
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.harness.pki import SERVER_NAME
from bench.harness.traffic import CONSTANT_REPORT, OPT_IN, REPORT, REPORT_BINARY
from bench.peers.job import Job, Peer

_CONFIG = """
user {user};
worker_processes {workers};
pid {folder}/nginx.pid;
worker_rlimit_nofile {files};
events {{ worker_connections {connections}; }} # below a sixteenth of them free, nginx resets idle ones
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    large_client_header_buffers 4 32k;
    keepalive_requests 100000000;
    keepalive_timeout 1h;

    upstream upstream {{
        server 127.0.0.1:{upstream};
        keepalive 64;
        keepalive_requests 100000000;
        keepalive_timeout 1h;
    }}
    server {{
        listen 127.0.0.1:{port} ssl backlog=4096;
        ssl_certificate {cert};
        ssl_certificate_key {key};
        ssl_client_certificate {front_proxy_ca};
        ssl_verify_client on;
        ssl_protocols TLSv1.3;
        ssl_ecdh_curve X25519;

        location / {{
            proxy_pass https://upstream;
            proxy_http_version 1.1;
            proxy_buffering {buffering};
            proxy_max_temp_file_size 0;
            proxy_read_timeout 1h;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header {opt_in} "";
            proxy_hide_header {report};
            proxy_hide_header {report_binary};
            add_header {report} "{constant}";
            proxy_ssl_certificate {client_cert};
            proxy_ssl_certificate_key {client_key};
            proxy_ssl_trusted_certificate {ca};
            proxy_ssl_verify on;
            proxy_ssl_name {name};
            proxy_ssl_server_name on;
            proxy_ssl_protocols TLSv1.3;
        }}
    }}
}}
"""


def _prepare(job: Job) -> Sequence[str | Path]:
    config = job.folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            user=getpass.getuser(),
            workers=job.workers,
            folder=job.folder,
            files=job.open_files,
            connections=job.open_files * 5 // 4,
            upstream=job.upstream_port,
            port=job.port,
            cert=job.pki.serving.cert,
            key=job.pki.serving.key,
            front_proxy_ca=job.pki.front_proxy_ca,
            buffering="off" if job.streaming else "on",
            opt_in=OPT_IN,
            report=REPORT,
            report_binary=REPORT_BINARY,
            constant=CONSTANT_REPORT,
            client_cert=job.pki.front_proxy_client.cert,
            client_key=job.pki.front_proxy_client.key,
            ca=job.pki.ca,
            name=SERVER_NAME,
        )
    )
    return ["nginx", "-p", job.folder, "-c", config, "-e", job.folder / "error.log", "-g", "daemon off;"]


def _version() -> str:
    output = subprocess.run(["nginx", "-V"], capture_output=True, text=True, check=True).stderr
    version = re.search(r"nginx/(\S+)", output)
    tls = re.search(r"(?:running|built) with (OpenSSL \S+)", output)
    return f"nginx {version[1] if version else '?'} ({tls[1] if tls else '?'})"


NGINX = Peer(name="nginx", title="nginx", prepare=_prepare, version=_version)
