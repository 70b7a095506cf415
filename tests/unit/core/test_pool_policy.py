"""Which idle connections are closed, and how many are opened."""

from __future__ import annotations

import pytest

from orca_sidecar.core.pool_policy import UNUSED_SECONDS, Idle, Plan, plan


def decide(*idle: Idle, connecting: int = 0, minimum: int = 0, idle_timeout: float = 60.0) -> Plan:
    return plan(idle, connecting, minimum=minimum, idle_timeout=idle_timeout)


def test_an_empty_pool_is_filled_to_its_minimum() -> None:
    assert decide(minimum=4) == Plan([], 4)
    assert decide() == Plan([], 0)


def test_connections_on_their_way_count() -> None:
    assert decide(minimum=4, connecting=3) == Plan([], 1)
    assert decide(Idle(True, 0.0), minimum=4, connecting=5) == Plan([], 0)


def test_more_than_the_minimum_is_left_alone() -> None:
    assert decide(*[Idle(True, 1.0)] * 9, minimum=4) == Plan([], 0)


@pytest.mark.parametrize(("seconds", "close"), [(59.9, []), (60.0, [0]), (600.0, [0])])
def test_a_used_one_lives_for_the_idle_timeout(seconds: float, close: list[int]) -> None:
    assert decide(Idle(True, seconds)).close == close


@pytest.mark.parametrize(("seconds", "close"), [(24.9, []), (25.0, [0])])
def test_one_that_never_sent_a_request_lives_shorter(seconds: float, close: list[int]) -> None:
    """kube-apiserver closes it after 32 s."""
    assert UNUSED_SECONDS < 32
    assert decide(Idle(False, seconds)).close == close


def test_a_shorter_idle_timeout_holds_for_all() -> None:
    assert decide(Idle(False, 6.0), Idle(True, 6.0), Idle(False, 4.0), idle_timeout=5.0).close == [0, 1]


def test_what_is_closed_is_replaced() -> None:
    assert decide(Idle(True, 70.0), Idle(False, 30.0), Idle(True, 1.0), minimum=2) == Plan([0, 1], 1)
