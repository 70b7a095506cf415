"""From a trace to the figures that are compared.

Utilization is CPU seconds used over those there were. To judge how a balancer divides the load, requests
are counted instead, each as the mean work: the dice of single requests are not the balancer's doing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .scenarios import MEAN_WORK, Change, Scenario, Timeline
from .trace import OK, TOO_MANY, Outcome, Sample, Trace

WINDOW = 2.0
"""Seconds: what is called settled holds for means of this length."""
TOLERANCE = 0.05
"""Settled: no node's mean utilization is further from the best possible one."""
HOLD = 5.0
"""Seconds for which it must stay so."""
STEP = 0.25


@dataclass(frozen=True)
class Measures:
    """Of one scenario in one run; times in seconds."""

    max_over_mean: float
    """Of the nodes' utilizations over the scenario's stretch."""
    utilization: tuple[float, ...]
    share: tuple[float, ...]
    """Of the requests."""
    p50: float
    p99: float
    rejected: int
    """Answered 429."""
    failed: int
    """Answered otherwise than 200 and 429, or not at all."""
    failures: tuple[tuple[int, int], ...]
    """The failed ones: (status, how many); status 0: no answer."""
    kills: int
    settle: float | None
    """From the event to the end of the first window from which on it is settled; None: never, or no event."""
    swing: float | None
    """Half the peak-to-peak of the utilization's distance from the best possible one, after settling."""
    sent: int

    def to_json(self) -> dict[str, object]:
        return {name: _rounded(value) for name, value in asdict(self).items()}


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, tuple):
        return [_rounded(item) for item in value]
    return value


def measure(scenario: Scenario, trace: Trace) -> Measures:
    """Judge the stretch of the trace that the scenario is about."""
    timeline, start, end = scenario.timeline, scenario.start, scenario.end
    inside = [outcome for outcome in trace.outcomes if start <= outcome.at < end]
    served = latencies(scenario, trace)
    counts = [0] * len(timeline.nodes)
    for outcome in inside:
        if outcome.node >= 0:
            counts[outcome.node] += 1
    balance_from = start if scenario.balance_from is None else scenario.balance_from
    utilization = utilizations(timeline, trace.samples, balance_from, end)
    rejected = sum(outcome.status == TOO_MANY for outcome in inside)
    settle, swing = _settling(scenario, trace)
    return Measures(
        max_over_mean=max_over_mean(utilization),
        utilization=utilization,
        share=tuple(count / max(sum(counts), 1) for count in counts),
        p50=percentile(served, 0.5),
        p99=percentile(served, 0.99),
        rejected=rejected,
        failed=len(inside) - len(served) - rejected,
        failures=_failures(inside),
        kills=sum(start <= kill.at < end for kill in trace.kills),
        settle=settle,
        swing=swing,
        sent=len(inside),
    )


def _failures(outcomes: Sequence[Outcome]) -> tuple[tuple[int, int], ...]:
    statuses = Counter(outcome.status for outcome in outcomes)
    return tuple(
        sorted((status, count) for status, count in statuses.items() if status not in (OK, TOO_MANY))
    )


def latencies(scenario: Scenario, trace: Trace) -> list[float]:
    """Seconds, of the successful requests of the stretch, in rising order."""
    return sorted(
        outcome.latency
        for outcome in trace.outcomes
        if scenario.start <= outcome.at < scenario.end and outcome.status == OK
    )


def max_over_mean(utilization: Sequence[float]) -> float:
    mean = sum(utilization) / len(utilization)
    return max(utilization) / mean if mean else 1.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def utilizations(
    timeline: Timeline, samples: Sequence[Sample], start: float, end: float
) -> tuple[float, ...]:
    """Means of every node between two times, by interpolating its CPU counter."""
    first, last = _counters(samples, start), _counters(samples, end)
    return tuple(
        (after - before) / ((end - start) * node.cores)
        for before, after, node in zip(first, last, timeline.nodes, strict=True)
    )


