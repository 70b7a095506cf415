"""Header lines whose names are equal but for case."""

from __future__ import annotations

from pathlib import Path

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities

LINES = [b"X-Thing: a", b"Other: 1", b"x-thing: b", b"X-THING: c", b"other: 2"]


async def test_case_33_all_pass_in_order_as_sent(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        for _ in range(2):  # the second time by what was remembered of the first
            await client.send(request(b"/", *LINES))
            upstream = it.upstream.connections[0] if it.upstream.connections else await it.upstream.next()
            assert (await upstream.head()).split(b"\r\n")[2:-3] == LINES
            await upstream.send(response(b"", b"200 OK", *LINES))
            assert (await client.head()).split(b"\r\n")[2:-2] == LINES
