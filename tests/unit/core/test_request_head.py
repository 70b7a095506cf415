"""What a request head says about framing, upgrade and closing, and what makes it one that is refused."""

from __future__ import annotations

import pytest

from orca_sidecar.core.errors import LocalReplyReason, RequestError
from orca_sidecar.core.request_head import RequestHead, request_memo

IDENTITY = frozenset((b"x-remote-user", b"x-remote-group"))


def parse(*lines: bytes, start: bytes = b"GET / HTTP/1.1", host: bool = True) -> RequestHead:
    fields = [b"Host: a"] if host else []
    memo = request_memo(lambda name: name if name in IDENTITY else None)
    return RequestHead(b"\r\n".join([start, *fields, *lines]), memo)


class TestHost:
    """RFC 9112 §3.2."""

    def test_one_is_required(self) -> None:
        assert parse().lines == [b"Host: a"]
        with pytest.raises(RequestError, match="Host"):
            parse(host=False)

    @pytest.mark.parametrize("second", [b"Host: a", b"host: b", b"HOST:"])
    @pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"GET / HTTP/1.0", b"GET http://a/ HTTP/1.1"])
    def test_two_are_refused_even_if_equal(self, start: bytes, second: bytes) -> None:
        with pytest.raises(RequestError, match="Host"):
            parse(second, start=start)

    def test_http_1_0_may_have_none(self) -> None:
        assert parse(start=b"OPTIONS / HTTP/1.0", host=False).line.http10

    def test_it_is_required_beside_an_absolute_target(self) -> None:
        with pytest.raises(RequestError, match="Host"):
            parse(start=b"GET http://a/ HTTP/1.1", host=False)


