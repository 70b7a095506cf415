"""The way out: what is in flight ends in order, and nobody is waited for without need."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Proxy, Wire, proxy, request, response
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
WATCH = request(b"/api/v1/pods?watch=true")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EXEC = request(b"/api/v1/namespaces/a/pods/b/exec", b"Connection: Upgrade", b"Upgrade: x", method=b"POST")
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"


async def begun(it: Proxy, data: bytes) -> tuple[Wire, Wire]:
    client = await it.connect()
    await client.send(data)
    upstream = await it.upstream.next()
    await upstream.message()
    return client, upstream


async def leave(it: Proxy, grace: float) -> None:
    it.listener.stop_accepting()
    await it.listener.finish(grace, asyncio.Event())


async def test_idle_callers_are_let_go_and_not_waited_for(identities: Identities, tmp_path: Path) -> None:
    """Pools of connections often notice a close only when they use the connection again."""
    async with proxy(identities, tmp_path) as it:
        used, upstream = await begun(it, request())
        await upstream.send(response())
        await used.message(b"GET")
        fresh = await it.connect()
        async with asyncio.timeout(3.0):
            await leave(it, 30.0)
        assert await used.end() == await fresh.end() == "clean"


async def test_a_new_connection_gets_a_moment_for_its_first_request(
    identities: Identities, tmp_path: Path
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        leaving = asyncio.create_task(leave(it, 30.0))
        await asyncio.sleep(0.1)
        await client.send(request())
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(response())
        head, _ = await client.message(b"GET")
        assert b"\r\nConnection: close\r\n" in head
        assert await client.end() == "clean"
        async with asyncio.timeout(1.0):
            await leaving


async def test_a_response_in_progress_is_finished(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        waiting, first = await begun(it, request())
        begun_already, second = await begun(it, request())
        await second.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        await begun_already.until(b"hello")
        leaving = asyncio.create_task(leave(it, 30.0))
        await asyncio.sleep(0.1)
        await first.send(response(b"whole"))
        head, body = await waiting.message(b"GET")
        assert body == b"whole"
        assert b"\r\nConnection: close\r\n" in head
        assert await waiting.end() == "clean"
        assert not leaving.done()
        await second.send(b"world")
        assert await begun_already.exactly(5) == b"world"
        assert await begun_already.end() == "clean"
        async with asyncio.timeout(1.0):
            await leaving


async def test_a_watch_ends_with_a_last_chunk_where_a_chunk_ended(
    identities: Identities, tmp_path: Path
) -> None:
    async with proxy(identities, tmp_path) as it:
        whole, first = await begun(it, WATCH)
        await first.send(CHUNKED + b"5\r\nevent\r\n")
        await whole.until(b"event\r\n")
        silent, second = await begun(it, WATCH)
        await second.send(CHUNKED)
        await silent.head()
        broken, third = await begun(it, WATCH)
        await third.send(CHUNKED + b"9\r\neve")
        await broken.until(b"eve")
        half, fourth = await begun(it, WATCH)
        await fourth.send(CHUNKED + b"5\r\nevent\r\n5")  # of the next chunk's size a part
        await half.until(b"event\r\n")
        async with asyncio.timeout(3.0):
            await leave(it, 0.4)
        assert await whole.rest() == b"0\r\n\r\n"
        assert await silent.rest() == b"0\r\n\r\n"
        assert await half.rest() == b"0\r\n\r\n"
        assert await broken.rest() == b""
        assert it.count(metrics.TERMINATIONS, "drained") == 4


async def test_tunnels_get_the_whole_grace(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        client, upstream = await begun(it, EXEC)
        await upstream.send(SWITCHING)
        await client.head()
        leaving = asyncio.create_task(leave(it, 0.6))
        await asyncio.sleep(0.45)
        await client.send(b"ping")
        assert await upstream.exactly(4) == b"ping"
        await upstream.send(b"pong")
        assert await client.exactly(4) == b"pong"
        await leaving
        assert await client.end() in ("clean", "cut", "reset")
        assert it.count(metrics.UPGRADES) == 0


async def test_a_second_signal_ends_it_at_once(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        _, upstream = await begun(it, EXEC)
        await upstream.send(SWITCHING)
        at_once = asyncio.Event()
        it.listener.stop_accepting()
        leaving = asyncio.create_task(it.listener.finish(30.0, at_once))
        await asyncio.sleep(0.1)
        assert not leaving.done()
        at_once.set()
        async with asyncio.timeout(1.0):
            await leaving


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_while_it_is_about_to_leave_only_readyz_says_so(
    identities: Identities, tmp_path: Path, method: bytes
) -> None:
    async with proxy(identities, tmp_path) as it:
        client, upstream = await begun(it, request(b"/readyz", method=method))
        await upstream.send(response(b"") if method == b"HEAD" else response())
        await client.message(method)
        it.plane.not_ready = True
        for target in (b"/readyz?verbose", b"/readyz"):
            other = await it.connect()
            await other.send(request(target, method=method))
            head, body = await other.message(method)
            assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert (json.loads(body)["code"] == 503) if method == b"GET" else not body
        for target in (b"/livez", b"/readyz/ping", b"/api/v1/pods"):
            await client.send(request(target, method=method))
            assert (await upstream.head()).startswith(method + b" " + target + b" ")
            await upstream.send(response(b"") if method == b"HEAD" else response())
            assert (await client.message(method))[0].startswith(b"HTTP/1.1 200 ")
