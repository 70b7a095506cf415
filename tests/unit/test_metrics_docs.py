"""What is written about metrics agrees with what is declared: documentation, alerts and dashboard."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orca_sidecar.core.errors import LocalReplyReason, local_reply
from orca_sidecar.metrics.families import (
    COMPUTED,
    FAMILIES,
    KEYED_FAMILIES,
    Counter,
    Family,
    Histogram,
    KeyedCounter,
)

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/metrics.md").read_text()
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/dashboard.json").read_text())
DECLARED = {family.name: family for family in (*FAMILIES, *KEYED_FAMILIES, *COMPUTED)}

_ROW = re.compile(r"^\| `(orca_sidecar_\w+)` \| (\w+) \|([^|]*)\| \S[^|]* \|$", re.MULTILINE)
_SELECTOR = re.compile(r"\b(orca_sidecar_\w+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")
_TARGET_LABELS = {"instance", "job"}  # Prometheus adds them when it scrapes


def kind_of(family: object) -> str:
    if isinstance(family, Counter | KeyedCounter):
        return "counter"
    return "histogram" if isinstance(family, Histogram) else "gauge"


def family_of(name: str) -> Any:
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return DECLARED[name] if name in DECLARED else DECLARED[base]


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in ALERTS] + [
    (panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]
]


# --- docs/metrics.md ---


def test_every_declared_metric_is_documented_and_every_documented_one_declared() -> None:
    rows = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in _ROW.findall(DOCUMENT)
    ]
    declared = [(family.name, kind_of(family), family.label_names) for family in DECLARED.values()]
    assert sorted(rows) == sorted(declared)
    assert set(re.findall(r"orca_sidecar_\w+", DOCUMENT)) == set(DECLARED)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_enumerated_label_value_is_documented(family: Family) -> None:
    for name, values in zip(family.label_names, family.label_values, strict=True):
        if name not in ("verb", "code", "long_running"):  # kube's verbs, HTTP's codes, true and false
            missing = [value for value in values if f"`{value}`" not in DOCUMENT]
            assert not missing


def test_status_codes_of_local_replies_are_documented() -> None:
    for reason in LocalReplyReason:
        assert f"| `{reason.name.lower()}` | {local_reply(reason, '').code}" in DOCUMENT


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    rows = re.findall(r"^\| `(OrcaSidecar\w+)` \| (\w+) \|", DOCUMENT, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in ALERTS]


def test_links_inside_the_document_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", DOCUMENT, re.MULTILINE)
    }
    anchors = set(re.findall(r"\]\(#([^)]+)\)", DOCUMENT))
    assert anchors
    assert anchors <= headings
    for path in re.findall(r"\]\((\.\./[^)]+)\)", DOCUMENT):
        assert (ROOT / "docs" / path).is_file()


# --- deploy/alerts.yaml and deploy/dashboard.json ---


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_expressions_use_declared_metrics_labels_and_values(title: str, expression: str) -> None:
    selectors = _SELECTOR.findall(expression)
    assert selectors
    known = set(_TARGET_LABELS) | {"le"}
    for name, matchers in selectors:
        if name == "up":
            continue
        family = family_of(name)
        known |= set(family.label_names)
        for label, operator, value in _MATCHER.findall(matchers):
            assert label in {*family.label_names, *_TARGET_LABELS}
            values = dict(zip(family.label_names, getattr(family, "label_values", ()), strict=False)).get(
                label
            )
            if values is not None:
                assert any(re.fullmatch(value, known_value) for known_value in values), (
                    f"{label}{operator}{value}"
                )
        assert not re.sub(_MATCHER, "", matchers).strip(", ")
    for labels in _GROUPING.findall(expression):
        assert {label.strip() for label in labels.split(",")} <= known


def test_counters_are_never_looked_at_without_a_rate() -> None:
    for title, expression in EXPRESSIONS:
        for match in _SELECTOR.finditer(expression):
            name = match[1]
            if name != "up" and kind_of(family_of(name)) != "gauge":
                before = expression[: match.start()]
                assert before.endswith(("rate(", "increase(")), f"{title}: {name}"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {
        family_of(name).name for _, text in EXPRESSIONS[len(ALERTS) :] for name, _ in _SELECTOR.findall(text)
    }
    assert shown == set(DECLARED)


def test_panels_are_described_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
    for panel in panels():
        assert panel["description"].endswith(".")
        assert all("$instance" in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alerts_say_what_happened_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    for annotation in ("summary", "description", "runbook"):
        assert len(rule["annotations"][annotation]) > 40
    for name in re.findall(r"orca_sidecar_\w+", rule["annotations"]["runbook"]):
        assert name in DECLARED


def test_settings_that_are_named_exist() -> None:
    reference = yaml.safe_load((ROOT / "config/reference.yaml").read_text())
    texts = [DOCUMENT, *(rule["annotations"]["runbook"] for rule in ALERTS)]
    setting = re.compile(r"\b(?:listener|upstream|frontProxy|loadMetrics|admin)(?:\.[a-z]\w+)+")
    named = {path for text in texts for path in setting.findall(text)}
    assert named
    for path in named:
        value: Any = reference
        for key in path.split("."):
            assert key in value, path
            value = value[key]
