"""WebSocket exec: a byte tunnel, and a token among its subprotocols."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

from tests.integration.proxy_harness import Upstream, Wire, proxy, request
from tests.support.sidecar import Identities, running

TOKEN = base64.urlsafe_b64encode(b"very-secret-token").rstrip(b"=")
PROTOCOLS = b"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io." + TOKEN
LINES = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    PROTOCOLS,
)
EXEC = b"/api/v1/namespaces/a/pods/b/exec?command=ls&stdout=true"
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"  # noqa: E501
PING = b"\x89\x85abcd" + bytes(a ^ b for a, b in zip(b"hello", b"abcda", strict=True))
PONG = b"\x8a\x05hello"
CLOSE = b"\x88\x82abcd" + bytes(a ^ b for a, b in zip((4321).to_bytes(2, "big"), b"ab", strict=True))
CLOSED = b"\x88\x02" + (4321).to_bytes(2, "big")


async def test_case_03_frames_pings_and_close_codes_pass_as_bytes(
    identities: Identities, tmp_path: Path
) -> None:
    frame = b"\x82\x7f" + (6 << 20).to_bytes(8, "big") + os.urandom(6 << 20)
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request(EXEC, *LINES))
        upstream = await it.upstream.next()
        assert b"\r\n" + PROTOCOLS + b"\r\n" in await upstream.head()
        await upstream.send(SWITCHING)
        assert await client.head() == SWITCHING
        sending = asyncio.create_task(upstream.send(frame))
        assert await client.exactly(len(frame)) == frame
        await sending
        await client.send(PING)
        assert await upstream.exactly(len(PING)) == PING  # the upstream answers, not the proxy
        await upstream.send(PONG)
        assert await client.exactly(len(PONG)) == PONG
        await client.send(CLOSE)
        assert await upstream.exactly(len(CLOSE)) == CLOSE
        await upstream.send(CLOSED)
        await upstream.close()
        assert await client.exactly(len(CLOSED)) == CLOSED
        assert await client.end() == "clean"


async def test_case_03_the_token_is_nowhere_to_be_read(identities: Identities, tmp_path: Path) -> None:
    """Not in the log at its most talkative, in no metric and on no page: whether the upgrade works, fails or is cut."""
    answers = iter(
        [SWITCHING, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", b"garbage\r\n\r\n", b""]
    )

    async def script(wire: Wire) -> None:
        while True:
            head, _ = await wire.message()
            if b" /readyz " in head:
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                continue
            assert TOKEN in head
            answer = next(answers)
            if not answer:
                wire.reset()
                return
            await wire.send(answer)

    upstream = Upstream(identities.server_context(), script)
    upstream.start()
    try:
        settings = identities.configuration(upstream.port, logging={"level": "debug", "format": "json"})
        with running(settings, tmp_path) as sidecar:
            await sidecar.ready()
            for expected in (b"101", b"403", b"502", b"502"):
                client = await Wire.connect(sidecar.port, identities.client_context())
                await client.send(request(EXEC, *LINES, b"Authorization: Bearer " + TOKEN))
                assert (await client.head()).split(b" ")[1] == expected
                await client.close()
            client = await Wire.connect(sidecar.port, identities.client_context())
            await client.send(
                b"GET / HTTP/1.1\r\n" + PROTOCOLS + b"\r\nAuthorization: Bearer " + TOKEN + b"\r\n\r\n"
            )
            assert (await client.head()).split(b" ")[1] == b"400"
            await client.close()
            pages = [sidecar.admin(page)[1] for page in ("/metrics", "/statusz", "/readyz?verbose")]
            assert "orca_sidecar_requests_total" in pages[0]
        assert "local reply 502" in sidecar.log
        for text in (sidecar.log, *pages):
            assert TOKEN.decode() not in text
            assert "very-secret-token" not in text
    finally:
        await upstream.stop()
    assert not upstream.failures
