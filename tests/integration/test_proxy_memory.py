"""The installed program under callers and upstreams that stop: its memory stays, and others do not notice."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from tests.integration.proxy_harness import Upstream, Wire, eventually, request, response
from tests.support.sidecar import Identities, running

EACH = 10
SIZE = 200_000_000
MOST = 50 << 20
PIECE = b"x" * (1 << 20)


async def push_until_stalled(wires: list[Wire]) -> int:
    """Send on all until none takes more for a while; returns the bytes taken in all."""
    total = quiet = 0
    while quiet < 20:
        taken = sum(wire.push(PIECE) for wire in wires)
        total += taken
        quiet = 0 if taken else quiet + 1
        await asyncio.sleep(0.01)
        assert total < len(wires) * SIZE, "nothing holds them back"
    return total


@pytest.mark.parametrize("event_loop", ["uvloop", "asyncio"])
async def test_stalled_downloads_and_uploads(tmp_path: Path, event_loop: str) -> None:
    identities = Identities.make(tmp_path / "pki")
    downloads: list[Wire] = []

    async def script(wire: Wire) -> None:
        while True:
            head = await wire.head()
            if b" /download " in head:
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
                downloads.append(wire)
                await asyncio.Event().wait()
            if b" /upload " in head:
                await asyncio.Event().wait()  # never reads on
            length = re.search(rb"\r\nContent-Length: (\d+)", head)
            await wire.exactly(int(length[1]) if length else 0)
            await wire.send(response())

    async with AsyncExitStack() as stack:
        upstream = Upstream(identities.server_context(), script)
        upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        upstream.start()
        stack.push_async_callback(upstream.stop)
        settings = identities.configuration(upstream.port, eventLoop=event_loop)
        sidecar = await stack.enter_async_context(running(settings, tmp_path))
        await sidecar.ready()
        context = identities.client_context()

        async def connect(receive_buffer: int = 0) -> Wire:
            wire = await Wire.connect(sidecar.port, context, receive_buffer=receive_buffer)
            stack.callback(wire.sock.close)
            return wire

        async def others_are_served() -> None:
            for _ in range(20):
                async with asyncio.timeout(2.0):
                    await other.send(request(method=b"PUT", body=b"y" * 100_000))
                    assert (await other.message(b"PUT"))[1] == b"ok"

        other = await connect()
        await others_are_served()
        assert sidecar.process is not None
        process = psutil.Process(sidecar.process.pid)
        before = process.memory_info().rss

        stalled = []
        for _ in range(EACH):
            client = await connect(receive_buffer=1 << 16)
            await client.send(request(b"/download"))
            stalled.append(client)
        uploads = []
        for _ in range(EACH):
            client = await connect()
            await client.send(b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % SIZE)
            uploads.append(client)
        await eventually(lambda: len(downloads) == EACH)
        await push_until_stalled(downloads)
        await push_until_stalled(uploads)
        await others_are_served()
        grown = process.memory_info().rss - before
        assert grown < MOST, f"grown by {grown / (1 << 20):.0f} MiB"

        # Whoever goes on is served on; whoever leaves is gone, though nothing of theirs is being read.
        for client in stalled:
            await client.exactly(1_000_000)
        for client in stalled + uploads:
            client.reset()
        await sidecar.until(lambda: sidecar.metric("orca_sidecar_requests_in_flight") == 0, 5.0)
        await sidecar.until(lambda: sidecar.metric("orca_sidecar_downstream_connections") == 1, 5.0)
        await others_are_served()
