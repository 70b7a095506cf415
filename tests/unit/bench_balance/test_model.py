"""Whole modelled runs: the same for the same seed, and what is known of how each policy does."""

from dataclasses import replace

import pytest

from bench.balance.measures import measure
from bench.balance.model.run import simulate
from bench.balance.policies import POLICIES, Policy
from bench.balance.scenarios import SCENARIOS, Change, Scenario
from bench.balance.trace import BAD_GATEWAY
from bench.balance.workload import requests


def policy(name: str) -> Policy:
    return next(one for one in POLICIES if one.name == name)


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


@pytest.mark.parametrize("name", [one.name for one in POLICIES])
def test_a_run_is_the_same_for_the_same_seed_and_another_for_another(name: str) -> None:
    timeline = replace(scenario("leaders-30").timeline, seconds=4.0)
    first, again, other = (simulate(timeline, policy(name), seed) for seed in (1, 1, 2))
    assert first == again
    assert first.outcomes != other.outcomes
    assert len(first.outcomes) == len(requests(timeline, 1))


def test_every_policy_gets_the_same_requests() -> None:
    timeline = scenario("list-storm").timeline
    arrivals = [
        [(one.at, one.is_list) for one in simulate(timeline, one, 3).outcomes] for one in POLICIES[:3]
    ]
    assert arrivals[0] == arrivals[1] == arrivals[2]
    assert arrivals[0] == [(one.at, one.is_list) for one in requests(timeline, 3)]


def test_load_moves_away_from_the_leaders_only_with_our_report() -> None:
    skewed = scenario("leaders-60")
    unevenness = {
        name: measure(skewed, simulate(skewed.timeline, policy(name), 1)).max_over_mean
        for name in ("round-robin", "prototype", "ours", "ours-oob")
    }
    assert unevenness["round-robin"] > 1.6
    assert unevenness["prototype"] > 1.6
    assert unevenness["ours"] < 1.35
    assert unevenness["ours-oob"] < 1.35


def test_the_storm_kills_under_round_robin_and_not_under_ours() -> None:
    storm = scenario("list-storm")
    seeds = range(4)
    killed = {
        name: sum(measure(storm, simulate(storm.timeline, policy(name), seed)).kills for seed in seeds)
        for name in ("round-robin", "ours")
    }
    assert killed["round-robin"] >= len(seeds)
    assert killed["ours"] == 0


def test_a_killed_node_answers_nothing_until_it_is_back() -> None:
    timeline = replace(scenario("restart").timeline, seconds=12.0, changes=(Change(2.0, 0, restart=True),))
    trace = simulate(timeline, policy("round-robin"), 1)
    down = [one for one in trace.outcomes if one.node == 0 and 2.0 <= one.at < 5.0]
    assert down
    assert all(one.status == BAD_GATEWAY for one in down)
    # The health check takes it out within its second, and back only when it has been ready twice.
    assert max(one.at for one in down) <= 3.0
    assert not [one for one in trace.outcomes if one.node == 0 and 5.0 <= one.at < 7.0]
    assert [one for one in trace.outcomes if one.node == 0 and one.at > 10.0]


def test_a_slow_nodes_full_queue_is_answered_429() -> None:
    timeline = replace(scenario("slow-node").timeline, changes=(Change(2.0, 0, speed=0.15),))
    statuses = {one.status for one in simulate(timeline, policy("round-robin"), 1).outcomes}
    assert statuses == {200, 429}
