"""A request with no credentials, or malformed ones: never the proxy's own identity."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


@pytest.mark.parametrize(
    "authorization",
    [None, b"Bearer", b"Bearer ", b"Basic", b"Negotiate x", b"\xff", b"bearer  two", b"Bearer a b"],
)
@pytest.mark.parametrize("who", ["nobody", "balancer", "reporter"])
async def test_case_07_is_left_to_the_upstream_without_a_certificate(
    identities: Identities, tmp_path: Path, who: str, authorization: bytes | None
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else getattr(identities, who))
        await client.send(
            request(b"/api", *([b"Authorization: " + authorization] if authorization is not None else []))
        )
        upstream = await it.upstream.next()
        head, _ = await upstream.message()
        assert upstream.tls.getpeercert(binary_form=True) is None
        assert b"x-remote" not in head.lower()
        assert (b"\r\nAuthorization: " + (authorization or b"") + b"\r\n" in head) == (
            authorization is not None
        )
        await upstream.send(response(b"no", b"401 Unauthorized", b"WWW-Authenticate: Bearer"))
        head, body = await client.message(b"GET")
        assert head.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert body == b"no"
