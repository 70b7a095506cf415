"""What was sent on a connection that died is sent again only if that is safe, and once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Proxy, Wire, proxy, request, response
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
POD = b"/api/v1/namespaces/a/pods/b"
WEBSOCKET = (b"Connection: Upgrade", b"Upgrade: websocket")
UNSAFE = {
    "POST": request(POD, method=b"POST", body=b"{}"),
    "POST without a body": request(POD, method=b"POST"),
    "PUT": request(POD, method=b"PUT", body=b"{}"),
    "PATCH": request(POD, method=b"PATCH", body=b"{}"),
    "DELETE": request(POD, method=b"DELETE"),
    "a GET with a body": request(POD, body=b"x"),
    "exec over WebSocket": request(POD + b"/exec?command=rm", *WEBSOCKET),
    "exec without an upgrade": request(POD + b"/exec?command=rm"),
    "attach": request(POD + b"/attach"),
    "port-forward": request(POD + b"/portforward"),
    "a pod's proxy": request(POD + b"/proxy/delete-everything"),
    "the proxy verb": request(b"/api/v1/proxy/namespaces/a/pods/b/delete-everything"),
    "an upgrade of anything": request(b"/anything", *WEBSOCKET),
}
SAFE = {
    "GET": request(POD),
    "HEAD": request(POD, method=b"HEAD"),
    "LIST": request(b"/api/v1/pods?limit=5"),
    "watch": request(b"/api/v1/pods?watch=1"),
    "a GET of no resource": request(b"/version"),
}


async def used_connection(it: Proxy) -> tuple[Wire, Wire]:
    """A caller, and the upstream's connection that served it once and is idle."""
    client = await it.connect()
    await client.send(request(b"/first"))
    upstream = await it.upstream.next()
    await upstream.message()
    await upstream.send(response())
    await client.message(b"GET")
    return client, upstream


@pytest.mark.parametrize("how", ["close", "cut", "reset"])
@pytest.mark.parametrize("name", UNSAFE)
async def test_case_20_a_write_or_an_exec_is_sent_once(
    identities: Identities, tmp_path: Path, name: str, how: str
) -> None:
    """The upstream read it and died: it may have been carried out."""
    async with proxy(identities, tmp_path) as it:
        client, upstream = await used_connection(it)
        await client.send(UNSAFE[name])
        await upstream.message()
        ending = getattr(upstream, how)()
        if ending is not None:
            await ending
        head, body = await client.message(b"POST")
        assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
        assert b"retry-after" not in head.lower()
        assert json.loads(body)["kind"] == "Status"
        assert len(it.upstream.connections) == 1
        assert it.count(metrics.UPSTREAM_RETRIES) == 0


@pytest.mark.parametrize("how", ["close", "cut", "reset"])
@pytest.mark.parametrize("name", SAFE)
async def test_case_20_a_read_is_sent_again_on_a_fresh_connection_and_succeeds(
    identities: Identities, tmp_path: Path, name: str, how: str
) -> None:
    async with proxy(identities, tmp_path) as it:
        client, upstream = await used_connection(it)
        await client.send(SAFE[name])
        first = await upstream.message()
        ending = getattr(upstream, how)()
        if ending is not None:
            await ending
        fresh = await it.upstream.next()
        assert await fresh.message() == first
        await fresh.send(b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"
        assert it.count(metrics.UPSTREAM_RETRIES) == 1


async def test_case_20_a_read_is_not_sent_a_third_time(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        client, upstream = await used_connection(it)
        await client.send(request(POD))
        for _ in range(2):
            await upstream.message()
            upstream.reset()
            if len(it.upstream.connections) == 1:
                upstream = await it.upstream.next()
        assert (await client.head()).startswith(b"HTTP/1.1 502 ")
        assert len(it.upstream.connections) == 2


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_case_20_nor_after_any_byte_of_a_response(
    identities: Identities, tmp_path: Path, part: bytes
) -> None:
    async with proxy(identities, tmp_path) as it:
        client, upstream = await used_connection(it)
        await client.send(request(POD))
        await upstream.message()
        await upstream.send(part)
        upstream.reset()
        head = await client.head()
        if head.startswith(b"HTTP/1.1 100 "):
            head = await client.head()
        assert head.startswith(b"HTTP/1.1 502 ")
        assert len(it.upstream.connections) == 1


@pytest.mark.parametrize("how", ["close", "cut", "reset"])
async def test_case_20_an_idle_connection_that_was_closed_is_not_used(
    identities: Identities, tmp_path: Path, how: str
) -> None:
    """The close arrives before the request, though in the same turn of the event loop: nothing is sent into it."""
    async with proxy(identities, tmp_path) as it:
        client, upstream = await used_connection(it)
        ending = getattr(upstream, how)()
        if ending is not None:
            await ending
        client.push(request(POD, method=b"DELETE"))
        seen = 0

        async def serve() -> None:
            nonlocal seen
            fresh = await it.upstream.next()
            await fresh.message()
            seen += 1
            await fresh.send(response(b"deleted"))

        serving = asyncio.create_task(serve())
        head, _ = await client.message(b"DELETE")
        serving.cancel()
        assert (head.split(b" ")[1], seen) == (b"200", 1)
