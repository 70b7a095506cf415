"""Requests cancelled at random: no response reaches a wrong one."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import Wire, proxy, request
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
CALLERS = 20
EACH = 100


@pytest.mark.parametrize("seed", [1])
async def test_case_21_two_thousand_ids_half_of_them_cancelled(
    identities: Identities, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    seen: list[bytes] = []
    answered = cancelled = 0

    async def script(wire: Wire) -> None:
        while True:
            head, body = await wire.message()
            found = re.search(rb"/id/([a-z0-9-]+)", head)
            assert found
            seen.append(found[1])
            text = found[1] + body[-20:]
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.003)
            if chance.random() < 0.5:
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
            else:
                answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
                    len(text),
                    text,
                )
            cut = chance.randint(0, len(answer))
            await wire.send(answer[:cut])
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.002)
            await wire.send(answer[cut:])

    async def caller(number: int) -> None:
        nonlocal answered, cancelled
        client = None
        for count in range(EACH):
            identity = b"%d-%d" % (number, count)
            body = b"b" * chance.choice((0, 0, 10, 40_000)) + identity if chance.random() < 0.4 else b""
            client = client or await it.connect()
            await client.send(request(b"/id/" + identity, method=b"PUT" if body else b"GET", body=body))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.004)
                if chance.random() < 0.3:
                    client.push(request(b"/id/" + identity + b"-ahead"))
                client.reset() if chance.random() < 0.5 else client.cut()
                client = None
                cancelled += 1
                continue
            _, raw = await client.message(b"GET")
            expected = identity + body[-20:]
            assert raw in (expected, b"%x\r\n%b\r\n0\r\n\r\n" % (len(expected), expected))
            answered += 1
        if client is not None:
            await client.close()

    async with proxy(identities, tmp_path, script, upstream={"maxIdleConnections": CALLERS}) as it:
        await asyncio.gather(*(caller(number) for number in range(CALLERS)))
        assert answered + cancelled == CALLERS * EACH
        assert answered > 800
        assert cancelled > 800
        await it.settled()
        assert it.count(metrics.TERMINATIONS, "complete") >= answered
        assert len(seen) == len(set(seen))
        # What is left over is in order.
        client = await it.connect()
        for number in range(CALLERS):
            await client.send(request(b"/id/last-%d" % number))
            assert b"last-%d" % number in (await client.message(b"GET"))[1]
