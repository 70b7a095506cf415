"""How nodes tell their load in the model: the product's own sampler, and the peer's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Protocol, cast

from bench.balance.prototype import SAMPLE_EVERY, PrototypeReport, WeightFigures
from orca_sidecar.core.load_report import Format, LoadReport
from orca_sidecar.load.sampler import Sampler
from orca_sidecar.publish.agent_check import answer
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.settings.load_metrics import LoadMetricsSettings

from .engine import Engine
from .node import ModelNode


class Reporter(Protocol):
    """What a balancer hears of a node."""

    def figures(self) -> WeightFigures | None:
        """What an answer carries at this moment, or a message out of band; None: nothing."""

    def agent_line(self) -> bytes:
        """What the agent would answer."""


class Silent:
    """A node that tells nothing."""

    def figures(self) -> WeightFigures | None:
        return None

    def agent_line(self) -> bytes:
        return b""


class _Cell:
    """In place of shared memory between processes: there is one process."""

    def publish(self, lines: Mapping[Format, bytes], sampled_at_ns: int) -> None:
        pass

    def withdraw(self) -> None:
        pass


class Ours:
    """`load.sampler.Sampler` with a modelled node as its sources."""

    def __init__(
        self, engine: Engine, node: ModelNode, settings: LoadMetricsSettings, random: Random
    ) -> None:
        self._engine = engine
        self._node = node
        cell = cast(ReportCell, _Cell())
        self._sampler = Sampler(
            settings, node, node.counters, cell, lambda: "" if node.probed_ready else "not ready"
        )
        interval = settings.sampler.interval
        engine.every(interval, self._sample, first=random.random() * interval)

    def _sample(self) -> None:
        self._sampler.sample(self._now_ns())

    def _now_ns(self) -> int:
        return round(self._engine.now * 1e9) + 1

    def _report(self) -> LoadReport | None:
        return self._sampler.current(self._now_ns())

    def figures(self) -> WeightFigures | None:
        report = self._report()
        if report is None:
            return None
        return WeightFigures(report.rps_fractional, report.application_utilization, report.eps)

    def agent_line(self) -> bytes:
        return answer(self._node.probed_ready, self._report())


class Prototype:
    """The peer's report."""

    def __init__(self, engine: Engine, node: ModelNode, random: Random) -> None:
        self._engine = engine
        self._node = node
        self._report = PrototypeReport(node.capacity.cores)
        engine.every(SAMPLE_EVERY, self._sample, first=random.random() * SAMPLE_EVERY)

    def _sample(self) -> None:
        if self._node.alive:
            self._report.sample(self._engine.now, self._node.all_requests(), self._node.cpu_seconds())
        else:
            self._report.forget()

    def figures(self) -> WeightFigures | None:
        return self._report.figures()

    def agent_line(self) -> bytes:
        return b""
