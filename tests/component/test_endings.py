"""How connections end, on either side, and what the other side sees of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from orca_sidecar import metrics
from orca_sidecar.proxy import downstream, tls_connection
from tests.integration.proxy_harness import Wire, echo_ok, eventually, proxy, request, response
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True

UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
EXEC = request(
    b"/api/v1/namespaces/a/pods/b/exec", b"Connection: Upgrade", b"Upgrade: SPDY/3.1", method=b"POST"
)


async def ask(it, **how) -> tuple[Wire, Wire]:  # type: ignore[no-untyped-def]
    """A caller whose request has reached the upstream."""
    client = await it.connect(**how)
    await client.send(request())
    upstream = await it.upstream.next()
    await upstream.message()
    return client, upstream


class TestBodiesThatEndWithTheConnection:
    """RFC 9112 §6.3 item 8, §8: their end must be the upstream's, and seen as clean only where it was."""

    async def test_a_clean_end(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it)
            await upstream.send(UNTIL_CLOSE, b" world")
            await upstream.close()
            head, body = await client.message(b"GET")
            assert b"\r\nConnection: close\r\n" in head
            assert body == b"hello world"
            assert it.count(metrics.TERMINATIONS, "complete") == 1

    @pytest.mark.parametrize("how", ["cut", "reset"])
    async def test_a_truncation_is_a_reset(self, identities: Identities, tmp_path: Path, how: str) -> None:
        """A FIN without close_notify is what many clients take for an end."""
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it)
            await upstream.send(UNTIL_CLOSE)
            await client.until(b"hello")
            getattr(upstream, how)()
            assert await client.end() == "reset"
            assert it.count(metrics.TERMINATIONS, "upstream_closed") == 1

    async def test_for_http_1_0_a_cut_chunked_body_is_a_reset_too(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"GET / HTTP/1.0\r\n\r\n")
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            assert b"Transfer-Encoding" not in await client.head()
            assert await client.exactly(5) == b"hello"
            await upstream.close()
            assert await client.end() == "reset"


class TestTruncatedBodies:
    @pytest.mark.parametrize("how", ["close", "cut", "reset"])
    @pytest.mark.parametrize(
        "start",
        [
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        ],
    )
    async def test_nothing_is_added(
        self, identities: Identities, tmp_path: Path, start: bytes, how: str
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it)
            await upstream.send(start)
            assert (await client.until(b"hello")).endswith(b"hello")
            result = getattr(upstream, how)()
            if result is not None:
                await result
            rest = b""
            with contextlib.suppress(ConnectionError):
                rest = await client.rest()
            assert rest in (b"", b"\r\n")  # never a last chunk

    @pytest.mark.parametrize("how", ["close", "cut", "reset"])
    async def test_before_a_response_it_is_502(
        self, identities: Identities, tmp_path: Path, how: str
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request(method=b"PUT", body=b"x"))
            upstream = await it.upstream.next()
            await upstream.message()
            result = getattr(upstream, how)()
            if result is not None:
                await result
            head, body = await client.message(b"PUT")
            assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
            assert b'"reason":"InternalError"' in body
            assert b"Retry-After" not in head
            await client.send(request())
            assert (await (await it.upstream.next()).head()).startswith(b"GET ")


