"""What is kept of an invocation: a JSON record, and the results' part of docs/balance-bench.md."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from .goals import Goal
from .measures import percentile
from .plots import write_plots
from .results import Results
from .tables import LEGEND, agreement_text, goal_table, scenario_tables
from .validation import Agreement

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "balance-bench.md"
IMAGES = DOCS / "images" / "balance"
_BEGIN, _END = "<!-- results: written by the bench -->", "<!-- end of results -->"


def record(
    results: Results, goals: Sequence[Goal], agreements: Sequence[Agreement], now: datetime, seconds: float
) -> dict[str, Any]:
    """Everything that was measured, as JSON."""
    return {
        "machine": {
            "date": now.isoformat(timespec="seconds"),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "seconds": round(seconds),
            "latenessP99Milliseconds": round(1000 * max(results.lateness.values(), default=0.0), 1),
            "loadAverage": [round(one, 1) for one in os.getloadavg()],
        },
        "goals": [asdict(goal) for goal in goals],
        "agreement": [
            {
                "figure": one.figure,
                "comparisons": len(one.comparisons),
                "within": one.within,
                "medianError": round(one.median, 4),
            }
            for one in agreements
        ],
        "scenarios": {
            scenario.name: {
                policy.name: {
                    "real": [one.to_json() for one in results.cell(scenario, policy).real],
                    "model": {
                        str(seed): one.to_json()
                        for seed, one in sorted(results.cell(scenario, policy).model.items())
                    },
                    "hopMedian": round(percentile(sorted(results.cell(scenario, policy).hops), 0.5), 5),
                    "problem": results.cell(scenario, policy).problem,
                }
                for policy in results.policies
            }
            for scenario in results.scenarios
        },
    }


def write(
    results: Results, goals: Sequence[Goal], agreements: Sequence[Agreement], machine: dict[str, Any]
) -> None:
    """Put tables and plots of this run into the page. Raises ValueError if it has no place for them."""
    write_plots(results, IMAGES)
    text = PAGE.read_text()
    body = "\n\n".join(
        [
            _BEGIN,
            f"Run of {machine['date']} on {machine['cores']} shared cores, {machine['seconds']} s; requests were sent "
            f"up to {machine['latenessP99Milliseconds']} ms late (99th percentile, the worst run).",
            "### Goals",
            goal_table(goals),
            "### The model against the real runs",
            agreement_text(agreements),
            "### Scenarios",
            f"In every cell {LEGEND}.",
            scenario_tables(results),
            _END,
        ]
    )
    pattern = re.compile(re.escape(_BEGIN) + ".*" + re.escape(_END), re.DOTALL)
    new, count = pattern.subn(lambda _: body, text)
    if not count:
        raise ValueError(f"{PAGE} has no results' part")
    PAGE.write_text(new)
