"""A kube-apiserver that is shutting down: its answers pass, and a pinned client is made to leave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (b"429 Too Many Requests", [b"Retry-After: 5"]),
        (b"503 Service Unavailable", [b"Retry-After: 5"]),
        (b"200 OK", []),
    ],
)
@pytest.mark.parametrize("who", ["nobody", "balancer"])
async def test_case_29_verbatim_and_both_connections_end(
    identities: Identities, tmp_path: Path, who: str, status: bytes, lines: list[bytes]
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else identities.balancer)
        await client.send(request())
        upstream = await it.upstream.next()
        await upstream.message()
        # The upstream leaves its side open: the proxy must not use it again all the same.
        await upstream.send(response(b"shutting down", status, *lines, b"Connection: close"))
        head, body = await client.message(b"GET")
        assert head + body == response(b"shutting down", status, *lines, b"Connection: close")
        assert await client.end() == "clean"
        assert await upstream.end() in ("cut", "reset")
        again = await it.connect()
        await again.send(request())
        second = await it.upstream.next()
        await second.message()
        await second.send(response())
        assert (await again.message(b"GET"))[1] == b"ok"
