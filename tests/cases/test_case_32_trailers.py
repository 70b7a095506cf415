"""A trailer is never found in the next request on its connection, nor in the next response."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities

LAST = [b"X-Remote-Group: system:masters", b"Authorization: Bearer stolen", b"Impersonate-User: admin"]


@pytest.mark.parametrize("who", ["nobody", "jane", "balancer"])
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("bytewise", [False, True])
async def test_case_32_of_a_request(
    identities: Identities, tmp_path: Path, who: str, last: bytes, bytewise: bool
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(None if who == "nobody" else getattr(identities, who))
        first, second = ([b"X-Remote-User: eve"], [b"X-Remote-User: bob"]) if who == "balancer" else ([], [])
        data = request(b"/first", b"Transfer-Encoding: chunked", *first, method=b"POST")
        data += b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\n" + last + b"\r\n\r\n"
        await (client.send_bytewise(data) if bytewise else client.send(data))
        upstream = await it.upstream.next()
        head, body = await upstream.message()
        assert last not in head + body
        assert body == b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\n\r\n"
        await upstream.send(response())
        await client.message(b"POST")
        await client.send(request(b"/second", *second))
        head, _ = await upstream.message()
        asserted = {
            "nobody": b"",
            "jane": b"X-Remote-User: jane\r\nX-Remote-Group: developers\r\nX-Remote-Extra-",
        }
        expected = b"GET /second HTTP/1.1\r\nHost: kubernetes\r\nX-Forwarded-For: 127.0.0.1\r\n"
        expected += asserted.get(who, b"X-Remote-User: bob\r\n\r\n")
        assert head.startswith(expected)
        assert b"masters" not in head
        assert b"stolen" not in head
        assert b"checksum" not in head.lower()
        assert (upstream.tls.getpeercert(binary_form=True) is not None) == (who != "nobody")


@pytest.mark.parametrize(
    "line", [b"Endpoint-Load-Metrics: TEXT cpu_utilization=0.1", b"Set-Cookie: a=b", b"X-Last: 1"]
)
async def test_case_32_of_a_response(identities: Identities, tmp_path: Path, line: bytes) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect()
        await client.send(request())
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + line + b"\r\n\r\n"
        )
        _, body = await client.message(b"GET")
        assert (line in body) == line.startswith(b"X-")
        await client.send(request())
        await upstream.message()
        await upstream.send(response())
        assert await client.message(b"GET") == (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")
