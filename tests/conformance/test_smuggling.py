"""Desync: nothing reaches the upstream that its caller did not frame unambiguously, and no answer reaches another caller.

What arrives is read twice, by the harness' plain reader and by h11, and both must see the same.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import h11
import pytest

from tests.conformance import smuggling_corpus
from tests.conformance.smuggling_corpus import HOST, SMUGGLED
from tests.integration.proxy_harness import Proxy, Wire, eventually, proxy, request, response
from tests.support.sidecar import Identities

GOOD = b"GET /good HTTP/1.1\r\nHost: kubernetes\r\nX-Remote-User: eve\r\n\r\n"
REFUSALS = (b"400", b"405", b"431", b"505")


class Recorder:
    """An upstream that answers 200 and keeps every byte that arrives."""

    def __init__(self) -> None:
        self.raw: list[bytearray] = []
        self.targets: list[bytes] = []

    async def __call__(self, wire: Wire) -> None:
        raw = bytearray()
        self.raw.append(raw)
        while True:
            head, body = await wire.message()
            raw += head + body
            self.targets.append(head.split(b" ")[1])
            await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def by_h11(self) -> list[bytes]:
        """The targets of every request, in all connections, as h11 reads them."""
        found = []
        for raw in self.raw:
            server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 22)
            server.receive_data(bytes(raw))
            while True:
                event = server.next_event()
                if isinstance(event, h11.Request):
                    found.append(bytes(event.target))
                elif isinstance(event, h11.EndOfMessage):
                    server.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                    server.send(h11.EndOfMessage())
                    if server.our_state is h11.MUST_CLOSE:
                        break
                    server.start_next_cycle()
                elif event is h11.NEED_DATA:
                    break
        return found

    def clear(self) -> None:
        self.targets.clear()


@asynccontextmanager
async def serving(identities: Identities, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Recorder]]:
    recorder = Recorder()
    async with proxy(identities, tmp_path, recorder) as it:
        yield it, recorder


async def is_refused(client: Wire, name: str) -> None:
    """One answer of the proxy's own, and the last one."""
    head, body = await client.message(b"GET")
    assert head.split(b" ")[1] in REFUSALS, (name, head)
    assert b"\r\nConnection: close\r\n" in head, name
    assert b'"kind":"Status"' in body, name
    # Whatever comes afterwards is thrown away.
    await client.send(SMUGGLED)


def spoken_for(data: bytes) -> bytes:
    """The same on the connections that assert identities."""
    return data.replace(HOST, HOST + b"X-Remote-User: bob\r\n", 1)


async def send(client: Wire, data: bytes, how: str) -> None:
    if how == "whole":
        await client.send(data)
    else:
        # A few bytes a TLS record, in one segment a time: as good as byte by byte, and faster.
        pieces = [data[at : at + 3] for at in range(0, min(len(data), 3000), 3)] + [data[3000:]]
        await client.send(*pieces)


@pytest.mark.parametrize("who", ["nobody", "jane", "balancer"])
@pytest.mark.parametrize("how", ["whole", "in pieces"])
async def test_what_is_ambiguous_is_refused_and_nothing_of_it_passes(
    identities: Identities, tmp_path: Path, who: str, how: str
) -> None:
    corpus = smuggling_corpus.refused()
    assert len(corpus) > 350
    recorder = Recorder()
    async with proxy(identities, tmp_path, recorder) as it:
        credential = None if who == "nobody" else getattr(identities, who)
        for name, data in corpus.items():
            if how == "in pieces" and "without end" in name:
                continue
            client = await it.connect(credential)
            await send(client, spoken_for(data) if who == "balancer" else data, how)
            await is_refused(client, name)
            await client.close()
        assert recorder.targets == []
        await it.settled()
        # Of a chunked body that breaks, what came before the fault may have gone: never a whole request.
        assert recorder.by_h11() == []


