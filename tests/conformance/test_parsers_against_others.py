"""The head and framing rules against two other parsers: h11, and the C parser (llhttp) of aiohttp's server.

What passes here must be read in the same way there. Where they refuse what passes here, the reason is one of those below.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from unittest import mock

import h11
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserC
from hypothesis import given, settings
from hypothesis import strategies as st

from orca_sidecar.core.errors import ProtocolError, RequestError
from orca_sidecar.core.framing import ChunkedBody, LengthBody
from orca_sidecar.core.head import HeadBuffer, field_name, field_value
from orca_sidecar.core.request_head import RequestHead, request_memo
from tests.fuzz.messages import Chunked, chunked_bodies, field_lines, mutated, request_heads

MEMO = request_memo()
# llhttp's list. Any token passes here: to kube-apiserver a method that it does not know is a verb like others.
LLHTTP_METHODS = frozenset(
    b"DELETE GET HEAD POST PUT OPTIONS TRACE COPY LOCK MKCOL MOVE PROPFIND PROPPATCH SEARCH UNLOCK BIND REBIND UNBIND ACL "
    b"REPORT MKACTIVITY CHECKOUT MERGE M-SEARCH NOTIFY SUBSCRIBE UNSUBSCRIBE PATCH PURGE MKCALENDAR LINK UNLINK "
    b"SOURCE QUERY".split()
)
_H11_TARGET = re.compile(rb"[\x21-\x7e]+")


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    """aiohttp's parser wants one; nothing runs on it."""
    global LOOP
    LOOP = asyncio.new_event_loop()
    yield
    LOOP.close()


LOOP: asyncio.AbstractEventLoop


def ours(wire: bytes) -> tuple[RequestHead, bytes] | None:
    try:
        found = HeadBuffer(10_000, RequestError).feed(wire)
        return None if found is None else (RequestHead(found[0], MEMO), found[1])
    except ProtocolError:
        return None


Fields = list[tuple[bytes, bytes]]


def fields_of(head: RequestHead) -> Fields:
    return [(field_name(line), field_value(line)) for line in head.lines]


def by_h11(wire: bytes) -> tuple[bytes, bytes, Fields, bytes, bool] | None:
    """Method, target, fields, body and whether the message is complete; None if refused."""
    server = h11.Connection(h11.SERVER)
    try:
        server.receive_data(wire)
        request = server.next_event()
        if not isinstance(request, h11.Request):
            return None
        body = b""
        while True:
            event = server.next_event()
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                done = isinstance(event, h11.EndOfMessage)
                return request.method, request.target, [*request.headers.raw_items()], body, done
    except h11.RemoteProtocolError:
        return None


def by_aiohttp(wire: bytes) -> tuple[bytes, bytes, Fields, bytes, bool] | None:
    parser = HttpRequestParserC(
        mock.Mock(spec=BaseProtocol), LOOP, 2**16, max_line_size=2**16, max_field_size=2**16, max_headers=1000
    )
    try:
        messages, _, _ = parser.feed_data(wire)
    except HttpProcessingError:
        return None
    if len(messages) != 1:
        return None
    message, payload = messages[0]
    body = b"".join(chunk for chunk in payload._buffer) if hasattr(payload, "_buffer") else b""
    target = message.path.encode("utf-8", "surrogateescape")
    return message.method.encode(), target, [*message.raw_headers], body, payload.is_eof()


def completed(head: RequestHead) -> bytes:
    """A body for the head, if it says that there is one."""
    if head.chunked:
        return b"3\r\nabc\r\n0\r\n\r\n"
    return b"x" * head.content_length


def h11_refuses(head: RequestHead) -> bool:
    """Raw bytes in a target (kube-apiserver takes UTF-8 there)."""
    return not _H11_TARGET.fullmatch(head.line.target)


def aiohttp_refuses(head: RequestHead) -> bool:
    """Methods off its list, raw bytes in a target, absolute targets that its URL library cannot read."""
    return (
        head.line.method not in LLHTTP_METHODS
        or not _H11_TARGET.fullmatch(head.line.target)
        or not head.line.target.startswith(b"/")
    )


@settings(max_examples=700, deadline=None, derandomize=True)
@given(wire=mutated(request_heads))
def test_whatever_passes_here_is_read_the_same_there(wire: bytes) -> None:
    result = ours(wire)
    if result is None or result[0].content_length > 10_000:
        return
    head, rest = result
    message = wire[: len(wire) - len(rest)] + completed(head)
    expected = b"abc" if head.chunked else b"x" * head.content_length

    read = by_h11(message)
    if read is None:
        assert h11_refuses(head), f"h11 refuses {message!r}"
    else:
        method, target, fields, body, done = read
        assert (method, target, body, done) == (head.line.method, head.line.target, expected, True)
        # h11 writes the one Transfer-Encoding in lower case.
        assert lowered(fields) == lowered(fields_of(head))

    read = by_aiohttp(message)
    if read is None:
        assert aiohttp_refuses(head), f"aiohttp refuses {message!r}"
    else:
        method, target, fields, body, done = read
        assert (method, target) == (head.line.method, head.line.target)
        assert fields == fields_of(head)
        assert done
        assert body == expected


def lowered(fields: Fields) -> Fields:
    return [
        (name, value.lower() if name.lower() == b"transfer-encoding" else value) for name, value in fields
    ]


POST = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def keep_all(line: bytes) -> bool:
    MEMO[line]
    return True


def relayed(wire: bytes) -> tuple[bytes, bytes] | None:
    body = ChunkedBody(RequestError, keep_all, 1000)
    try:
        out, rest = body.feed(wire)
    except ProtocolError:
        return None
    return (out, rest) if body.done else None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(body=mutated(chunked_bodies().map(lambda body: body.wire)))
def test_what_is_relayed_of_chunks_is_read_the_same_there(body: bytes) -> None:
    result = relayed(body)
    if result is None:
        return
    decoder = ChunkedBody(RequestError, keep_all, 1000, decode=True)
    data, _ = decoder.feed(body)
    for read in (by_h11(POST + result[0]), by_aiohttp(POST + result[0])):
        assert read is not None
        assert read[3:] == (data, True)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(body=chunked_bodies())
def test_a_right_body_is_relayed_with_its_trailers(body: Chunked) -> None:
    result = relayed(body.wire)
    assert result is not None
    server = h11.Connection(h11.SERVER)
    server.receive_data(POST + result[0])
    server.next_event()
    while not isinstance(event := server.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
    sent = [(field_name(line).lower(), field_value(line)) for line in body.trailers]
    assert [*event.headers] == sent


@given(
    length=st.integers(0, 2000),
    cut=st.integers(0, 2000),
    rest=st.binary(max_size=5),
    lines=st.lists(field_lines),
)
def test_a_length_ends_where_it_ends_there(length: int, cut: int, rest: bytes, lines: list[bytes]) -> None:
    wire = b"x" * length + rest
    body = LengthBody(length)
    out, left = b"", wire
    for piece in (wire[:cut], wire[cut:]):
        sent, left = body.feed(piece)
        out += sent
    assert out == b"x" * length
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length
    read = by_h11(head + out)
    assert read is not None
    assert read[3:] == (out, True)
    assert left == rest or (cut > length and not left)


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_others_may_take_and_is_refused_here(wire: bytes) -> None:
    """Stricter on purpose: each of these was read in two ways by some pair of servers."""
    assert ours(wire) is None
