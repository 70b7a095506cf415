"""The same requests sent directly and through the proxy: what arrives, and what comes back, is equal byte for byte but for
the changes that are specified.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conformance.transparency_corpus import Request, Response, corpus, spoken_for
from tests.integration.proxy_harness import Wire, proxy
from tests.support.sidecar import Identities

REQUESTS = 2600
"""For each kind of caller, of which there are four."""


class Recorder:
    """An upstream that keeps what arrives and answers as it is told, found by X-Number."""

    def __init__(self) -> None:
        self.arrived: dict[int, list[bytes]] = {}
        self.certificates: dict[int, bool] = {}
        self.answers: dict[int, Response] = {}

    async def __call__(self, wire: Wire) -> None:
        while True:
            head, body = await wire.message()
            found = re.search(rb"\r\nX-Number: (\d+)\r\n", head)
            assert found, head
            number = int(found[1])
            self.arrived.setdefault(number, []).append(head + body)
            self.certificates[number] = wire.tls.getpeercert(binary_form=True) is not None
            answer = self.answers[number]
            await wire.send(*answer.interim, answer.head, answer.body.sent)
            if answer.until_close or answer.version == b"1.0" or answer.says_close:
                await wire.close()
                return


async def answer_to(wire: Wire, request: Request) -> bytes:
    """The raw bytes of everything that answers one request."""
    raw = b""
    while True:
        head, body = await wire.message(request.method)
        raw += head + body
        if not head.startswith(b"HTTP/1.1 1"):
            return raw


class Caller:
    """Sends one request after the other, on a new connection where the last one was closed."""

    def __init__(self, connect: Callable[[], object]) -> None:
        self._connect = connect
        self._wire: Wire | None = None
        self.random = random.Random(1)

    async def ask(self, request: Request, *, closed: bool) -> bytes:
        if self._wire is None:
            self._wire = await self._connect()  # type: ignore[misc]
        assert self._wire is not None
        await self._wire.send(*self._pieces(request.sent))
        answer = await answer_to(self._wire, request)
        if closed:
            assert await self._wire.end() == "clean"
            await self._wire.close()
            self._wire = None
        return answer

    def _pieces(self, data: bytes) -> list[bytes]:
        """In one piece mostly, else in a few TLS records, else in many."""
        pick = self.random.random()
        count = 0 if pick < 0.6 else self.random.randint(1, 4) if pick < 0.95 else min(len(data) // 2, 60)
        cuts = sorted(self.random.randint(0, len(data)) for _ in range(count))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    async def leave(self) -> None:
        if self._wire is not None:
            await self._wire.close()


@pytest.mark.parametrize("who", ["nobody", "jane", "reporter", "balancer"])
async def test_equal_apart_from_the_specified_changes(
    identities: Identities, tmp_path: Path, who: str
) -> None:
    recorder = Recorder()
    credential = None if who == "nobody" else getattr(identities, who)
    said: list[bytes] = []
    if who == "jane":
        said = [
            b"X-Remote-User: jane",
            b"X-Remote-Group: developers",
            b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id: X509SHA256="
            + sha256(identities.jane.der).hexdigest().encode(),
        ]
    async with proxy(identities, tmp_path, recorder) as it:
        direct_context = identities.client_context()

        through = Caller(lambda: it.connect(credential))
        direct = Caller(lambda: Wire.connect(it.upstream.port, direct_context))
        seed = {"nobody": 1, "jane": 2, "reporter": 3, "balancer": 4}[who]
        for number, request, response in corpus(seed, range(REQUESTS)):
            recorder.answers[number] = response
            upstream_closes = response.until_close or response.version == b"1.0" or response.says_close
            plain = await direct.ask(request, closed=upstream_closes)
            proxied = await through.ask(
                request, closed=request.closes or response.until_close or response.says_close
            )
            first, second = recorder.arrived.pop(number)
            assert first == request.sent
            assert plain == response.sent
            identity = spoken_for(request.lines) if who == "balancer" else said
            assert second == request.expected(b"127.0.0.1", identity), request.sent
            assert recorder.certificates[number] == bool(identity)
            closes = request.closes or response.until_close or response.says_close
            assert proxied == response.expected(closes=closes), response.sent
        await direct.leave()
        await through.leave()


async def test_every_odd_byte_of_a_target_passes(identities: Identities, tmp_path: Path) -> None:
    """Alone, doubled, in the path and in the query; percent-encoded in both cases."""
    targets = [
        target
        for byte in (*range(0x21, 0x7F), *range(0x80, 0x100))
        for odd in (bytes([byte]), b"%%%02x" % byte, b"%%%02X" % byte)
        for target in (b"/" + odd, b"/a" + odd + b"b/" + odd * 2, b"/?" + odd, b"/a?b=" + odd + b"&" + odd)
    ]
    seen: list[bytes] = []

    async def script(wire: Wire) -> None:
        while True:
            head, _ = await wire.message()
            seen.append(head.split(b" ")[1])
            await wire.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with proxy(identities, tmp_path, script) as it:
        client = await it.connect()
        for start in range(0, len(targets), 50):
            part = targets[start : start + 50]
            await client.send(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target for target in part))
            for _ in part:
                await client.message(b"GET")
        assert seen == targets


async def test_requests_on_many_connections_at_once(identities: Identities, tmp_path: Path) -> None:
    """The corpus again, from 16 callers of three kinds at the same time: nothing of one is found at another."""
    recorder = Recorder()
    kinds = (None, identities.jane, identities.reporter)
    async with proxy(identities, tmp_path, recorder) as it:

        async def caller(index: int) -> None:
            credential = kinds[index % 3]
            asking = Caller(lambda: it.connect(credential))
            for number, request, response in corpus(100 + index, range(index * 1000, index * 1000 + 40)):
                recorder.answers[number] = response
                closes = request.closes or response.until_close or response.says_close
                assert await asking.ask(request, closed=closes) == response.expected(closes=closes)
                (arrived,) = recorder.arrived.pop(number)
                assert (b"\r\nX-Remote-User: jane\r\n" in arrived) == (index % 3 == 1)
            await asking.leave()

        await asyncio.gather(*(caller(index) for index in range(16)))
