"""When encrypted bytes reach the kernel: at once, or together with others'."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from orca_sidecar.proxy import tls_connection
from orca_sidecar.proxy.tls_connection import State, TLSConnection

BOTH_EVENT_LOOPS = True
SOME = 5


class Connections:
    """Stand-ins that note in which order they were flushed."""

    def __init__(self) -> None:
        self.flushed: list[int] = []

    def one(self, number: int, state: State = State.OPEN) -> TLSConnection:
        class Connection:
            def __init__(self, flushed: list[int]) -> None:
                self.state = state
                self._flushed = flushed

            def _flush(self) -> None:
                self._flushed.append(number)

        return cast(TLSConnection, Connection(self.flushed))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [10**12]
    monkeypatch.setattr(tls_connection, "monotonic_ns", lambda: now[0])
    return now


@pytest.fixture
def sender() -> Any:
    return tls_connection._Sender()


async def test_what_comes_seldom_is_sent_at_once(sender: Any, clock: list[int]) -> None:
    connections = Connections()
    for number in range(SOME):
        sender.send(connections.one(number))
        assert connections.flushed == [*range(number + 1)]
        clock[0] += 2 * tls_connection._BUSY_NS


async def test_what_comes_quickly_is_sent_together_and_in_order(sender: Any, clock: list[int]) -> None:
    connections = Connections()
    for number in range(SOME):
        sender.send(connections.one(number))
    assert connections.flushed == [0]
    await asyncio.sleep(0)
    assert connections.flushed == [*range(SOME)]
    # It was just busy, so that the next ones wait for one another again.
    sender.send(connections.one(SOME))
    assert connections.flushed == [*range(SOME)]
    await asyncio.sleep(0)
    assert connections.flushed == [*range(SOME + 1)]


async def test_what_waits_is_not_overtaken_when_time_passes(sender: Any, clock: list[int]) -> None:
    connections = Connections()
    sender.send(connections.one(0))
    sender.send(connections.one(1))
    clock[0] += 2 * tls_connection._BUSY_NS
    sender.send(connections.one(2))
    assert connections.flushed == [0]
    await asyncio.sleep(0)
    assert connections.flushed == [0, 1, 2]


async def test_nobody_waits_for_more_than_a_few(sender: Any, clock: list[int]) -> None:
    connections = Connections()
    total = 10 * tls_connection._TOGETHER
    for number in range(total):
        sender.send(connections.one(number))
        assert number - len(connections.flushed) < tls_connection._TOGETHER
    await asyncio.sleep(0)
    assert connections.flushed == [*range(total)]


@pytest.mark.parametrize("state", [State.CLOSING, State.LOST])
async def test_one_that_was_closed_meanwhile_holds_up_nobody(
    sender: Any, clock: list[int], state: State
) -> None:
    connections = Connections()
    sender.send(connections.one(0))
    sender.send(connections.one(1, state))
    sender.send(connections.one(2))
    await asyncio.sleep(0)
    assert connections.flushed == [0, 2]
