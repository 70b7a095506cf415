"""Runs scenarios: repeats interleaved over the subjects, medians, and no figure from a busy machine."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.accounting import busiest_strangers
from bench.harness.process import BenchError
from bench.harness.trial import NO_PROXY, Scenario, Workshop
from bench.peers.job import Peer

FOREIGN_LIMIT = 0.08
"""Cores that strangers may use during a measurement; more, and it does not count."""
_TRIES = 3
_PAUSE = 2.0


@dataclass
class Outcome:
    """The samples of one subject in one scenario, or why there are none."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    foreign: list[float] = field(default_factory=list)
    problem: str = ""
    busy: bool = False
    """Measured although the machine was busy (only where that was asked for)."""

    def median(self, figure: str) -> float | None:
        values = self.samples.get(figure)
        return statistics.median(values) if values and not self.problem else None

    def as_json(self) -> dict[str, Any]:
        figures = {
            name: {
                "median": round(statistics.median(values), 3),
                "min": round(min(values), 3),
                "max": round(max(values), 3),
                "samples": [round(value, 3) for value in values],
            }
            for name, values in self.samples.items()
        }
        result: dict[str, Any] = {
            "figures": figures,
            "foreignCores": [round(value, 3) for value in self.foreign],
        }
        if self.problem:
            result["problem"] = self.problem
        if self.busy:
            result["busyMachine"] = True
        return result


Results = dict[str, dict[str, Outcome]]
"""Scenario name → subject name → outcome."""


def run_scenarios(
    workshop: Workshop,
    scenarios: Sequence[Scenario],
    peers: Mapping[str, Peer],
    *,
    repeats: int | None,
    allow_busy: bool,
    say: Callable[[str], None],
) -> Results:
    results: Results = {}
    for scenario in scenarios:
        subjects = [name for name in scenario.subjects if name in NO_PROXY or name in peers]
        outcomes = {name: Outcome() for name in subjects}
        results[scenario.name] = outcomes
        rounds = repeats or scenario.repeats
        for number in range(rounds):
            shift = number % len(subjects) if subjects else 0
            for name in subjects[shift:] + subjects[:shift]:
                if outcomes[name].problem:
                    continue
                say(f"{scenario.name} {number + 1}/{rounds} {name}")
                _measure(workshop, scenario, name, peers.get(name), outcomes[name], allow_busy)
                if outcomes[name].problem:
                    print(f"{scenario.name}, {name}: {outcomes[name].problem}", file=sys.stderr)
    return results


def _measure(
    workshop: Workshop,
    scenario: Scenario,
    subject: str,
    peer: Peer | None,
    outcome: Outcome,
    allow_busy: bool,
) -> None:
    for attempt in range(_TRIES):
        try:
            with workshop.trial(scenario, subject, peer) as trial:
                figures = scenario.trial(trial)
        except (BenchError, OSError) as error:
            outcome.problem = f"failed: {error}"
            return
        if trial.foreign <= FOREIGN_LIMIT or allow_busy:
            outcome.busy |= trial.foreign > FOREIGN_LIMIT
            outcome.foreign.append(trial.foreign)
            for name, value in figures.items():
                outcome.samples.setdefault(name, []).append(value)
            return
        if attempt + 1 < _TRIES:
            time.sleep(_PAUSE)
    outcome.problem = (
        f"no figure: the machine is busy, other programs used {trial.foreign:.2f} cores in each of {_TRIES} tries"
        f" ({describe_strangers()})"
    )


def describe_strangers() -> str:
    """Who is keeping the machine busy, as "name 0.93, …"."""
    return (
        ", ".join(f"{name} {cores:.2f}" for name, cores in busiest_strangers(0.5)) or "short-lived programs"
    )
