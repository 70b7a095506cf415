"""The way out: what of a response head goes downstream, byte for byte."""

from __future__ import annotations

import pytest

from orca_sidecar.core.response_head import ResponseHead, response_memo
from orca_sidecar.core.response_rewrite import may_trail, rewrite_response


def rewrite(
    *lines: bytes,
    start: bytes = b"HTTP/1.1 200 OK",
    report: bytes = b"",
    close: bool = False,
    http10: bool = False,
) -> bytes:
    head = ResponseHead(b"\r\n".join([start, *lines]), response_memo())
    return rewrite_response(head, report, close=close, http10=http10)


def test_ordinary_lines_pass_as_sent_and_in_order() -> None:
    lines = [
        b"Warning: 299 - a", b"Set-Cookie: a", b"warning: 299 - b", b"Set-Cookie: b", b"Content-Length: 3", b"X:  y ",
        b"Location: /x", b"Content-Encoding: gzip", b"X-Kubernetes-PF-PriorityLevel-UID: u", b"Trailer: T",
        b"A: \xff",
        b"WWW-Authenticate: Basic", b"Retry-After: 5", b"Date: d",
    ]  # fmt: skip
    whole = b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""])
    assert rewrite(*lines) == whole


@pytest.mark.parametrize("start", [b"HTTP/1.1 599 ", b"HTTP/1.1 200 O\xff  K", b"HTTP/1.1 418 I'm a teapot"])
def test_the_reason_passes_as_sent(start: bytes) -> None:
    assert rewrite(start=start) == start + b"\r\n\r\n"


def test_a_head_without_fields() -> None:
    assert rewrite() == b"HTTP/1.1 200 OK\r\n\r\n"
    assert rewrite(b"Connection: keep-alive") == b"HTTP/1.1 200 OK\r\n\r\n"
    assert rewrite(close=True) == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    assert rewrite(report=b"r: x\r\n") == b"HTTP/1.1 200 OK\r\nr: x\r\n\r\n"


@pytest.mark.parametrize(
    "line",
    [
        b"Connection: keep-alive", b"Connection: close", b"Keep-Alive: timeout=5", b"Proxy-Connection: x", b"TE: x",
        b"HTTP2-Settings: x", b"Upgrade: h2c", b"endpoint-load-metrics: TEXT cpu_utilization=0.1",
        b"ENDPOINT-LOAD-METRICS-BIN: x", b"Endpoint-Load-Metrics-Json: {}",
    ],
)  # fmt: skip
def test_removed(line: bytes) -> None:
    assert rewrite(line, b"A: b", line) == b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"
    assert rewrite(line, b"A: b", report=b"r: x\r\n") == b"HTTP/1.1 200 OK\r\nA: b\r\nr: x\r\n\r\n"


@pytest.mark.parametrize("start", [b"HTTP/1.1 101 Switching Protocols", b"HTTP/1.1 426 Upgrade Required"])
def test_upgrade_fields_stay_where_they_mean_something(start: bytes) -> None:
    lines = [b"Upgrade: SPDY/3.1", b"A: b", b"connection: Upgrade"]
    assert rewrite(*lines, b"Keep-Alive: x") == b"\r\n".join([start, *lines, b"", b""]).replace(
        start, b"HTTP/1.1 200 OK"
    ).replace(b"Upgrade: SPDY/3.1\r\n", b"").replace(b"connection: Upgrade\r\n", b"")
    assert rewrite(*lines, b"Keep-Alive: x", start=start) == b"\r\n".join([start, *lines, b"", b""])


def test_for_an_http_1_0_caller() -> None:
    out = rewrite(b"Transfer-Encoding: chunked", b"A: b", close=True, http10=True)
    assert out == b"HTTP/1.0 200 OK\r\nA: b\r\nConnection: close\r\n\r\n"
    out = rewrite(b"Content-Length: 5", close=True, http10=True)
    assert out == b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"


def test_an_http_1_0_upstream_is_relayed_as_1_1() -> None:
    assert rewrite(b"A: b", start=b"HTTP/1.0 200 OK") == b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"


@pytest.mark.parametrize(
    "name", [b"set-cookie", b"trailer", b"www-authenticate", b"content-type", b"content-range"]
)
def test_these_do_not_trail(name: bytes) -> None:
    """RFC 9110 §6.5.1."""
    assert not may_trail(name)


@pytest.mark.parametrize("name", [b"grpc-status", b"digest", b"server-timing"])
def test_others_do(name: bytes) -> None:
    assert may_trail(name)
