"""A health check behind many idle watches."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.proxy_harness import Wire, proxy, request, response
from tests.support.sidecar import Identities

WATCHES = 300


async def test_case_09_is_answered_within_a_second(identities: Identities, tmp_path: Path) -> None:
    async def script(wire: Wire) -> None:
        head = await wire.head()
        if b"watch=true" in head:
            await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await wire.gone()
        else:
            await wire.send(response())

    async with proxy(identities, tmp_path, script) as it:
        for _ in range(WATCHES):
            client = await it.connect()
            await client.send(request(b"/api/v1/pods?watch=true"))
            await client.head()
        client = await it.connect()
        async with asyncio.timeout(1.0):
            await client.send(request(b"/healthz"))
            assert (await client.message(b"GET"))[1] == b"ok"
