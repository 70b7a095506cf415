"""Reading a file: everything that is wrong with it at once, each with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orca_sidecar.settings.load import check_configuration, dump_configuration, load_configuration
from orca_sidecar.settings.problems import ConfigurationError
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.settings.section import keys
from tests.unit.settings.configurations import MINIMAL, attempt, load, only_problem, problems, with_keys

THREE_ERRORS = """\
apiVersion: orca-sidecar.dev/v1alpha1
kind: SidecarConfiguration
listener:
  tls:
    certFile: /tls/server.crt
    keyFile: /tls/server.key
    minVersion: 1.2
  idelTimeout: 60s
upstream:
  tls:
    caFile: /tls/ca.crt
  connectTimeout: 5
"""


def test_case_31_three_errors_are_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "orca-sidecar.yaml"
    path.write_text(THREE_ERRORS)
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(path)
    assert str(caught.value).splitlines() == [
        f'{path}:7: listener.tls.minVersion: is 1.2, not text; write it in quotes: "1.2"',
        f"{path}:8: listener.idelTimeout: is no key of this file; did you mean listener.idleTimeout?",
        f"{path}:12: upstream.connectTimeout: is 5, without a unit; write 5s if seconds are meant",
    ]


def test_form_values_rules_and_files_are_said_together(tmp_path: Path) -> None:
    path = tmp_path / "orca-sidecar.yaml"
    path.write_text(THREE_ERRORS + "  idleTimeout: 2m\n  idleTimeout: 60s\nloadMetrics:\n  enabled: true\n")
    with pytest.raises(ConfigurationError) as caught:
        check_configuration(path)
    found = [(problem.line, problem.key) for problem in caught.value.problems]
    assert found == sorted(found, key=lambda place: place[0] or 0)
    expected = {
        (5, "listener.tls.certFile"),  # not there
        (6, "listener.tls.keyFile"),
        (7, "listener.tls.minVersion"),
        (8, "listener.idelTimeout"),
        (11, "upstream.tls.caFile"),
        (12, "upstream.connectTimeout"),
        (14, "upstream.idleTimeout"),  # the second one
        (15, "loadMetrics.optIn.gate"),  # nobody may ask
    }
    assert expected <= set(found)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (
            "{}",
            ["apiVersion", "kind", "listener.tls.certFile", "listener.tls.keyFile", "upstream.tls.caFile"],
        ),
        (
            json.dumps({**MINIMAL, "listener": {"tls": {}}, "upstream": {}}),
            ["listener.tls.certFile", "listener.tls.keyFile", "upstream.tls.caFile"],
        ),
        (json.dumps({**MINIMAL, "listener": {"tls": {"certFile": "/a"}}}), ["listener.tls.keyFile"]),
    ],
)
def test_required_keys_are_named_one_by_one(text: str, missing: list[str]) -> None:
    found = problems(text)
    assert [problem.key for problem in found] == missing
    assert all(problem.message == "is missing" and "required" in problem.advice for problem in found)
    assert all(problem.line == 1 for problem in found)


@pytest.mark.parametrize(
    ("key", "value", "advice"),
    [
        ("apiVersion", "orca-sidecar.dev/v1", "write orca-sidecar.dev/v1alpha1"),
        ("kind", "Pod", "SidecarConfiguration"),
    ],
)
def test_api_version_and_kind_are_checked(key: str, value: str, advice: str) -> None:
    problem = only_problem(json.dumps({**MINIMAL, key: value}))
    assert problem.key == key
    assert advice in problem.advice


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("loadMetrik", "did you mean loadMetrics?"),
        ("listener__headerbytes", "did you mean listener.headerBytes?"),
        ("listener__header_bytes", "did you mean listener.headerBytes?"),
        ("listener__clientCaFile", "did you mean listener.clientCAFile?"),
        ("upstream__gate", "did you mean loadMetrics.optIn.gate?"),
        ("chance", "did you mean listener.rotation.chance?"),
        ("loadMetrics__report__memory", "did you mean loadMetrics.report.applicationUtilization.memory?"),
        ("logging__xyz", "keys here are level, format"),
        ("listener__tls__cert.file", "did you mean listener.tls.certFile?"),
        ("listener__", "keys here are address, tls"),
    ],
)
def test_unknown_keys_get_the_nearest(key: str, advice: str) -> None:
    problem = only_problem(with_keys(**{key: 1}))
    assert problem.key == key.replace("__", ".")
    assert problem.message == "is no key of this file"
    assert advice in problem.advice


def test_a_misspelt_key_is_not_missing_too_and_breaks_no_rule() -> None:
    text = with_keys(loadMetrics__enabled=True, frontProxy__allowedName=["lb"]).replace("keyFile", "keyFiel")
    assert [problem.key for problem in problems(text)] == ["listener.tls.keyFiel", "frontProxy.allowedName"]


def test_a_misspelling_beside_the_right_key_hides_nothing() -> None:
    text = with_keys(upstraem={}, upstream__idleTimeout="3h", upstream__connectTimeout=1)
    assert {p.key for p in problems(text)} == {"upstraem", "upstream.idleTimeout", "upstream.connectTimeout"}


@pytest.mark.parametrize("value", [5, "text", [], [{}], True])
def test_a_section_that_is_none(value: object) -> None:
    problem = only_problem(with_keys(frontProxy=value))
    assert problem.key == "frontProxy"
    assert "not a mapping" in problem.message
    assert "clientCAFile, allowedNames" in problem.advice


def test_a_wrong_section_with_required_keys_is_one_problem() -> None:
    assert only_problem(json.dumps({**MINIMAL, "listener": 3})).key == "listener"


def test_an_empty_section_has_its_defaults() -> None:
    text = with_keys(admin=None, loadMetrics__report=None, upstream__probe={})
    assert load(text) == load(with_keys())


def test_duplicate_keys_are_an_error_even_if_equal() -> None:
    text = with_keys().replace('"kind"', '"mode": "proxy",\n"mode": "proxy",\n"kind"')
    problem = only_problem(text)
    assert (problem.key, problem.line) == ("mode", 4)


def test_every_wrong_item_of_a_list_is_named() -> None:
    found = problems(with_keys(loadMetrics__formats=["TEXT", "XML", "CSV"]))
    assert [problem.key for problem in found] == ["loadMetrics.formats[1]", "loadMetrics.formats[2]"]


def test_print_config_loads_back_equal() -> None:
    for text in (with_keys(), with_keys(workers="auto", **EVERYTHING)):
        configuration = load(text)
        assert load(dump_configuration(configuration)) == configuration


EVERYTHING = {
    "mode": "reporter",
    "listener__address": "[::]:1",
    "listener__clientCAFile": "",
    "listener__headerBytes": 65537,
    "upstream__idleTimeout": "1m1.5s",
    "upstream__probe__tokenFile": "/run/secrets/token: 1",
    "frontProxy__allowedNames": ["Löwe", "1.2", "on", "null", "1e3", "a: b", "=", "-", "#x", "0x1"],
    "loadMetrics__enabled": True,
    "loadMetrics__formats": ["JSON", "BIN"],
    "loadMetrics__optIn__gate": "open",
    "loadMetrics__report__rpsFloor": 0.00001,
    "loadMetrics__report__textSeparator": ":",
    "loadMetrics__outOfBand__enabled": True,
    "loadMetrics__agentCheck__allowedSources": ["10.0.0.0/8", "fd00::/8"],
}

KEYS = [path for path, _ in keys(SidecarConfiguration)]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [
            "on",
            "1s",
            "1Ki",
            "10.0.0.1:1",
            "[::1]:1",
            "/a",
            "TEXT",
            "X-A",
            "10.0.0.0/8",
            "auto",
            "open",
            "reporter",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "listener", "loadMetrics.report", "x", "upstream.y"]), VALUES, max_size=5
    )
)
def test_any_values_are_accepted_or_named_never_a_crash(values: dict[str, object]) -> None:
    content = json.loads(with_keys())
    for path, value in values.items():
        *above, name = path.split(".")
        section = content
        for part in above:
            below = section.setdefault(part, {})
            if not isinstance(below, dict):
                below = section[part] = {}
            section = below
        section[name] = value
    configuration, found = attempt(json.dumps(content))
    assert (configuration is None) == bool(found)
    assert all(problem.line is not None and problem.message and problem.advice for problem in found)
    if configuration is not None:
        assert load(dump_configuration(configuration)) == configuration
