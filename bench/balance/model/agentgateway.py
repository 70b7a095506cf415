"""agentgateway's choice (crates/agentgateway/src/types/loadbalancer.rs): the better score of two drawn with
replacement.

score = health / (1 + latency · (1 + 0.1 · pending)), health and latency moving averages of weight 0.3, latency
from successes only. There is no active health check.
"""

from __future__ import annotations

from random import Random

ALPHA = 0.3
PENDING_PENALTY = 0.1


class Endpoint:
    def __init__(self) -> None:
        self.health = 1.0
        self.latency = 0.0
        self.pending = 0

    def score(self) -> float:
        return self.health / (1 + self.latency * (1 + PENDING_PENALTY * self.pending))


class AgentgatewayPolicy:
    def __init__(self, endpoints: int, random: Random) -> None:
        self._endpoints = [Endpoint() for _ in range(endpoints)]
        self._random = random

    def pick(self) -> int:
        numbers = range(len(self._endpoints))
        first, second = self._random.choice(numbers), self._random.choice(numbers)
        return second if self._endpoints[second].score() > self._endpoints[first].score() else first

    def started(self, number: int) -> None:
        self._endpoints[number].pending += 1

    def finished(self, number: int, success: bool, latency: float) -> None:
        endpoint = self._endpoints[number]
        endpoint.pending -= 1
        endpoint.health = _moved(endpoint.health, float(success))
        if success:
            endpoint.latency = _moved(endpoint.latency, latency)

    def weights(self) -> tuple[float, ...]:
        return tuple(endpoint.score() for endpoint in self._endpoints)


def _moved(old: float, value: float) -> float:
    """A figure that is exactly 0 takes the new value whole, as there."""
    return value if old == 0 else ALPHA * value + (1 - ALPHA) * old
