"""Nothing of one client's answer is found in another client's request."""

from __future__ import annotations

from pathlib import Path

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


async def test_case_13_a_cookie_is_its_receivers_alone(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        a, b = await it.connect(), await it.connect()
        await a.send(request(b"/a"))
        upstream = await it.upstream.next()
        await upstream.message()
        cookie = b"Set-Cookie: session=a; Path=/; HttpOnly"
        await upstream.send(response(b"", b"200 OK", cookie))
        assert b"\r\n" + cookie + b"\r\n" in await a.head()
        await b.send(request(b"/b"))
        head, _ = await upstream.message()
        assert head == b"GET /b HTTP/1.1\r\nHost: kubernetes\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n"


async def test_case_13_with_an_upstream_configured_by_name(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path, by_name=True) as it:
        client = await it.connect()
        await client.send(request(b"/a"))
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(response(b"", b"200 OK", b"Set-Cookie: session=a; Domain=localhost"))
        await client.head()
        await client.send(request(b"/b"))
        assert b"cookie" not in (await upstream.head()).lower()
