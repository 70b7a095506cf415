"""What the report is meant to reach, and whether this run reached it. Printed, not asserted: a shared machine
makes a real run noisy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .measures import Measures
from .policies import BASELINE, Balancer, Policy
from .results import Figure, Results, kills, max_over_mean, mean, p99, paired, rejected, settle, swing
from .scenarios import Scenario

_NOT_WORSE = 0.01
"""Of max/mean: with nodes at 11 %, a tenth of a point of utilization."""
_LATENCY_UNIT = 1000


@dataclass(frozen=True)
class Goal:
    title: str
    limit: str
    real: str
    model: str
    met: bool
    remark: str = ""


def goals(results: Results) -> list[Goal]:
    """Those that can be judged by what was run, of both ways in which Envoy hears the reports."""
    return [
        goal
        for policy in results.policies
        if policy.ours and policy.balancer is Balancer.ENVOY
        for goal in _of(results, policy)
    ]


def _of(results: Results, policy: Policy) -> Iterator[Goal]:
    way = "out of band" if policy.out_of_band else "in band"
    limits: tuple[tuple[str, str, Figure, float, float, str], ...] = (
        ("leaders-60", "60/10/10 max/mean", max_over_mean, 1.30, 1, ""),
        ("leaders-30", "30/10/10 max/mean", max_over_mean, 1.03, 1, ""),
        ("failover", "failover settled", settle, 6.0, 1, " s"),
        ("failover", "failover swing", swing, 3.0, 100, " points"),
    )
    for name, title, figure, limit, scale, unit in limits:
        if (scenario := _scenario(results, name)) is not None:
            yield _at_most(results, scenario, policy, f"{title}, {way}", figure, limit, scale, unit)
    yield from _storm(results, policy, way)
    yield from _lowest(results, policy, way, "p99 lowest of all", p99, _LATENCY_UNIT, " ms")
    yield from _lowest(results, policy, way, "429s fewest of all", rejected, 1, "")
    yield from _low_rate(results, policy, way)


def _scenario(results: Results, name: str) -> Scenario | None:
    return next((scenario for scenario in results.scenarios if scenario.name == name), None)


def _at_most(
    results: Results,
    scenario: Scenario,
    policy: Policy,
    title: str,
    figure: Figure,
    limit: float,
    scale: float,
    unit: str,
) -> Goal:
    cell = results.cell(scenario, policy)
    texts, met, remark = [], True, ""
    for runs in (cell.real, list(cell.model.values())):
        value = mean(runs, figure)
        if not runs:
            texts.append("")
            continue
        met = met and value is not None and value * scale <= limit
        texts.append("never" if value is None else f"{value * scale:.3g}{unit}")
    known = [value for one in cell.model.values() if (value := figure(one)) is not None]
    if known:
        remark = f"model: {min(known) * scale:.3g} to {max(known) * scale:.3g} over {len(cell.model)} seeds"
    return Goal(title, f"≤ {limit:g}{unit}", texts[0], texts[1], met, remark)


def _storm(results: Results, policy: Policy, way: str) -> Iterator[Goal]:
    scenario = _scenario(results, "list-storm")
    baseline = next((one for one in results.policies if one.name == BASELINE), None)
    if scenario is None or baseline is None:
        return
    theirs, ours = results.cell(scenario, baseline), results.cell(scenario, policy)
    cascades = [seed for seed, one in theirs.model.items() if one.kills > 1]
    killed = sum(one.kills for one in ours.model.values())
    in_cascades = sum(ours.model[seed].kills for seed in cascades)
    real = mean(ours.real, kills)
    yield Goal(
        f"LIST storm, OOM kills where round robin cascades, {way}",
        "0",
        "" if real is None else f"{real:.0f}",
        f"{in_cascades}",
        not in_cascades and not real,
        f"round robin cascades in {len(cascades)} of {len(theirs.model)} seeds; ours has {killed} kills in all",
    )


def _lowest(
    results: Results, policy: Policy, way: str, title: str, figure: Figure, scale: float, unit: str
) -> Iterator[Goal]:
    """Judged by the model, over the same seeds: one real run of a few seconds holds a dozen requests beyond
    its 99th percentile."""
    exceptions = []
    judged = 0
    for scenario in results.scenarios:
        mine = results.cell(scenario, policy)
        clear = []
        for other in results.policies:
            if other.ours:
                continue
            difference = paired(mine, results.cell(scenario, other), figure)
            if difference is not None and difference.is_clear:
                clear.append((difference.mean, other.name))
        judged += bool(mine.model)
        if clear:
            worst, name = max(clear)
            exceptions.append(f"{scenario.name}: {name} by {worst * scale:.2g}{unit}")
    if judged:
        text = f"{judged - len(exceptions)} of {judged}"
        yield Goal(f"{title}, {way}", "all", "", text, not exceptions, "; ".join(exceptions))


def _low_rate(results: Results, policy: Policy, way: str) -> Iterator[Goal]:
    scenario = _scenario(results, "low-rate")
    baseline = next((one for one in results.policies if one.name == BASELINE), None)
    if scenario is None or baseline is None:
        return
    mine, theirs = results.cell(scenario, policy), results.cell(scenario, baseline)
    if not mine.model or not theirs.model:
        return

    def text(ours: Iterable[Measures], other: Iterable[Measures]) -> str:
        a, b = mean(ours, max_over_mean), mean(other, max_over_mean)
        return "" if a is None or b is None else f"{a:.3f} ({b:.3f})"

    real, model = text(mine.real, theirs.real), text(mine.model.values(), theirs.model.values())
    difference = paired(mine, theirs, max_over_mean)
    met = difference is None or difference.mean <= max(_NOT_WORSE, 2 * difference.error)
    yield Goal(f"low rate, max/mean (round robin's), {way}", "not worse", real, model, met)