def _counters(samples: Sequence[Sample], at: float) -> tuple[float, ...]:
    index = bisect_left(samples, at, key=lambda sample: sample.at)
    after = samples[min(index, len(samples) - 1)]
    before = samples[max(min(index, len(samples) - 1) - 1, 0)]
    if after.at <= before.at:
        return after.cpu_seconds
    part = (min(at, after.at) - before.at) / (after.at - before.at)
    return tuple(a + (b - a) * part for a, b in zip(before.cpu_seconds, after.cpu_seconds, strict=True))


# -- settling ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Of a node at a time: what its cores can do, in standard cores, and how much of that is taken."""

    capacity: float
    background: float
    """Utilization without any request."""


def best_split(states: Sequence[State], work: float) -> list[float]:
    """The utilizations when `work` (standard cores) is divided so that the busiest node is the least busy.

    Water-filling: nodes whose background lies above the level get nothing.
    """
    used = [node for node in states if node.capacity > 0]
    level = max((node.background for node in used), default=0.0)
    for node in sorted(used, key=lambda node: -node.background):
        below = [other for other in used if other.background <= node.background]
        room = sum(other.capacity for other in below)
        level = (work + sum(other.background * other.capacity for other in below)) / room
        if len(below) == 1 or level >= node.background:
            break
    return [max(level, node.background) if node.capacity > 0 else 0.0 for node in states]


def deviations(timeline: Timeline, trace: Trace, at: float) -> list[float]:
    """How far every node's mean over the WINDOW up to `at` lies above the best split of the load that came."""
    factor = timeline.nodes[0].capacity.list_work
    work = [0.0] * len(timeline.nodes)
    first = bisect_left(trace.outcomes, at - WINDOW, key=lambda outcome: outcome.at)
    for outcome in trace.outcomes[first:]:
        if outcome.at >= at:
            break
        if outcome.node >= 0 and outcome.status == OK:
            work[outcome.node] += MEAN_WORK * (factor if outcome.is_list else 1.0) / WINDOW
    states = [state_at(timeline, number, at) for number in range(len(timeline.nodes))]
    best = best_split(states, sum(work))
    return [
        state.background + done / state.capacity - wanted if state.capacity else 0.0
        for state, done, wanted in zip(states, work, best, strict=True)
    ]


def state_at(timeline: Timeline, number: int, at: float) -> State:
    """As it is just before `at`: settling is asked only of windows in which nothing changes."""
    node = timeline.nodes[number]
    background, speed = node.background, 1.0
    for change in timeline.changes:
        if change.node == number and change.at < at:
            background = background if change.background is None else change.background
            speed = speed if change.speed is None else change.speed
    return State(node.cores * speed, background / speed)


def _settling(scenario: Scenario, trace: Trace) -> tuple[float | None, float | None]:
    if scenario.event is None:
        return None, None
    event, end = scenario.event, _next_change(scenario)
    times = [event + WINDOW + STEP * step for step in range(int((end - event - WINDOW) / STEP) + 1)]
    series = [deviations(scenario.timeline, trace, at) for at in times]
    settled_at: int | None = None
    for index in range(len(times) - 1, -1, -1):
        held = [late for late, at in enumerate(times) if index <= late and at <= times[index] + HOLD]
        if all(abs(deviation) <= TOLERANCE for late in held for deviation in series[late]):
            settled_at = index
    if settled_at is None or times[-1] - times[settled_at] < HOLD / 2:
        return None, None
    rest = series[settled_at:]
    swing = max((max(node) - min(node)) / 2 for node in zip(*rest, strict=True))
    return times[settled_at] - event, swing


def _next_change(scenario: Scenario) -> float:
    """The end of what settling is asked of: the scenario's, or a later change's time."""
    event = scenario.event or 0.0
    later = (change.at for change in _changes_after(scenario.timeline.changes, event))
    return min([scenario.end, *later])


def _changes_after(changes: Sequence[Change], at: float) -> list[Change]:
    return [change for change in changes if change.at > at]
