"""Heads: what is accepted, what is refused and by which rule, in whatever pieces it comes."""

from __future__ import annotations

import pytest

from orca_sidecar.core.errors import LocalReplyReason, ProtocolError, RequestError, ResponseError
from orca_sidecar.core.head import (
    HeadBuffer,
    RequestField,
    ResponseField,
    field_name,
    field_value,
)
from orca_sidecar.core.request_head import request_memo
from orca_sidecar.core.response_head import response_memo

HEAD = b"GET /api?x=1 HTTP/1.1\r\nHost: a\r\nX-Thing:  b \r\n\r\n"


def feed_in_pieces(buffer: HeadBuffer, pieces: list[bytes]) -> tuple[bytes, bytes] | None:
    """Feed until a head is found; what was not fed yet is put behind what lies behind it."""
    for number, piece in enumerate(pieces):
        found = buffer.feed(piece)
        if found is not None:
            return found[0], found[1] + b"".join(pieces[number + 1 :])
    return None


class TestHeadBuffer:
    @pytest.mark.parametrize("rest", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"\n", b"\x00\xff"])
    def test_whole_and_byte_by_byte_give_the_same(self, rest: bytes) -> None:
        data = HEAD + rest
        whole = HeadBuffer(1000, RequestError).feed(data)
        assert whole == (HEAD[:-4], rest)
        assert feed_in_pieces(HeadBuffer(1000, RequestError), [bytes([b]) for b in data]) == whole

    def test_every_split_in_three_gives_the_same(self) -> None:
        for first in range(len(HEAD)):
            for second in range(first, len(HEAD)):
                pieces = [HEAD[:first], HEAD[first:second], HEAD[second:]]
                assert feed_in_pieces(HeadBuffer(1000, RequestError), pieces) == (HEAD[:-4], b"")

    @pytest.mark.parametrize("cut", range(len(HEAD)))
    def test_an_incomplete_head_is_none(self, cut: int) -> None:
        assert HeadBuffer(1000, RequestError).feed(HEAD[:cut]) is None

    @pytest.mark.parametrize("pieces", [1, 7, 100_000])
    def test_the_limit_is_exact(self, pieces: int) -> None:
        """The blank line does not count; one byte more does."""
        limit = len(HEAD) - 4
        split = [HEAD[at : at + pieces] for at in range(0, len(HEAD), pieces)]
        assert feed_in_pieces(HeadBuffer(limit, RequestError), split) == (HEAD[:-4], b"")
        with pytest.raises(RequestError) as refused:
            feed_in_pieces(HeadBuffer(limit - 1, RequestError), split)
        assert refused.value.reason is LocalReplyReason.HEADERS_TOO_LARGE

    def test_a_head_without_an_end_is_refused_at_the_limit(self) -> None:
        buffer = HeadBuffer(100, RequestError)
        with pytest.raises(RequestError) as refused:
            feed_in_pieces(buffer, [b"a"] * 105)
        assert refused.value.reason is LocalReplyReason.HEADERS_TOO_LARGE

    def test_a_response_that_is_too_long_is_the_upstreams_fault(self) -> None:
        with pytest.raises(ResponseError):
            HeadBuffer(10, ResponseError).feed(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n")

    @pytest.mark.parametrize(
        "data",
        [
            b"\n",
            b"GET / HTTP/1.1\n",
            b"GET / HTTP/1.1\nHost: a\n\n",
            b"GET / HTTP/1.1\r\nHost: a\n",
            b"\r\n\n",
        ],
    )
    def test_a_bare_lf_is_refused_at_once(self, data: bytes) -> None:
        """RFC 9112 §2.2 would let a recipient take it; who sends it must not be left waiting for an answer."""
        with pytest.raises(RequestError, match="bare LF"):
            HeadBuffer(1000, RequestError).feed(data)
        buffer = HeadBuffer(1000, RequestError)
        with pytest.raises(RequestError, match="bare LF"):
            feed_in_pieces(buffer, [bytes([byte]) for byte in data])


class TestFieldLines:
    @pytest.mark.parametrize(
        "line",
        [
            b"A: b", b"A:b", b"A:", b"A: ", b"A:\tb\t", b"!#$%&'*+-.^_`|~09Az: x", b"A: \x80\xff", b"A: b:c",
            b"A: \"'(){}",
            b"X_Remote_User: admin",
        ],
    )  # fmt: skip
    def test_accepted(self, line: bytes) -> None:
        assert request_memo()[line] == RequestField.ORDINARY
        assert response_memo()[line] == ResponseField.ORDINARY

    @pytest.mark.parametrize(
        "line",
        [
            b"", b":", b": a", b"A", b"A b: c", b"A : b", b"A\t: b", b" A: b", b"\tA: b", b"A: b\r", b"A: b\rC: d",
            b"A: b\n", b"A: b\nC: d", b"A: \x00", b"A: \x1f", b"A: \x7f", b"A: \x0b", b"\xc3\x84: b", b"A\xff: b",
            b"(A): b",
            b"A,B: c", b"A;: b", b"A/B: c", b'"A": b', b"A\r: b", b"A\n: b", b"A\x00: b", b"\x0bA: b",
        ],
    )  # fmt: skip
    def test_refused(self, line: bytes) -> None:
        """RFC 9112 §5, §5.1 (blank before the colon), §5.2 (folds), §2.2 (CR, LF); RFC 9110 §5.5 (controls)."""
        memo = request_memo()
        for _ in range(2):
            with pytest.raises(RequestError):
                memo[line]
        assert not memo
        with pytest.raises(ResponseError):
            response_memo()[line]

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            (b"Host", RequestField.HOST),
            (b"Content-Length", RequestField.CONTENT_LENGTH),
            (b"Transfer-Encoding", RequestField.TRANSFER_ENCODING),
            (b"Connection", RequestField.CONNECTION),
            (b"Upgrade", RequestField.UPGRADE),
            (b"TE", RequestField.TE),
            (b"Keep-Alive", RequestField.HOP_BY_HOP),
            (b"Proxy-Connection", RequestField.HOP_BY_HOP),
            (b"HTTP2-Settings", RequestField.HOP_BY_HOP),
            (b"X-Forwarded-For", RequestField.FORWARDED_FOR),
            (b"Endpoint-Load-Metrics-Request", RequestField.OPT_IN),
            (b"X-Who", RequestField.IDENTITY),
            (b"Content_Length", RequestField.ORDINARY),
            (b"Transfer-Encodin", RequestField.ORDINARY),
            (b"Impersonate-User", RequestField.ORDINARY),
            (b"Authorization", RequestField.ORDINARY),
            (b"Trailer", RequestField.ORDINARY),
        ],
    )
    def test_request_fields_by_name_in_any_case(self, name: bytes, kind: RequestField) -> None:
        memo = request_memo(lambda lower: True if lower == b"x-who" else None)
        for spelled in (name, name.lower(), name.upper(), name.swapcase()):
            assert memo[spelled + b": v"] == kind
            assert memo[spelled + b": v"] == kind  # now from the memo

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            (b"Content-Length", ResponseField.CONTENT_LENGTH),
            (b"Transfer-Encoding", ResponseField.TRANSFER_ENCODING),
            (b"Connection", ResponseField.CONNECTION),
            (b"Upgrade", ResponseField.UPGRADE),
            (b"TE", ResponseField.HOP_BY_HOP),
            (b"Keep-Alive", ResponseField.HOP_BY_HOP),
            (b"Proxy-Connection", ResponseField.HOP_BY_HOP),
            (b"HTTP2-Settings", ResponseField.HOP_BY_HOP),
            (b"Endpoint-Load-Metrics", ResponseField.LOAD_REPORT),
            (b"Endpoint-Load-Metrics-Bin", ResponseField.LOAD_REPORT),
            (b"Endpoint-Load-Metrics-Json", ResponseField.LOAD_REPORT),
            (b"X-Kubernetes-PF-PriorityLevel-UID", ResponseField.PRIORITY_LEVEL),
            (b"Endpoint-Load-Metrics-Xml", ResponseField.ORDINARY),
            (b"Warning", ResponseField.ORDINARY),
        ],
    )
    def test_response_fields_by_name_in_any_case(self, name: bytes, kind: ResponseField) -> None:
        memo = response_memo()
        for spelled in (name, name.lower(), name.upper()):
            assert memo[spelled + b": v"] == kind

    def test_a_name_that_is_an_identitys_never_hides_framing(self) -> None:
        memo = request_memo(lambda name: True)
        assert memo[b"content-length: 1"] == RequestField.CONTENT_LENGTH
        assert memo[b"anything: 1"] == RequestField.IDENTITY

    @pytest.mark.parametrize(
        "line",
        [
            b"Authorization: Bearer s", b"Proxy-Authorization: s", b"Cookie: s", b"Set-Cookie: s",
            b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.s", b"A: " + b"x" * 300,
        ],
    )  # fmt: skip
    def test_secrets_and_long_lines_are_not_kept(self, line: bytes) -> None:
        memo = request_memo()
        assert memo[line] == RequestField.ORDINARY
        assert not memo

    def test_the_memo_is_bounded(self) -> None:
        memo = request_memo()
        for number in range(10_000):
            assert memo[b"A: %d" % number] == RequestField.ORDINARY
        assert 0 < len(memo) <= 4096

    def test_a_value_loses_its_outer_blanks_alone(self) -> None:
        assert field_value(b"A: \t b\t c \t") == b"b\t c"
        assert field_value(b"A:") == b""
        assert field_value(b"A:: b:") == b": b:"
        assert field_name(b"A-b: c:d") == b"A-b"


