"""Requests on kept-alive connections: CPU per request, bulk bodies, added latency, workers."""

from collections.abc import Callable, Mapping

from bench.harness.accounting import Window
from bench.harness.loadgen import LoadResult
from bench.harness.traffic import BODY_BYTES, GET_2K, GET_5M, GET_64K
from bench.harness.trial import DIRECT, Scenario, Trial

CONNECTIONS = 48
ALL = ("envoy", "haproxy", "nginx", "aiohttp", "aiohttp-uvloop", "mitmproxy", "sidecar")
QUICK = ("envoy", "haproxy", "aiohttp", "sidecar")
FAST = ("envoy", "haproxy", "nginx", "aiohttp-uvloop", "sidecar")


def _per_request(window: Window, result: LoadResult) -> dict[str, float]:
    return {
        "cpuMicroseconds": window.cpu_ns / 1e3 / result.responses,
        "requestsPerSecond": result.responses / result.seconds,
        "p50Microseconds": result.p50,
        "p99Microseconds": result.p99,
    }


def _closed(
    target: str, requests: int, connections: int, warm_up: int
) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        with trial.load(
            "closed",
            target,
            connections=connections,
            warm_up=trial.scaled(warm_up),
            requests=trial.scaled(requests),
            length=BODY_BYTES[target],
        ) as load:
            load.ready()
            with trial.window() as window:
                result = load.run()
        figures = _per_request(window, result)
        if target != GET_2K:
            per_gigabyte = window.cpu_ns / result.body_bytes  # ns a byte = s a GB
            figures = {"cpuSecondsPerGigabyte": per_gigabyte, **figures}
        return figures

    return trial


def small_get(quick: bool) -> list[Scenario]:
    requests, warm_up = (10_000, 3_000) if quick else (25_000, 5_000)
    return [
        Scenario(
            name="get-2k",
            title=f"GET of 2 KB, {CONNECTIONS} connections, closed loop",
            subjects=QUICK if quick else ALL,
            trial=_closed(GET_2K, requests, CONNECTIONS, warm_up),
            unit="CPU µs per request",
            repeats=3 if quick else 5,
        )
    ]


def bodies(quick: bool) -> list[Scenario]:
    large = Scenario(
        name="body-5m",
        title="bodies of 5 MB, 8 connections",
        subjects=("envoy", "haproxy", "sidecar") if quick else ALL,
        trial=_closed(GET_5M, 100 if quick else 200, 8, 20),
        unit="CPU s per GB",
        repeats=1 if quick else 3,
    )
    if quick:
        return [large]
    medium = Scenario(
        name="body-64k",
        title=f"bodies of 64 KB, {CONNECTIONS} connections",
        subjects=ALL,
        trial=_closed(GET_64K, 10_000, CONNECTIONS, 1_000),
        unit="CPU s per GB",
    )
    return [medium, large]


def _open(rate: int, seconds: float) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        with trial.load(
            "open",
            GET_2K,
            connections=16,
            warm_up=500,
            rate=rate,
            duration=seconds,
            length=BODY_BYTES[GET_2K],
        ) as load:
            load.ready()
            with trial.window() as window:
                result = load.run()
        return {
            "p50Microseconds": result.p50,
            "p99Microseconds": result.p99,
            "cpuMicroseconds": window.cpu_ns / 1e3 / result.responses,
        }

    return trial


def latency(quick: bool) -> list[Scenario]:
    """The added latency is a proxy's quantile less the direct connection's, from the same rounds."""
    subjects = (DIRECT, "envoy", "sidecar") if quick else (DIRECT, *ALL)
    return [
        Scenario(
            name=f"latency-{rate}",
            title=f"{rate} requests/s, open loop, 16 connections",
            subjects=subjects,
            trial=_open(rate, 3.0 if quick else seconds),
            unit="µs",
            repeats=1 if quick else 5,
        )
        for rate, seconds in (((1000, 3.0),) if quick else ((200, 10.0), (1000, 6.0)))
    ]


def _shared_out(requests: int) -> Callable[[Trial], Mapping[str, float]]:
    """As a load balancer calls: few connections. Also how evenly the processes shared the work."""

    def trial(trial: Trial) -> Mapping[str, float]:
        with trial.load(
            "closed",
            GET_2K,
            connections=8,
            warm_up=trial.scaled(4_000),
            requests=trial.scaled(requests),
            length=BODY_BYTES[GET_2K],
        ) as load:
            load.ready()
            with trial.window() as window:
                result = load.run()
        figures = _per_request(window, result)
        serving = sorted(window.cpu_ns_by_pid.values(), reverse=True)[: trial.scenario.workers]
        if len(serving) == trial.scenario.workers > 1:
            figures["busiestProcessShare"] = serving[0] / sum(serving)
        return figures

    return trial


def workers(quick: bool) -> list[Scenario]:
    if quick:
        return []
    return [
        Scenario(
            name=f"workers-{count}",
            title=f"workers: {count}, GET of 2 KB, 8 connections, closed loop, CPUs shared by all",
            subjects=("envoy", "haproxy", "nginx", "sidecar"),
            trial=_shared_out(25_000),
            unit="CPU µs per request",
            workers=count,
            pinned=False,
        )
        for count in (1, 2)
    ]
