"""The filter and the formula: their values at known points, and finite for whatever comes in."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.core.smoothing import (
    Smoother,
    SmoothingPolicy,
    UtilizationFormula,
    floored_rate,
    headroom_cost,
)

PLAIN = SmoothingPolicy(time_constant=1.0, requests=0.0)
any_float = st.floats(allow_nan=True, allow_infinity=True)


class TestSmoother:
    def test_a_step_moves_by_one_minus_exp_of_dt_over_tau(self) -> None:
        smoother = Smoother(PLAIN, 1)
        for _ in range(1000):
            smoother.update(0.1, 0.0, [0.0])
        rate, cpu = smoother.update(0.5, 100.0, [1.0])
        assert rate == pytest.approx(100 * (1 - math.exp(-0.5)))
        assert cpu == pytest.approx(1 - math.exp(-0.5))

    def test_one_long_step_equals_many_short_ones(self) -> None:
        one, many = Smoother(PLAIN, 0), Smoother(PLAIN, 0)
        for smoother in (one, many):
            smoother.update(3.0, 5.0, [])
        for dt in (0.01, 0.3, 0.09, 0.6):
            many.update(dt, 80.0, [])
        assert one.update(1.0, 80.0, [])[0] == pytest.approx(many.update(0.0, 80.0, [])[0])

    def test_rate_and_utilization_keep_their_ratio_while_the_load_changes(self) -> None:
        smoother = Smoother(SmoothingPolicy(), 1)
        source = random.Random(7)
        for _ in range(200):
            rate = source.uniform(0, 300)
            smoothed, cpu = smoother.update(source.uniform(0.01, 0.4), rate, [rate * 0.004])
            assert cpu / smoothed == pytest.approx(0.004)

    def test_early_values_are_averaged_and_none_is_a_starting_point(self) -> None:
        smoother = Smoother(SmoothingPolicy(requests=0.0, time_constant=1000.0), 0)
        smoother.update(0.1, 10.0, [])
        assert smoother.update(0.1, 20.0, [])[0] == pytest.approx(15.0, rel=1e-3)

    def test_without_smoothing_the_last_value_is_reported(self) -> None:
        smoother = Smoother(SmoothingPolicy(time_constant=0.0, requests=0.0), 0)
        smoother.update(0.1, 10.0, [])
        assert smoother.update(0.1, 20.0, []) == (20.0,)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
    def test_an_unusable_step_is_left_out_whole(self, bad: float) -> None:
        smoother = Smoother(SmoothingPolicy(), 1)
        before = smoother.update(0.1, 10.0, [0.5])
        assert smoother.update(0.1, bad, [0.9]) == before
        assert smoother.update(0.1, 20.0, [bad]) == before
        assert smoother.update(bad, 20.0, [0.9]) == before
        assert smoother.update(0.0, 20.0, [0.9]) == before
        assert smoother.update(0.1, 20.0, [0.9]) != before

    @given(
        st.lists(st.tuples(any_float, any_float, any_float), max_size=30),
        st.floats(0, 100),
        st.floats(0, 1e6),
        st.floats(0, 1e6),
    )
    def test_finite_and_not_negative_whatever_comes_in(
        self, steps: list[tuple[float, float, float]], tau: float, requests: float, at_most: float
    ) -> None:
        smoother = Smoother(SmoothingPolicy(tau, requests, at_most), 1)
        for rate, cpu, seconds in steps:
            for value in smoother.update(seconds, rate, [cpu]):
                assert math.isfinite(value)
                assert value >= 0

    @given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 60)), min_size=1, max_size=30))
    def test_never_outside_what_was_seen(self, steps: list[tuple[float, float]]) -> None:
        smoother = Smoother(SmoothingPolicy(), 0)
        for rate, seconds in steps:
            (smoothed,) = smoother.update(seconds, rate, [])
        rates = [rate for rate, _ in steps]
        assert min(rates) * (1 - 1e-9) - 1e-9 <= smoothed <= max(rates) * (1 + 1e-9) + 1e-9


class TestAverageAtLeast:
    def test_grows_until_about_ten_requests_are_averaged_and_ends_at_most(self) -> None:
        policy = SmoothingPolicy(1.0, 10.0, 10.0)
        assert [policy.time_constant_at(rate) for rate in (100, 10, 5, 2, 1, 0.1, 0)] == [
            1,
            1,
            2,
            5,
            10,
            10,
            10,
        ]

    def test_never_below_the_configured_time_constant(self) -> None:
        assert SmoothingPolicy(20.0, 10.0, 10.0).time_constant_at(0.0) == 20.0

    def test_a_burst_after_quiet_shortens_it_again(self) -> None:
        smoother = Smoother(SmoothingPolicy(), 0)
        for _ in range(600):
            smoother.update(0.1, 0.0, [])
        for _ in range(30):
            (rate,) = smoother.update(0.1, 150.0, [])
        assert rate > 0.9 * 150  # 3 s later; a 10 s constant would be at 39

    def test_a_starved_node_that_became_free_says_so_at_once(self) -> None:
        smoother = Smoother(SmoothingPolicy(), 1)
        for _ in range(600):
            smoother.update(0.1, 0.5, [0.6])
        for _ in range(30):
            _, cpu = smoother.update(0.1, 0.5, [0.1])
        assert cpu < 0.16  # 3 s later; a 10 s constant would be at 0.47

    def test_the_spread_of_a_slow_poisson_stream_shrinks(self) -> None:
        def spread(policy: SmoothingPolicy) -> float:
            source = random.Random(11)
            smoother = Smoother(policy, 0)
            rates = []
            for _ in range(20_000):
                arrivals = sum(source.random() < 0.05 for _ in range(10))  # about 5 a second
                rates.append(smoother.update(0.1, arrivals / 0.1, [])[0])
            rates = rates[200:]
            mean = sum(rates) / len(rates)
            assert mean == pytest.approx(5.0, rel=0.12)
            return math.sqrt(sum((rate - mean) ** 2 for rate in rates) / len(rates)) / mean

        assert spread(SmoothingPolicy()) < 0.75 * spread(PLAIN)


class TestFormula:
    def test_headroom_cost_at_known_points(self) -> None:
        assert [headroom_cost(u) for u in (0.0, 0.5, 0.8)] == pytest.approx([0.0, 1.0, 4.0])
        assert headroom_cost(0.95) == pytest.approx(19.0)
        assert headroom_cost(1.0) == pytest.approx(39.0)  # 19 + 0.05 * 400

    def test_the_tangent_continues_value_and_slope(self) -> None:
        step = 1e-6
        below = (headroom_cost(0.95) - headroom_cost(0.95 - step)) / step
        above = (headroom_cost(0.95 + step) - headroom_cost(0.95)) / step
        assert below == pytest.approx(above, rel=1e-4)

    @given(any_float, any_float)
    def test_headroom_cost_is_finite_and_rises(self, a: float, b: float) -> None:
        low, high = headroom_cost(min(a, b)), headroom_cost(max(a, b))
        assert 0 <= low < math.inf
        assert 0 <= high < math.inf
        if not (math.isnan(a) or math.isnan(b)):
            assert low <= high

    def test_memory_counts_from_half_of_its_limit(self) -> None:
        formula = UtilizationFormula()
        assert formula(0.5, 0.5, 0) == pytest.approx(1.0)
        assert formula(0.5, 0.75, 0) == pytest.approx(1.0 + 0.3 * 1.0)
        assert formula(0.0, 0.9, 0) == pytest.approx(0.3 * 4.0)

    def test_in_flight_share_counts_where_it_is_larger_than_cpu(self) -> None:
        formula = UtilizationFormula(memory_weight=0.0, inflight_limit=600)
        assert formula(0.2, 0.0, 300) == pytest.approx(1.0)
        assert formula(0.5, 0.0, 60) == pytest.approx(1.0)
        assert UtilizationFormula(memory_weight=0.0)(0.5, 0.0, 300) == pytest.approx(1.0)

    @given(any_float, any_float, any_float, st.floats(0, 100), st.floats(0, 1), st.floats(0, 1e6))
    def test_finite_for_whatever_comes_in(
        self, cpu: float, memory: float, in_flight: float, weight: float, start: float, limit: float
    ) -> None:
        value = UtilizationFormula(weight, start, limit)(cpu, memory, in_flight)
        assert 0 <= value < math.inf


@pytest.mark.parametrize(("rate", "reported"), [(0.0, 2.0), (1.5, 2.5), (50.0, 50.04), (5000.0, 5000.0)])
def test_the_floor_holds_at_rest_and_is_lost_in_a_real_rate(rate: float, reported: float) -> None:
    assert floored_rate(rate, 2.0) == pytest.approx(reported, abs=0.001)
