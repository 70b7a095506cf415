"""Utilization and share over time, and what is left uneven at the end."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from .measures import utilizations
from .policies import Policy
from .results import Results, max_over_mean, mean
from .scenarios import Scenario, Timeline
from .trace import Trace

_WINDOW = 1.0
_STEP = 0.5
_COLOURS = ("#c0392b", "#2471a3", "#1e8449")
_SHOWN = ("round-robin", "least-request", "prototype", "ours")
_OVER_TIME = ("failover", "list-storm", "slow-node", "restart")


def write_plots(results: Results, folder: Path) -> list[Path]:
    """One picture for each timeline that tells a story, and one of all scenarios; returns the files."""
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 8})
    folder.mkdir(parents=True, exist_ok=True)
    policies = [policy for policy in results.policies if policy.name in _SHOWN]
    written = []
    for name in _OVER_TIME:
        timeline = next((one.timeline for one in results.scenarios if one.timeline.name == name), None)
        traces = [(policy, results.traces.get((name, policy.name))) for policy in policies]
        known = [(policy, trace) for policy, trace in traces if trace is not None and trace.samples]
        if timeline is not None and known:
            written.append(_over_time(timeline, known, folder / f"{name}.svg"))
    if len(results.policies) > 1:
        written.append(_unevenness(results, folder / "max-over-mean.svg"))
    return written


def _over_time(timeline: Timeline, traces: Sequence[tuple[Policy, Trace]], file: Path) -> Path:
    rows = ["utilization", "share of requests"] + (["memory"] if timeline.storm else [])
    figure, axes = plt.subplots(
        len(rows),
        len(traces),
        figsize=(2.6 * len(traces) + 0.6, 1.6 * len(rows) + 0.5),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for column, (policy, trace) in enumerate(traces):
        axes[0][column].set_title(policy.title, fontsize=8)
        axes[-1][column].set_xlabel("seconds")
        lines = [_utilization(timeline, trace), _share(timeline, trace)]
        if timeline.storm:
            lines.append(
                ([sample.at for sample in trace.samples], [sample.memory for sample in trace.samples])
            )
        for row, (times, values) in enumerate(lines):
            _draw(axes[row][column], timeline, times, values)
            for kill in trace.kills:
                axes[row][column].axvline(kill.at, color=_COLOURS[kill.node], linestyle=":", linewidth=0.8)
    for row, title in enumerate(rows):
        axes[row][0].set_ylabel(title)
    labels = [f"node {number + 1}" for number in range(len(timeline.nodes))]
    figure.legend(
        axes[0][0].get_lines()[: len(labels)], labels, loc="lower center", ncols=len(labels), frameon=False
    )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return _save(figure, file)


def _draw(axis: Any, timeline: Timeline, times: Sequence[float], values: Sequence[Sequence[float]]) -> None:
    for number, line in enumerate(zip(*values, strict=True)):
        axis.plot(times, line, color=_COLOURS[number % len(_COLOURS)], linewidth=1)
    for at in {change.at for change in timeline.changes} | set(timeline.storm or ()):
        axis.axvline(at, color="0.6", linewidth=0.6)
    axis.set_ylim(0, 1.05)
    axis.grid(alpha=0.25, linewidth=0.5)


def _times(timeline: Timeline) -> list[float]:
    return [_WINDOW + _STEP * step for step in range(int((timeline.seconds - _WINDOW) / _STEP) + 1)]


def _utilization(timeline: Timeline, trace: Trace) -> tuple[list[float], list[tuple[float, ...]]]:
    times = _times(timeline)
    return times, [utilizations(timeline, trace.samples, at - _WINDOW, at) for at in times]


def _share(timeline: Timeline, trace: Trace) -> tuple[list[float], list[tuple[float, ...]]]:
    times, shares = _times(timeline), []
    for at in times:
        first, last = (
            bisect_left(trace.outcomes, moment, key=lambda one: one.at) for moment in (at - _WINDOW, at)
        )
        nodes = [outcome.node for outcome in trace.outcomes[first:last]]
        shares.append(
            tuple(nodes.count(number) / max(len(nodes), 1) for number in range(len(timeline.nodes)))
        )
    return times, shares


def _unevenness(results: Results, file: Path) -> Path:
    scenarios = [scenario for scenario in results.scenarios if scenario.name != "long-run"]
    figure, axis = plt.subplots(figsize=(8, 0.32 * len(scenarios) * 2 + 1))
    height = 0.85 / len(results.policies)
    colours = plt.get_cmap("tab10")
    for index, policy in enumerate(results.policies):
        lengths = [_mean_excess(results, scenario, policy) for scenario in scenarios]
        positions = [number + index * height for number in range(len(scenarios))]
        axis.barh(positions, lengths, height, label=policy.title, color=colours(index % 10))
    axis.set_yticks([number + 0.4 for number in range(len(scenarios))], [one.name for one in scenarios])
    axis.invert_yaxis()
    axis.set_xlabel("busiest node above the mean, %")
    axis.grid(axis="x", alpha=0.25, linewidth=0.5)
    axis.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    return _save(figure, file)


def _mean_excess(results: Results, scenario: Scenario, policy: Policy) -> float:
    cell = results.cell(scenario, policy)
    value = mean(cell.real or cell.model.values(), max_over_mean)
    return 0.0 if value is None else (value - 1) * 100


def _save(figure: Any, file: Path) -> Path:
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return file
