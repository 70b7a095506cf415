"""Envoy 1.40's load balancing, one worker: ROUND_ROBIN, RANDOM, LEAST_REQUEST, client-side weighted.

Follows source/extensions/load_balancing_policies/{common,round_robin,random,least_request,
client_side_weighted_round_robin} and source/common/upstream/edf_scheduler.h.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random

from bench.balance.prototype import WeightFigures

_MAX_WEIGHT = (1 << 32) - 1
_MAX_PREPICKS = 429_496_729
_EPSILON = 1e-13
"""Added to weights when picks are emulated, so that weights that divide each other stay exact."""


class EdfScheduler:
    """Earliest deadline first: an entry is due 1/weight after its last pick; ties go to the one queued
    first."""

    def __init__(self, weights: Sequence[float], picks: int = 0) -> None:
        """As if `picks` picks had been made already (EdfScheduler::createWithPicks)."""
        self._weights = list(weights)
        self._order = len(weights)
        self._queue: list[tuple[float, int, int]] = []
        self._prepare(picks % _MAX_PREPICKS)

    def _prepare(self, picks: int) -> None:
        total = sum(self._weights) + _EPSILON * len(self._weights)
        done = 0
        for entry, weight in enumerate(self._weights):
            augmented = weight + _EPSILON
            floor = int(augmented * picks / total)
            if floor and floor / augmented >= picks / total:
                floor -= 1
            heapq.heappush(self._queue, ((floor + 1) / augmented, entry, entry))
            done += floor
        for _ in range(picks - done):
            self.pick()

    def pick(self) -> int:
        deadline, _, entry = self._queue[0]
        heapq.heapreplace(self._queue, (deadline + 1 / self._weights[entry], self._order, entry))
        self._order += 1
        return entry


class EnvoyPolicy:
    """Picks a host among the healthy ones; with none healthy, among all (panic mode)."""

    def __init__(self, hosts: int, random: Random) -> None:
        self._random = random
        self._healthy = [True] * hosts
        self._pool = list(range(hosts))

    def set_healthy(self, host: int, healthy: bool) -> None:
        if self._healthy[host] != healthy:
            self._healthy[host] = healthy
            self._pool = [host for host, well in enumerate(self._healthy) if well] or list(
                range(len(self._healthy))
            )
            self.refresh()

    def refresh(self) -> None:
        """The set of hosts has changed."""

    def pick(self) -> int:
        raise NotImplementedError

    def started(self, host: int) -> None:
        """A request was sent."""

    def finished(self, host: int) -> None:
        """It was answered."""

    def weights(self) -> tuple[float, ...]:
        return (1.0,) * len(self._healthy)


class RandomPick(EnvoyPolicy):
    def pick(self) -> int:
        return self._random.choice(self._pool)


class LeastRequest(EnvoyPolicy):
    """The one with fewer active requests of two drawn with replacement; the first of equals."""

    CHOICES = 2

    def __init__(self, hosts: int, random: Random) -> None:
        super().__init__(hosts, random)
        self._active = [0] * hosts

    def pick(self) -> int:
        return min(
            (self._random.choice(self._pool) for _ in range(self.CHOICES)), key=self._active.__getitem__
        )

    def started(self, host: int) -> None:
        self._active[host] += 1

    def finished(self, host: int) -> None:
        self._active[host] -= 1


class RoundRobin(EnvoyPolicy):
    """By weight; without a schedule while all weights are equal."""

    def __init__(self, hosts: int, random: Random) -> None:
        super().__init__(hosts, random)
        self._seed = random.getrandbits(32)
        self._index = self._seed
        self._weights = [1] * hosts
        self._schedule: EdfScheduler | None = None

    def refresh(self) -> None:
        weights = [self._weights[host] for host in self._pool]
        equal = all(weight == weights[0] for weight in weights)
        self._schedule = None if equal else EdfScheduler(weights, self._seed)

    def pick(self) -> int:
        if self._schedule is not None:
            return self._pool[self._schedule.pick()]
        self._index += 1
        return self._pool[(self._index - 1) % len(self._pool)]

    def weights(self) -> tuple[float, ...]:
        return tuple(self._weights)


class ClientSideWeighted(RoundRobin):
    """Weights from load reports, put to use by `update`, which the owner calls every weight_update_period."""

    def __init__(
        self,
        hosts: int,
        random: Random,
        clock: Callable[[], float],
        *,
        blackout: float,
        expiration: float,
        error_penalty: float,
    ) -> None:
        super().__init__(hosts, random)
        self._clock = clock
        self._blackout = blackout
        self._expiration = expiration
        self._error_penalty = error_penalty
        self._reported = [0] * hosts
        self._non_empty_since: list[float | None] = [None] * hosts
        self._last_update = [0.0] * hosts

    def report(self, host: int, figures: WeightFigures) -> None:
        weight = weight_of(figures, self._error_penalty)
        if weight is None:
            return
        now = self._clock()
        self._reported[host] = weight
        self._last_update[host] = now
        if self._non_empty_since[host] is None:
            self._non_empty_since[host] = now

    def update(self) -> None:
        """Every host gets its reported weight; those without a valid one the median."""
        now = self._clock()
        valid: dict[int, int] = {}
        for host, since in enumerate(self._non_empty_since):
            if since is None or since > now - self._blackout:
                continue
            if self._last_update[host] < now - self._expiration:
                self._non_empty_since[host] = None
                continue
            valid[host] = self._reported[host]
        default = median(list(valid.values()))
        weights = [max(valid.get(host, default), 1) for host in range(len(self._weights))]
        if weights != self._weights:
            self._weights = weights
            self.refresh()


def weight_of(figures: WeightFigures, error_penalty: float) -> int | None:
    """rps / (utilization + penalty · eps / rps), truncated; None for a report that Envoy drops."""
    if figures.rate <= 0:
        return None
    utilization = figures.utilization + error_penalty * figures.errors / figures.rate
    if utilization <= 0:
        return None
    return int(min(figures.rate / utilization, _MAX_WEIGHT))


def median(weights: list[int]) -> int:
    """Of an even number, the truncated mean of the two in the middle; 1 of none."""
    if not weights:
        return 1
    ordered = sorted(weights)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