class TestTheCallerLeaves:
    @pytest.mark.parametrize("how", ["close", "cut", "reset"])
    @pytest.mark.parametrize("answered", [False, True])
    async def test_its_request_ends_at_once(
        self, identities: Identities, tmp_path: Path, how: str, answered: bool
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it)
            if answered:
                await upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n")
                await client.until(b"event\r\n")
            result = getattr(client, how)()
            if result is not None:
                await result
            assert await upstream.end() in ("cut", "reset")
            await it.settled(1.0)
            assert it.count(metrics.TERMINATIONS, "downstream_closed") == 1

    async def test_in_the_middle_of_an_upload_that_stalls(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """Its connection is not read then, so that only a look at it can tell."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
            await it.upstream.next()
            still = 0
            while still < 20:
                still = 0 if client.push(b"x" * 1_000_000) else still + 1
                await asyncio.sleep(0.01)
            client.reset()
            await it.settled(2.0)


class TestClosingDelivers:
    """What is queued towards one side is delivered after the other side has closed."""

    async def test_a_tunnel_whose_caller_reads_slowly_and_writes_meanwhile(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """SPDY and WebSocket clients answer what they read (window updates, pings): a closed socket would reset them."""
        body = bytes(range(256)) * 16384  # 4 MiB
        async with proxy(identities, tmp_path) as it:
            client = await it.connect(receive_buffer=65536)
            await client.send(EXEC)
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(SWITCHING)
            await client.head()

            async def finish() -> None:
                await upstream.send(body)
                await upstream.finish()

            async def read() -> None:
                with contextlib.suppress(ConnectionError):
                    while await upstream.receive():
                        pass

            sending = asyncio.create_task(finish())
            reading = asyncio.create_task(read())
            received = bytearray()
            while len(received) < len(body):
                piece = await client.receive()
                assert piece, f"ended after {len(received)} bytes"
                received += piece
                # It may be told that nobody reads any more, but not lose what was sent to it.
                with contextlib.suppress(ConnectionError):
                    await client.send(b"window update")
                if len(received) % 7 == 0:
                    await asyncio.sleep(0.001)
            assert received == body
            assert await client.end() == "clean"
            await sending
            await reading

    @pytest.mark.parametrize(("how", "seen"), [("close", "clean"), ("cut", "cut"), ("reset", "cut")])
    async def test_a_tunnel_ends_on_one_side_as_on_the_other(
        self, identities: Identities, tmp_path: Path, how: str, seen: str
    ) -> None:
        """Its protocol may end with the connection: what was cut off must not look complete."""
        async with proxy(identities, tmp_path) as it:
            for closing, other in ((0, 1), (1, 0)):
                client = await it.connect()
                await client.send(EXEC)
                upstream = await it.upstream.next()
                await upstream.message()
                await upstream.send(SWITCHING, b"hello")
                await client.until(b"hello")
                await client.send(b"world")
                await upstream.until(b"world")
                pair = (client, upstream)
                result = getattr(pair[closing], how)()
                if result is not None:
                    await result
                assert await pair[other].end() == seen
                pair[other].sock.close()
                await it.settled(1.0)
            assert it.count(metrics.TERMINATIONS, "tunnel_closed") == 2

    async def test_a_last_response_whose_caller_has_sent_more(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        body = b"x" * 3_000_000
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it, receive_buffer=65536)
            sending = asyncio.create_task(upstream.send(response(body, b"200 OK", b"Connection: close")))
            await client.send(request(b"/next"))
            await asyncio.sleep(0.05)
            await client.send(request(b"/and-next"))
            head = await client.head()
            assert b"\r\nConnection: close\r\n" in head
            received = bytearray()
            while len(received) < len(body):
                received += await client.receive()
                await asyncio.sleep(0.0005)
                if len(received) > 1_000_000:
                    client.push(b"junk")
            assert await client.end() == "clean"
            await sending

    async def test_what_the_caller_sent_last_reaches_the_upstream(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        body = bytes(range(256)) * 8192
        async with proxy(identities, tmp_path) as it:
            it.upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client = await it.connect()
            await client.send(EXEC)
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(SWITCHING)
            await client.head()

            async def finish() -> None:
                await client.send(body)
                await client.close()

            sending = asyncio.create_task(finish())
            await asyncio.sleep(0.1)
            received = bytearray()
            while piece := await upstream.receive():
                received += piece
                await asyncio.sleep(0.0005)
            assert received == body
            await sending

    async def test_an_answer_to_a_body_that_was_not_read(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """The caller is still sending: closing at once would reset the connection under the answer (RFC 9112 §9.6)."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
            upstream = await it.upstream.next()
            await upstream.head()
            await upstream.send(response(b"too large", b"413 Payload Too Large", b"Connection: close"))
            for _ in range(20):
                client.push(b"x" * 16384)
                await asyncio.sleep(0.005)
            head, body = await client.message(b"POST")
            assert head.startswith(b"HTTP/1.1 413 ")
            assert b"\r\nConnection: close\r\n" in head
            assert body == b"too large"

    async def test_a_peer_that_never_reads_is_not_waited_for_in_eternity(
        self, identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tls_connection, "FLUSH_SECONDS", 0.2)
        async with proxy(identities, tmp_path) as it:
            client, upstream = await ask(it, receive_buffer=16384)
            await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            still = 0
            while still < 10:
                still = 0 if upstream.push(b"x" * 1_000_000) else still + 1
                await asyncio.sleep(0.01)
            upstream.reset()
            # The upstream's end is behind what cannot be delivered: the caller has to read on, or to go.
            await asyncio.sleep(0.1)
            while it.plane.connections:
                try:
                    async with asyncio.timeout(0.5):
                        if not await client.receive():
                            break
                except (ConnectionError, TimeoutError):
                    break
            await it.settled(2.0)


class TestDeadPeers:
    async def test_keepalive_finds_them_within_a_minute_and_a_shut_window_is_none(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """TCP_USER_TIMEOUT would also reset a peer that is alive and does not read (`kubectl logs -f | less`): a window
        that stays shut counts for it (tcp(7)), and it would take keepalive's place.
        """
        async with proxy(identities, tmp_path) as it:
            _, upstream = await ask(it)
            (ours,) = it.plane.connections
            assert ours.exchange is not None
            for connection in (ours, ours.exchange.upstream):
                assert connection is not None
                sock = connection._tcp.get_extra_info("socket")
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle, interval, probes, user_timeout, no_delay = (
                    sock.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (
                        *(socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT),
                        *(socket.TCP_USER_TIMEOUT, socket.TCP_NODELAY),
                    )
                )
                assert idle + interval * probes <= 60
                assert user_timeout == 0
                assert no_delay
            await upstream.send(response())


class TestHandshakes:
    async def fails(self, identities: Identities, tmp_path: Path, reason: str, what) -> None:  # type: ignore[no-untyped-def]
        async with proxy(identities, tmp_path, echo_ok) as it:
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", it.port))
            await what(it, sock)
            await eventually(lambda: it.count(metrics.HANDSHAKE_FAILURES, reason) == 1, 5)
            await it.settled_downstream()
            sock.close()
            assert sum(it.cells[metrics.HANDSHAKE_FAILURES.offset :][: metrics.HANDSHAKE_FAILURES.size]) == 1

    async def test_a_probe_that_connects_and_closes(self, identities: Identities, tmp_path: Path) -> None:
        async def what(it, sock: socket.socket) -> None:  # type: ignore[no-untyped-def]
            sock.close()

        await self.fails(identities, tmp_path, "closed", what)

    async def test_plain_http(self, identities: Identities, tmp_path: Path) -> None:
        async def what(it, sock: socket.socket) -> None:  # type: ignore[no-untyped-def]
            sock.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")

        await self.fails(identities, tmp_path, "protocol", what)

    async def test_one_that_does_not_come(
        self, identities: Identities, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(downstream, "_HANDSHAKE_NS", 0)

        async def what(it, sock: socket.socket) -> None:  # type: ignore[no-untyped-def]
            pass

        await self.fails(identities, tmp_path, "timeout", what)
