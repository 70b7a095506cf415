"""What a response head says about framing and reuse, and what makes it one that is not relayed."""

from __future__ import annotations

import pytest

from orca_sidecar.core.errors import ResponseError
from orca_sidecar.core.response_head import ResponseHead, response_memo


def parse(*lines: bytes, start: bytes = b"HTTP/1.1 200 OK") -> ResponseHead:
    return ResponseHead(b"\r\n".join([start, *lines]), response_memo())


@pytest.mark.parametrize(
    ("lines", "chunked", "length"),
    [
        ([], False, None),
        ([b"Content-Length: 0"], False, 0),
        ([b"content-length:42 "], False, 42),
        ([b"Transfer-Encoding: chunked"], True, None),
        ([b"transfer-encoding: CHUNKED"], True, None),
    ],
)
def test_framing(lines: list[bytes], chunked: bool, length: int | None) -> None:
    head = parse(b"A: b", *lines)
    assert (head.chunked, head.length) == (chunked, length)


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Content-Length: 5", b"Content-Length: 5"],
        [b"Content-Length: 5, 5"],
        [b"Content-Length: -1"],
        [b"Content-Length:"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
        [b"Content-Length : 5"],
        [b"A: b", b" folded"],
        [b"A: b\rContent-Length: 5"],
        [b"A: b\nSet-Cookie: c"],
        [b"\xc3\x84: b"],
        [b"A"],
    ],
)
def test_ambiguous_or_malformed_is_refused(lines: list[bytes]) -> None:
    """RFC 9112 §5, §6.3: a lenient reader would relay what the caller reads otherwise."""
    with pytest.raises(ResponseError):
        parse(*lines)


def test_chunked_on_http_1_0_is_refused() -> None:
    with pytest.raises(ResponseError):
        parse(b"Transfer-Encoding: chunked", start=b"HTTP/1.0 200 OK")


@pytest.mark.parametrize(
    ("start", "lines", "persistent", "says_close"),
    [
        (b"HTTP/1.1 200 OK", [], True, False),
        (b"HTTP/1.1 200 OK", [b"Connection: keep-alive"], True, False),
        (b"HTTP/1.1 200 OK", [b"Connection: close"], False, True),
        (b"HTTP/1.1 200 OK", [b"connection: a, CLOSE"], False, True),
        (b"HTTP/1.1 200 OK", [b"Connection: a", b"Connection: close"], False, True),
        (b"HTTP/1.1 200 OK", [b"Connection: closed"], True, False),
        (b"HTTP/1.0 200 OK", [], False, False),
        (b"HTTP/1.0 200 OK", [b"Connection: keep-alive"], False, False),
    ],
)
def test_persistence(start: bytes, lines: list[bytes], persistent: bool, says_close: bool) -> None:
    """RFC 9112 §9.3."""
    head = parse(*lines, start=start)
    assert (head.persistent, head.says_close) == (persistent, says_close)


@pytest.mark.parametrize("code", [100, 101, 103, 204, 304])
def test_these_have_no_body(code: int) -> None:
    assert parse(start=b"HTTP/1.1 %d x" % code).has_no_body(b"GET")


@pytest.mark.parametrize("code", [200, 201, 205, 206, 301, 400, 429, 500, 599])
def test_these_may_have_one_unless_it_was_head(code: int) -> None:
    head = parse(start=b"HTTP/1.1 %d x" % code)
    assert not head.has_no_body(b"GET")
    assert not head.has_no_body(b"head")
    assert head.has_no_body(b"HEAD")


@pytest.mark.parametrize("code", [100, 103, 204])
def test_a_transfer_coding_where_there_can_be_no_body_is_refused(code: int) -> None:
    """RFC 9112 §6.1: a reader that goes by the field would wait for chunks, or take the next response for them."""
    with pytest.raises(ResponseError):
        parse(b"Transfer-Encoding: chunked", start=b"HTTP/1.1 %d x" % code)


def test_the_priority_level_is_found() -> None:
    assert parse(b"x-kubernetes-pf-prioritylevel-uid: abc").priority_level == b"abc"
    assert parse().priority_level == b""


def test_reports_are_counted_in_every_spelling() -> None:
    head = parse(
        b"endpoint-load-metrics: TEXT a=1", b"Endpoint-Load-Metrics-Bin: x", b"ENDPOINT-LOAD-METRICS-JSON: {}"
    )
    assert head.layout.reports == 3
