"""Watches whose clients are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Wire, eventually, proxy, request
from tests.support.sidecar import Identities

WATCHES = 200
EVENT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n"


@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_case_08_their_upstream_sides_are_closed_within_two_seconds(
    identities: Identities, tmp_path: Path, how: str
) -> None:
    ended = 0

    async def script(wire: Wire) -> None:
        nonlocal ended
        await wire.head()
        await wire.send(EVENT)
        assert await wire.end() in ("cut", "reset")
        ended += 1

    async with proxy(identities, tmp_path, script) as it:
        clients = []
        for _ in range(WATCHES):
            client = await it.connect()
            await client.send(request(b"/api/v1/pods?watch=true"))
            clients.append(client)
        await asyncio.gather(*(client.until(b"event\r\n") for client in clients))
        assert it.count(metrics.REQUESTS_IN_FLIGHT, "long_running") == WATCHES
        for client in clients:
            getattr(client, how)()
        await eventually(lambda: ended == WATCHES, 2.0, lambda: f"{ended} ended")
        assert it.count(metrics.REQUESTS_IN_FLIGHT, "long_running") == 0
        await it.settled(1.0)