class TestFraming:
    @pytest.mark.parametrize(
        ("lines", "chunked", "length"),
        [
            ([], False, 0),
            ([b"Content-Length: 0"], False, 0),
            ([b"Content-Length:5"], False, 5),
            ([b"content-length: \t5\t "], False, 5),
            ([b"Transfer-Encoding: chunked"], True, 0),
            ([b"TRANSFER-ENCODING:\tChunked "], True, 0),
        ],
    )
    @pytest.mark.parametrize("method", [b"GET", b"DELETE", b"POST", b"OPTIONS", b"BREW"])
    def test_said_by_the_fields_whatever_the_method(
        self, method: bytes, lines: list[bytes], chunked: bool, length: int
    ) -> None:
        head = parse(*lines, start=method + b" / HTTP/1.1")
        assert (head.chunked, head.content_length) == (chunked, length)

    @pytest.mark.parametrize(
        "lines",
        [
            [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
            [b"Transfer-Encoding: chunked", b"Content-Length: 0"],
            [b"Content-Length: 5", b"Content-Length: 5"],
            [b"Content-Length: 5", b"content-length: 6"],
            [b"Content-Length: 5, 5"],
            [b"Content-Length: 5\t5"],
            [b"Content-Length: +5"],
            [b"Content-Length:"],
            [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
            [b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"],
            [b"Transfer-Encoding: chunked, identity"],
            [b"Transfer-Encoding: gzip, chunked"],
            [b"Transfer-Encoding:"],
            [b"Transfer-Encoding: chunked", b"Connection: Transfer-Encoding", b"Content-Length: 5"],
        ],
    )
    def test_ambiguous_framing_is_refused(self, lines: list[bytes]) -> None:
        """RFC 9112 §6.1 and §6.3."""
        with pytest.raises(RequestError) as refused:
            parse(*lines)
        assert refused.value.reason is LocalReplyReason.BAD_REQUEST

    def test_chunked_on_http_1_0_is_refused(self) -> None:
        with pytest.raises(RequestError):
            parse(b"Transfer-Encoding: chunked", start=b"POST / HTTP/1.0")

    def test_a_nominated_length_still_counts(self) -> None:
        assert parse(b"Connection: Content-Length", b"Content-Length: 5").content_length == 5


class TestClosing:
    @pytest.mark.parametrize(
        ("lines", "closes"),
        [
            ([], False),
            ([b"Connection: keep-alive"], False),
            ([b"Connection:"], False),
            ([b"Connection: close"], True),
            ([b"Connection: Close"], True),
            ([b"Connection: keep-alive, CLOSE"], True),
            ([b"Connection: keep-alive", b"connection:\tclose "], True),
            ([b"Connection: close-ish"], False),
            ([b"X-Connection: close"], False),
        ],
    )
    def test_http_1_1_closes_where_it_says_so(self, lines: list[bytes], closes: bool) -> None:
        assert parse(*lines).wants_close is closes

    @pytest.mark.parametrize("lines", [[], [b"Connection: keep-alive"], [b"Connection: close"]])
    def test_http_1_0_always_closes(self, lines: list[bytes]) -> None:
        assert parse(*lines, start=b"GET / HTTP/1.0").wants_close


class TestUpgrade:
    @pytest.mark.parametrize(
        "lines",
        [
            [b"Connection: Upgrade", b"Upgrade: websocket"],
            [b"Upgrade: SPDY/3.1", b"Connection: keep-alive, upgrade"],
            [b"Connection: keep-alive", b"Connection: UPGRADE", b"Upgrade: x"],
        ],
    )
    def test_asked_for(self, lines: list[bytes]) -> None:
        assert parse(*lines).upgrades

    @pytest.mark.parametrize(
        "lines",
        [
            [b"Upgrade: websocket"],
            [b"Connection: keep-alive", b"Upgrade: websocket"],
            [b"Connection: Upgrade"],
            [b"Connection: Upgrade", b"Upgrade:"],
            [b"Connection: Upgrade", b"Upgrade: ,"],
            [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"],
            [b"Connection: Upgrade", b"Upgrade: H2C"],
        ],
    )
    def test_not_asked_for(self, lines: list[bytes]) -> None:
        """RFC 9110 §7.8; h2c: RFC 9113 §3.1."""
        assert not parse(*lines).upgrades

    @pytest.mark.parametrize(
        "lines", [[b"Upgrade: h2c, websocket"], [b"Upgrade: websocket,H2C"], [b"Upgrade: h2c", b"Upgrade: x"]]
    )
    def test_h2c_is_not_brought_in_beside_another_protocol(self, lines: list[bytes]) -> None:
        """In an h2c tunnel requests would pass under no rule, on the identity's connection too."""
        assert not parse(b"Connection: Upgrade", *lines).upgrades

    def test_http_1_0_cannot(self) -> None:
        assert not parse(b"Connection: Upgrade", b"Upgrade: websocket", start=b"GET / HTTP/1.0").upgrades


class TestLayout:
    def test_lines_are_found_in_order(self) -> None:
        head = parse(
            b"X-Remote-Group: b", b"A: b", b"X-REMOTE-USER: jane", b"x-forwarded-for: 1", b"X-Forwarded-For: 2",
            b"Endpoint-Load-Metrics-Request: TEXT", b"X-Remote-Group: a",
        )  # fmt: skip
        layout = head.layout
        assert [*layout.identity(head.lines)] == [
            b"X-Remote-Group: b", b"X-REMOTE-USER: jane", b"X-Remote-Group: a",
        ]  # fmt: skip
        assert [*layout.forwarded_for(head.lines)] == [b"x-forwarded-for: 1", b"X-Forwarded-For: 2"]
        assert [*layout.opt_in(head.lines)] == [b"Endpoint-Load-Metrics-Request: TEXT"]
        assert layout.opt_ins == 1

    def test_one_layout_serves_all_heads_of_one_shape(self) -> None:
        memo = request_memo()
        one = RequestHead(b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\nTE: x", memo)
        two = RequestHead(b"PUT /x HTTP/1.1\r\nhost: c\r\nD: e\r\nte: y", memo)
        other = RequestHead(b"GET / HTTP/1.1\r\nHost: a\r\nTE: b\r\nA: x", memo)
        assert one.layout is two.layout
        assert one.layout is not other.layout

    def test_it_does_not_depend_on_what_was_seen_before(self) -> None:
        """The memos change how fast a line is classified, and nothing else."""
        memo = request_memo(lambda name: name if name in IDENTITY else None)
        lines = [b"Content-Length: 3", b"X-Remote-User: u", b"A: b", b"Connection: close", b"Host: h"]
        first = RequestHead(b"\r\n".join([b"GET / HTTP/1.1", *lines]), memo)
        for number in range(6000):
            RequestHead(b"GET / HTTP/1.1\r\nHost: a\r\nX-%d: %d" % (number, number), memo)
        again = RequestHead(b"\r\n".join([b"GET / HTTP/1.1", *lines]), memo)
        assert again.layout.kinds == first.layout.kinds
        assert (again.content_length, again.wants_close) == (3, True)


class TestBounds:
    """Whoever reaches the listener can send heads of a megabyte: what is kept of them is bounded."""

    def test_layouts_of_very_long_heads_are_not_kept(self) -> None:
        memo = request_memo()
        head = b"GET / HTTP/1.1\r\nHost: a" + b"\r\nA: b" * 9_900
        assert RequestHead(head, memo).layout is not RequestHead(head, memo).layout
        assert sum(map(len, memo._layouts)) < 100_000

    def test_very_long_names_are_not_kept(self) -> None:
        memo = request_memo()
        for number in range(20):
            RequestHead(b"GET / HTTP/1.1\r\nHost: a\r\n%b%d: b" % (b"A" * 10_000, number), memo)
        assert sum(map(len, memo._names)) < 10_000

    def test_names_are_bounded(self) -> None:
        memo = request_memo()
        for number in range(10_000):
            RequestHead(b"GET / HTTP/1.1\r\nHost: a\r\nA%d: b" % number, memo)
        assert len(memo._names) <= 5000
        assert memo[b"Content-Length: 1"] == memo[b"content-length: 2"] != 0


def test_more_fields_than_anybody_needs_are_refused() -> None:
    few = [b"a:b"] * 9_999
    assert len(parse(*few).lines) == 10_000
    with pytest.raises(RequestError) as refused:
        parse(*few, b"a:b")
    assert refused.value.reason is LocalReplyReason.HEADERS_TOO_LARGE