def test_both_faults_are_protocol_errors() -> None:
    assert issubclass(RequestError, ProtocolError)
    assert issubclass(ResponseError, ProtocolError)


class TestLinesThatChange:
    """Lines of names like X-Request-Id and Authorization are new each time: checked each time, and never kept."""

    @pytest.mark.parametrize("name", [b"X-Request-Id", b"AUTHORIZATION", b"traceparent"])
    @pytest.mark.parametrize(
        "tail",
        [b"", b" :x", b": a\x00", b": a\r", b": a\nX-Remote-User: b", b": \x7f", b":\x1f", b"\x00: a"],
    )
    def test_a_malformed_one_is_refused_after_a_good_one(self, name: bytes, tail: bytes) -> None:
        memo = request_memo(None)
        assert memo[name + b": good"] == RequestField.ORDINARY
        with pytest.raises(RequestError, match="field line"):
            memo[name + tail]

    @pytest.mark.parametrize("value", [b"", b" a", b"\ta\t", b" \xff\x80", b" a:b", b" ~!"])
    def test_what_is_accepted_at_first_is_accepted_later(self, value: bytes) -> None:
        memo = request_memo(None)
        for _ in range(3):
            assert memo[b"X-Request-Id:" + value] == RequestField.ORDINARY
        assert not memo
