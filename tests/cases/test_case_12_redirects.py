"""Redirects are the client's to follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


@pytest.mark.parametrize("status", [b"301 Moved Permanently", b"302 Found", b"307 Temporary Redirect"])
@pytest.mark.parametrize("location", [b"/elsewhere", b"https://other.example/x", b"//other/x"])
@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_case_12_pass_verbatim(
    identities: Identities, tmp_path: Path, status: bytes, location: bytes, method: bytes
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request(b"/x", method=method, body=b"body" if method == b"POST" else b""))
        upstream = await it.upstream.next()
        await upstream.message()
        answer = response(b"moved", status, b"Location: " + location)
        await upstream.send(answer)
        head, body = await client.message(method)
        assert head + body == answer
        await upstream.nothing(0.05)
        assert len(it.upstream.connections) == 1
