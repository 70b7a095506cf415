"""Watches: streamed responses without end. What an event costs, what an idle watch weighs, and whether requests still
flow while thousands are held."""

import time
from collections.abc import Callable, Mapping

from bench.harness.accounting import rss_bytes
from bench.harness.process import BenchError
from bench.harness.traffic import BODY_BYTES, GET_2K, WATCH
from bench.harness.trial import Scenario, Trial
from bench.parts.requests import ALL, FAST

STREAMS = 1_000
_RATE = 10.0


def _events(seconds: float) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        with trial.load("watch", WATCH, connections=STREAMS, duration=seconds) as load:
            load.ready()
            time.sleep(0.5)  # two or more bursts of warm-up
            with trial.window() as window:
                result = load.run()
        expected = STREAMS * trial.scenario.event_rate * seconds
        if abs(result.events - expected) > 0.1 * expected:
            raise BenchError(f"{result.events} events arrived instead of about {expected:.0f}")
        return {
            "cpuMicroseconds": window.cpu_ns / 1e3 / result.events,
            "p50Microseconds": result.p50,
            "p99Microseconds": result.p99,
        }

    return trial


def events(quick: bool) -> list[Scenario]:
    return [
        Scenario(
            name="watch-events",
            title=f"events of 1 KB to {STREAMS} watches at once, {_RATE:g} times a second",
            subjects=("envoy", "sidecar") if quick else FAST,
            trial=_events(2.0 if quick else 5.0),
            unit="CPU µs per event",
            repeats=1 if quick else 3,
            upstream="watches",
            event_rate=_RATE,
        )
    ]


def _idle(wanted: int) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        assert trial.program is not None
        count = min(wanted, trial.max_watches)
        with trial.load("closed", GET_2K, connections=16, warm_up=200, requests=1) as load:
            load.ready()  # code paths and pools are warm: what follows is the watches' own
            load.run()
        before = rss_bytes(trial.program.pids())
        with trial.load("watch", WATCH, connections=count, duration=0.1, deadline=240) as load:
            load.ready()
            time.sleep(1.0)
            with trial.window():
                load.run()
            during = rss_bytes(trial.program.pids())
        return {"kilobytesPerWatch": (during - before) / 1024 / count, "watches": count}

    return trial


def idle(quick: bool) -> list[Scenario]:
    """The larger count is bounded by the machine's limit of open files: a proxy needs two for a watch."""
    if quick:
        return []
    return [
        Scenario(
            name=f"idle-{count}",
            title=f"memory of an idle watch, {count} held",
            subjects=ALL if count <= STREAMS else ("envoy", "haproxy", "nginx", "sidecar"),
            trial=_idle(count),
            unit="KB RSS per watch",
            repeats=3 if count <= STREAMS else 1,
            upstream="watches",
        )
        for count in (1_000, 10_000)
    ]


def _held(wanted: int, rate: int, seconds: float) -> Callable[[Trial], Mapping[str, float]]:
    def trial(trial: Trial) -> Mapping[str, float]:
        count = min(wanted, trial.max_watches - 64)
        with trial.load("watch", WATCH, connections=count, duration=0.1, deadline=240) as watches:
            watches.ready()
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
            watches.run()  # none was cut meanwhile
        return {
            "p99Microseconds": result.p99,
            "p50Microseconds": result.p50,
            "cpuMicroseconds": window.cpu_ns / 1e3 / result.responses,
            "watches": count,
        }

    return trial


def held(quick: bool) -> list[Scenario]:
    if quick:
        return []
    return [
        Scenario(
            name="held-10000",
            title="1,000 requests/s while 10,000 idle watches are held",
            subjects=("envoy", "sidecar"),
            trial=_held(10_000, 1_000, 6.0),
            unit="p99 µs",
            repeats=1,
            upstream="watches",
        )
    ]
