"""What a tunnel holds when one side closes is delivered to the other."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest

from tests.integration.proxy_harness import Wire, proxy, request
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
SIZE = 50 << 20
PIECE = bytes(range(256)) * 1024
EXEC = request(b"/api/v1/namespaces/a/pods/b/exec", b"Connection: Upgrade", b"Upgrade: websocket")
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def tunnel(it) -> tuple[Wire, Wire]:  # type: ignore[no-untyped-def]
    client = await it.connect(receive_buffer=1 << 17)
    await client.send(EXEC)
    upstream = await it.upstream.next()
    await upstream.head()
    await upstream.send(SWITCHING)
    await client.head()
    return client, upstream


@pytest.mark.parametrize("answering", [False, True])
async def test_case_22_all_bytes_reach_a_slow_client(
    identities: Identities, tmp_path: Path, answering: bool
) -> None:
    """The upstream sends 50 MiB and closes; the client is always behind, and may have something to say meanwhile."""
    async with proxy(identities, tmp_path) as it:
        client, upstream = await tunnel(it)
        sent, received = sha256(), sha256()

        async def send() -> None:
            for _ in range(SIZE // len(PIECE)):
                sent.update(PIECE)
                await upstream.send(PIECE)
            await upstream.finish()

        async def drain() -> None:
            try:
                while await upstream.receive():
                    pass
            except ConnectionError:
                pass

        sending = asyncio.gather(send(), drain())
        size = reads = 0
        while piece := await client.receive():
            received.update(piece)
            size += len(piece)
            reads += 1
            if reads % 8 == 0:
                await asyncio.sleep(0)
                if answering:
                    client.push(b"window update")
        assert size == SIZE
        await sending
        assert received.digest() == sent.digest()
        await client.close()
        await it.settled(1.0)


async def test_case_22_an_idle_upstream_is_closed_within_a_second_of_its_client(
    identities: Identities, tmp_path: Path
) -> None:
    async with proxy(identities, tmp_path) as it:
        for how, seen in (("close", "clean"), ("cut", "cut"), ("reset", "cut")):
            client, upstream = await tunnel(it)
            ending = getattr(client, how)()
            if ending is not None:
                await ending
            async with asyncio.timeout(1.0):
                assert await upstream.end() == seen
            await upstream.close()
        await it.settled(1.0)
