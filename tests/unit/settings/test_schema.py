"""Every key: what it takes, what it becomes, and its default."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orca_sidecar.settings.addresses import Address
from orca_sidecar.settings.schema import ListenerSettings, SidecarConfiguration
from orca_sidecar.settings.section import keys, sections
from orca_sidecar.settings.units import format_duration, format_size
from tests.unit.settings.configurations import load, only_problem, with_keys


def test_defaults() -> None:
    configuration = load(with_keys())
    assert configuration.mode == "proxy"
    assert configuration.workers == 1
    assert configuration.event_loop == "uvloop"
    listener = configuration.listener
    assert listener.address == Address("0.0.0.0", 6444)
    assert listener.tls.cert_file == Path("/tls/server.crt")
    assert listener.tls.min_version == "1.2"
    assert listener.client_ca_file == Path("/etc/kubernetes/pki/ca.crt")
    assert listener.http2.enabled is False
    assert listener.header_bytes == 1024 * 1024
    assert (listener.header_timeout, listener.idle_timeout) == (32.0, 180.0)
    upstream = configuration.upstream
    assert upstream.address == Address("127.0.0.1", 6443)
    assert upstream.tls.server_name == "kubernetes"
    assert upstream.front_proxy_client.key_file == Path("/etc/kubernetes/pki/front-proxy-client.key")
    assert (upstream.connect_timeout, upstream.idle_timeout) == (5.0, 60.0)
    assert (upstream.min_idle_connections, upstream.max_idle_connections) == (4, 64)
    assert (upstream.probe.interval, upstream.probe.timeout, upstream.probe.token_file) == (1.0, 1.0, None)
    assert configuration.front_proxy.allowed_names == ()
    assert configuration.front_proxy.extra_headers_prefix == ("X-Remote-Extra-",)
    metrics = configuration.load_metrics
    assert metrics.enabled is False
    assert metrics.opt_in.gate == "frontProxy"
    assert metrics.opt_in.shared_secret_file is None
    assert metrics.formats == ("TEXT",)
    assert metrics.report.application_utilization.memory.weight == 0.3
    assert metrics.report.application_utilization.memory.from_ == 0.5
    assert metrics.report.average_at_least.at_most == 10.0
    assert (metrics.sampler.interval, metrics.sampler.smoothing, metrics.sampler.stale_after) == (
        0.1,
        1.0,
        1.0,
    )
    assert metrics.sampler.target.process_name == "kube-apiserver"
    assert metrics.out_of_band.address == Address("0.0.0.0", 6445)
    assert metrics.agent_check.allowed_sources == (ipaddress.ip_network("127.0.0.0/8"),)
    assert configuration.admin.address == Address("127.0.0.1", 9446)
    assert (configuration.shutdown.delay, configuration.shutdown.grace_period) == (5.0, 60.0)
    assert (configuration.logging.level, configuration.logging.format) == ("info", "json")


@pytest.mark.parametrize(
    ("key", "value", "becomes"),
    [
        ("listener__address", "[::1]:6444", Address("::1", 6444)),
        ("listener__address", "127.0.0.1:0", Address("127.0.0.1", 0)),
        ("listener__clientCAFile", "", None),
        ("listener__headerBytes", 65536, 65536),
        ("listener__headerBytes", "64Ki", 65536),
        ("listener__tls__minVersion", "1.3", "1.3"),
        ("upstream__address", "kube.example.org:443", Address("kube.example.org", 443)),
        ("upstream__tls__serverName", "10.96.0.1", "10.96.0.1"),
        ("upstream__probe__tokenFile", "/run/token", Path("/run/token")),
        ("upstream__idleTimeout", "1m29s", 89.0),
        ("shutdown__delay", 0, 0.0),
        ("shutdown__delay", "0", 0.0),
        ("frontProxy__allowedNames", ["front-proxy-client", "Löwe 2"], ("front-proxy-client", "Löwe 2")),
        ("frontProxy__uidHeaders", [], ()),
        ("loadMetrics__formats", ["BIN", "JSON", "TEXT"], ("BIN", "JSON", "TEXT")),
        ("loadMetrics__report__fields", ["eps"], ("eps",)),
        ("loadMetrics__report__namedMetrics", ["inflight_read_only"], ("inflight_read_only",)),
        ("loadMetrics__report__rpsFloor", 0, 0.0),
        ("loadMetrics__report__textSeparator", ":", ":"),
        ("loadMetrics__sampler__target__cgroup", "/kubepods.slice/*/x", "kubepods.slice/*/x"),
        ("loadMetrics__sampler__target__processName", "", ""),
        ("loadMetrics__agentCheck__allowedSources", ["10.0.0.0/8"], (ipaddress.ip_network("10.0.0.0/8"),)),
        ("logging__level", "debug", "debug"),
        ("workers", 4, 4),
    ],
)
def test_accepts(key: str, value: object, becomes: object) -> None:
    assert attribute(load(with_keys(**{key: value})), key) == becomes


def attribute(configuration: SidecarConfiguration, path: str) -> object:
    value: object = configuration
    for name in path.split("__"):
        fields = type(value).model_fields  # type: ignore[attr-defined]
        value = getattr(value, next(field for field, info in fields.items() if info.alias == name))
    return value


def test_workers_auto_is_one_per_core() -> None:
    assert load(with_keys(workers="auto")).workers == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("key", "value", "message", "advice"),
    [
        ("mode", "proxi", '"proxi"', "did you mean proxy? write proxy or reporter"),
        ("mode", 3, "is 3", "proxy or reporter"),
        ("workers", 0, "is 0", "from 1 to 256, or auto"),
        ("workers", "two", '"two"', "or auto"),
        ("workers", True, "is true", "or auto"),
        ("workers", 1.0, "is 1.0", "whole number"),
        ("eventLoop", "trio", '"trio"', "uvloop or asyncio"),
        ("listener__address", 6444, "is 6444, not text", "quotes"),
        ("listener__address", ":6444", "no host", "0.0.0.0:6444 or [::]:6444"),
        ("listener__address", "localhost:6444", "is a name", "IP address"),
        ("listener__tls__certFile", "server.crt", "not an absolute path", "/etc/"),
        ("listener__tls__keyFile", "", "not an absolute path", "/etc/"),
        ("listener__tls__keyFile", ["/a"], "not an absolute path", "/etc/"),
        ("listener__tls__minVersion", 1.2, "is 1.2, not text", 'write it in quotes: "1.2"'),
        ("listener__tls__minVersion", "1.1", '"1.1"', "1.2 or 1.3"),
        ("listener__headerBytes", "1MB", "not a size", "Ki, Mi, Gi"),
        ("listener__headerBytes", "512", "out of range", "from 1Ki to 16Mi"),
        ("listener__headerBytes", 1.5, "not a size", "Ki, Mi, Gi"),
        ("listener__headerBytes", True, "not a size", "Ki, Mi, Gi"),
        ("listener__maxConnections", "many", '"many"', "whole number from 1"),
        ("listener__headerTimeout", 32, "is 32, without a unit", "write 32s"),
        ("listener__headerTimeout", 0.5, "is 0.5, without a unit", "write 0.5s"),
        ("listener__headerTimeout", -1, "not a duration", "100ms, 5s, 1m30s"),
        ("listener__headerTimeout", False, "not a duration", "100ms, 5s, 1m30s"),
        ("listener__headerTimeout", "soon", "not a duration", "100ms, 5s, 1m30s"),
        ("listener__headerTimeout", "0s", "out of range", "from 1ms"),
        ("listener__rotation__chance", 0.03, "is 0.03, out of range", "from 0 to 0.02"),
        ("listener__rotation__chance", -0.01, "out of range", "from 0 to 0.02"),
        ("listener__rotation__chance", "0.01", '"0.01"', "number"),
        ("upstream__address", "127.0.0.1:0", "cannot be dialled", "port"),
        ("upstream__address", "0.0.0.0:6443", "cannot be dialled", "port"),
        ("upstream__tls__serverName", "", '""', "DNS name"),
        ("upstream__tls__serverName", "a b", '"a b"', "DNS name"),
        ("frontProxy__allowedNames", "lb", "not a list", "[a, b]"),
        ("frontProxy__allowedNames", ["lb", "lb"], "lb twice", "leave one out"),
        ("frontProxy__usernameHeaders", [], "is empty", "at least one"),
        ("frontProxy__groupHeaders", [], "is empty", "at least one"),
        ("frontProxy__extraHeadersPrefix", [], "is empty", "at least one"),
        ("loadMetrics__enabled", "on", 'the text "on"', "write true"),
        ("loadMetrics__enabled", "No", 'the text "No"', "write false"),
        ("loadMetrics__enabled", "true", '"true"', "write true or false"),
        ("loadMetrics__enabled", 1, "is 1", "write true or false"),
        ("loadMetrics__formats", [], "is empty", "at least one"),
        ("loadMetrics__formats", ["TEXT", "TEXT"], "TEXT twice", "leave one out"),
        ("loadMetrics__report__fields", ["eps", "eps"], "eps twice", "leave one out"),
        ("loadMetrics__report__rpsFloor", -1, "out of range", "from 0"),
        ("loadMetrics__report__textSeparator", ",", '","', "= or :"),
        ("loadMetrics__report__applicationUtilization__memory__from", 1, "out of range", "0.99"),
        ("loadMetrics__sampler__smoothing", "0s", "out of range", "from 1ms"),
        ("loadMetrics__sampler__target__cgroup", "a/../../b", "a/../../b", "without .."),
        ("loadMetrics__agentCheck__allowedSources", [], "is empty", "at least one"),
        ("logging__level", "off", '"off"', "debug, info, warning, error"),
    ],
)
def test_refuses(key: str, value: object, message: str, advice: str) -> None:
    problem = only_problem(with_keys(**{key: value}))
    assert problem.key == key.replace("__", ".")
    assert message in problem.message
    assert advice in problem.advice
    assert problem.line is not None


@pytest.mark.parametrize(
    ("key", "value", "message", "advice"),
    [
        ("frontProxy__allowedNames", "", '""', "name"),
        ("frontProxy__allowedNames", " lb", '" lb"', "blanks"),
        ("frontProxy__allowedNames", "l\nb", "l\\nb", "control"),
        ("frontProxy__allowedNames", 5, "not text", "quotes"),
        ("frontProxy__allowedNames", None, "is null", "write text"),
        ("frontProxy__allowedNames", {"a": 1}, "a mapping", "write text"),
        ("frontProxy__usernameHeaders", "", '""', "RFC 9110"),
        ("frontProxy__usernameHeaders", "X Remote", '"X Remote"', "RFC 9110"),
        ("frontProxy__groupHeaders", "X-Grüppe", "X-Gr", "RFC 9110"),
        ("frontProxy__uidHeaders", "X-Uid:", '"X-Uid:"', "RFC 9110"),
        ("frontProxy__extraHeadersPrefix", "", '""', "RFC 9110"),
        ("loadMetrics__formats", "text", '"text"', "did you mean TEXT?"),
        ("loadMetrics__report__fields", "cpu_utilisation", "", "did you mean cpu_utilization?"),
        ("loadMetrics__report__fields", "xyz", '"xyz"', "application_utilization, cpu_utilization"),
        ("loadMetrics__report__namedMetrics", "inflight", '"inflight"', "inflight_read_only"),
        ("loadMetrics__agentCheck__allowedSources", "10.0.0.1", "without a length", "10.0.0.1/32"),
        ("loadMetrics__agentCheck__allowedSources", "10.0.0.1/8", "bits beyond", "10.0.0.0/8"),
        ("loadMetrics__agentCheck__allowedSources", "fd00::1/64", "bits beyond", "fd00::/64"),
        ("loadMetrics__agentCheck__allowedSources", "lb.example.org", "not a network", "CIDR"),
    ],
)
def test_refuses_in_lists(key: str, value: object, message: str, advice: str) -> None:
    problem = only_problem(with_keys(**{key: [value]}))
    assert problem.key == key.replace("__", ".") + "[0]"
    assert message in problem.message
    assert advice in problem.advice


@given(st.integers(10**6, 24 * 3600 * 10**9))
def test_any_duration_of_the_range_is_held_in_seconds(nanoseconds: int) -> None:
    text = format_duration(nanoseconds / 1e9)
    assert load(with_keys(listener__idleTimeout=text)).listener.idle_timeout == nanoseconds / 1e9


@given(st.integers(1 << 10, 1 << 24))
def test_any_size_of_the_range_is_held_in_bytes(size: int) -> None:
    assert load(with_keys(listener__headerBytes=format_size(size))).listener.header_bytes == size


def test_what_stands_where_a_file_belongs_is_not_repeated() -> None:
    problem = only_problem(with_keys(loadMetrics__optIn__sharedSecretFile="hunter2"))
    assert "hunter2" not in str(problem)


def test_sections_cannot_be_changed() -> None:
    configuration = load(with_keys())
    with pytest.raises(ValidationError, match="frozen"):
        configuration.listener.max_connections = 3  # type: ignore[misc]


def test_python_may_use_attribute_names() -> None:
    listener = ListenerSettings.model_validate(
        {"tls": {"cert_file": Path("/a"), "key_file": "/b"}, "address": Address("127.0.0.1", 0)}
    )
    assert listener.tls.key_file == Path("/b")
    assert str(listener.address) == "127.0.0.1:0"


def test_every_section_and_key_has_its_docstring() -> None:
    for path, section in sections(SidecarConfiguration):
        assert section.__doc__, path
    for path, field in keys(SidecarConfiguration):
        assert field.description, path
