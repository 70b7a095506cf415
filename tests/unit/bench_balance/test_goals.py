"""Goals and comparisons, from figures made by hand."""

from dataclasses import replace

import pytest

from bench.balance.goals import Goal, goals
from bench.balance.measures import Measures
from bench.balance.policies import POLICIES
from bench.balance.results import Results, empty, max_over_mean, mean, paired, settle
from bench.balance.scenarios import SCENARIOS
from bench.balance.tables import least_possible
from bench.balance.validation import agreements

GOOD = Measures(
    max_over_mean=1.01,
    utilization=(0.36, 0.36, 0.36),
    share=(0.2, 0.4, 0.4),
    p50=0.008,
    p99=0.025,
    rejected=0,
    failed=0,
    failures=(),
    kills=0,
    settle=4.0,
    swing=0.02,
    sent=2000,
)
SEEDS = range(1, 9)


def outcome(scenario: str, ours: Measures, theirs: Measures) -> Results:
    """Round robin against ours in band, the same in every seed and for real."""
    scenarios = [one for one in SCENARIOS if one.name == scenario]
    policies = [one for one in POLICIES if one.name in ("round-robin", "ours")]
    results = empty(scenarios, policies)
    for name, figures in (("round-robin", theirs), ("ours", ours)):
        cell = results.cells[scenario, name]
        cell.real.append(figures)
        cell.model.update({seed: replace(figures, p99=figures.p99 + seed / 1000) for seed in SEEDS})
    return results


def goal(results: Results, title: str) -> Goal:
    return next(one for one in goals(results) if one.title.startswith(title))


def test_a_limit_is_met_only_if_the_real_run_and_the_model_keep_it() -> None:
    results = outcome("leaders-30", GOOD, GOOD)
    assert goal(results, "30/10/10").met
    results.cells["leaders-30", "ours"].real[0] = replace(GOOD, max_over_mean=1.04)
    assert not goal(results, "30/10/10").met


def test_never_settled_is_missed() -> None:
    results = outcome("failover", replace(GOOD, settle=None, swing=None), GOOD)
    assert not goal(results, "failover settled").met
    assert goal(results, "failover settled").real == "never"


def test_kills_count_where_round_robin_cascades() -> None:
    results = outcome("list-storm", GOOD, replace(GOOD, kills=2))
    assert goal(results, "LIST storm").met
    results.cells["list-storm", "ours"].model[3] = replace(GOOD, kills=1)
    assert not goal(results, "LIST storm").met
    results.cells["list-storm", "round-robin"].model[3] = replace(GOOD, kills=1)  # no cascade in that seed
    assert goal(results, "LIST storm").met


def test_a_lower_p99_of_another_is_an_exception_and_named() -> None:
    assert goal(outcome("leaders-60", GOOD, GOOD), "p99").met
    worse = goal(outcome("leaders-60", replace(GOOD, p99=0.030), GOOD), "p99")
    assert not worse.met
    assert worse.remark == "leaders-60: round-robin by 5 ms"


def test_differences_are_taken_seed_by_seed() -> None:
    results = outcome("leaders-60", replace(GOOD, max_over_mean=1.03), GOOD)
    one, other = (results.cells["leaders-60", name] for name in ("ours", "round-robin"))
    difference = paired(one, other, max_over_mean)
    assert difference is not None
    assert difference.mean == pytest.approx(0.02)
    assert difference.is_clear
    one.model = {1: GOOD}
    assert paired(one, other, max_over_mean) is None


def test_a_mean_of_figures_that_most_runs_lack_is_none() -> None:
    never = replace(GOOD, settle=None)
    assert mean([GOOD, GOOD, never], settle) == 4.0
    assert mean([GOOD, never, never], settle) is None


def test_the_model_is_compared_with_the_hop_added_and_not_with_disturbed_runs() -> None:
    results = outcome("leaders-60", GOOD, GOOD)
    cell = results.cells["leaders-60", "ours"]
    cell.latencies.extend([0.006] * 100)
    cell.hops = [0.002]
    results.cells["leaders-60", "round-robin"].disturbed = True
    by_figure = {one.figure: one.comparisons for one in agreements(results)}
    (p50,) = by_figure["p50"]
    assert (p50.real, p50.model) == (0.008, pytest.approx(0.008))
    assert [one.policy for one in by_figure["max/mean"]] == ["ours"]


def test_the_least_possible_unevenness() -> None:
    possible = {one.name: least_possible(one) for one in SCENARIOS}
    assert possible["leaders-60"] == pytest.approx(1.286, abs=0.001)
    assert possible["leaders-30"] == pytest.approx(1.0)
    assert possible["list-storm"] is None
