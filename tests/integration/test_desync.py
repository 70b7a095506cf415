"""Bytes in the wrong place: nothing of one message is ever read as another, whatever the order things happen in.

Each of these would let a client behind a front proxy write a request of its own, with the front proxy's authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.pki import Credential
from tests.support.recorder import Recorder
from tests.support.sidecar import Identities, Sidecar, running

SMUGGLED = (
    b"POST /smuggled HTTP/1.1\r\nHost: kubernetes\r\nX-Remote-User: root\r\nX-Remote-Group: system:masters\r\n"
    b"Content-Length: 0\r\n\r\n"
)
ASSERTED = b"Host: kubernetes\r\nX-Remote-User: jane\r\n"
LOOPS = ("uvloop", "asyncio")
QUIET = 0.2
"""Seconds after which what was going to happen has happened."""


class Lab:
    """A sidecar and what arrives behind it."""

    def __init__(self, sidecar: Sidecar, identities: Identities, recorder: Recorder) -> None:
        self.sidecar, self.identities, self.recorder = sidecar, identities, recorder

    async def connect(
        self, credential: Credential | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1",
            self.sidecar.port,
            ssl=self.identities.client_context(credential),
            server_hostname="kubernetes",
        )

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self.sidecar.until(lambda: self.sidecar.metric("orca_sidecar_requests_in_flight") == 0)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is sent meanwhile is all there when the sidecar looks."""
        assert self.sidecar.process is not None
        os.kill(self.sidecar.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.sidecar.process.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities.make(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module", params=LOOPS)
def started(
    request: pytest.FixtureRequest, identities: Identities, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    with Recorder(identities.server_context()) as recorder:
        settings = identities.configuration(recorder.port, eventLoop=request.param)
        with running(settings, tmp_path_factory.mktemp(request.param)) as sidecar:
            yield Lab(sidecar, identities, recorder)


@pytest.fixture
async def lab(started: Lab) -> Lab:
    await started.sidecar.ready()
    started.recorder.clear()
    return started


# -- what was sent ahead ---------------------------------------------------------------------------------------


async def test_what_came_first_goes_first(lab: Lab) -> None:
    """The response and the rest of the next request are both there at once."""
    recorder = lab.recorder
    reader, writer = await lab.connect(lab.identities.balancer)
    writer.write(
        b"GET /held HTTP/1.1\r\n%b\r\nPOST /next HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n"
        % (ASSERTED, ASSERTED, len(SMUGGLED))
    )
    await recorder.until(lambda: b"/held" in recorder.targets)
    await asyncio.sleep(QUIET)
    with lab.stopped():
        recorder.release()
        await asyncio.sleep(QUIET)
        writer.write(SMUGGLED)
        await asyncio.sleep(QUIET)
    await recorder.until(lambda: len(recorder.targets) > 1)
    assert (await reader.readexactly(80)).count(b"200 OK") == 2
    assert recorder.targets == [b"/held", b"/next"]
    assert recorder.arrivals[1].body == SMUGGLED
    writer.close()


@pytest.mark.parametrize("size", [n * 1024 + d for n in (64, 128, 256) for d in (-1, 0, 1)])
async def test_what_came_first_goes_first_behind_a_local_reply(lab: Lab, size: int) -> None:
    """Whatever the size of the buffers is that the next request straddles."""
    recorder = lab.recorder
    _, writer = await lab.connect(lab.identities.balancer)
    refused = b"GET /never HTTP/1.1\r\nHost: kubernetes\r\nX-Remote-User: system:anonymous\r\n\r\n"
    start = b"POST /next HTTP/1.1\r\n%bContent-Length: %%d\r\n\r\n" % ASSERTED
    filler = size - len(refused) - len(start % 100_000)
    with lab.stopped():
        writer.write(refused + start % (filler + len(SMUGGLED)) + b"." * filler + SMUGGLED)
        writer.write(b"GET /last HTTP/1.1\r\n%b\r\n" % ASSERTED)
        await asyncio.sleep(QUIET)
    await recorder.until(lambda: b"/last" in recorder.targets)
    assert recorder.targets == [b"/next", b"/last"]
    assert recorder.arrivals[0].body.endswith(SMUGGLED)
    writer.close()


async def test_a_thousand_pipelined_requests_are_answered_in_order(lab: Lab) -> None:
    reader, writer = await lab.connect(lab.identities.balancer)
    writer.write(b"".join(b"GET /%d HTTP/1.1\r\n%b\r\n" % (n, ASSERTED) for n in range(1000)))
    assert (await reader.readexactly(40 * 1000)).count(b"200 OK") == 1000
    assert lab.recorder.targets == [b"/%d" % n for n in range(1000)]
    writer.close()


def _pipeline(deal: random.Random, number: int) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """A connection's requests as bytes, and what must arrive of them: targets and bodies."""
    sent = b""
    arriving: list[tuple[bytes, bytes]] = []
    for position in range(12):
        target = b"/%d/%d/%b" % (number, position, deal.choice([b"fast", b"slow"]))
        lines = ASSERTED
        if deal.random() < 0.25:
            lines = ASSERTED.replace(b"jane", b"system:anonymous")
        body = b"".join(
            deal.choices([SMUGGLED, b"\r\n\r\n", b"0\r\n\r\n", b"." * deal.randrange(40_000)], k=3)
        )
        kind = deal.choice(["GET", "GET", "length", "chunked"])
        if kind == "GET":
            body = b""
            sent += b"GET %b HTTP/1.1\r\n%b\r\n" % (target, lines)
        elif kind == "length":
            sent += b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (target, lines, len(body), body)
        else:
            cut = deal.randrange(1, len(body))
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:cut], body[cut:]))
            sent += (
                b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b0\r\nX-Remote-User: root\r\n\r\n"
                % (
                    target,
                    lines,
                    chunks,
                )
            )
        if lines is ASSERTED:
            arriving.append((target, body))
    return sent, arriving


