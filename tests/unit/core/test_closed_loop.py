"""The figures in a closed loop with a balancer that weights by rate / utilization: where it settles, how
soon, and calmly.

A model without chance: three nodes, 150 requests a second of 8 ms on 2 cores each, beside what else the
nodes do. The balancer shares the requests by whole-number weights of at least 1, renewed every half second,
as Envoy's client_side_weighted_round_robin does.
"""

from collections.abc import Callable, Sequence

import pytest

from orca_sidecar.core.smoothing import Smoother, SmoothingPolicy, UtilizationFormula, floored_rate

STEP = 0.1
CORES = 2
SECONDS_PER_REQUEST = 0.008
FLOOR = 2.0

Background = Callable[[float], Sequence[float]]


def run(
    background: Background, seconds: float, rate: float = 150.0, update: float = 0.5
) -> list[list[float]]:
    """Each node's true utilization, step by step."""
    formula = UtilizationFormula()
    nodes = len(background(0.0))
    smoothers = [Smoother(SmoothingPolicy(), 1) for _ in range(nodes)]
    weights = [1] * nodes
    history = []
    for step in range(int(seconds / STEP)):
        now = step * STEP
        rates = [rate * weight / sum(weights) for weight in weights]
        busy = [
            other + own * SECONDS_PER_REQUEST / CORES
            for other, own in zip(background(now), rates, strict=True)
        ]
        history.append(busy)
        reported = [
            smoother.update(STEP, own, [min(u, 1.0)])
            for smoother, own, u in zip(smoothers, rates, busy, strict=True)
        ]
        if step % round(update / STEP) == 0:
            weights = [max(int(floored_rate(own, FLOOR) / formula(cpu, 0, 0)), 1) for own, cpu in reported]
    return history


def unevenness(utilizations: Sequence[float]) -> float:
    """The largest over the mean; 1 is even."""
    return max(utilizations) / (sum(utilizations) / len(utilizations))


@pytest.mark.parametrize(
    ("background", "possible"),
    [
        ((0.1, 0.1, 0.1), 1.0),
        ((0.3, 0.1, 0.1), 1.0),
        ((0.6, 0.1, 0.1), 0.6 / (1.4 / 3)),  # node 0 is above the mean with no request at all
    ],
)
def test_it_settles_at_the_most_even_split_there_is(background: tuple[float, ...], possible: float) -> None:
    history = run(lambda now: background, 60)
    assert unevenness(history[-1]) <= possible * 1.02


def test_a_load_that_jumps_to_another_node_is_followed_within_seconds_and_without_swinging() -> None:
    jump = 30.0
    history = run(lambda now: (0.6, 0.1, 0.1) if now < jump else (0.1, 0.6, 0.1), 90)
    best = 0.6 / (1.4 / 3)
    after = [unevenness(busy) for busy in history[int(jump / STEP) :]]
    settled = next(index for index, value in enumerate(after) if value <= best * 1.05)
    assert settled * STEP <= 6
    # From then on it stays: no node is loaded and unloaded in turn.
    assert max(after[settled:]) <= best * 1.12
    assert max(after[-200:]) <= best * 1.02


def test_a_starved_node_keeps_reporting_and_takes_load_again() -> None:
    history = run(lambda now: (0.9, 0.1, 0.1) if now < 30 else (0.1, 0.1, 0.1), 60)
    starved = history[290][0]
    assert starved == pytest.approx(0.9, abs=0.01)
    assert unevenness(history[-1]) <= 1.02


@pytest.mark.parametrize("update", [0.1, 0.5, 1.0, 2.0])
def test_the_balancers_interval_makes_no_swing(update: float) -> None:
    history = run(lambda now: (0.4, 0.1, 0.1) if now < 10 else (0.1, 0.4, 0.1), 90, update=update)
    late = [unevenness(busy) for busy in history[-200:]]
    # Node 1 is at the others' level by its background alone: there the floor of its rate is all that it gets.
    assert max(late) <= 1.05
    assert max(late) - min(late) <= 0.02
