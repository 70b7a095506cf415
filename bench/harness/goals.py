"""What the project asks of itself, each computed from one run."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.harness.runner import Results
from bench.harness.trial import DIRECT

CPU = "cpuMicroseconds"
Figure = Callable[[Results], float | None]


@dataclass(frozen=True)
class Goal:
    key: str
    title: str
    bound: float | None
    """At most; None: for information."""
    figure: Figure
    unit: str = "×"


def median(results: Results, scenario: str, subject: str, figure: str) -> float | None:
    outcome = results.get(scenario, {}).get(subject)
    return outcome.median(figure) if outcome else None


def ratio(scenario: str, figure: str, other: str, subject: str = "sidecar") -> Figure:
    def compute(results: Results) -> float | None:
        ours, theirs = (median(results, scenario, name, figure) for name in (subject, other))
        return ours / theirs if ours is not None and theirs else None

    return compute


def added(results: Results, scenario: str, subject: str, figure: str) -> float | None:
    """A latency less the direct connection's."""
    through, direct = (median(results, scenario, name, figure) for name in (subject, DIRECT))
    return through - direct if through is not None and direct is not None else None


def added_ratio(scenario: str, figure: str) -> Figure:
    def compute(results: Results) -> float | None:
        ours, theirs = (added(results, scenario, name, figure) for name in ("sidecar", "envoy"))
        return ours / theirs if ours is not None and theirs and theirs > 0 else None

    return compute


def value(scenario: str, figure: str, scale: float = 1.0) -> Figure:
    def compute(results: Results) -> float | None:
        found = median(results, scenario, "sidecar", figure)
        return found * scale if found is not None else None

    return compute


def _connection_goals() -> list[Goal]:
    return [
        Goal(
            f"connection{label}{handshake.title()}VsHaproxy",
            f"new mTLS connection, {label}, {handshake}: CPU over HAProxy's",
            1.2,
            ratio(f"connect-{kind}-{handshake}", CPU, "haproxy"),
        )
        for kind, label in (("rsa2048", "RSA"), ("p256", "P-256"))
        for handshake in ("full", "resumed")
    ]


def _latency_goals() -> list[Goal]:
    return [
        Goal(
            f"added{name.upper()}At{rate}VsEnvoy",
            f"added {name} at {rate} requests/s over Envoy's",
            0.7,
            added_ratio(f"latency-{rate}", f"{name}Microseconds"),
        )
        for rate in (200, 1000)
        for name in ("p50", "p99")
    ]


def _share_of_apiserver(results: Results) -> float | None:
    ours = median(results, "kube-get", "sidecar", CPU)
    own = median(results, "kube-get", DIRECT, "apiserverCpuMicroseconds")
    return ours / own if ours is not None and own else None


def _added_share(figure: str) -> Figure:
    """What the sidecar adds to a latency, as a share of the direct connection's."""

    def compute(results: Results) -> float | None:
        direct = median(results, "kube-latency", DIRECT, figure)
        extra = added(results, "kube-latency", "sidecar", figure)
        return extra / direct if extra is not None and direct else None

    return compute


GOALS: list[Goal] = [
    Goal("cpuPerRequestVsEnvoy", "CPU per request over Envoy's", 0.80, ratio("get-2k", CPU, "envoy")),
    Goal(
        "cpuPerRequestVsAiohttp",
        "CPU per request over the plain aiohttp proxy's",
        0.25,
        ratio("get-2k", CPU, "aiohttp"),
    ),
    Goal("watchEventVsEnvoy", "CPU per watch event over Envoy's", 1.0, ratio("watch-events", CPU, "envoy")),
    Goal(
        "bulkVsEnvoy",
        "CPU per GB of 5 MB bodies over Envoy's",
        1.2,
        ratio("body-5m", "cpuSecondsPerGigabyte", "envoy"),
    ),
    Goal(
        "memoryPerWatchVsEnvoy",
        "RSS per idle watch over Envoy's, 1,000 held",
        1.3,
        ratio("idle-1000", "kilobytesPerWatch", "envoy"),
    ),
    Goal(
        "memoryPerWatchOf10000VsEnvoy",
        "RSS per idle watch over Envoy's, 10,000 held",
        1.3,
        ratio("idle-10000", "kilobytesPerWatch", "envoy"),
    ),
    *_latency_goals(),
    *_connection_goals(),
    Goal(
        "p99WhileHolding10000",
        "p99 of 1,000 requests/s while 10,000 watches are held",
        10.0,
        value("held-10000", "p99Microseconds", 1e-3),
        "ms",
    ),
    Goal(
        "busiestOfTwoWorkers",
        "share of the busier of 2 workers, 8 connections",
        0.60,
        value("workers-2", "busiestProcessShare"),
        "",
    ),
    Goal(
        "shareOfApiserverCpu",
        "CPU per GET over what a real kube-apiserver spends on it",
        0.15,
        _share_of_apiserver,
    ),
    *(
        Goal(
            f"added{name.upper()}OfApiserver",
            f"added {name} at a real kube-apiserver, as a share of the direct connection's",
            None,
            _added_share(f"{name}Microseconds"),
            "",
        )
        for name in ("p50", "p99")
    ),
]
