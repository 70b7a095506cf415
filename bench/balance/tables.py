"""Results as text: for the terminal and, the same, for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from . import results as figures
from .goals import Goal
from .measures import Measures, best_split, max_over_mean, state_at
from .results import Cell, Figure, Results, mean
from .scenarios import MEAN_WORK, Scenario
from .validation import LIMIT, Agreement

LEGEND = (
    "real / model (mean over its seeds); · not run, – never, ~ disturbed by what else the machine had to do"
)

_COLUMNS: tuple[tuple[str, Figure, float, str], ...] = (
    ("max/mean", figures.max_over_mean, 1, ".3f"),
    ("p50 ms", figures.p50, 1000, ".1f"),
    ("p99 ms", figures.p99, 1000, ".0f"),
    ("429", figures.rejected, 1, ".0f"),
    ("failed", figures.failed, 1, ".0f"),
    ("OOM kills", figures.kills, 1, ".1f"),
    ("settle s", figures.settle, 1, ".1f"),
    ("swing pts", figures.swing, 100, ".1f"),
)


def scenario_tables(results: Results) -> str:
    """One Markdown table a scenario: `real / model` in every cell, the model's a mean over its seeds."""
    return "\n\n".join(_table(results, scenario) for scenario in results.scenarios)


def _table(results: Results, scenario: Scenario) -> str:
    columns = [column for column in _COLUMNS if _is_of_interest(results, scenario, column[1])]
    rows = [["policy", *(title for title, *_ in columns)]]
    for policy in results.policies:
        cell = results.cell(scenario, policy)
        title = f"**{policy.title}**" if policy.ours else policy.title
        rows.append([title, *(_entry(cell, figure, scale, form) for _, figure, scale, form in columns)])
    least = least_possible(scenario)
    remark = f" The least possible max/mean is {least:.2f}." if least is not None else ""
    return f"**{scenario.name}**: {scenario.title}.{remark}\n\n{_markdown(rows)}"


def _is_of_interest(results: Results, scenario: Scenario, figure: Figure) -> bool:
    if figure in (figures.max_over_mean, figures.p50, figures.p99):
        return True
    cells = [results.cell(scenario, policy) for policy in results.policies]
    runs = [one for cell in cells for one in (*cell.real, *cell.model.values())]
    return any(figure(one) for one in runs)


def _entry(cell: Cell, figure: Figure, scale: float, form: str) -> str:
    real = _value(cell.real, figure, scale, form)
    model = _value(list(cell.model.values()), figure, scale, form)
    if cell.problem:
        real = "failed"
    elif cell.disturbed:
        real = f"~{real}"
    return f"{real or '·'} / {model or '·'}"


def _value(runs: Sequence[Measures], figure: Figure, scale: float, form: str) -> str:
    value = mean(runs, figure)
    if value is None:
        return "–" if runs else ""
    return format(value * scale, form)


def least_possible(scenario: Scenario) -> float | None:
    """Of max/mean, where nothing changes within the stretch that is judged."""
    timeline = scenario.timeline
    if any(scenario.start < change.at < scenario.end for change in timeline.changes) or timeline.storm:
        return None
    states = [state_at(timeline, number, scenario.end) for number in range(len(timeline.nodes))]
    return max_over_mean(best_split(states, timeline.rate * MEAN_WORK))


def goal_table(goals: Sequence[Goal]) -> str:
    rows = [["goal", "limit", "real", "model", "", "remark"]]
    for goal in goals:
        rows.append(
            [
                goal.title,
                goal.limit,
                goal.real or "·",
                goal.model or "·",
                "met" if goal.met else "missed",
                goal.remark,
            ]
        )
    return _markdown(rows)


def agreement_text(agreements: Sequence[Agreement]) -> str:
    """A table, and the comparisons that lie outside."""
    rows = [["figure", "comparisons", f"within {LIMIT:.0%}", "median error", "furthest"]]
    for agreement in agreements:
        far = agreement.outside()[:3]
        rows.append(
            [
                agreement.figure,
                str(len(agreement.comparisons)),
                str(agreement.within),
                f"{agreement.median:.1%}",
                "; ".join(f"{one.scenario} × {one.policy} {one.error:+.0%}" for one in far) or "–",
            ]
        )
    return _markdown(rows)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"

    head, *body = rows
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *(line(row) for row in body)])
