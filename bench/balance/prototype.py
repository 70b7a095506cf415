"""The peer's report: the arithmetic of KEP-6315's prototype. No part of the product.

A sliding window of 5 s over both figures; every request counts, the node's own clients' as well as the
balancer's; utilization is the CPU's alone and never above 1.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW = 5.0
SAMPLE_EVERY = 0.1


class WeightFigures(NamedTuple):
    """What Envoy's client_side_weighted_round_robin makes a weight of."""

    rate: float
    utilization: float
    errors: float


class PrototypeReport:
    """Fed with counters, it tells their slope over the last 5 s."""

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._samples: deque[tuple[float, float, float]] = deque()

    def sample(self, now: float, requests: float, cpu_seconds: float) -> None:
        """Counters of one life of the API server; `forget` when another begins."""
        self._samples.append((now, requests, cpu_seconds))
        while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW:
            self._samples.popleft()

    def forget(self) -> None:
        self._samples.clear()

    def figures(self) -> WeightFigures | None:
        """None until there are two samples."""
        if len(self._samples) < 2:
            return None
        (then, requests_then, cpu_then), (now, requests, cpu) = self._samples[0], self._samples[-1]
        seconds = now - then
        return WeightFigures(
            rate=(requests - requests_then) / seconds,
            utilization=min((cpu - cpu_then) / (seconds * self._cores), 1.0),
            errors=0.0,
        )
