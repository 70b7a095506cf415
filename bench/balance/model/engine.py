"""The event loop of a model: a heap of calls, and a clock that jumps to the next one."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Engine:
    """Calls happen in the order of their times, those of the same time in the order in which they were
    asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (time, next(self._numbers), call))

    def every(self, interval: float, call: Callable[[], None], *, first: float) -> None:
        """`call` at `first` and then every `interval` seconds."""

        def tick() -> None:
            call()
            self.at(self.now + interval, tick)

        self.at(first, tick)

    def run(self, until: float) -> None:
        """Make every call up to and including `until`."""
        while self._calls and self._calls[0][0] <= until:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = until
