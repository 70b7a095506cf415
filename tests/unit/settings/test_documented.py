"""What is shipped and written about the configuration agrees with the schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orca_sidecar.core.load_report import NAMED_METRICS
from orca_sidecar.settings.load import load_configuration
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.settings.section import keys
from tests.unit.settings.configurations import load, with_keys

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "config" / "reference.yaml"
KEYS = dict(keys(SidecarConfiguration))
REQUIRED = {path for path, field in KEYS.items() if field.is_required()}

# A row of a table: | `key` | `default` | meaning |
ROW = re.compile(r"^\| `([A-Za-z0-9.]+)` \| (required|`(.+?)`) \| (.+) \|$", re.MULTILINE)


def documented() -> dict[str, str | None]:
    """Default, as YAML text, of every key in docs/configuration.md; None for a required one."""
    rows = ROW.findall((ROOT / "docs" / "configuration.md").read_text())
    assert len({row[0] for row in rows}) == len(rows), "a key stands in two rows"
    return {key: default or None for key, _, default, _ in rows}


def lookup(values: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def set_key(key: str, value: object) -> SidecarConfiguration:
    return load(with_keys(**{key.replace(".", "__"): value}))


def test_every_key_is_documented_and_no_other() -> None:
    assert set(documented()) == set(KEYS)


def test_required_keys_are_documented_as_such() -> None:
    assert {key for key, default in documented().items() if default is None} == REQUIRED


@pytest.mark.parametrize("key", sorted(set(KEYS) - REQUIRED))
def test_documented_defaults_are_the_defaults(key: str) -> None:
    text = documented()[key]
    assert text is not None
    assert set_key(key, yaml.safe_load(text)) == load(with_keys())


def test_named_metrics_are_all_documented() -> None:
    for text in ((ROOT / "docs" / "configuration.md").read_text(), REFERENCE.read_text()):
        assert all(name in text for name in NAMED_METRICS)


def test_the_reference_has_every_key() -> None:
    values = yaml.safe_load(REFERENCE.read_text())
    for key in KEYS:
        assert lookup(values, key) is not None


def test_the_references_values_are_the_defaults() -> None:
    reference = load_configuration(REFERENCE)
    tls = reference.listener.tls
    required = {
        "listener__tls__certFile": str(tls.cert_file),
        "listener__tls__keyFile": str(tls.key_file),
        "upstream__tls__caFile": str(reference.upstream.tls.ca_file),
    }
    assert reference == load(with_keys(**required))


def test_the_example_loads_and_reports_load() -> None:
    configuration = load_configuration(ROOT / "config" / "orca-sidecar.yaml")
    assert configuration.load_metrics.enabled
    assert configuration.load_metrics.opt_in.gate == "frontProxy"
    assert configuration.load_metrics.opt_in.allowed_names
    assert configuration.front_proxy.allowed_names == ()
