"""What is put before the balancers: nodes, traffic and what happens to the nodes meanwhile.

A timeline is what is run; a scenario is a stretch of a timeline that is judged. Two scenarios may share a
timeline, which is then run once. Times are seconds from the first request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orca_sidecar.demo.standin import Capacity

MEAN_WORK = 0.008
"""CPU seconds of a request other than a LIST."""
SIGMA = 0.5
"""Of the logarithm of the work, which is log-normal: the 99th percentile is then 2.8 times the mean."""
CAPACITY = Capacity(inflight_limit=40, random_background=True)
"""Of a standard node: 2 virtual cores; the limit is kube-apiserver's 600, scaled down with the cores."""
CLIENTS = 60
"""Clients; each keeps its connections, and opens another one while they are busy."""
CONNECTION_SECONDS = 2.0
"""Mean life of a client's connection. kubelets and controllers keep theirs for hours: what is balanced by
connection fares better here than it would there."""


@dataclass(frozen=True)
class Node:
    """A control-plane node and its API server."""

    background: float = 0.1
    """Share of its cores that no balancer can move: controllers, the scheduler, watches."""
    capacity: Capacity = CAPACITY

    @property
    def cores(self) -> int:
        return self.capacity.cores


@dataclass(frozen=True)
class Change:
    """What happens to node number `node` at a time; None leaves a figure as it is."""

    at: float
    node: int
    background: float | None = None
    speed: float | None = None
    restart: bool = False


@dataclass(frozen=True)
class Timeline:
    """One run."""

    name: str
    seconds: float
    nodes: tuple[Node, ...]
    rate: float = 150.0
    """Requests per second other than the storm's."""
    changes: tuple[Change, ...] = ()
    balancers: int = 1
    storm: tuple[float, float] | None = None
    """From when to when LISTs come, `storm_rate` a second."""
    storm_rate: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A stretch of a timeline, from `start` to `end`. Utilization is compared from `balance_from` on (None: from
    `start`); `event` is what settling is counted from: None where there is nothing to settle."""

    name: str
    title: str
    timeline: Timeline
    start: float
    end: float
    event: float | None = None
    balance_from: float | None = None
    real: bool = True
    """False: by the model only."""


def _nodes(*background: float) -> tuple[Node, ...]:
    return tuple(Node(share) for share in background)


_COLD = 5.0
"""From being killed to being ready: three seconds until it listens, two until /readyz says yes."""

_MIB = 1 << 20
_EVEN = Node(0.1, replace(CAPACITY, random_background=False))
"""For few requests, which the noise of random background would drown."""


def _failover(name: str, at: float, seconds: float, balancers: int = 1) -> Timeline:
    """Leaders take 60 % of node 1's cores, and from `at` on of node 2's."""
    changes = (Change(at, 0, background=0.1), Change(at, 1, background=0.6))
    return Timeline(name, seconds, _nodes(0.6, 0.1, 0.1), changes=changes, balancers=balancers)


def _storm(name: str, rate: float) -> Timeline:
    """LISTs that hold memory for two seconds each, on a node that has little of it left and two that have
    more."""
    capacities = [
        replace(
            CAPACITY, memory_base=round(share * CAPACITY.memory_limit), list_memory=12 * _MIB, list_work=2.0
        )
        for share in (0.65, 0.25, 0.25)
    ]
    nodes = tuple(Node(0.05, capacity) for capacity in capacities)
    return Timeline(name, 19.0, nodes, rate=60.0, storm=(5.0, 15.0), storm_rate=rate)


_SKEWED = Timeline("leaders-30", 20.0, _nodes(0.3, 0.1, 0.1))
_FAILOVER = _failover("failover", at=16.0, seconds=30.0)
_TWO_ENVOYS = _failover("two-balancers", at=10.0, seconds=24.0, balancers=2)
_STORM = _storm("list-storm", 105.0)
_HARDER_STORM = _storm("harder-storm", 130.0)
_SLOW = Timeline("slow-node", 18.0, _nodes(0.1, 0.1, 0.1), changes=(Change(6, 0, speed=0.25),))
# No node larger than the machine may be: a sidecar takes no more cores for granted than there are.
_MIXED = Timeline(
    "mixed-sizes", 16.0, tuple(Node(0.1, replace(CAPACITY, cores=cores)) for cores in (1, 2, 2))
)
_RESTART = Timeline(
    "restart",
    20.0,
    _nodes(0.2, 0.2, 0.2),
    changes=(
        Change(4, 0, restart=True),
        Change(4, 0, background=0.5),  # watches are opened anew, caches filled
    ),
)
_LOW = Timeline("low-rate", 24.0, (_EVEN, _EVEN, _EVEN), rate=5.0)
_NINE = Timeline(
    "nine-nodes",
    30.0,
    _nodes(0.6, 0.3, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1),
    rate=450.0,
    changes=(Change(16, 0, background=0.1), Change(16, 8, background=0.6)),
)
_EIGHT_ENVOYS = _failover("eight-balancers", at=16.0, seconds=30.0, balancers=8)
_LONG = Timeline(
    "long-run",
    150.0,
    _nodes(0.5, 0.1, 0.1),
    changes=tuple(
        change
        for turn in range(1, 5)
        for change in (
            Change(30.0 * turn, (turn - 1) % 3, background=0.1),
            Change(30.0 * turn, turn % 3, background=0.5),
        )
    ),
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario("leaders-30", "leaders on one node, background 30/10/10 %", _SKEWED, 6, 20, event=0),
    Scenario("leaders-60", "leaders on one node, background 60/10/10 %", _FAILOVER, 6, 16, event=0),
    Scenario("failover", "leader failover: the 60 % jump to another node", _FAILOVER, 16, 30, event=16),
    Scenario("list-storm", "LIST storm, one node at 65 % of its memory", _STORM, 5, 19),
    Scenario("slow-node", "one node slows down to a quarter", _SLOW, 6, 18, event=6),
    Scenario("mixed-sizes", "one node of 1 core, two of 2", _MIXED, 6, 16, event=0),
    Scenario(
        "restart",
        "restart of one apiserver: cold, then ready",
        _RESTART,
        4,
        20,
        event=4 + _COLD,
        balance_from=4 + _COLD + 4,
    ),
    Scenario("low-rate", "5 requests a second on equal nodes", _LOW, 4, 24),
    Scenario("two-balancers", "leader failover with two balancers", _TWO_ENVOYS, 10, 24, event=10),
    Scenario("nine-nodes", "leader failover among nine nodes", _NINE, 16, 30, event=16, real=False),
    Scenario(
        "eight-balancers", "leader failover with eight balancers", _EIGHT_ENVOYS, 16, 30, event=16, real=False
    ),
    Scenario("harder-storm", "LIST storm a quarter above that", _HARDER_STORM, 5, 19, real=False),
    Scenario("long-run", "two and a half minutes, leaders move every 30 s", _LONG, 0, 150, real=False),
)