async def test_after_a_good_request_and_before_another_callers(
    identities: Identities, tmp_path: Path
) -> None:
    """The upstream's connection that a refused request would have used serves the next caller's request in order."""
    recorder = Recorder()
    async with proxy(identities, tmp_path, recorder) as it:
        victim = await it.connect(identities.jane)
        attacker = None
        corpus = smuggling_corpus.refused()
        for name, data in corpus.items():
            attacker = await it.connect(identities.balancer)
            await attacker.send(GOOD + spoken_for(data))
            assert (await attacker.head()).startswith(b"HTTP/1.1 200 ")
            await is_refused(attacker, name)
            await attacker.close()
            await victim.send(b"GET /victim HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
            assert await victim.head() == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        whole = [target for target in recorder.targets if target != b"/first"]
        assert whole == [b"/good", b"/victim"] * len(corpus)
        assert sorted(recorder.by_h11()) == sorted(whole)


@pytest.mark.parametrize("who", ["nobody", "balancer"])
@pytest.mark.parametrize("how", ["whole", "in pieces"])
async def test_what_is_odd_but_unambiguous_is_read_in_one_way(
    identities: Identities, tmp_path: Path, who: str, how: str
) -> None:
    async with serving(identities, tmp_path) as (it, recorder):
        credential = None if who == "nobody" else getattr(identities, who)
        for name, (data, targets) in smuggling_corpus.served().items():
            client = await it.connect(credential)
            await send(client, spoken_for(data) if who == "balancer" else data, how)
            for _ in targets:
                assert re.match(rb"HTTP/1\.[01] 200 ", await client.head()), name
            assert recorder.targets == targets, name
            recorder.clear()
            await client.close()
        await it.settled()
        assert b"/smuggled" not in recorder.by_h11()
        assert len(recorder.by_h11()) == sum(
            len(targets) for _, targets in smuggling_corpus.served().values()
        )


async def test_no_identity_gets_through_in_disguise(identities: Identities, tmp_path: Path) -> None:
    """Names that some reader takes for X-Remote-User: none that kube-apiserver would."""
    recorder = Recorder()
    async with proxy(identities, tmp_path, recorder) as it:
        client = await it.connect()
        for line in (
            *(
                b"X-Remote-User: admin",
                b"x-remote-user:admin",
                b"X-REMOTE-USER:\tadmin",
                b"X-Remote-uSER: admin",
            ),
            *(b"X-Remote-Extra-A: b", b"x-remote-extra-: b", b"X-Remote-Extra-%41: b", b"X-Remote-Uid: 0"),
        ):
            for connection in (b"", b"Connection: X-Other\r\n", b"Connection: X-Remote-User\r\n"):
                await client.send(b"GET / HTTP/1.1\r\nHost: a\r\n" + connection + line + b"\r\n\r\n")
                await client.head()
        for raw in recorder.raw:
            assert b"x-remote-" not in bytes(raw).lower()


class TestTrailers:
    """A trailer is no header: not of its own message, and least of all of the next one on the connection."""

    FORGED = (
        b"X-Remote-User: admin", b"X-Remote-Group: system:masters", b"x-remote-extra-scopes: all", b"X-Remote-Uid: 0",
        b"Authorization: Bearer stolen", b"Impersonate-User: admin", b"Impersonate-Group: system:masters", b"Cookie: a=b",
        b"Content-Length: 100", b"Transfer-Encoding: chunked", b"Host: other", b"Connection: close", b"X-Forwarded-For: 1",
        b"Endpoint-Load-Metrics-Request: TEXT", b"Upgrade: x", b"TE: trailers", b"Proxy-Authorization: x", b"Expect: x",
    )  # fmt: skip

    @pytest.mark.parametrize("who", ["nobody", "jane", "balancer"])
    async def test_of_a_request(self, identities: Identities, tmp_path: Path, who: str) -> None:
        async with serving(identities, tmp_path) as (it, recorder):
            credential = None if who == "nobody" else getattr(identities, who)
            client = await it.connect(credential)
            own = b"X-Remote-User: eve\r\n" if who == "balancer" else b""
            for line in self.FORGED:
                await client.send(
                    b"POST /forging HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + own
                    + b"\r\n1\r\nx\r\n0\r\nX-Checksum: 1\r\n" + line + b"\r\n\r\n"
                )  # fmt: skip
                await client.head()
                await client.send(
                    b"GET /next HTTP/1.1\r\nHost: a\r\n" + own.replace(b"eve", b"bob") + b"\r\n"
                )
                await client.head()
            arrived = b"".join(recorder.raw)
            assert recorder.targets == [b"/forging", b"/next"] * len(self.FORGED)
            assert arrived.count(b"\r\n0\r\nX-Checksum: 1\r\n\r\n") == len(self.FORGED)
            for line in self.FORGED:
                assert arrived.lower().count(b"\r\n" + line.lower() + b"\r\n") == (
                    len(self.FORGED) if line == b"Transfer-Encoding: chunked" else 0
                ), line
            if who == "balancer":
                assert arrived.count(b"\r\nX-Remote-User: eve\r\n") == arrived.count(
                    b"\r\nX-Remote-User: bob\r\n"
                )

    async def test_of_a_response(self, identities: Identities, tmp_path: Path) -> None:
        lines = (
            b"Endpoint-Load-Metrics: TEXT cpu_utilization=0.1", b"endpoint-load-metrics-bin: x", b"Content-Length: 5",
            b"Endpoint-Load-Metrics-JSON: {}", b"Transfer-Encoding: chunked", b"Connection: close", b"Set-Cookie: a=b",
        )  # fmt: skip
        async with proxy(identities, tmp_path) as it:
            client = await it.connect()
            upstream: Wire | None = None
            for line in lines:
                await client.send(request())
                upstream = upstream or await it.upstream.next()
                await upstream.message()
                await upstream.send(
                    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nDigest: d\r\n"
                    + line
                    + b"\r\n\r\n"
                )
                head, body = await client.message(b"GET")
                assert head == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                assert body == b"1\r\nx\r\n0\r\nDigest: d\r\n\r\n"
                await client.send(request())
                await upstream.message()
                await upstream.send(response(b"next"))
                assert await client.message(b"GET") == (
                    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
                    b"next",
                )


class TestTunnels:
    async def test_a_refused_upgrade_makes_none(self, identities: Identities, tmp_path: Path) -> None:
        """A "websocket" that answers 200: what follows on the connection stays under all rules."""
        async with serving(identities, tmp_path) as (it, recorder):
            client = await it.connect()
            for lines in (
                b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 99\r\n",
                b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
                b"Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n",
            ):
                await client.send(b"GET /upgrade HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                await client.send(SMUGGLED)
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")
            arrived = b"".join(recorder.raw).lower()
            assert arrived.count(b"get /smuggled ") == 3
            assert b"x-remote-user" not in arrived
            assert b"h2c" not in arrived
            assert b"http2-settings" not in arrived

    async def test_the_preface_of_http_2_is_no_request(self, identities: Identities, tmp_path: Path) -> None:
        async with serving(identities, tmp_path) as (it, recorder):
            client = await it.connect()
            await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
            await is_refused(client, "preface")
            assert not recorder.targets


@pytest.mark.parametrize("name", smuggling_corpus.RESPONSES)
async def test_an_ambiguous_response_goes_to_nobody(
    identities: Identities, tmp_path: Path, name: str
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request())
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(smuggling_corpus.RESPONSES[name] + response(b"for somebody else"))
        head, body = await client.message(b"GET")
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"somebody" not in body
        await eventually(lambda: not it.plane.pools[0].all)
        await client.send(request())
        second = await it.upstream.next()
        await second.message()
        await second.send(response(b"mine"))
        assert (await client.message(b"GET"))[1] == b"mine"
