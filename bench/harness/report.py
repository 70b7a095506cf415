"""Results for readers: a table on the terminal, JSON, and the tables of docs/performance.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness.goals import GOALS, added, median
from bench.harness.runner import Outcome, Results
from bench.harness.trial import DIRECT, Scenario

BEGIN = "<!-- bench:begin (written by bench/run.py --write-docs) -->"
END = "<!-- bench:end -->"
_BASELINE = "envoy"
_COLUMNS = {
    "cpuMicroseconds": "CPU µs",
    "cpuSecondsPerGigabyte": "CPU s/GB",
    "kilobytesPerWatch": "KB/watch",
    "requestsPerSecond": "req/s",
    "connectionsPerSecond": "conn/s",
    "p50Microseconds": "p50 µs",
    "p99Microseconds": "p99 µs",
    "busiestProcessShare": "busiest process",
    "watches": "watches",
    "apiserverCpuMicroseconds": "kube-apiserver CPU µs",
    "apiserverKilobytesPerWatch": "kube-apiserver KB/watch",
    "reconnectSeconds": "reconnected in s",
}


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _spread(outcome: Outcome, figure: str) -> str:
    values = outcome.samples.get(figure, [])
    middle = outcome.median(figure)
    if middle is None or len(values) < 2 or middle == 0:
        return "–"
    return f"±{(max(values) - min(values)) / 2 / middle:.0%}"


def _rows(scenario: Scenario, results: Results, titles: Mapping[str, str]) -> list[list[str]]:
    """A header row and a row for each subject; latencies also as what the proxy adds, where there is a direct one."""
    outcomes = results[scenario.name]
    figures = list(dict.fromkeys(name for outcome in outcomes.values() for name in outcome.samples))
    if not figures:
        figures = ["cpuMicroseconds"]
    direct = DIRECT in outcomes
    adding = [name for name in figures if direct and name.endswith("Microseconds") and name[0] == "p"]
    main = adding[0] if adding else figures[0]
    header = [
        "",
        *(_COLUMNS.get(name, name) for name in figures),
        *(f"added {_COLUMNS[name]}" for name in adding),
    ]
    rows = [[*header, "× Envoy", "spread"]]

    def main_figure(subject: str) -> float | None:
        if adding:
            return added(results, scenario.name, subject, main)
        return median(results, scenario.name, subject, main)

    baseline = main_figure(_BASELINE)
    for subject, outcome in outcomes.items():
        title = titles.get(subject, subject)
        if outcome.problem:
            rows.append([title, outcome.problem, *[""] * (len(header))])
            continue
        own = main_figure(subject)
        cells = [_number(outcome.median(name)) for name in figures]
        cells += [_number(added(results, scenario.name, subject, name)) for name in adding]
        times = f"{own / baseline:.2f}" if own is not None and baseline and subject != DIRECT else "–"
        rows.append([title, *cells, times, _spread(outcome, main)])
    return rows


def goal_rows(results: Results) -> list[list[str]]:
    rows = [["goal", "at most", "measured", ""]]
    for goal in GOALS:
        found = goal.figure(results)
        if found is None:
            continue
        unit = f" {goal.unit}" if goal.unit else ""
        if goal.bound is None:
            rows.append([goal.title, "–", f"{found:.2f}{unit}", ""])
        else:
            verdict = "met" if found <= goal.bound else "missed"
            rows.append([goal.title, f"{goal.bound:.2f}{unit}", f"{found:.2f}{unit}", verdict])
    return rows


def print_results(scenarios: Sequence[Scenario], results: Results, titles: Mapping[str, str]) -> None:
    for scenario in scenarios:
        print(f"\n{scenario.title} ({scenario.unit}, medians)")
        _print_table(_rows(scenario, results, titles))
    goals = goal_rows(results)
    if len(goals) > 1:
        print("\ngoals")
        _print_table(goals)
    print()


def _print_table(rows: list[list[str]]) -> None:
    width = max(len(row) for row in rows)
    sizes = [
        max((len(row[at]) for row in rows if at < len(row) and len(row[at]) < 70), default=0)
        for at in range(width)
    ]
    for row in rows:
        cells = [
            f"{cell:<{size}}" if at == 0 else f"{cell:>{size}}"
            for at, (cell, size) in enumerate(zip(row, sizes, strict=False))
        ]
        print("  " + "  ".join(cells).rstrip())


def headline(results: Results) -> dict[str, Any]:
    """The goals' figures by key, null where there is none, and what spoiled the run."""
    figures = {goal.key: _rounded(goal.figure(results)) for goal in GOALS}
    problems = sorted(
        f"{scenario}/{subject}: {outcome.problem}"
        for scenario, outcomes in results.items()
        for subject, outcome in outcomes.items()
        if outcome.problem
    )
    busy = any(outcome.busy for outcomes in results.values() for outcome in outcomes.values())
    return {
        "ratios": {key: figure for key, figure in figures.items() if figure is not None},
        "busyMachine": busy,
    } | ({"problems": problems} if problems else {})


def _rounded(figure: float | None) -> float | None:
    return round(figure, 3) if figure is not None else None


def markdown(
    machine: Mapping[str, Any], scenarios: Sequence[Scenario], results: Results, titles: Mapping[str, str]
) -> str:
    versions = ", ".join(machine["versions"].values())
    lines = [
        BEGIN,
        "",
        f"Measured {machine['date'][:10]} at commit {machine['commit']} with `{machine['command']}`, on {machine['cpus']} "
        f"CPUs of {machine['cpu']}, {machine['memoryGigabytes']} GB, Linux {machine['kernel']}. Upstream: "
        f"{machine['upstream']}. {versions}.",
        "",
    ]
    goals = goal_rows(results)
    if len(goals) > 1:
        lines += ["### Goals", "", *_markdown_table(goals)]
    for scenario in scenarios:
        title = scenario.title[0].upper() + scenario.title[1:]
        lines += [f"### {title}", "", f"{scenario.unit}; medians of {_repeats(results, scenario)}.", ""]
        lines += _markdown_table(_rows(scenario, results, titles))
    return "\n".join([*lines, END])


def _repeats(results: Results, scenario: Scenario) -> int:
    return max((len(outcome.foreign) for outcome in results[scenario.name].values()), default=0)


def _markdown_table(rows: list[list[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return [*(f"| {' | '.join(row[: len(rule)])} |" for row in [rows[0], rule, *rows[1:]]), ""]


def update_document(path: Path, section: str) -> None:
    """Replaces what stands between the two markers."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no {BEGIN} … {END}")
    path.write_text(before + section + after)
