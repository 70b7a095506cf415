"""What is judged, on traces made by hand."""

from dataclasses import replace

import pytest

from bench.balance.measures import State, best_split, measure, utilizations
from bench.balance.scenarios import MEAN_WORK, Change, Node, Scenario, Timeline
from bench.balance.trace import BAD_GATEWAY, OK, TOO_MANY, Kill, Outcome, Sample, Trace

NODE = Node(0.1)
TIMELINE = Timeline("hand-made", 20.0, (NODE, NODE), rate=100.0)
SCENARIO = Scenario("hand-made", "", TIMELINE, 0, 20, event=0)


@pytest.mark.parametrize(
    ("background", "capacity", "work", "best"),
    [
        ((0.1, 0.1, 0.1), (2, 2, 2), 1.2, (0.3, 0.3, 0.3)),
        ((0.6, 0.1, 0.1), (2, 2, 2), 1.2, (0.6, 0.4, 0.4)),
        ((0.3, 0.1, 0.1), (2, 2, 2), 1.2, (11 / 30,) * 3),
        ((0.1, 0.1, 0.1), (1, 2, 4), 1.4, (0.3, 0.3, 0.3)),
        ((0.6, 0.5, 0.1), (2, 2, 2), 0.2, (0.6, 0.5, 0.2)),
        ((0.2, 0.1), (0, 2), 0.4, (0.0, 0.3)),  # one is down
    ],
)
def test_the_best_split_fills_the_least_busy_first(
    background: tuple[float, ...], capacity: tuple[float, ...], work: float, best: tuple[float, ...]
) -> None:
    states = [State(*pair) for pair in zip(capacity, background, strict=True)]
    assert best_split(states, work) == pytest.approx(best)


def traffic(timeline: Timeline, share: list[float], start: float = 0.0, end: float = 20.0) -> list[Outcome]:
    """Evenly spaced; node 0 gets its share of every ten requests, node 1 the others."""
    outcomes = []
    for number in range(round(start * timeline.rate), round(end * timeline.rate)):
        node = 0 if number % 10 < round(share[0] * 10) else 1
        outcomes.append(Outcome(number / timeline.rate, False, node, OK, 0.010))
    return outcomes


def counters(*cores_busy: float) -> list[Sample]:
    times = [step / 4 for step in range(81)]
    return [Sample(at, tuple(busy * at for busy in cores_busy), (0.0, 0.0), (1.0, 1.0)) for at in times]


def test_utilization_is_interpolated_between_samples() -> None:
    assert utilizations(TIMELINE, counters(0.5, 1.5), 1.1, 9.3) == pytest.approx((0.25, 0.75))


def test_the_figures_of_a_run() -> None:
    outcomes = traffic(TIMELINE, [0.5, 0.5])
    outcomes[10] = outcomes[10]._replace(latency=0.5)
    outcomes[11] = outcomes[11]._replace(status=TOO_MANY)
    outcomes[12] = outcomes[12]._replace(status=BAD_GATEWAY)
    outcomes[13] = outcomes[13]._replace(status=0, node=-1)
    trace = Trace(outcomes, counters(0.5, 1.5), [Kill(3.0, 0), Kill(4.0, 0)])
    figures = measure(SCENARIO, trace)
    assert figures.sent == 2000
    assert (figures.rejected, figures.failed, figures.kills) == (1, 2, 2)
    assert figures.failures == ((0, 1), (BAD_GATEWAY, 1))
    assert figures.max_over_mean == pytest.approx(1.5)
    assert figures.share == pytest.approx((0.5, 0.5), abs=0.002)
    assert (figures.p50, figures.p99) == (0.010, 0.010)
    assert measure(replace(SCENARIO, start=0.05, end=0.12), trace).p99 == 0.5


def test_an_even_split_is_settled_at_once_and_calm() -> None:
    figures = measure(SCENARIO, Trace(traffic(TIMELINE, [0.5, 0.5]), counters(0.6, 0.6)))
    assert figures.settle == 2.0  # the length of the first window
    assert figures.swing == pytest.approx(0.0, abs=0.002)


def test_settling_is_counted_from_the_event_to_the_end_of_the_first_good_window() -> None:
    uneven = [0.9, 0.1]  # 16 points from the best split at 0.4 of a core
    outcomes = traffic(TIMELINE, uneven, 0, 8) + traffic(TIMELINE, [0.5, 0.5], 8, 20)
    figures = measure(replace(SCENARIO, event=5.0), Trace(outcomes, counters(0.6, 0.6)))
    # Of the window, so much may still be from before: 5 points of 16 over 2 s.
    per_request = MEAN_WORK / (2 * NODE.cores)
    tolerated = 0.05 / (0.4 * TIMELINE.rate * per_request)
    assert figures.settle == pytest.approx(8 - 5 + 2 - tolerated, abs=0.26)


def test_what_never_settles() -> None:
    figures = measure(SCENARIO, Trace(traffic(TIMELINE, [0.9, 0.1]), counters(0.6, 0.6)))
    assert figures.settle is None
    assert figures.swing is None


def test_swing_is_half_of_what_the_utilization_moves_after_settling() -> None:
    outcomes = traffic(TIMELINE, [0.5, 0.5], 0, 10) + traffic(TIMELINE, [0.6, 0.4], 10, 20)
    figures = measure(SCENARIO, Trace(outcomes, counters(0.6, 0.6)))
    moved = 0.1 * TIMELINE.rate * MEAN_WORK / NODE.cores
    assert figures.settle == 2.0
    assert figures.swing == pytest.approx(moved / 2, abs=0.002)


def test_a_change_moves_the_best_split() -> None:
    timeline = replace(TIMELINE, changes=(Change(10.0, 0, background=0.3),))
    scenario = replace(SCENARIO, timeline=timeline, start=10, event=10.0)
    outcomes = traffic(timeline, [0.5, 0.5], 0, 10) + traffic(timeline, [0.2, 0.8], 10, 20)
    # Of 0.8 cores of work and 0.3/0.1 background the best is 0.4 each: 0.2 and 0.6 cores of requests.
    figures = measure(scenario, Trace(outcomes, counters(0.8, 0.8)))
    assert figures.settle == pytest.approx(2.0, abs=0.5)
