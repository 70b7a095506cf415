"""A modelled API server with its sidecar: capacity as the stand-in's, and the sidecar's counters."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from bench.balance.scenarios import MEAN_WORK, Change, Node
from bench.balance.trace import BAD_GATEWAY, OK, TOO_MANY
from bench.balance.workload import Request
from orca_sidecar.demo.capacity import Memory, VirtualCores
from orca_sidecar.load.sampler import Totals
from orca_sidecar.load.sources import Load, TargetMissing

from .engine import Engine

Done = Callable[[int], None]
"""Told the status of an answer."""

PROBE_EVERY = 1.0
"""Seconds between two of the sidecar's probes of /readyz."""


class ModelNode:
    """Answers requests. `answered` is what the sidecar's sampler counts, `requests` what the peer's does."""

    def __init__(self, engine: Engine, node: Node, random: Random, killed: Callable[[], None]) -> None:
        self.capacity = node.capacity
        self._engine = engine
        self._random = random
        self._killed = killed
        self._background = node.background
        self._speed = 1.0
        self._counted = 0
        self._errors = 0
        self._background_requests = 0.0
        self._background_since = 0.0
        self._in_flight: dict[int, Done] = {}
        self._numbers = 0
        self._used_before = 0.0
        self._ready_at = 0.0
        self._meter: tuple[float, float] | None = None
        self.probed_ready = True
        self._cores: VirtualCores | None = self._new_cores()
        self._memory = Memory(self.capacity.memory_limit, self.capacity.memory_base)
        engine.every(PROBE_EVERY, self._probe, first=random.random() * PROBE_EVERY)

    @property
    def alive(self) -> bool:
        return self._cores is not None

    @property
    def ready(self) -> bool:
        """What /readyz says."""
        return self._cores is not None and self._engine.now >= self._ready_at

    def submit(self, request: Request, done: Done) -> None:
        """`done` is called with the status when there is an answer, which may be at once."""
        self._counted += 1
        if self._cores is None:
            self._errors += 1
            done(BAD_GATEWAY)
            return
        if len(self._in_flight) >= self.capacity.inflight_limit:
            self._errors += 1
            done(TOO_MANY)
            return
        now = self._engine.now
        self._numbers = number = self._numbers + 1
        self._in_flight[number] = done
        end = self._cores.submit(now, request.work)
        self._engine.at(end, lambda: self._finish(number))
        if request.is_list:
            self._memory.hold(self.capacity.list_memory, end + self.capacity.list_hold)
            if self._memory.used(now) > self.capacity.memory_limit:
                self._killed()
                self.restart()

    def change(self, change: Change) -> None:
        self._count_background()
        if change.background is not None:
            self._background = change.background
        if change.speed is not None:
            self._speed = change.speed
        if self._cores is not None:
            self._cores.set_background(self._engine.now, self._background)
            self._cores.set_speed(self._engine.now, self._speed)
        if change.restart:
            self.restart()

    def restart(self) -> None:
        """Die, and come back as the stand-in does."""
        if self._cores is None:
            return
        self._count_background()
        self._used_before = self.cpu_seconds()
        self._cores = None
        cut, self._in_flight = self._in_flight, {}
        self._errors += len(cut)
        for done in cut.values():
            done(BAD_GATEWAY)
        self._engine.at(self._engine.now + self.capacity.restart_seconds, self._begin)

    def cpu_seconds(self) -> float:
        """Over all lives."""
        return self._used_before + (self._cores.used(self._engine.now) if self._cores is not None else 0.0)

    def memory_share(self) -> float:
        if self._cores is None:
            return 0.0
        return self._memory.used(self._engine.now) / self.capacity.memory_limit

    def all_requests(self) -> float:
        """Those that came through the balancer, and the background's: they cost as much as the others."""
        self._count_background()
        return self._counted + self._background_requests

    # -- what the product's sampler asks for ---------------------------------------------------------------------

    def measure(self, now_ns: int) -> Load | None:
        """As `load.sources.LoadSources`: utilization since the last call in the same life."""
        if self._cores is None:
            self._meter = None
            raise TargetMissing("killed")
        now, used = self._engine.now, self._cores.used(self._engine.now)
        last, self._meter = self._meter, (now, used)
        if last is None:
            return None
        return Load((used - last[1]) / (now - last[0]) / self.capacity.cores, self.memory_share())

    def counters(self, now_ns: int) -> Totals:
        return Totals(now_ns, self._counted, self._errors, len(self._in_flight), 0)

    # ------------------------------------------------------------------------------------------------------------

    def _finish(self, number: int) -> None:
        done = self._in_flight.pop(number, None)
        if done is not None:  # else it was cut
            done(OK)

    def _begin(self) -> None:
        self._cores = self._new_cores()
        self._memory = Memory(self.capacity.memory_limit, self.capacity.memory_base)
        self._ready_at = self._engine.now + self.capacity.cold_seconds
        self._background_since = self._engine.now

    def _new_cores(self) -> VirtualCores:
        return VirtualCores(
            self.capacity.cores,
            background=self._background,
            speed=self._speed,
            now=self._engine.now,
            random=self._random if self.capacity.random_background else None,
        )

    def _count_background(self) -> None:
        now = self._engine.now
        if self._cores is not None:
            share = self._background * self.capacity.cores / MEAN_WORK
            self._background_requests += share * (now - self._background_since)
        self._background_since = now

    def _probe(self) -> None:
        self.probed_ready = self.ready
