"""Who is compared: a balancer with one of its algorithms, and the report that it listens to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Balancer(Enum):
    ENVOY = "envoy"
    HAPROXY = "haproxy"
    AGENTGATEWAY = "agentgateway"


class Report(Enum):
    """What the nodes tell."""

    NONE = "none"
    PROTOTYPE = "prototype"
    """KEP-6315's prototype: the peer, no part of the product."""
    OURS = "ours"


@dataclass(frozen=True)
class Policy:
    """`algorithm` in the balancer's own words."""

    name: str
    title: str
    balancer: Balancer
    algorithm: str
    report: Report = Report.NONE
    out_of_band: bool = False
    real: bool = True
    """False: by the model only."""

    @property
    def ours(self) -> bool:
        return self.report is Report.OURS


_WEIGHTED = "client_side_weighted_round_robin"

POLICIES: tuple[Policy, ...] = (
    Policy("round-robin", "Envoy ROUND_ROBIN", Balancer.ENVOY, "round_robin"),
    Policy("random", "Envoy RANDOM", Balancer.ENVOY, "random"),
    Policy("least-request", "Envoy LEAST_REQUEST", Balancer.ENVOY, "least_request"),
    Policy("prototype", "Envoy weighted, KEP-6315 prototype", Balancer.ENVOY, _WEIGHTED, Report.PROTOTYPE),
    Policy("ours", "Envoy weighted, orca-sidecar in band", Balancer.ENVOY, _WEIGHTED, Report.OURS),
    Policy(
        "ours-oob", "Envoy weighted, orca-sidecar out of band", Balancer.ENVOY, _WEIGHTED, Report.OURS, True
    ),
    Policy("haproxy-roundrobin", "HAProxy roundrobin (L4)", Balancer.HAPROXY, "roundrobin"),
    Policy("haproxy-leastconn", "HAProxy leastconn (L4)", Balancer.HAPROXY, "leastconn"),
    Policy(
        "haproxy-agent", "HAProxy agent-check (L4), orca-sidecar", Balancer.HAPROXY, "roundrobin", Report.OURS
    ),
    Policy("agentgateway", "agentgateway's scorer", Balancer.AGENTGATEWAY, "score", real=False),
)

BASELINE = "round-robin"
