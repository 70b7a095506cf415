"""A watch's head and events go out at once, as they came."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.proxy_harness import proxy, request
from tests.support.sidecar import Identities

EVENT = b'28\r\n{"type":"BOOKMARK","object":{"kind":""}}\r\n'


async def test_case_17_each_within_200_ms_and_never_compressed(
    identities: Identities, tmp_path: Path
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request(b"/api/v1/pods?watch=true", b"Accept-Encoding: gzip"))
        upstream = await it.upstream.next()
        assert b"\r\nAccept-Encoding: gzip\r\n" in await upstream.head()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        await upstream.send(head)
        async with asyncio.timeout(0.2):
            assert await client.head() == head
        await client.nothing(0.3)
        for piece in (EVENT, EVENT[:20], EVENT[20:]):
            await upstream.send(piece)
            async with asyncio.timeout(0.2):
                assert await client.exactly(len(piece)) == piece
