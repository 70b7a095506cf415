"""What must hold between keys."""

from __future__ import annotations

import pytest

from tests.unit.settings.configurations import load, only_problem, problems, with_keys

LB = {"loadMetrics__optIn__allowedNames": ["load-balancer"]}
REPORTER = {"mode": "reporter", "loadMetrics__enabled": True}


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"listener__http2__enabled": True}, "listener.http2.enabled", "not built yet"),
        ({"listener__rotation__chance": 0.01}, "listener.rotation.chance", "not built yet"),
        ({"listener__rotation__maxAge": "1h"}, "listener.rotation.maxAge", "not built yet"),
        (
            {"upstream__idleTimeout": "90s"},
            "upstream.idleTimeout",
            "kube-apiserver closes an idle connection after 90s",
        ),
        (
            {"upstream__minIdleConnections": 65},
            "upstream.minIdleConnections",
            "more than upstream.maxIdleConnections",
        ),
        ({"admin__address": "127.0.0.1:6444"}, "admin.address", "listener.address takes"),
        (
            {
                "loadMetrics__outOfBand__enabled": True,
                "loadMetrics__outOfBand__address": "0.0.0.0:9446",
                **LB,
            },
            "loadMetrics.outOfBand.address",
            "admin.address takes",
        ),
        (
            {"loadMetrics__agentCheck__enabled": True, "loadMetrics__agentCheck__address": "10.0.0.1:6444"},
            "loadMetrics.agentCheck.address",
            "listener.address takes",
        ),
        ({"listener__address": "0.0.0.0:6443"}, "upstream.address", "own listener"),
        ({"loadMetrics__enabled": True}, "loadMetrics.optIn.gate", "both empty"),
        ({"loadMetrics__outOfBand__enabled": True}, "loadMetrics.outOfBand.enabled", "both empty"),
        ({"loadMetrics__optIn__gate": "sharedSecret"}, "loadMetrics.optIn.sharedSecretFile", "is empty"),
        ({"loadMetrics__optIn__gate": "open"}, "loadMetrics.optIn.gate", "every client"),
        (
            {"loadMetrics__optIn__gate": "open", "listener__address": "[::]:6444"},
            "loadMetrics.optIn.gate",
            "every client",
        ),
        ({"mode": "reporter"}, "mode", "nothing is published"),
        ({"mode": "reporter", "loadMetrics__agentCheck__enabled": True}, "mode", "nothing is published"),
        (REPORTER, "mode", "nothing is published"),
        ({"loadMetrics__report__fields": []}, "loadMetrics.report.fields", "is empty"),
        (
            {"loadMetrics__sampler__smoothing": "11s"},
            "loadMetrics.report.averageAtLeast.atMost",
            "less than loadMetrics.sampler.smoothing",
        ),
        (
            {"loadMetrics__sampler__staleAfter": "100ms"},
            "loadMetrics.sampler.staleAfter",
            "stale before the next",
        ),
        (
            {"loadMetrics__sampler__node": False, "loadMetrics__sampler__target__processName": ""},
            "loadMetrics.sampler.target",
            "is empty",
        ),
        (
            {"frontProxy__allowedNames": ["lb"], "loadMetrics__optIn__allowedNames": ["other", "lb"]},
            "loadMetrics.optIn.allowedNames[1]",
            "frontProxy.allowedNames holds too",
        ),
    ],
)
def test_a_rule_that_does_not_hold(keys: dict[str, object], key: str, message: str) -> None:
    problem = only_problem(with_keys(**keys))
    assert problem.key == key
    assert message in problem.message
    assert problem.line is not None


