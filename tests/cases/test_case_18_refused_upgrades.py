"""A refused upgrade comes back verbatim: kubectl falls back to SPDY on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities

PORT_FORWARD = request(
    b"/api/v1/namespaces/a/pods/b/portforward",
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io",
)


@pytest.mark.parametrize("who", ["nobody", "jane"])
@pytest.mark.parametrize(
    ("status", "lines"),
    [
        (b"400 Bad Request", [b"Upgrade: x"]),
        (b"401 Unauthorized", [b"WWW-Authenticate: Bearer"]),
        (b"403 Forbidden", []),
        (b"429 Too Many Requests", [b"Retry-After: 3", b"X-Kubernetes-PF-PriorityLevel-UID: u"]),
    ],
)
async def test_case_18_verbatim_and_the_connection_goes_on(
    identities: Identities, tmp_path: Path, who: str, status: bytes, lines: list[bytes]
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else identities.jane)
        await client.send(PORT_FORWARD)
        upstream = await it.upstream.next()
        head = await upstream.head()
        assert b"\r\nSec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n" in head
        await upstream.send(response(b'{"kind":"Status"}', status, *lines))
        head, body = await client.message(b"GET")
        expected = response(b'{"kind":"Status"}', status, *(line for line in lines if line != b"Upgrade: x"))
        assert head + body == expected
        await client.send(request(b"/second"))
        second = await it.upstream.next()
        assert (await second.head()).startswith(b"GET /second ")
        await second.send(response(b"second"))
        assert (await client.message(b"GET"))[1] == b"second"
