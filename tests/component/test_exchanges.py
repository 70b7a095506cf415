"""One request and its response at the edges: bytes that come together, too early, too late or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Wire, echo_ok, eventually, proxy, request, response
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True

CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def code_of(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


async def status_of(client: Wire, method: bytes = b"GET") -> dict[str, object]:
    """A local reply's Status."""
    head, body = await client.message(method)
    status: dict[str, object] = json.loads(body)
    assert status["kind"] == "Status"
    assert status["code"] == code_of(head)
    return status


class TestOrder:
    async def test_pipelined_requests_are_answered_in_order(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async def script(wire: Wire) -> None:
            while True:
                head, body = await wire.message()
                await wire.send(response(head.split(b" ")[1] + body))

        async with proxy(identities, tmp_path, script) as it:
            client = await it.connect()
            wires = [request(b"/%d" % n, method=b"PUT", body=b"b" * (n % 3)) for n in range(50)]
            await client.send(b"".join(wires))
            for n in range(50):
                assert (await client.message(b"GET"))[1] == b"/%d" % n + b"b" * (n % 3)
            await client.send_bytewise(b"".join(wires[:3]))
            for n in range(3):
                assert (await client.message(b"GET"))[1] == b"/%d" % n + b"b" * (n % 3)

    async def test_bytes_that_come_with_the_response_stay_behind_those_that_came_before(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """The response and the rest of a pipelined request arrive in one turn of the event loop."""
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request(b"/a"))
            upstream = await it.upstream.next()
            await upstream.message()
            next_request = request(b"/b", b"X-Long: " + b"x" * 1000)
            await client.send(next_request[:500])
            await asyncio.sleep(0.05)
            upstream.push(response(b"a"))
            client.push(next_request[500:])
            assert (await client.message(b"GET"))[1] == b"a"
            head, _ = await upstream.message()
            assert head.startswith(b"GET /b HTTP/1.1\r\n")
            await upstream.send(response(b"b"))
            assert (await client.message(b"GET"))[1] == b"b"

    async def test_a_caller_that_sends_far_ahead_is_not_read_but_served(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request(b"/first"))
            upstream = await it.upstream.next()
            await upstream.message()
            ahead = request(b"/n", b"X-Pad: " + b"x" * 4000)
            sending = asyncio.create_task(client.send(ahead * 100))
            await asyncio.sleep(0.05)
            (connection,) = it.plane.connections
            assert len(connection._ahead) < 512 * 1024
            await upstream.send(response())
            for _ in range(101):
                if _:
                    await upstream.message()
                    await upstream.send(response())
                await client.message(b"GET")
            await sending


class TestMalformedRequestBodies:
    async def test_in_the_segment_of_the_head(self, identities: Identities, tmp_path: Path) -> None:
        """One answer, whatever follows; nothing goes upstream."""
        async with proxy(identities, tmp_path, echo_ok) as it:
            client = await it.connect()
            await client.send(CHUNKED + b"zz\r\n")
            assert (await status_of(client))["code"] == 400
            await client.send(b"more\r\n", b"0\r\n\r\n", request())
            assert await client.end() in ("clean", "reset")
            assert not it.upstream.connections
            assert it.count(metrics.LOCAL_REPLIES, "bad_request", "400") == 1

    async def test_behind_a_connection_that_is_still_being_opened(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """The request is over before there is anywhere to send it: the connection must not be used for it."""
        async with proxy(identities, tmp_path) as it:
            it.upstream.sock.listen(0)
            await it.upstream.pause()
            client = await it.connect()
            await client.send(CHUNKED + b"3\r\nabc\r\n")
            await asyncio.sleep(0.05)
            await client.send(b"zz\r\n")
            assert (await status_of(client))["code"] == 400
            it.upstream.resume()
            upstream = await it.upstream.next()
            await upstream.nothing()
            await client.close()
            await it.settled()

    async def test_after_its_first_chunks_went_upstream(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(CHUNKED + b"3\r\nabc\r\n")
            upstream = await it.upstream.next()
            await upstream.until(b"abc\r\n")
            await client.send(b"3\r\nabcd")
            assert (await status_of(client))["code"] == 400
            # Its end cannot be mistaken for the body's.
            assert await upstream.end() in ("reset", "cut")

    async def test_after_the_response_began(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(CHUNKED)
            upstream = await it.upstream.next()
            await upstream.head()
            await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
            await client.until(b"hello")
            await client.send(b"zz\r\n")
            # Five bytes are missing: how it is closed does not matter.
            assert await client.end() in ("clean", "cut", "reset")
            assert await upstream.end() in ("reset", "cut")
            assert it.count(metrics.TERMINATIONS, "malformed_request_body") == 1


class TestMalformedResponses:
    @pytest.mark.parametrize(
        "data",
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
            b"HTTP/1.1 200 OK\r\nA: b\rC: d\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
            b"hello\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2_000_000,
        ],
    )
    async def test_are_502_and_the_connection_is_dropped(
        self, identities: Identities, tmp_path: Path, data: bytes
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(data)
            status = await status_of(client)
            assert (status["code"], status["reason"]) == (502, "InternalError")
            assert await upstream.end() in ("reset", "cut")
            # The caller's connection is in order.
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(response())
            assert (await client.message(b"GET"))[1] == b"ok"

    async def test_a_body_that_breaks_is_cut(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            await upstream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            await client.until(b"3\r\nabc\r\n")
            await upstream.send(b"3\r\nabcd\r\n0\r\n\r\n")
            rest = b""
            with contextlib.suppress(ConnectionError):
                rest = await client.rest()
            assert b"0\r\n" not in rest
            assert it.count(metrics.TERMINATIONS, "malformed_response") == 1


class TestBytesThatNobodyAskedFor:
    @pytest.mark.parametrize("extra", [b"x", b"\r\n", response(b"evil"), b"HTTP/1.1 101 S\r\n\r\n"])
    @pytest.mark.parametrize("later", [False, True])
    async def test_the_connection_is_not_used_again(
        self, identities: Identities, tmp_path: Path, extra: bytes, later: bool
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            if later:
                await upstream.send(response())
                assert (await client.message(b"GET"))[1] == b"ok"
                await upstream.send(extra)
                await eventually(lambda: not it.plane.pools[0].all)
            else:
                await upstream.send(response() + extra)
                assert (await client.message(b"GET"))[1] == b"ok"
            await client.send(request())
            second = await it.upstream.next()
            await second.message()
            await second.send(response(b"mine"))
            assert (await client.message(b"GET"))[1] == b"mine"
            assert await upstream.end() in ("reset", "cut")


class TestConnecting:
    async def test_an_upstream_that_closes_after_the_handshake(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async def script(wire: Wire) -> None:
            await wire.close()

        async with proxy(identities, tmp_path, script) as it:
            for _ in range(20):
                client = await it.connect()
                await client.send(request())
                assert (await status_of(client))["code"] in (502, 503)
                await client.close()

    @pytest.mark.parametrize("how", ["cut", "reset", "garbage"])
    async def test_an_upstream_that_breaks_the_handshake(
        self, identities: Identities, tmp_path: Path, how: str
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            await it.upstream.pause()
            accepted: list[socket.socket] = []

            async def accept() -> None:
                while True:
                    sock, _ = await asyncio.get_running_loop().sock_accept(it.upstream.sock)
                    if how == "garbage":
                        sock.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        accepted.append(sock)
                    elif how == "reset":
                        wire = Wire(sock, it.upstream.context, None)
                        wire.reset()
                    else:
                        sock.close()

            accepting = asyncio.create_task(accept())
            for _ in range(10):
                client = await it.connect()
                await client.send(request())
                status = await status_of(client)
                assert (status["code"], status["reason"]) == (503, "ServiceUnavailable")
                await client.send(request())  # the caller's connection is in order
                assert (await status_of(client))["code"] == 503
                await client.close()
            assert it.count(metrics.UPSTREAM_CONNECTS, "plain", "error") == 20
            accepting.cancel()
            for sock in accepted:
                sock.close()

    async def test_nobody_listens(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path) as it:
            await it.upstream.pause()
            it.upstream.sock.close()
            client = await it.connect()
            for body in (b"", b"x" * 100_000):
                await client.send(request(method=b"PUT", body=body))
                head, _ = await client.message(b"PUT")
                assert code_of(head) == 503
                assert b"\r\nRetry-After: 1\r\n" in head

    async def test_a_handshake_that_never_ends(self, identities: Identities, tmp_path: Path) -> None:
        async with proxy(identities, tmp_path, upstream={"connectTimeout": "200ms"}) as it:
            await it.upstream.pause()
            client = await it.connect()
            await client.send(request())
            assert (await status_of(client))["code"] == 503

    async def test_a_caller_that_leaves_while_its_connection_is_opened(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            await it.upstream.pause()
            for _ in range(5):
                client = await it.connect()
                await client.send(request())
                await asyncio.sleep(0.02)
                client.reset()
            await it.settled_downstream()
            it.upstream.resume()
            # The connection of the first served the second, and so on: a burst of callers that give up opens few.
            upstream = await it.upstream.next()
            await upstream.nothing(0.05)
            assert len(it.plane.pools[0]._idle) == len(it.upstream.connections) == 1

    async def test_a_connection_that_others_gave_up_is_not_what_a_new_request_fails_with(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """It has waited for a moment only when an attempt runs into its time limit: it is given one of its own."""
        async with proxy(identities, tmp_path, upstream={"connectTimeout": "400ms"}) as it:
            await it.upstream.pause()
            first = await it.connect()
            await first.send(request())
            await asyncio.sleep(0.3)
            first.reset()
            await it.settled_downstream()
            second = await it.connect()
            await second.send(request(method=b"PUT", body=b"x"))
            await asyncio.sleep(0.2)
            it.upstream.resume()
            while True:
                upstream = await it.upstream.next()
                try:
                    await upstream.message()
                    break
                except ConnectionError:
                    pass
            await upstream.send(response(b"done"))
            assert (await second.message(b"PUT"))[1] == b"done"

    async def test_the_requests_that_wait_are_served_in_order(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path, echo_ok) as it:
            await it.upstream.pause()
            clients = [await it.connect() for _ in range(20)]
            for client in clients:
                await client.send(request())
            await asyncio.sleep(0.05)
            it.upstream.resume()
            for client in clients:
                assert (await client.message(b"GET"))[1] == b"ok"


class TestBackPressure:
    async def test_a_request_on_a_new_connection_does_not_lose_it(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """A head that alone fills the upstream's buffers, then a body without end: the upstream does not read."""
        async with proxy(identities, tmp_path, listener={"headerBytes": "16Mi"}) as it:
            it.upstream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            await it.upstream.pause()
            client = await it.connect()
            head = b"POST / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 12_000_000
            await client.send(head + b"\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 50_000)
            it.upstream.resume()
            await it.upstream.next()
            taken = 0
            still = 0
            while still < 20:
                pushed = client.push(b"x" * 1_000_000)
                taken += pushed
                still = 0 if pushed else still + 1
                assert taken < 50_000_000, "the upload is not held back"
                await asyncio.sleep(0.01)
            client.reset()

    @pytest.mark.parametrize("kind", ["upstream down", "refused identity"])
    async def test_a_caller_that_asks_on_and_on_and_reads_no_answer(
        self, identities: Identities, tmp_path: Path, kind: str
    ) -> None:
        """Local replies have no upstream to hold back: the caller is."""
        async with proxy(identities, tmp_path) as it:
            await it.upstream.pause()
            it.upstream.sock.close()
            client = await it.connect(identities.balancer, receive_buffer=16384)
            said = b"" if kind == "upstream down" else b"X-Remote-User: system:anonymous\r\n"
            asked = b"GET / HTTP/1.1\r\nHost: a\r\n" + said + b"\r\n"
            stream = asked * 40_000
            taken = still = 0
            while still < 20 and taken < 10_000_000:
                pushed = client.push(stream[taken % len(asked) :])
                taken += pushed
                still = 0 if pushed else still + 1
                await asyncio.sleep(0.01)
            (connection,) = it.plane.connections
            assert connection._tcp.get_write_buffer_size() < 2_000_000
            assert len(connection._ahead) < 1_000_000
            assert taken < 10_000_000
            # Whoever reads is answered on.
            for _ in range(3000):
                head, _ = await client.message(b"GET")
                assert head.split(b" ")[1] in (b"503", b"401")

    async def test_a_stalled_download_is_not_read_further(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            client = await it.connect(receive_buffer=16384)
            await client.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            size = 200_000_000
            await upstream.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            sent = still = 0
            while still < 20:
                pushed = upstream.push(b"x" * 1_000_000)
                sent += pushed
                still = 0 if pushed else still + 1
                assert sent < 100_000_000, "the download is not held back"
                await asyncio.sleep(0.01)
            # The caller goes away: so does the upstream's connection, though it is not being read.
            client.reset()
            await it.settled()

    async def test_a_connection_that_was_paused_is_read_again_by_the_next_request(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        async with proxy(identities, tmp_path) as it:
            slow = await it.connect(receive_buffer=16384)
            await slow.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            body = b"x" * 3_000_000
            sending = asyncio.create_task(upstream.send(response(body)))
            await asyncio.sleep(0.1)
            reading = asyncio.create_task(slow.message(b"GET"))
            await sending
            assert (await reading)[1] == body
            for _ in range(3):
                client = await it.connect()
                await client.send(request())
                await upstream.message()
                await upstream.send(response(b"next"))
                assert (await client.message(b"GET"))[1] == b"next"
            assert len(it.upstream.connections) == 1

    async def test_a_response_that_fits_the_buffers_leaves_its_connection_readable(
        self, identities: Identities, tmp_path: Path
    ) -> None:
        """The whole response was read while the caller took nothing: the connection is free, and not paused."""
        async with proxy(identities, tmp_path) as it:
            slow = await it.connect(receive_buffer=16384)
            await slow.send(request())
            upstream = await it.upstream.next()
            await upstream.message()
            body = b"x" * 400_000
            taken = 0
            message = response(body)
            while taken < len(message):
                taken += upstream.push(message[taken:])
                await asyncio.sleep(0.01)
            await eventually(lambda: len(it.plane.pools[0]._idle) == 1)
            client = await it.connect()
            await client.send(request())
            await upstream.message()
            await upstream.send(response(b"next"))
            assert (await client.message(b"GET"))[1] == b"next"
            assert (await slow.message(b"GET"))[1] == body
