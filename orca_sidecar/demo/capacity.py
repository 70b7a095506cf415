"""What a stand-in API server can do, as arithmetic: virtual cores with a queue, and memory that LISTs fill.

Nothing here waits or burns CPU. A piece of work is given to a core when it arrives and its end is known at
once, so a node of any size costs the machine that plays it a few microseconds a request. Times are seconds on
any clock that does not go back; whoever calls passes `now`, and never one earlier than before.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from random import Random

ServiceTime = Callable[[Random], float]
"""Draws the CPU time of one request, in seconds."""

BACKGROUND_WORK = 0.004
"""CPU seconds of one piece of background work: short against a request, so that it delays by its sum."""


def service_time(text: str) -> ServiceTime:
    """The distribution that `text` names: `fixed:MEAN`, `exponential:MEAN` or `lognormal:MEAN:SIGMA`, MEAN in
    seconds.

    Raises ValueError for anything else.
    """
    kind, *figures = text.split(":")
    values = [float(figure) for figure in figures]
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"a service time's figures are above zero: {text!r}")
    match kind, values:
        case "fixed", [mean]:
            return lambda random: mean
        case "exponential", [mean]:
            return lambda random: random.expovariate(1 / mean)
        case "lognormal", [mean, sigma]:
            mu = math.log(mean) - sigma * sigma / 2
            return lambda random: random.lognormvariate(mu, sigma)
    raise ValueError(f"not a service time: {text!r} (fixed:MEAN, exponential:MEAN or lognormal:MEAN:SIGMA)")


def check_background(share: float) -> None:
    """Raises ValueError unless some of the cores is left."""
    if not 0 <= share < 1:
        raise ValueError(f"a background share is from 0 to below 1, not {share}")


def check_speed(speed: float) -> None:
    """Raises ValueError unless work ends at some time, and not at once."""
    if not (speed > 0 and math.isfinite(speed)):
        raise ValueError(f"a speed is above zero, not {speed}")


class VirtualCores:
    """`cores` servers and one queue, first come, first served (G/G/k), shared by requests and background
    work.

    `background` is the share of all cores that work which no load balancer can move takes: controllers,
    schedulers, watches. It arrives evenly spaced, or with `random` as requests do (Poisson, exponential work),
    and queues like everything else. `speed` scales how much work a core does in a second: 0.5 is a node at
    half its clock.
    """

    def __init__(
        self,
        cores: int,
        *,
        background: float = 0.0,
        speed: float = 1.0,
        now: float = 0.0,
        random: Random | None = None,
    ) -> None:
        if cores < 1:
            raise ValueError(f"at least one core, not {cores}")
        self.cores = cores
        self._free_at = [now] * cores  # a heap: when each core has done what it was given
        self._assigned = 0.0
        self._random = random
        self._next_background = now
        self._background = 0.0
        self._speed = 1.0
        self.set_background(now, background)
        self.set_speed(now, speed)

    @property
    def background(self) -> float:
        return self._background

    @property
    def speed(self) -> float:
        return self._speed

    def set_background(self, now: float, share: float) -> None:
        """From `now` on, background work takes `share` (0 to below 1) of the cores at full speed."""
        check_background(share)
        self._run_background(now)
        self._background = share
        self._next_background = now

    def set_speed(self, now: float, speed: float) -> None:
        check_speed(speed)
        self._run_background(now)
        self._speed = speed

    def submit(self, now: float, work: float) -> float:
        """Queue `work` CPU seconds that arrive `now`; returns when they will be done."""
        self._run_background(now)
        return self._assign(now, work)

    def used(self, now: float) -> float:
        """CPU seconds used up to `now`, by requests and background work together."""
        self._run_background(now)
        # Every piece arrived by now, so a core that is still busy has no gap between now and its last piece's
        # end.
        return self._assigned - sum(max(0.0, end - now) for end in self._free_at)

    def _run_background(self, now: float) -> None:
        if not self._background:
            return
        rate = self._background * self.cores  # CPU seconds a second
        while self._next_background <= now:
            if self._random is None:
                work, pause = BACKGROUND_WORK, BACKGROUND_WORK / rate
            else:
                work = self._random.expovariate(1 / BACKGROUND_WORK)
                pause = self._random.expovariate(rate / BACKGROUND_WORK)
            self._assign(self._next_background, work)
            self._next_background += pause

    def _assign(self, arrival: float, work: float) -> float:
        duration = work / self._speed
        end = max(arrival, self._free_at[0]) + duration
        heapq.heapreplace(self._free_at, end)
        self._assigned += duration
        return end


class Memory:
    """Bytes held until a time, over a base that is always there."""

    def __init__(self, limit: int, base: int) -> None:
        if not 0 <= base < limit:
            raise ValueError(f"the memory in use at rest ({base}) is not below the limit ({limit})")
        self.limit = limit
        self.base = base
        self._held = 0
        self._releases: list[tuple[float, int]] = []

    def hold(self, amount: int, until: float) -> None:
        self._held += amount
        heapq.heappush(self._releases, (until, amount))

    def used(self, now: float) -> int:
        """Bytes in use; above `limit`, the kernel would kill the process."""
        while self._releases and self._releases[0][0] <= now:
            self._held -= heapq.heappop(self._releases)[1]
        return self.base + self._held
