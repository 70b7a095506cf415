"""Compressed answers, and requests without the usual headers."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request
from tests.support.sidecar import Identities

LIST = gzip.compress(b'{"kind":"List","items":[' + b'{"metadata":{}},' * 20_000 + b"{}]}", mtime=0)


@pytest.mark.parametrize("chunked", [False, True])
async def test_case_14_bytes_pass_and_no_header_is_invented(
    identities: Identities, tmp_path: Path, chunked: bool
) -> None:
    if chunked:
        framing = b"Transfer-Encoding: chunked"
        body = (
            b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (LIST[:100], LIST[100:]))
            + b"0\r\n\r\n"
        )
    else:
        framing, body = b"Content-Length: %d" % len(LIST), LIST
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nVary: Accept\r\n" + framing + b"\r\n\r\n"
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        for lines in ([], [b"Accept-Encoding: gzip"]):
            await client.send(request(b"/api/v1/pods", *lines))
            upstream = it.upstream.connections[0] if it.upstream.connections else await it.upstream.next()
            asked = [
                b"GET /api/v1/pods HTTP/1.1",
                b"Host: kubernetes",
                *lines,
                b"X-Forwarded-For: 127.0.0.1",
                b"",
                b"",
            ]
            assert await upstream.head() == b"\r\n".join(asked)
            await upstream.send(head + body)
            assert await client.message(b"GET") == (head, body)
