"""Bytes glued to a 101, and bytes sent before it was read."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
EXEC = b"/api/v1/namespaces/a/pods/b/exec?command=a&command=b"


@pytest.mark.parametrize("who", ["nobody", "jane", "balancer"])
@pytest.mark.parametrize("connection", [b"Upgrade", b"keep-alive, upgrade"])
async def test_case_01_every_byte_passes_both_ways(
    identities: Identities, tmp_path: Path, who: str, connection: bytes
) -> None:
    early, late, answer = (
        b"SYNSTREAM",
        random.Random(1).randbytes(1_000_000),
        random.Random(2).randbytes(1_000_000),
    )
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else getattr(identities, who))
        lines = [b"Upgrade: SPDY/3.1", b"Connection: " + connection, b"Content-Length: 0"]
        if who == "balancer":
            lines.append(b"X-Remote-User: jane")
        await client.send(request(EXEC, *lines, method=b"POST"))
        await client.send(early)
        upstream = await it.upstream.next()
        head = await upstream.head()
        assert head.startswith(b"POST " + EXEC + b" HTTP/1.1\r\n")
        assert b"\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\nContent-Length: 0\r\n" in head
        assert (upstream.tls.getpeercert(binary_form=True) is not None) == (who != "nobody")
        await upstream.nothing()  # what was sent early waits for the 101
        switching = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\nX-A: b\r\n\r\n"
        )
        await upstream.send(switching + b"12345678")
        assert await client.exactly(len(switching) + 8) == switching + b"12345678"
        assert await upstream.exactly(len(early)) == early
        sent = asyncio.gather(client.send(late), upstream.send(answer))
        received = await asyncio.gather(upstream.exactly(len(late)), client.exactly(len(answer)))
        assert received == [late, answer]
        await sent
        await client.close()
        assert await upstream.end() == "clean"
