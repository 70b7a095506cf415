"""From raw figures to the ones that are reported: one filter, and the utilization formula.

A balancer divides the reported rate by the reported utilization. If both went through the same filter, a
change of load changes both alike and the ratio holds still while they follow: that is the loop's damping.
Different filters for the two make the shares swing. So there is one filter here for all figures of a
report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_KNEE = 0.95
"""Where h(u) = u/(1-u) is continued by its tangent: finite, and still rising, at and above full use."""

_FIGURE_MAX = 1e12
"""Above any real figure; keeps sums and products of smoothed figures finite."""

_MOVED = 0.03
"""A utilization this far from its mean over the longer time has changed; a few small requests make no such
step."""

_STEP_MIN = 1e-6
"""Seconds; a shorter step than any clock of the sampler can mean."""


@dataclass(frozen=True, slots=True)
class SmoothingPolicy:
    """``time_constant`` seconds, growing at low rates until about ``requests`` requests are averaged over,
    but to ``at_most`` seconds at most."""

    time_constant: float = 1.0
    requests: float = 10.0
    at_most: float = 10.0

    def time_constant_at(self, rate: float) -> float:
        """The time constant in seconds at a rate in requests per second."""
        wanted = self.requests / rate if rate > 0 else math.inf
        return max(self.time_constant, min(wanted, self.at_most if self.requests > 0 else 0.0))


class Smoother:
    """A time-constant EWMA over several figures at once; steps may be of any length.

    The rate that lengthens the time constant is itself seen through the short one, so that a burst after
    quiet shortens it again within a second or so. So does a utilization that has moved: a node that got too
    little to do because it was busy has a low rate, and must be heard at once when it is busy no more.
    """

    __slots__ = ("_all", "_policy", "_short")

    def __init__(self, policy: SmoothingPolicy, utilizations: int, others: int = 0) -> None:
        """How many utilizations and other figures there are besides the rate."""
        self._policy = policy
        self._short = _Mean(1 + utilizations)
        self._all = _Mean(1 + utilizations + others)

    def update(
        self, seconds: float, rate: float, utilizations: Sequence[float], others: Sequence[float] = ()
    ) -> tuple[float, ...]:
        """Take the means over the last ``seconds`` in; returns the smoothed (rate, *utilizations, *others).

        A step with a figure that is NaN, infinite or negative, or of no length, is left out whole: what is
        returned is then as before.
        """
        values = (rate, *utilizations, *others)
        if _STEP_MIN <= seconds < math.inf and all(0 <= value < math.inf for value in values):
            time_constant = self._policy.time_constant
            self._short.add(values[: 1 + len(utilizations)], _alpha(seconds, time_constant))
            recent_rate, *recent = self._short.value()
            if not self._has_moved(recent):
                time_constant = self._policy.time_constant_at(recent_rate)
            self._all.add(values, _alpha(seconds, time_constant))
        return self._all.value()

    def _has_moved(self, recent: Sequence[float]) -> bool:
        smoothed = self._all.value()[1:]
        return any(abs(new - old) > _MOVED for new, old in zip(recent, smoothed, strict=False))


class _Mean:
    """A weighted mean that starts from nothing: early values are averaged, none of them is a starting
    point."""

    __slots__ = ("_sums", "_weight")

    def __init__(self, size: int) -> None:
        self._sums = [0.0] * size
        self._weight = 0.0

    def add(self, values: Sequence[float], alpha: float) -> None:
        keep = 1.0 - alpha
        self._sums = [
            total * keep + min(value, _FIGURE_MAX) * alpha
            for total, value in zip(self._sums, values, strict=True)
        ]
        self._weight = self._weight * keep + alpha

    def value(self) -> tuple[float, ...]:
        weight = self._weight or 1.0
        return tuple(total / weight for total in self._sums)


def _alpha(seconds: float, time_constant: float) -> float:
    """The weight of a step: 1 - exp(-dt/tau); 1 without smoothing."""
    return -math.expm1(-seconds / time_constant) if time_constant > 0 else 1.0


def floored_rate(rate: float, floor: float) -> float:
    """√(rate² + floor²): the floor where there is next to nothing, the rate itself where there is plenty.

    A starved node so keeps a weight from which it comes back within a few updates, and at low rates the chance
    of who got the last request moves the shares little. Added plainly, a floor that large would give busy
    nodes more than their due at any rate.
    """
    return math.hypot(rate, floor)


def headroom_cost(utilization: float) -> float:
    """h(u) = u/(1-u), above 0.95 its tangent there: what one more request costs in headroom.

    Finite for any input: NaN and negative figures count as 0.
    """
    u = min(utilization, _FIGURE_MAX) if utilization > 0 else 0.0
    if u <= _KNEE:
        return u / (1.0 - u)
    return _KNEE / (1.0 - _KNEE) + (u - _KNEE) / (1.0 - _KNEE) ** 2


@dataclass(frozen=True, slots=True)
class UtilizationFormula:
    """``application_utilization = h(u) + memory_weight * h(x)``.

    u is the larger of the CPU utilization and the share of ``inflight_limit`` in flight (0: CPU alone);
    x = max(0, m - memory_from) / (1 - memory_from), m the share of the memory limit in use: memory counts
    early, since what a LIST holds is held for seconds after the balancer has decided.
    """

    memory_weight: float = 0.3
    memory_from: float = 0.5
    inflight_limit: float = 0.0

    def inflight_share(self, in_flight: float) -> float:
        """Requests in flight over the limit; 0 if no limit is set."""
        return in_flight / self.inflight_limit if self.inflight_limit > 0 else 0.0

    def __call__(self, cpu: float, memory: float, in_flight: float) -> float:
        busy = max(cpu, self.inflight_share(in_flight))
        room = 1.0 - self.memory_from
        pressure = (memory - self.memory_from) / room if room > 0 else 0.0
        return headroom_cost(busy) + self.memory_weight * headroom_cost(pressure)
