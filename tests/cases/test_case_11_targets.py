"""Targets that proxies like to tidy up."""

from __future__ import annotations

from pathlib import Path

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities

TARGETS = (
    *(
        b"/a/../b",
        b"/a/%2e%2e/b",
        b"/a%3Ab%3bc",
        b"/a%2Fb",
        b"//",
        b"/?labelSelector=a%3Db%2Cc%21%3Dd",
        b"/?q=%",
        b"/??y",
    ),
    *(b"/.", b"/./", b"//a//b", b"/\xc3\xa9", b"/a?", b"/a?b#c", b"/%", b"/a b".replace(b" ", b"+")),
)


async def test_case_11_are_byte_identical_upstream(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        upstream = None
        for target in TARGETS:
            await client.send(request(target))
            upstream = upstream or await it.upstream.next()
            assert (await upstream.head()).startswith(b"GET " + target + b" HTTP/1.1\r\n")
            await upstream.send(response())
            await client.message(b"GET")
