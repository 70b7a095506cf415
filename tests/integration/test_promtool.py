"""Prometheus' own tool on what Prometheus gets from the project: exposition, alerting rules, dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from aiohttp import ClientSession
from prometheus_client import Metric

from orca_sidecar import metrics
from orca_sidecar.admin.server import AdminServer
from orca_sidecar.metrics.families import COMPUTED, FAMILIES, Histogram
from orca_sidecar.settings.addresses import Address

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/alerts.yaml"
ALERTS_TEST = Path(__file__).with_name("alerts_test.yaml")


def promtool(*arguments: object, stdin: str = "") -> str:
    """Run promtool; fails with what it printed. Returns its standard output and error."""
    program = shutil.which("promtool")
    assert program, (
        "promtool is needed: install Debian's package prometheus, or put a release's promtool on PATH"
    )
    done = subprocess.run(
        [program, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def some_of_everything() -> tuple[list[metrics.Cells], list[Metric]]:
    """Two processes' cells in which every family counted something, and every computed gauge."""
    all_cells = metrics.new_cells(2)
    for cells in all_cells:
        for family in FAMILIES:
            for index in range(0, family.size, family.width * 5):
                if isinstance(family, Histogram):
                    family.observe(cells, family.offset + index, 7_000_000)
                else:
                    cells[family.offset + index] += 1 + index
        for uid in (b"0c2d9a57-7a2f-4e0c-9d0e-7e8c4a9f3b11", b"no uid"):
            metrics.PRIORITY_LEVEL_REJECTIONS.recorder(cells).increment(uid)
    return all_cells, [gauge.value(0.5, *gauge.label_names) for gauge in COMPUTED]


@pytest.mark.parametrize("touched", [False, True], ids=["at start", "in use"])
async def test_the_exposition_is_valid_and_follows_the_conventions(touched: bool) -> None:
    all_cells, computed = some_of_everything() if touched else (metrics.new_cells(1), [])
    collector = metrics.Collector(all_cells, [lambda: computed])
    server = AdminServer(Address("127.0.0.1", 0), collector, lambda: [], lambda: {})
    await server.start()
    try:
        async with ClientSession() as session, session.get(f"http://{server.address}/metrics") as response:
            exposition = await response.text()
    finally:
        await server.stop()
    assert "orca_sidecar_upgrades" in exposition
    assert ("orca_sidecar_requests_total{" in exposition) is touched
    assert promtool("check", "metrics", stdin=exposition) == ""


def test_the_rules_are_valid() -> None:
    rules = len(yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"])
    assert f"SUCCESS: {rules} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)


def test_the_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST)


def test_every_alert_is_tested() -> None:
    alerts = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]}
    expected = {f'ALERTS{{alertname="{alert}", alertstate="firing"}}': alert for alert in alerts}
    tested = {
        expected[check["expr"]]
        for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]
        for check in test["promql_expr_test"]
        if check["exp_samples"]
    }
    assert tested == alerts


def test_the_expressions_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    panels = json.loads((ROOT / "deploy/dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(expressions) > 20
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", file)
