"""Start lines: what is accepted, what is refused, and that a memo changes nothing."""

from __future__ import annotations

import pytest

from orca_sidecar.core.errors import LocalReplyReason, RequestError, ResponseError
from orca_sidecar.core.start_line import REQUEST_LINES, STATUS_LINES


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
        assert REQUEST_LINES[line][:3] == (method, target, old)
        assert REQUEST_LINES[line].upstream == b"%b %b HTTP/1.1" % (method, target)

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
            REQUEST_LINES[line]
        assert refused.value.reason is LocalReplyReason.BAD_REQUEST

    @pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0"])
    def test_another_version_is_505(self, version: bytes) -> None:
        with pytest.raises(RequestError) as refused:
            REQUEST_LINES[b"PRI * " + version]
        assert refused.value.reason is LocalReplyReason.VERSION_NOT_SUPPORTED

    def test_connect_is_405(self) -> None:
        """RFC 9110 §9.3.6: a 2xx answer to it would make the connection a tunnel."""
        with pytest.raises(RequestError) as refused:
            REQUEST_LINES[b"CONNECT a:443 HTTP/1.1"]
        assert refused.value.reason is LocalReplyReason.METHOD_NOT_ALLOWED


class TestStatusLine:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            (b"HTTP/1.1 200 OK", (False, 200, b"OK")),
            (b"HTTP/1.0 404 Not Found", (True, 404, b"Not Found")),
            (b"HTTP/1.1 599 ", (False, 599, b"")),
            (b"HTTP/1.1 200 tab\tand \xff", (False, 200, b"tab\tand \xff")),
            (b"HTTP/1.1 200  two", (False, 200, b" two")),
        ],
    )
    def test_accepted(self, line: bytes, expected: tuple[bool, int, bytes]) -> None:
        assert STATUS_LINES[line][:3] == expected
        assert STATUS_LINES[line].downstream == b"HTTP/1.1" + line[8:]

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
            STATUS_LINES[line]


def test_a_repeated_request_is_classified_once() -> None:
    first = REQUEST_LINES[b"GET /api/v1/namespaces/n/pods/once HTTP/1.1"]
    assert REQUEST_LINES[bytes(bytearray(b"GET /api/v1/namespaces/n/pods/once HTTP/1.1"))] is first
    assert first.info.verb == "get"
    assert REQUEST_LINES[b"PUT /api/v1/namespaces/n/pods/once HTTP/1.1"].info.verb == "update"


def test_what_is_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(RequestError):
            REQUEST_LINES[b"GET /a b HTTP/1.1"]
    assert b"GET /a b HTTP/1.1" not in REQUEST_LINES
