"""The sampler: every interval it measures, smooths, renders the report once, and puts it into the report
cell.

It runs in one process and knows neither who asked for reports nor how they travel. What it cannot say
truthfully it does not say: while kube-apiserver is not ready, the target is gone or a figure is none, the
report is withdrawn, and ``detail`` tells why.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from orca_sidecar.core.load_report import Format, LoadReport
from orca_sidecar.core.report_encoding import encode_bin, render
from orca_sidecar.core.smoothing import Smoother, SmoothingPolicy, UtilizationFormula, floored_rate
from orca_sidecar.load.sources import SHORTEST_STEP_NS, Load, TargetMissing
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.settings.load_metrics import LoadMetricsSettings, ReportSettings

log = logging.getLogger(__name__)


class Totals(NamedTuple):
    """What the requests tell, over all processes, at ``taken_ns`` (``time.monotonic_ns()``).

    ``requests`` and ``errors`` (429 and 5xx among them) are counters of what ``rpsScope`` counts; the
    others are requests in flight, long-running ones left out.
    """

    taken_ns: int
    requests: int
    errors: int
    in_flight_read_only: int
    in_flight_mutating: int


class Counters(Protocol):
    """Where the totals come from: the proxy's cells, or kube-apiserver's /metrics in mode reporter."""

    def __call__(self, now_ns: int) -> Totals | None:
        """None while there are none yet. Totals with the ``taken_ns`` of the last call are not counted
        again."""


class Measures(Protocol):
    """Where the load comes from; ``load.sources.LoadSources`` is one."""

    def measure(self, now_ns: int) -> Load | None:
        """None while there is no figure yet; raises TargetMissing."""


class _Figures(NamedTuple):
    """What goes through the filter, in its order."""

    rate: float
    target_cpu: float
    node_cpu: float
    eps: float
    in_flight_read_only: float
    in_flight_mutating: float


class Sampler:
    """``sample`` is one step at a given time; ``run`` takes one every interval until cancelled.

    ``withheld()`` tells why nothing may be reported at the moment, "" if it may.
    """

    def __init__(
        self,
        settings: LoadMetricsSettings,
        sources: Measures,
        counters: Counters,
        cell: ReportCell,
        withheld: Callable[[], str],
    ) -> None:
        self._report = settings.report
        self._interval = settings.sampler.interval
        self._stale_after_ns = int(settings.sampler.stale_after * 1e9)
        self._formats = [Format[name] for name in settings.formats]
        self._policy = SmoothingPolicy(
            settings.sampler.smoothing,
            settings.report.average_at_least.requests,
            settings.report.average_at_least.at_most,
        )
        self._formula = _formula(settings.report)
        self._sources = sources
        self._counters = counters
        self._cell = cell
        self._withheld = withheld
        self._mean = _StepMean()
        self._smoother = Smoother(self._policy, utilizations=2, others=3)
        self._totals: Totals | None = None
        self._smoothed: _Figures | None = None
        self._encoded = b""
        self.latest: LoadReport | None = None
        """The report of the last sample, None if it was withdrawn."""
        self.sampled_at_ns = 0
        """When the last sample was taken; 0 before the first."""
        self.detail = "no sample yet"
        """Why nothing is reported; "" while a report is."""

    async def run(self) -> None:
        """Sample until cancelled. After a late step the next is a whole interval away, not at once."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.sample(time.monotonic_ns())
            now = loop.time()
            due = due + self._interval if due + self._interval > now else now + self._interval
            await asyncio.sleep(due - now)

    def sample(self, now_ns: int) -> None:
        """Measure, and publish or withdraw. A step too short to measure over leaves everything as it is."""
        if self.sampled_at_ns and now_ns - self.sampled_at_ns < SHORTEST_STEP_NS:
            return
        report, detail = self._measure(now_ns)
        if detail != self.detail:
            log.info("%s", f"load reports withheld: {detail}" if detail else "load is reported")
        self.detail = detail
        self.latest = report
        self.sampled_at_ns = now_ns
        self._encoded = b""
        if report is not None:
            lines = render(report, self._formats, self._report.text_separator, self._report.fields)
            self._cell.publish(lines, now_ns)
        else:
            self._cell.withdraw()

    def current(self, now_ns: int) -> LoadReport | None:
        """The latest report unless it is withdrawn or older than ``staleAfter``."""
        return self.latest if now_ns - self.sampled_at_ns <= self._stale_after_ns else None

    def encoded(self, now_ns: int) -> bytes:
        """The same as a serialized OrcaLoadReport, encoded once per sample whoever asks; b"" if there is
        none."""
        report = self.current(now_ns)
        if report is None:
            return b""
        self._encoded = self._encoded or encode_bin(report, self._report.fields)
        return self._encoded

    def _measure(self, now_ns: int) -> tuple[LoadReport | None, str]:
        """The report, or None and why there is none. The filter runs on while kube-apiserver is not ready."""
        try:
            load = self._sources.measure(now_ns)
        except TargetMissing as missing:
            self._forget()
            return None, str(missing)
        if load is None:
            self._forget()
            return None, "the target's first reading"
        if not all(0 <= figure < math.inf for figure in load):
            return None, "a figure is negative or not finite"
        self._advance(load, now_ns)
        if reason := self._withheld():
            return None, reason
        if self._smoothed is None:
            return None, "no request rate"
        report = self._reported(load, self._smoothed).checked()
        return report, "" if report else "a figure is not finite"

    def _advance(self, load: Load, now_ns: int) -> None:
        """One step of the filter, for as long as the totals tell about: rate and utilization over the same
        time."""
        self._mean.add(load, now_ns)
        totals, last = self._counters(now_ns), self._totals
        if totals is None:
            self._totals = self._smoothed = None
            return
        if last is not None and totals.taken_ns <= last.taken_ns:
            return
        self._totals = totals
        mean = self._mean.take()
        if last is None:
            return
        seconds = (totals.taken_ns - last.taken_ns) / 1e9
        self._smoothed = _Figures(
            *self._smoother.update(
                seconds,
                max(totals.requests - last.requests, 0) / seconds,
                (mean.target_cpu, mean.node_cpu),
                (
                    max(totals.errors - last.errors, 0) / seconds,
                    max(totals.in_flight_read_only, 0),
                    max(totals.in_flight_mutating, 0),
                ),
            )
        )

    def _reported(self, load: Load, figures: _Figures) -> LoadReport:
        """Memory is not smoothed: it moves slowly by itself, and must count early."""
        in_flight = figures.in_flight_read_only + figures.in_flight_mutating
        cpu = max(figures.target_cpu, figures.node_cpu)
        named = {
            "inflight_read_only": figures.in_flight_read_only,
            "inflight_mutating": figures.in_flight_mutating,
            "inflight_share": self._formula.inflight_share(in_flight),
            "target_cpu": figures.target_cpu,
            "target_memory": load.target_memory,
            "node_cpu": figures.node_cpu,
            "node_memory": load.node_memory,
        }
        return LoadReport(
            application_utilization=self._formula(cpu, load.memory, in_flight),
            cpu_utilization=cpu,
            mem_utilization=load.memory,
            rps_fractional=floored_rate(figures.rate, self._report.rps_floor),
            eps=figures.eps,
            named_metrics={name: named[name] for name in self._report.named_metrics},
        )

    def _forget(self) -> None:
        """Another incarnation of the target starts from nothing."""
        self._mean = _StepMean()
        self._smoother = Smoother(self._policy, utilizations=2, others=3)
        self._totals = None
        self._smoothed = None


class _StepMean:
    """The time-weighted mean of the CPU utilizations since the last step of the filter."""

    __slots__ = ("_last_ns", "_node", "_seconds", "_target")

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._target = self._node = self._seconds = 0.0

    def add(self, load: Load, now_ns: int) -> None:
        # The first one's length is not known, and does not matter: it stands alone or weighs next to nothing.
        seconds = 1e-9 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        self._target += load.target_cpu * seconds
        self._node += load.node_cpu * seconds
        self._seconds += seconds

    def take(self) -> Load:
        mean = Load(self._target / self._seconds, 0.0, self._node / self._seconds)
        self._target = self._node = self._seconds = 0.0
        return mean


def _formula(report: ReportSettings) -> UtilizationFormula:
    memory = report.application_utilization.memory
    return UtilizationFormula(memory.weight, memory.from_, report.application_utilization.inflight_limit)
