"""Which idle upstream connections to close, and how many to open: a pure decision that `proxy.upstream` carries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

UNUSED_SECONDS = 25.0
"""kube-apiserver closes a connection that has not sent a request after 32 s (its ReadHeaderTimeout)."""


class Idle(NamedTuple):
    """One idle connection, oldest first in the pool's list."""

    used: bool
    """It has carried a request."""
    idle_seconds: float


class Plan(NamedTuple):
    """What to do now."""

    close: list[int]
    """Indices into the list given, ascending."""
    open: int


def plan(idle: Sequence[Idle], connecting: int, *, minimum: int, idle_timeout: float) -> Plan:
    """Close what has been idle for too long and top the pool up to `minimum` idle connections.

    `connecting`: connections on their way that no request waits for.
    """
    close = [
        index
        for index, connection in enumerate(idle)
        if connection.idle_seconds >= (idle_timeout if connection.used else min(UNUSED_SECONDS, idle_timeout))
    ]
    return Plan(close, max(0, minimum - (len(idle) - len(close)) - connecting))
