"""Streams that are silent for minutes, on a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.proxy_harness import Proxy, proxy, request
from tests.support.sidecar import Identities


def pass_time(it: Proxy, monotonic: Callable[[float], None], seconds: float) -> None:
    """Move the clock, a second at a time as the listener does, and do all that depends on it."""
    for _ in range(int(seconds)):
        monotonic(1.0)
        for connection in list(it.plane.connections):
            connection.sweep(time.monotonic_ns())
        for pool in it.plane.pools:
            pool.sweep(time.monotonic_ns())


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        (b"/api/v1/pods?watch=true", 330),
        (b"/api/v1/namespaces/a/pods/b/log?follow=true", 700),
        (b"/api/v1/pods", 4000),
    ],
)
async def test_case_10_a_silent_response_is_never_cut(
    identities: Identities, tmp_path: Path, monotonic: Callable[[float], None], target: bytes, seconds: float
) -> None:
    async with proxy(identities, tmp_path) as it:
        client, idle = await it.connect(), await it.connect()
        await idle.send(request(b"/healthz"))
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        await idle.head()
        await client.send(request(target))
        await upstream.message()
        pass_time(it, monotonic, seconds)  # before its head
        await upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await client.head()
        pass_time(it, monotonic, seconds)  # before its first byte
        await upstream.send(b"5\r\nevent\r\n")
        assert await client.until(b"event\r\n") == b"5\r\nevent\r\n"
        pass_time(it, monotonic, seconds)
        await upstream.send(b"0\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"0\r\n\r\n"
        # The clock did move: a connection that nobody used was closed meanwhile.
        assert await idle.end() == "clean"


async def test_case_10_nor_is_a_silent_tunnel_or_upload(
    identities: Identities, tmp_path: Path, monotonic: Callable[[float], None]
) -> None:
    async with proxy(identities, tmp_path) as it:
        tunnel = await it.connect()
        await tunnel.send(request(b"/exec", b"Connection: Upgrade", b"Upgrade: SPDY/3.1", method=b"POST"))
        far = await it.upstream.next()
        await far.message()
        await far.send(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
        )
        await tunnel.head()
        upload = await it.connect()
        await upload.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello")
        other = await it.upstream.next()
        await other.until(b"hello")
        pass_time(it, monotonic, 4000)
        await tunnel.send(b"ping")
        assert await far.exactly(4) == b"ping"
        await upload.send(b"world")
        assert await other.exactly(5) == b"world"


async def test_case_10_a_head_that_does_not_come_is_told_so(
    identities: Identities, tmp_path: Path, monotonic: Callable[[float], None]
) -> None:
    """The one thing that a client is hurried for; a client that says nothing at all is just left."""
    async with proxy(identities, tmp_path) as it:
        slow, silent = await it.connect(), await it.connect()
        await slow.send(b"GET / HT")
        while not any(connection._head_buffer for connection in it.plane.connections):
            await slow.nothing(0.01)
        pass_time(it, monotonic, 31)
        await slow.nothing(0.05)
        pass_time(it, monotonic, 2)
        head, body = await slow.message(b"GET")
        assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        assert b'"reason":"Timeout"' in body
        assert await silent.end() == "clean"
