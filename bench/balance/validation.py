"""How far the model is from the real runs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from random import Random

from .measures import percentile
from .results import Cell, Figure, Results, max_over_mean, mean, p50, p99

LIMIT = 0.10
_ENOUGH = 1000
"""Requests; of fewer, the 99th percentile is a matter of a handful."""


@dataclass(frozen=True)
class Comparison:
    """One figure of one policy in one scenario, relative error of the model's mean over its seeds."""

    scenario: str
    policy: str
    figure: str
    real: float
    model: float

    @property
    def error(self) -> float:
        return (self.model - self.real) / self.real


@dataclass(frozen=True)
class Agreement:
    """Of one figure over all scenarios and policies."""

    figure: str
    comparisons: tuple[Comparison, ...]

    @property
    def median(self) -> float:
        return statistics.median(abs(one.error) for one in self.comparisons)

    @property
    def within(self) -> int:
        return sum(abs(one.error) <= LIMIT for one in self.comparisons)

    def outside(self) -> list[Comparison]:
        """The furthest first."""
        far = [one for one in self.comparisons if abs(one.error) > LIMIT]
        return sorted(far, key=lambda one: -abs(one.error))


FIGURES = ("max/mean", "busiest node", "p50", "p99")


def agreements(results: Results) -> list[Agreement]:
    """For every figure that was had both ways, by runs that nothing disturbed."""
    return [
        Agreement(figure, tuple(comparisons))
        for figure in FIGURES
        if (comparisons := [one for one in _all(results) if one.figure == figure])
    ]


def _all(results: Results) -> list[Comparison]:
    return [
        Comparison(scenario, policy, figure, real, model)
        for (scenario, policy), cell in results.cells.items()
        if cell.real and cell.model and not cell.disturbed
        for figure, real, model in _figures(cell)
        if real
    ]


def _figures(cell: Cell) -> list[tuple[str, float, float]]:
    through = _through_real_programs(cell)

    def both(figure: Figure) -> tuple[float, float]:
        return mean(cell.real, figure) or 0.0, mean(cell.model.values(), figure) or 0.0

    found = [
        ("max/mean", *both(max_over_mean)),
        ("busiest node", *both(lambda one: max(one.utilization))),
        ("p50", mean(cell.real, p50) or 0.0, percentile(through, 0.5)),
    ]
    if all(one.sent >= _ENOUGH for one in cell.real):
        found.append(("p99", mean(cell.real, p99) or 0.0, percentile(through, 0.99)))
    return found


def _through_real_programs(cell: Cell) -> list[float]:
    """The model's latencies with a hop added to each, drawn from those of the real run: the way through
    sockets, TLS and a busy machine is no part of the model."""
    random = Random(0)
    return sorted(latency + random.choice(cell.hops or [0.0]) for latency in cell.latencies)
