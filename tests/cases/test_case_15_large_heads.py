"""Large heads: tokens, URLs, groups, response headers; and the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


@pytest.mark.parametrize(
    ("who", "target", "lines"),
    [
        ("nobody", b"/api", [b"Authorization: Bearer " + b"t" * 12 * 1024]),
        ("nobody", b"/api?" + b"u" * 16 * 1024, []),
        (
            "balancer",
            b"/api",
            [b"X-Remote-User: jane", *(b"X-Remote-Group: group-%03d" % n for n in range(300))],
        ),
        ("nobody", b"/api", [b"X-Line-%d: %d" % (n, n) for n in range(5000)]),
        ("nobody", b"/" + b"l" * 1_000_000, []),
    ],
)
async def test_case_15_pass(
    identities: Identities, tmp_path: Path, who: str, target: bytes, lines: list[bytes]
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else getattr(identities, who))
        await client.send(request(target, *lines))
        upstream = await it.upstream.next()
        head = (await upstream.head()).split(b"\r\n")
        assert head[0] == b"GET " + target + b" HTTP/1.1"
        assert [line for line in head if line in set(lines)] == lines
        large = b"X-Large: " + b"r" * 20 * 1024
        await upstream.send(response(b"ok", b"200 OK", large))
        answer, _ = await client.message(b"GET")
        assert b"\r\n" + large + b"\r\n" in answer


@pytest.mark.parametrize("split", [False, True])
async def test_case_15_above_the_limit_it_is_431(identities: Identities, tmp_path: Path, split: bool) -> None:
    async with proxy(identities, tmp_path, listener={"headerBytes": "16Ki"}) as it:
        for size, passes in ((16 * 1024, True), (16 * 1024 + 1, False)):
            client = await it.connect()
            head = request(b"/", b"X: ")[:-4]
            head += b"x" * (size - len(head)) + b"\r\n\r\n"
            await (
                client.send(*(head[at : at + 900] for at in range(0, len(head), 900)))
                if split
                else client.send(head)
            )
            if passes:
                upstream = await it.upstream.next()
                await upstream.head()
                await upstream.send(response())
                assert (await client.message(b"GET"))[1] == b"ok"
            else:
                head, body = await client.message(b"GET")
                assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
                assert json.loads(body)["code"] == 431
                assert len(it.upstream.connections) == 1
