"""Every measure of one invocation, by scenario and policy, and means over seeds."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .measures import Measures
from .policies import Policy
from .scenarios import Scenario
from .trace import Trace

Figure = Callable[[Measures], float | None]


@dataclass
class Cell:
    """One policy in one scenario. `real` holds as many runs as were made, `model` one for each seed."""

    real: list[Measures] = field(default_factory=list)
    model: dict[int, Measures] = field(default_factory=dict)
    hops: list[float] = field(default_factory=list)
    """Of the real run: seconds that a request takes besides its work and its waiting for a core."""
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """Of the model's successful requests, over all seeds."""
    disturbed: bool = False
    """The real run, by what else the machine had to do."""
    problem: str = ""
    """Why there is no real run, where there should be."""


@dataclass
class Results:
    scenarios: list[Scenario]
    policies: list[Policy]
    cells: dict[tuple[str, str], Cell]
    """By the names of scenario and policy."""
    traces: dict[tuple[str, str], Trace] = field(default_factory=dict)
    """By the names of timeline and policy: the real run, or else the model's first seed."""
    lateness: dict[tuple[str, str], float] = field(default_factory=dict)
    """Of every real run, by the names of timeline and policy: how late, at the 99th percentile, requests were
    sent, in seconds."""

    def cell(self, scenario: Scenario, policy: Policy) -> Cell:
        return self.cells[scenario.name, policy.name]


def empty(scenarios: list[Scenario], policies: list[Policy]) -> Results:
    cells = {(scenario.name, policy.name): Cell() for scenario in scenarios for policy in policies}
    return Results(scenarios, policies, cells)


def mean(measures: Iterable[Measures], figure: Figure) -> float | None:
    """Over the runs that have the figure; None if less than half of them do."""
    values = [figure(one) for one in measures]
    known = [value for value in values if value is not None]
    if not known or 2 * len(known) < len(values):
        return None
    return statistics.fmean(known)


@dataclass(frozen=True)
class Difference:
    """Of a figure between two policies over the same seeds."""

    mean: float
    error: float
    """Standard error of the mean."""

    @property
    def is_clear(self) -> bool:
        """Above zero, and not by chance."""
        return self.mean > 2 * self.error


def paired(one: Cell, other: Cell, figure: Figure) -> Difference | None:
    """How much higher `one` is in the model; None with fewer than two common seeds."""
    differences = []
    for seed in one.model.keys() & other.model.keys():
        mine, theirs = figure(one.model[seed]), figure(other.model[seed])
        if mine is not None and theirs is not None:
            differences.append(mine - theirs)
    if len(differences) < 2:
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return Difference(statistics.fmean(differences), error)


# The figures by which policies are compared.


def max_over_mean(one: Measures) -> float:
    return one.max_over_mean


def p50(one: Measures) -> float:
    return one.p50


def p99(one: Measures) -> float:
    return one.p99


def rejected(one: Measures) -> float:
    return one.rejected


def failed(one: Measures) -> float:
    return one.failed


def kills(one: Measures) -> float:
    return one.kills


def settle(one: Measures) -> float | None:
    return one.settle


def swing(one: Measures) -> float | None:
    return one.swing
