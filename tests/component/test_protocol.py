"""HTTP/1.0 callers, expectations, informational responses, responses without a body, and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


class TestHTTP10:
    async def test_haproxys_health_check(self, identities: Identities, tmp_path: Path) -> None:
        """`OPTIONS / HTTP/1.0` and nothing else."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"OPTIONS / HTTP/1.0\r\n\r\n")
            upstream = await it.upstream.next()
            assert (
                await upstream.head() == b"OPTIONS / HTTP/1.1\r\nHost:\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n"
            )
            await upstream.send(response())
            assert (
                await client.rest() == b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
            )

    @pytest.mark.parametrize("connection", [b"", b"Connection: keep-alive\r\n"])
    @pytest.mark.parametrize("trailer", [b"", b"X-Checksum: 1\r\n"])
    async def test_a_chunked_response_is_unchunked_and_ended_by_close(
        self, identities: Identities, tmp_path: Path, connection: bytes, trailer: bytes
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"GET / HTTP/1.0\r\nHost: a\r\n" + connection + b"\r\n")
            upstream = await it.upstream.next()
            await upstream.head()
            await upstream.send(b"HTTP/1.1 100 Continue\r\n\r\n")  # which HTTP/1.0 does not know
            await upstream.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n"
                + trailer + b"\r\n"
            )  # fmt: skip
            assert await client.rest() == b"HTTP/1.0 200 OK\r\nX-A: b\r\nConnection: close\r\n\r\nhello world"
            assert len(it.plane.pools[0]._idle) == 1  # the upstream's connection is HTTP/1.1's, and goes on

    async def test_a_body_and_its_length_pass(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"POST / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello")
            upstream = await it.upstream.next()
            assert (await upstream.message())[1] == b"hello"
            await upstream.send(b"HTTP/1.1 204 No Content\r\n\r\n")
            assert await client.rest() == b"HTTP/1.0 204 No Content\r\nConnection: close\r\n\r\n"


class TestExpectations:
    HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"

    async def test_the_upstream_decides_to_continue(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(self.HEAD)
            upstream = await it.upstream.next()
            assert b"\r\nExpect: 100-continue\r\n" in await upstream.head()
            await client.nothing()  # it is not the proxy that says so
            await upstream.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(b"hello")
            assert await upstream.exactly(5) == b"hello"
            await upstream.send(response())
            assert await client.message(b"POST") == (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")
            await client.send(request())
            assert (await upstream.head()).startswith(b"GET ")

    @pytest.mark.parametrize("status", [b"417 Expectation Failed", b"401 Unauthorized", b"413 Too Large"])
    async def test_or_not_to(self, identities: Identities, tmp_path: Path, status: bytes) -> None:
        """The body may still come, or not: the connection cannot go on, on either side."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(self.HEAD)
            upstream = await it.upstream.next()
            await upstream.head()
            await upstream.send(response(b"no", status))
            head, body = await client.message(b"POST")
            assert head.startswith(b"HTTP/1.1 " + status)
            assert b"\r\nConnection: close\r\n" in head
            assert body == b"no"
            assert await upstream.end() in ("cut", "reset")
            await client.send(b"GET /not-a-request HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await client.end() == "clean"
            assert len(it.upstream.connections) == 1

    async def test_early_hints_pass(self, identities: Identities, tmp_path: Path) -> None:
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.head()
            await upstream.send(hints + hints[:10], hints[10:] + response())
            assert await client.head() == await client.head() == hints
            assert (await client.message(b"GET"))[1] == b"ok"


class TestNoBody:
    @pytest.mark.parametrize(
        ("method", "head"),
        [
            (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
            (b"HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (b"HEAD", b"HTTP/1.1 200 OK\r\n\r\n"),
            (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
            (b"GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"),
            (b"GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: x\r\n\r\n"),
            (b"GET", b"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n"),
            (b"DELETE", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ],
    )
    async def test_the_connections_go_on(
        self, identities: Identities, tmp_path: Path, method: bytes, head: bytes
    ) -> None:
        """RFC 9112 §6.3 items 1 and 2."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            for _ in range(3):
                await client.send(request(method=method))
                upstream = it.upstream.connections[0] if it.upstream.connections else await it.upstream.next()
                await upstream.head()
                await upstream.send(head)
                assert await client.head() == head
            assert len(it.upstream.connections) == 1


class TestLocalReplies:
    async def test_to_head_have_no_body(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            await it.upstream.pause()
            it.upstream.sock.close()
            client = await it.connect()
            await client.send(request(method=b"HEAD") + request())
            first = await client.head()
            assert first.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nContent-Type: application/json\r\n" in first
            head, body = await client.message(b"GET")  # nothing of a body lies between
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["details"] == {"retryAfterSeconds": 1}

    async def test_beyond_the_limit_of_connections(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path, listener={"maxConnections": 2}) as it:
            held = [await it.connect(), await it.connect()]
            for client in held:
                await client.send(request())
            for _ in held:
                upstream = await it.upstream.next()
                await upstream.message()
                await upstream.send(response())
            for client in held:
                await client.message(b"GET")
            for data in (request(), request(method=b"POST", body=b"x" * 100)):
                third = await it.connect()
                await third.send(data)
                head, body = await third.message(b"GET")
                assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
                assert b"\r\nRetry-After: 1\r\n" in head
                assert json.loads(body)["reason"] == "ServiceUnavailable"
                assert await third.end() == "clean"
                await third.close()
            await held[0].close()
            while it.cells[metrics.DOWNSTREAM_CONNECTIONS.offset] > 1:
                await held[1].nothing(0.01)
            fourth = await it.connect()
            await fourth.send(request())
            assert (await upstream.head()).startswith(b"GET ")
            assert it.count(metrics.LOCAL_REPLIES, "too_many_connections", "503") == 2