@pytest.mark.parametrize("seed", range(3))
async def test_pipelines_in_any_pieces_keep_their_order(lab: Lab, seed: int) -> None:
    """Of requests answered upstream, at once and later, and by the sidecar itself. Where one is answered before its body
    is there the connection ends: then what arrived must be the first of what was sent.
    """
    deal = random.Random(seed)
    pipelines = [_pipeline(deal, number) for number in range(24)]
    cuts = [sorted(deal.choices(range(1, len(sent)), k=deal.randrange(9))) for sent, _ in pipelines]

    async def play(sent: bytes, at: list[int]) -> None:
        reader, writer = await lab.connect(lab.identities.balancer)
        with contextlib.suppress(ConnectionError):
            for start, end in zip([0, *at], [*at, len(sent)], strict=True):
                writer.write(sent[start:end])
                await asyncio.sleep(0.001)
            writer.write(b"GET /end HTTP/1.1\r\nConnection: close\r\n%b\r\n" % ASSERTED)
            async with asyncio.timeout(20):
                await reader.read()
        writer.close()

    await asyncio.gather(*(play(sent, at) for (sent, _), at in zip(pipelines, cuts, strict=True)))
    await lab.idle()
    whole = 0
    for number, (_, arriving) in enumerate(pipelines):
        start = b"/%d/" % number
        arrived = [(a.target, a.body) for a in lab.recorder.arrivals if a.target.startswith(start)]
        assert arrived == arriving[: len(arrived)]
        whole += len(arrived) == len(arriving)
    assert whole > len(pipelines) / 4
    assert b"/smuggled" not in lab.recorder.targets
    assert lab.recorder.faults == []


# -- upgrades that are refused ---------------------------------------------------------------------------------

UPGRADES = {
    "SPDY": b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n",
    "SPDY among others": b"Connection: keep-alive, upgrade\r\nUpgrade: SPDY/3.1, x\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
}


@pytest.mark.parametrize("moment", ["in one piece", "before the answer", "after the answer"])
@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_no_request_follows_a_refused_upgrade_of_a_front_proxys_client(
    lab: Lab, upgrade: str, moment: str
) -> None:
    """A balancer may pass on what its client sent without waiting for the 101."""
    recorder = lab.recorder
    reader, writer = await lab.connect(lab.identities.balancer)
    target = b"/held" if moment == "before the answer" else b"/refused"
    asked = b"GET %b HTTP/1.1\r\n%b%b\r\n" % (target, ASSERTED, UPGRADES[upgrade])
    writer.write(asked + SMUGGLED if moment == "in one piece" else asked)
    await recorder.until(lambda: recorder.targets == [target])
    if moment == "before the answer":
        writer.write(SMUGGLED)
        await asyncio.sleep(QUIET)
        recorder.release()
    answer = await reader.readuntil(b"\r\n\r\nok")
    if moment == "after the answer":
        writer.write(SMUGGLED)
    assert b"\r\nConnection: close\r\n" in answer
    assert await reader.read() == b""
    assert recorder.targets == [target]
    writer.close()


async def test_no_request_follows_an_upgrade_that_the_sidecar_refuses(lab: Lab) -> None:
    reader, writer = await lab.connect(lab.identities.balancer)
    anonymous = ASSERTED.replace(b"jane", b"system:anonymous")
    writer.write(b"GET /never HTTP/1.1\r\n%b%b\r\n" % (anonymous, UPGRADES["SPDY"]) + SMUGGLED)
    assert (await reader.read()).startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert lab.recorder.targets == []
    writer.close()


OTHERS = ("none", "jane", "reporter")


