"""The smuggling set, each followed by a request that must not arrive. The wider corpus is in tests/conformance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import Wire, proxy, response
from tests.support.sidecar import Identities

NEXT = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
START = b"POST / HTTP/1.1\r\nHost: a\r\n"
SET = {
    "CL and TE": START + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "differing CLs": START + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(NEXT) + NEXT,
    "chunked,": START + b"Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n" + NEXT,
    "xchunked": START + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + NEXT,
    "a blank before the colon": START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "a bare CR": START + b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "a fold": START + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + NEXT,
    "an oversize chunk": START + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n" + NEXT,
    "LF alone": START.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n" + NEXT.replace(b"\r\n", b"\n"),
    "a broken extension": START + b"Transfer-Encoding: chunked\r\n\r\n3;\nabc\r\n0\r\n\r\n" + NEXT,
}
FINE = {
    "a chunked DELETE": b"DELETE / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunk extensions": START + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0;c\r\n\r\n",
    "blanks around chunked": START + b"Transfer-Encoding:  chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n",
}


async def count(wire: Wire) -> None:
    while True:
        head, body = await wire.message()
        assert b"smuggled" not in head + body
        await wire.send(response(body))


@pytest.mark.parametrize("bytewise", [False, True])
async def test_case_30_is_refused_with_400_and_the_connection_closed(
    identities: Identities, tmp_path: Path, bytewise: bool
) -> None:
    async with proxy(identities, tmp_path, count) as it:
        clients = []
        for name, data in SET.items():
            client = await it.connect()
            await (client.send_bytewise(data) if bytewise else client.send(data))
            head, _ = await client.message(b"POST")
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n"), name
            assert b"\r\nConnection: close\r\n" in head
            await client.send(NEXT)
            clients.append(client)
        for client in clients:
            # The proxy waits a moment for what is still on its way, so that the answer is not lost; then it closes.
            assert await client.end() == "clean"


async def test_case_30_what_is_not_ambiguous_passes(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path, count) as it:
        client = await it.connect()
        for name, data in FINE.items():
            await client.send(data)
            assert (await client.message(b"POST"))[1] == b"3\r\nabc\r\n0\r\n\r\n", name
