"""Compare load balancers over API servers of modelled capacity, by real programs and by a model of them.

    python -m bench.balance                        everything, 10 to 12 minutes
    python -m bench.balance --quick                60/10/10 and failover, three policies, under a minute
    python -m bench.balance --model-only --seeds 30 --scenario list-storm

Exit status: 0; 1 if a run failed; 130 if interrupted. Goals that are missed are printed and change nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from . import document
from .goals import Goal, goals
from .lanes import Job, expected_seconds, pool, run_model, run_real
from .measures import measure
from .policies import BASELINE, POLICIES, Policy
from .results import Results, empty
from .scenarios import SCENARIOS, Scenario, Timeline
from .tables import LEGEND, agreement_text, goal_table, scenario_tables
from .trace import DISTURBED
from .validation import LIMIT, Agreement, agreements

RESULTS = Path(__file__).parents[1] / "results"
REAL_SEED = 1
_QUICK_SCENARIOS = ("leaders-60", "failover")
_QUICK_POLICIES = (BASELINE, "prototype", "ours")
_SEEDS = 16
_QUICK_SEEDS = 12
_LARGE_SEEDS = 4
"""Of the timelines that are more to compute than all others together."""
_LARGE = 10_000
"""Requests."""
_BUDGET = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    signal.signal(signal.SIGTERM, _terminate)
    started = time.monotonic()
    scenarios = [
        one
        for one in SCENARIOS
        if one.name in _names(options.scenario, options.quick, _QUICK_SCENARIOS, SCENARIOS)
    ]
    policies = [
        one
        for one in POLICIES
        if one.name in _names(options.policy, options.quick, _QUICK_POLICIES, POLICIES)
    ]
    results = empty(scenarios, policies)
    with pool(max(options.lanes, os.cpu_count() or 1)) as executor:
        if not options.model_only:
            jobs = [
                Job(timeline.name, policy.name, REAL_SEED)
                for timeline in _timelines([one for one in scenarios if one.real])
                for policy in policies
                if policy.real
            ]
            expected = expected_seconds(jobs, options.lanes)
            print(
                f"{len(jobs)} real runs in {options.lanes} lanes, about {expected:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            for job, trace in run_real(executor, jobs, options.lanes, options.budget):
                _take_real(results, job, trace)
        seeds = options.seeds or (_QUICK_SEEDS if options.quick else _SEEDS)
        modelled = [
            Job(timeline.name, policy.name, seed)
            for timeline in _timelines(scenarios)
            for policy in policies
            for seed in range(REAL_SEED, REAL_SEED + _seeds_of(timeline, seeds, bool(options.seeds)))
        ]
        for job, outcome in run_model(executor, modelled, REAL_SEED):
            for name, measures in outcome.measures.items():
                if (name, job.policy) in results.cells:
                    cell = results.cells[name, job.policy]
                    cell.model[job.seed] = measures
                    cell.latencies.extend(outcome.latencies[name])
            if outcome.trace is not None:
                results.traces.setdefault((job.timeline, job.policy), outcome.trace)
    return _report(results, options, time.monotonic() - started)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.balance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="three policies, two scenarios")
    parser.add_argument(
        "--scenario", action="append", choices=[one.name for one in SCENARIOS], help="repeatable"
    )
    parser.add_argument(
        "--policy", action="append", choices=[one.name for one in POLICIES], help="repeatable"
    )
    parser.add_argument("--model-only", action="store_true", help="no real programs")
    parser.add_argument("--seeds", type=_positive, help="modelled runs of each policy in each scenario")
    parser.add_argument("--lanes", type=_positive, default=3, help="real runs at once (default 3)")
    parser.add_argument(
        "--budget",
        type=float,
        default=_BUDGET,
        help="seconds from the start in which real runs that the machine disturbed are made again (default 600)",
    )
    parser.add_argument("--output", type=Path, help="JSON file; default: a dated one under bench/results")
    parser.add_argument("--write-docs", action="store_true", help="tables and plots into docs/")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {text}")
    return value


def _terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _names(
    asked: list[str] | None,
    quick: bool,
    few: Sequence[str],
    everything: Sequence[Scenario] | Sequence[Policy],
) -> set[str]:
    if asked:
        return set(asked)
    return set(few) if quick else {one.name for one in everything}


def _timelines(scenarios: Sequence[Scenario]) -> list[Timeline]:
    return list({scenario.timeline.name: scenario.timeline for scenario in scenarios}.values())


def _seeds_of(timeline: Timeline, seeds: int, asked: bool) -> int:
    if asked:
        return seeds
    large = timeline.rate * timeline.seconds > _LARGE
    return min(seeds, _LARGE_SEEDS) if large else seeds


def _take_real(results: Results, job: Job, trace: Any) -> None:
    for scenario in results.scenarios:
        if scenario.timeline.name != job.timeline or not scenario.real:
            continue
        cell = results.cells[scenario.name, job.policy]
        if isinstance(trace, str):
            cell.problem = trace
            continue
        cell.real.append(measure(scenario, trace))
        cell.hops = [hop.seconds for hop in trace.hops if scenario.start <= hop.at < scenario.end]
        cell.disturbed = trace.lateness > DISTURBED
    if not isinstance(trace, str):
        results.traces[job.timeline, job.policy] = trace
        results.lateness[job.timeline, job.policy] = trace.lateness


def _report(results: Results, options: argparse.Namespace, seconds: float) -> int:
    reached = goals(results)
    compared = agreements(results)
    print(scenario_tables(results))
    print(f"\n{LEGEND}\n")
    if compared:
        print(f"The model against the real runs:\n\n{agreement_text(compared)}\n")
    if reached:
        print(f"{goal_table(reached)}\n")
    problems = {
        f"{name} × {policy}": cell.problem for (name, policy), cell in results.cells.items() if cell.problem
    }
    for what, why in problems.items():
        print(f"failed: {what}: {why}", file=sys.stderr)
    now = datetime.now(UTC)
    output = options.output or RESULTS / f"balance-{now:%Y-%m-%dT%H%M}.json"
    record = document.record(results, reached, compared, now, seconds)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if options.write_docs:
        document.write(results, reached, compared, record["machine"])
    print(json.dumps(_summary(results, reached, compared, problems, seconds, output)))
    return 1 if problems else 0


def _summary(
    results: Results,
    reached: Sequence[Goal],
    compared: Sequence[Agreement],
    problems: dict[str, str],
    seconds: float,
    output: Path,
) -> dict[str, object]:
    within = sum(one.within for one in compared)
    return {
        "seconds": round(seconds),
        "goalsMet": sum(goal.met for goal in reached),
        "goals": len(reached),
        "missed": [goal.title for goal in reached if not goal.met],
        f"modelWithin{round(LIMIT * 100)}Percent": f"{within}/{sum(len(one.comparisons) for one in compared)}",
        "failedRuns": len(problems),
        "disturbedRuns": sum(late > DISTURBED for late in results.lateness.values()),
        "results": str(output),
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
