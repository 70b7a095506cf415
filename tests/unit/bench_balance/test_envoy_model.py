"""Envoy's arithmetic in the model: weights from reports, and the schedule's shares."""

from collections import Counter
from random import Random

import pytest

from bench.balance.model.envoy import (
    ClientSideWeighted,
    EdfScheduler,
    LeastRequest,
    RandomPick,
    RoundRobin,
    median,
    weight_of,
)
from bench.balance.prototype import WeightFigures

PENALTY = 1.0


@pytest.mark.parametrize(
    ("rate", "utilization", "errors", "weight"),
    [
        (100.0, 0.3, 0.0, 333),
        (100.0, 0.9, 0.0, 111),
        (100.0, 0.3, 20.0, 200),  # a fifth of errors adds 0.2
        (0.2, 1.5, 0.0, 0),  # truncated; a host in use counts as 1
        (100.0, 1e-9, 0.0, (1 << 32) - 1),
        (0.0, 0.5, 0.0, None),
        (100.0, 0.0, 0.0, None),
    ],
)
def test_the_weight_of_a_report(rate: float, utilization: float, errors: float, weight: int | None) -> None:
    assert weight_of(WeightFigures(rate, utilization, errors), PENALTY) == weight


@pytest.mark.parametrize(
    ("weights", "middle"), [([], 1), ([7], 7), ([9, 1], 5), ([4, 1], 2), ([5, 100, 7], 7), ([1, 2, 3, 10], 2)]
)
def test_the_median(weights: list[int], middle: int) -> None:
    assert median(weights) == middle


@pytest.mark.parametrize("weights", [[1, 1, 1], [250, 83, 1], [33, 107, 115], [7, 7, 14, 28]])
def test_the_schedules_shares_are_the_weights(weights: list[int]) -> None:
    schedule = EdfScheduler(weights)
    rounds = 20
    picks = Counter(schedule.pick() for _ in range(rounds * sum(weights)))
    for entry, weight in enumerate(weights):
        assert picks[entry] == pytest.approx(rounds * weight, abs=2)


@pytest.mark.parametrize("picks", [1, 17, 1000, 123_456])
def test_picks_that_are_emulated_leave_the_schedule_where_real_ones_would(picks: int) -> None:
    weights = [33, 107, 115]
    emulated, real = EdfScheduler(weights, picks), EdfScheduler(weights)
    for _ in range(picks):
        real.pick()
    ahead: Counter[int] = Counter()
    for _ in range(1000):
        ahead[emulated.pick()] += 1
        ahead[real.pick()] -= 1
        # Deadlines that are equal but for rounding may come in either order.
        assert all(abs(difference) <= 1 for difference in ahead.values())


def test_equal_weights_are_served_in_turn() -> None:
    policy = RoundRobin(3, Random(1))
    first, second, third, *rest = [policy.pick() for _ in range(9)]
    assert {first, second, third} == {0, 1, 2}
    assert rest == [first, second, third] * 2


def test_an_unhealthy_host_gets_nothing_unless_all_are() -> None:
    policy = RandomPick(3, Random(1))
    policy.set_healthy(1, False)
    assert {policy.pick() for _ in range(100)} == {0, 2}
    policy.set_healthy(0, False)
    policy.set_healthy(2, False)
    assert {policy.pick() for _ in range(100)} == {0, 1, 2}
    policy.set_healthy(2, True)
    assert {policy.pick() for _ in range(100)} == {2}


def test_least_request_takes_the_less_loaded_of_two() -> None:
    policy = LeastRequest(2, Random(1))
    for _ in range(5):
        policy.started(0)
    picks = Counter(policy.pick() for _ in range(4000))
    assert picks[0] == pytest.approx(1000, rel=0.1)  # only when both draws fall on it


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def weighted(clock: Clock) -> ClientSideWeighted:
    return ClientSideWeighted(3, Random(1), clock, blackout=1.0, expiration=30.0, error_penalty=PENALTY)


def report(policy: ClientSideWeighted, host: int, weight: int) -> None:
    policy.report(host, WeightFigures(float(weight), 1.0, 0.0))


def test_weights_count_after_the_blackout_and_the_others_get_the_median() -> None:
    clock = Clock()
    policy = weighted(clock)
    report(policy, 0, 100)
    report(policy, 1, 300)
    clock.now = 0.9
    policy.update()
    assert policy.weights() == (1, 1, 1)
    clock.now = 1.0
    policy.update()
    assert policy.weights() == (100, 300, 200)
    picks = Counter(policy.pick() for _ in range(600))
    assert [picks[host] for host in range(3)] == pytest.approx([100, 300, 200], abs=2)


def test_a_weight_expires_and_needs_the_blackout_again() -> None:
    clock = Clock()
    policy = weighted(clock)
    for host, weight in enumerate((100, 300, 500)):
        report(policy, host, weight)
    clock.now = 20.0
    report(policy, 1, 400)
    report(policy, 2, 500)
    clock.now = 30.5
    policy.update()
    assert policy.weights() == (450, 400, 500)
    report(policy, 0, 10)
    policy.update()
    assert policy.weights() == (450, 400, 500)
    clock.now = 31.5
    policy.update()
    assert policy.weights() == (10, 400, 500)


def test_a_starved_host_keeps_a_weight_of_one() -> None:
    clock = Clock()
    policy = weighted(clock)
    policy.report(0, WeightFigures(0.2, 1.5, 0.0))
    report(policy, 1, 100)
    report(policy, 2, 100)
    clock.now = 1.0
    policy.update()
    assert policy.weights() == (1, 100, 100)
