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
    split_request,
    split_response,
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


class TestRequestLine:
    @pytest.mark.parametrize(
        ("line", "method", "target", "old"),
        [
            (b"GET / HTTP/1.1", b"GET", b"/", False),
            (b"GET / HTTP/1.0", b"GET", b"/", True),
            (b"OPTIONS * HTTP/1.1", b"OPTIONS", b"*", False),
            (b"GET http://a/b HTTP/1.1", b"GET", b"http://a/b", False),
            (b"GET HTTPS://a HTTP/1.1", b"GET", b"HTTPS://a", False),
            (b"PROPFIND /x HTTP/1.1", b"PROPFIND", b"/x", False),
            (b"get / HTTP/1.1", b"get", b"/", False),
            (b"M!#$%&'*+-.^_`|~9 / HTTP/1.1", b"M!#$%&'*+-.^_`|~9", b"/", False),
            *(
                (b"GET %b HTTP/1.1" % target, b"GET", target, False)
                for target in (
                    b"//", b"/a/../b", b"/a/%2e%2e/b", b"/a%3Ab%3bc", b"/a%2Fb", b"/?q=%", b"/??y", b"/#f",
                    b"/\xc3\xa9",
                    b"/\xff", b'/"<>\\^`{|}', b"/a?labelSelector=a%3Db%2Cc%21%3Dd", b"/%zz", b"/" + b"x" * 20_000,
                )
            ),
        ],
    )  # fmt: skip
    def test_accepted(self, line: bytes, method: bytes, target: bytes, old: bool) -> None:
        assert split_request(line + b"\r\nHost: a") == (method, target, old, [b"Host: a"])

    @pytest.mark.parametrize(
        "line",
        [
            b"", b" ", b"GET", b"GET /", b"GET  / HTTP/1.1", b"GET /  HTTP/1.1", b" GET / HTTP/1.1",
            b"GET / HTTP/1.1 ",
            b"GET\t/ HTTP/1.1", b"GET /\tHTTP/1.1", b"GET /a b HTTP/1.1", b"GET / http/1.1", b"GET / HTTP/1.1\r",
            b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\nX: y", b"GET / HTTP/1", b"GET / HTTP/1.", b"GET / HTTP/11",
            b"GET / HTTP/1.10", b"GET / HTTP/01.1", b"GET / HTTP/1.1x", b"GET / XTTP/1.1", b"GET / HTTP/\xb1.1",
            b"GET /\x00 HTTP/1.1", b"GET /\x7f HTTP/1.1", b"GET /\r HTTP/1.1", b"GET /\n HTTP/1.1",
            b"GE(T / HTTP/1.1", b"G\xc3\x89T / HTTP/1.1", b"GET: / HTTP/1.1", b" / HTTP/1.1", b"GE\x00T / HTTP/1.1",
            b"GET api HTTP/1.1", b"GET * HTTP/1.1", b"OPTIONS ** HTTP/1.1", b"GET ftp://a/ HTTP/1.1",
            b"GET a:443 HTTP/1.1", b"GET ?q HTTP/1.1", b"GET \\ HTTP/1.1", b"GET http:/a HTTP/1.1",
        ],
    )  # fmt: skip
    def test_refused(self, line: bytes) -> None:
        """RFC 9112 §3, §2.3 and RFC 9110 §9.1."""
        with pytest.raises(RequestError) as refused:
            split_request(line + b"\r\nHost: a")
        assert refused.value.reason is LocalReplyReason.BAD_REQUEST

    @pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0"])
    def test_another_version_is_505(self, version: bytes) -> None:
        with pytest.raises(RequestError) as refused:
            split_request(b"PRI * " + version)
        assert refused.value.reason is LocalReplyReason.VERSION_NOT_SUPPORTED

    def test_connect_is_405(self) -> None:
        """RFC 9110 §9.3.6: a 2xx answer to it would make the connection a tunnel."""
        with pytest.raises(RequestError) as refused:
            split_request(b"CONNECT a:443 HTTP/1.1\r\nHost: a")
        assert refused.value.reason is LocalReplyReason.METHOD_NOT_ALLOWED


class TestStatusLine:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            (b"HTTP/1.1 200 OK", (1, 200, b"OK")),
            (b"HTTP/1.0 404 Not Found", (0, 404, b"Not Found")),
            (b"HTTP/1.1 599 ", (1, 599, b"")),
            (b"HTTP/1.1 200 tab\tand \xff", (1, 200, b"tab\tand \xff")),
            (b"HTTP/1.1 200  two", (1, 200, b" two")),
        ],
    )
    def test_accepted(self, line: bytes, expected: tuple[int, int, bytes]) -> None:
        assert split_response(line + b"\r\nA: b") == (*expected, [b"A: b"])

    @pytest.mark.parametrize(
        "line",
        [
            b"", b"HTTP/1.1 200", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 600 OK",
            b"HTTP/2.0 200 OK", b"HTTP/1.2 200 OK", b"http/1.1 200 OK", b"HTTP/1.1  200 OK", b" HTTP/1.1 200 OK",
            b"HTTP/1.1 200 O\rK", b"HTTP/1.1 200 O\nK", b"HTTP/1.1 200 O\x00K", b"ICY 200 OK",
            b"HTTP/1.1 \xb2\xb0\xb0 OK", b"HTTP/1.1 -20 OK",
        ],
    )  # fmt: skip
    def test_refused(self, line: bytes) -> None:
        """RFC 9112 §4."""
        with pytest.raises(ResponseError):
            split_response(line)


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


def test_more_fields_than_anybody_needs_are_refused() -> None:
    few = b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"Host: a", *[b"a:b"] * 9_999])
    assert len(split_request(few)[3]) == 10_000
    with pytest.raises(RequestError) as refused:
        split_request(few + b"\r\na:b")
    assert refused.value.reason is LocalReplyReason.HEADERS_TOO_LARGE
