"""A response that is cut is seen to be cut; a watch that ends, ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "start",
    [
        CHUNKED + b"A\r\nhello",
        CHUNKED + b"5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
    ],
)
async def test_case_16_a_reset_is_an_abort_and_nothing_is_added(
    identities: Identities, tmp_path: Path, start: bytes
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request())
        upstream = await it.upstream.next()
        await upstream.head()
        await upstream.send(start)
        received = await client.exactly(len(start))
        upstream.reset()
        assert received == start
        assert await client.end() in ("clean", "cut", "reset")  # of the connection; the body has no end


async def test_case_16_a_watchs_clean_end_comes_within_a_second(
    identities: Identities, tmp_path: Path
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request(b"/api/v1/pods?watch=1"))
        upstream = await it.upstream.next()
        await upstream.head()
        await upstream.send(CHUNKED + b"5\r\nevent\r\n")
        await client.until(b"event\r\n")
        await upstream.send(b"0\r\n\r\n")
        async with asyncio.timeout(1.0):
            assert await client.exactly(5) == b"0\r\n\r\n"
        await client.send(request())  # and the connection goes on
        assert (await upstream.head()).startswith(b"GET ")