@pytest.mark.parametrize(
    "keys",
    [
        {
            "listener__http2__enabled": False,
            "listener__rotation__chance": 0.0,
            "listener__rotation__maxAge": 0,
        },
        {"upstream__idleTimeout": "89.999s"},
        {"upstream__minIdleConnections": 64},
        {"loadMetrics__enabled": True, **LB},
        {"loadMetrics__enabled": True, "frontProxy__allowedNames": ["lb"]},
        {"loadMetrics__optIn__gate": "sharedSecret", "loadMetrics__optIn__sharedSecretFile": "/run/secret"},
        {
            "loadMetrics__enabled": True,
            "loadMetrics__optIn__gate": "open",
            "listener__address": "127.0.0.1:6444",
        },
        {"loadMetrics__optIn__gate": "open", "loadMetrics__optIn__openAcknowledged": True},
        {**REPORTER, "loadMetrics__agentCheck__enabled": True},
        {**REPORTER, "loadMetrics__outOfBand__enabled": True, **LB},
        {**REPORTER, "loadMetrics__agentCheck__enabled": True, "loadMetrics__optIn__gate": "open"},
        {
            **REPORTER,
            "loadMetrics__agentCheck__enabled": True,
            "admin__address": "127.0.0.1:6444",
        },  # no listener
        {"loadMetrics__agentCheck__address": "127.0.0.1:6444"},  # not enabled
        {"admin__address": "127.0.0.1:0", "listener__address": "127.0.0.1:0"},
        {"listener__address": "0.0.0.0:6443", "upstream__address": "10.0.0.1:6443"},
        {"loadMetrics__report__fields": [], "loadMetrics__report__namedMetrics": ["node_cpu"]},
        {"loadMetrics__sampler__smoothing": "11s", "loadMetrics__report__averageAtLeast__requests": 0},
        {"loadMetrics__sampler__target__processName": ""},
        {"loadMetrics__sampler__node": False},
        {"workers": 8, "loadMetrics__formats": ["TEXT", "JSON", "BIN"]},
    ],
)
def test_a_rule_that_holds(keys: dict[str, object]) -> None:
    load(with_keys(**keys))


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "TE",
        "Trailer",
        "Expect",
        "connection",
        "Keep-Alive",
        "UPGRADE",
        "Proxy-Connection",
        "Authorization",
        "Proxy-Authorization",
        "Cookie",
        "Impersonate-User",
        "Impersonate-Extra-scopes",
        "X-Forwarded-For",
        "endpoint-load-metrics",
        "Endpoint-Load-Metrics-Request",
        "Sec-WebSocket-Protocol",
    ],
)
@pytest.mark.parametrize("key", ["usernameHeaders", "groupHeaders", "uidHeaders"])
def test_reserved_headers_hold_no_identity(key: str, name: str) -> None:
    problem = only_problem(with_keys(**{f"frontProxy__{key}": ["X-Mine", name]}))
    assert problem.key == f"frontProxy.{key}[1]"
    assert name in problem.message


@pytest.mark.parametrize(
    "prefix",
    ["Host", "h", "X-", "Impersonate-Extra-", "impersonate", "Impersonate-Extra-x-", "Content-", "a"],
)
def test_no_reserved_header_has_an_extra_prefix(prefix: str) -> None:
    found = problems(with_keys(frontProxy__extraHeadersPrefix=[prefix]))
    assert found[0].key == "frontProxy.extraHeadersPrefix[0]"
    assert "begins" in found[0].message


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"frontProxy__usernameHeaders": ["X-A", "x-a"]}, "frontProxy.usernameHeaders[1]"),
        ({"frontProxy__groupHeaders": ["x-remote-user"]}, "frontProxy.groupHeaders[0]"),
        ({"frontProxy__uidHeaders": ["X-Remote-Group"]}, "frontProxy.uidHeaders[0]"),
        ({"frontProxy__extraHeadersPrefix": ["X-Remote-User"]}, "frontProxy.extraHeadersPrefix[0]"),
        ({"frontProxy__uidHeaders": ["X-Remote-Extra-uid"]}, "frontProxy.extraHeadersPrefix[0]"),
        ({"frontProxy__extraHeadersPrefix": ["X-E-", "x-e-more-"]}, "frontProxy.extraHeadersPrefix[1]"),
        ({"frontProxy__extraHeadersPrefix": ["X-E-more-", "x-e-"]}, "frontProxy.extraHeadersPrefix[1]"),
    ],
)
def test_identity_headers_differ(keys: dict[str, object], key: str) -> None:
    problem = only_problem(with_keys(**keys))
    assert problem.key == key
    assert "cannot be told from" in problem.message


def test_usual_identity_headers_are_accepted() -> None:
    load(
        with_keys(
            frontProxy__usernameHeaders=["X-Remote-User", "X-Auth-Request-User"],
            frontProxy__groupHeaders=["X-Remote-Group", "X-Auth-Request-Groups"],
            frontProxy__extraHeadersPrefix=["X-Remote-Extra-", "X-Auth-Extra-"],
        )
    )


def test_rules_are_checked_beside_wrong_values_that_they_do_not_read() -> None:
    found = problems(with_keys(workers="many", upstream__idleTimeout="2m", loadMetrics__enabled=True))
    assert {p.key for p in found} == {"workers", "upstream.idleTimeout", "loadMetrics.optIn.gate"}


@pytest.mark.parametrize(
    "wrong",
    [{"loadMetrics__optIn__gate": "opne"}, {"loadMetrics__optIn": 3}, {"frontProxy__allowedNames": 3}],
)
def test_a_rule_that_reads_a_wrong_value_is_silent(wrong: dict[str, object]) -> None:
    only_problem(with_keys(loadMetrics__enabled=True, **wrong))
