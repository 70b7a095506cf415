"""The request heads of the bench (1.3 KB, as a load balancer sends for a user of kube-apiserver), and the header
work that every proxy has to do on them:

* the request header OPT_IN is removed;
* the upstream's response headers REPORT and REPORT_BINARY are removed;
* one REPORT of the proxy's own is added.

The sidecar does that as its product; the peers do it by configuration, with a constant report.
"""

from collections.abc import Sequence
from pathlib import Path

OPT_IN = "endpoint-load-metrics-request"
REPORT = "endpoint-load-metrics"
REPORT_BINARY = "endpoint-load-metrics-bin"
CONSTANT_REPORT = (
    "TEXT application_utilization=0.4286, cpu_utilization=0.3, mem_utilization=0.35, "
    "rps_fractional=210.5, eps=0"
)
UPSTREAM_REPORT = "TEXT cpu_utilization=0.4242, rps_fractional=1"
"""What both upstreams send, to be removed."""
USER = "jane@example.com"

GET_2K = "/api/v1/namespaces/kube-system/configmaps/bench-2k"
GET_64K = "/api/v1/namespaces/kube-system/configmaps/bench-64k"
GET_5M = "/api/v1/namespaces/kube-system/configmaps/bench-5m"
ECHO = "/api/v1/namespaces/kube-system/configmaps/bench-echo"
KUBE_WATCH = "/api/v1/namespaces/kube-system/configmaps?labelSelector=bench%3Dnone&watch=true"
"""On a real kube-apiserver: open, and without events."""
WATCH = "/api/v1/namespaces/kube-system/configmaps?allowWatchBookmarks=true&resourceVersion=184467&watch=true"
BODY_BYTES = {GET_2K: 2048, GET_64K: 64 * 1024, GET_5M: 5 * 1024 * 1024}

GROUPS = (
    "system:authenticated",
    "platform-engineering",
    "oidc:team-payments-developers",
    "oidc:cluster-readers",
)
_EXTRA = {
    "X-Remote-Extra-Authentication.kubernetes.io%2Fcredential-Id": "X509SHA256=" + "5f0c" * 16,
    "X-Remote-Extra-Scopes": "openid profile email groups",
}


def head(target: str, groups: Sequence[str] = GROUPS) -> str:
    """A GET as it leaves a load balancer that speaks for USER; LF line ends, about 1.3 KB."""
    lines = [
        f"GET {target} HTTP/1.1",
        "Host: control-plane.cluster.example:6443",
        "User-Agent: kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/4f1c9d3/shared-informers",
        "Accept: application/vnd.kubernetes.protobuf,application/json",
        "Accept-Encoding: gzip",
        "Audit-Id: 0b1f8a6e-7c1d-4c8a-9d53-2f6f2f0a4c77",
        "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "Tracestate: vendorname=opaqueValue-5f1a0c9e,other=t61rcWkgMzE",
        "X-Request-Id: 7f4c2d0e-6a35-4f0f-8a15-6a6f0f9f1c55",
        "X-Forwarded-For: 203.0.113.57",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: control-plane.cluster.example:6443",
        "X-Envoy-Attempt-Count: 1",
        "X-Kubernetes-Client-Request-Class: " + "workload-high-" * 15,
        f"X-Remote-User: {USER}",
        *(f"X-Remote-Group: {group}" for group in groups),
        *(f"{name}: {value}" for name, value in _EXTRA.items()),
        f"{OPT_IN}: TEXT",
    ]
    return "\n".join(lines) + "\n"


def write_head(folder: Path, target: str, name: str, groups: Sequence[str] = GROUPS) -> Path:
    path = folder / f"{name}.head"
    path.write_text(head(target, groups))
    return path
