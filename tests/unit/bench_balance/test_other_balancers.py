"""HAProxy's and agentgateway's choices, and the peer's report, in the model."""

from collections import Counter
from random import Random

import pytest

from bench.balance.model.agentgateway import AgentgatewayPolicy
from bench.balance.model.haproxy import HaproxyPolicy
from bench.balance.prototype import PrototypeReport, WeightFigures


def test_haproxy_round_robin_follows_the_agents_weights() -> None:
    policy = HaproxyPolicy(3, "roundrobin")
    for server, line in zip(
        policy.servers, (b"up ready 40%\n", b"up ready 80%\n", b"up ready 80%\n"), strict=True
    ):
        server.hear(line)
    picks = Counter(policy.pick() for _ in range(1000))
    assert [picks[number] for number in range(3)] == pytest.approx([200, 400, 400], abs=2)


def test_haproxy_drains_and_returns_without_making_up_for_what_was_missed() -> None:
    policy = HaproxyPolicy(2, "roundrobin")
    policy.servers[0].hear(b"drain\n")
    assert {policy.pick() for _ in range(50)} == {1}
    policy.servers[0].hear(b"up ready 50%\n")
    policy.servers[1].hear(b"up ready 50%\n")
    picks = Counter(policy.pick() for _ in range(20))
    assert picks[0] == pytest.approx(10, abs=1)


def test_haproxy_has_no_server_for_a_connection_when_all_are_down() -> None:
    policy = HaproxyPolicy(2, "roundrobin")
    for server in policy.servers:
        server.up = False
    assert policy.pick() is None


def test_haproxy_leastconn_counts_open_connections() -> None:
    policy = HaproxyPolicy(3, "leastconn")
    assert sorted(policy.pick() for _ in range(3)) == [0, 1, 2]
    policy.close(1)
    assert policy.pick() == 1


def test_agentgateway_prefers_the_faster_and_the_healthier() -> None:
    policy = AgentgatewayPolicy(2, Random(1))
    for number, latency in ((0, 2.0), (1, 0.1)):
        policy.started(number)
        policy.finished(number, True, latency)
    picks = Counter(policy.pick() for _ in range(4000))
    assert picks[0] == pytest.approx(1000, rel=0.1)  # only when both draws fall on it
    for _ in range(20):
        policy.started(1)
        policy.finished(1, False, 0.0)
    assert Counter(policy.pick() for _ in range(4000))[1] == pytest.approx(1000, rel=0.1)


def test_the_peers_report_is_the_slope_over_five_seconds_and_clamped() -> None:
    report = PrototypeReport(cores=2)
    assert report.figures() is None
    for tenth in range(101):
        now = tenth / 10
        busy = 1.0 if now <= 5 else 3.0  # cores
        report.sample(now, requests=100 * now, cpu_seconds=min(now, 5.0) + busy * max(now - 5.0, 0.0))
        if now == 5.0:
            assert report.figures() == pytest.approx(WeightFigures(100.0, 0.5, 0.0))
        if now == 7.5:
            assert report.figures() == pytest.approx(WeightFigures(100.0, 1.0, 0.0))
    assert report.figures() == pytest.approx(WeightFigures(100.0, 1.0, 0.0))
    report.forget()
    assert report.figures() is None