@pytest.mark.parametrize("credential", OTHERS)
async def test_a_caller_that_waits_may_go_on_after_a_refused_upgrade(lab: Lab, credential: str) -> None:
    reader, writer = await lab.connect(getattr(lab.identities, credential, None))
    for _ in range(3):
        writer.write(b"GET /refused HTTP/1.1\r\nHost: kubernetes\r\n%b\r\n" % UPGRADES["SPDY"])
        assert b"Connection" not in await reader.readuntil(b"\r\n\r\nok")
    assert lab.recorder.targets == [b"/refused"] * 3
    writer.close()


@pytest.mark.parametrize("credential", OTHERS)
async def test_a_caller_that_does_not_wait_may_not(lab: Lab, credential: str) -> None:
    """It could only speak for itself; but a balancer would be left with an answer that nobody waits for."""
    reader, writer = await lab.connect(getattr(lab.identities, credential, None))
    writer.write(b"GET /refused HTTP/1.1\r\nHost: kubernetes\r\n%b\r\n" % UPGRADES["SPDY"] + SMUGGLED)
    assert (await reader.read()).count(b"HTTP/1.1 ") == 1
    assert lab.recorder.targets == [b"/refused"]
    writer.close()


async def test_connection_upgrade_without_a_protocol_is_no_upgrade(lab: Lab) -> None:
    """Some balancers are set up to say it with every request; their connections go on."""
    reader, writer = await lab.connect(lab.identities.balancer)
    for _ in range(3):
        writer.write(b"GET /plain HTTP/1.1\r\n%bConnection: upgrade\r\nUpgrade:\r\n\r\n" % ASSERTED)
        assert b"Connection" not in await reader.readuntil(b"\r\n\r\nok")
    writer.close()


async def test_what_is_sent_ahead_of_an_upgrade_that_is_accepted_belongs_to_it(lab: Lab) -> None:
    reader, writer = await lab.connect(lab.identities.balancer)
    writer.write(b"POST /accepted HTTP/1.1\r\n%b%b\r\n" % (ASSERTED, UPGRADES["SPDY"]) + SMUGGLED)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    await lab.recorder.until(lambda: lab.recorder.tunnelled == SMUGGLED)
    assert lab.recorder.targets == [b"/accepted"]
    writer.close()


# -- bodies that break a rule ----------------------------------------------------------------------------------


@pytest.mark.parametrize("glued", [True, False], ids=["glued", "apart"])
async def test_a_malformed_body_is_answered_once(lab: Lab, glued: bool) -> None:
    reader, writer = await lab.connect(None)
    head = b"POST /broken HTTP/1.1\r\nHost: kubernetes\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head + b"zz\r\n" if glued else head)
    if not glued:
        await lab.recorder.until(lambda: lab.recorder.targets == [b"/broken"])
        writer.write(b"zz\r\n")
    answer = await reader.readuntil(b"}\n")
    for _ in range(3):
        writer.write(b"zz\r\n5\r\nhello\r\n0\r\n\r\n" + SMUGGLED)
        await asyncio.sleep(0.05)
    answer += await reader.read()
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 Bad Request\r\n") == 1
    assert [arrival.complete for arrival in lab.recorder.arrivals] == ([] if glued else [False])
    await lab.idle()
    writer.close()


@asynccontextmanager
async def held_back(port: int, opened: asyncio.Event) -> AsyncIterator[int]:
    """A way to `port` that accepts connections at once, and passes nothing on before `opened` is set."""
    relays: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        relays.add(task)
        await opened.wait()
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


@pytest.mark.parametrize("event_loop", LOOPS)
async def test_what_was_answered_while_it_waited_for_a_connection_is_not_sent(
    identities: Identities, tmp_path: Path, event_loop: str
) -> None:
    opened = asyncio.Event()
    with Recorder(identities.server_context()) as recorder:
        async with held_back(recorder.port, opened) as port:
            with running(identities.configuration(port, eventLoop=event_loop), tmp_path) as sidecar:
                await sidecar.until(lambda: sidecar.admin("/livez")[0] == 200)
                lab = Lab(sidecar, identities, recorder)
                reader, writer = await lab.connect(None)
                writer.write(
                    b"POST /broken HTTP/1.1\r\nHost: kubernetes\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                await sidecar.until(lambda: sidecar.metric("orca_sidecar_requests_in_flight") == 1)
                writer.write(b"zz\r\n")
                answer = await reader.readuntil(b"}\n")
                opened.set()
                _, other = await lab.connect(None)
                other.write(b"GET /other HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
                await recorder.until(lambda: b"/other" in recorder.targets)
                answer += await reader.read()
                assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 ") == 1
                assert recorder.targets == [b"/other"]
                await lab.idle()
                writer.close()
                other.close()
