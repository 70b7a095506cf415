"""Repeated header lines, on plain and on upgraded requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request
from tests.support.sidecar import Identities

VERSIONS = [b"X-Stream-Protocol-Version: v%d.channel.k8s.io" % number for number in (4, 3, 2, 1)]
IMPERSONATED = [b"Impersonate-User: eve", b"Impersonate-Group: b", b"Impersonate-Group: a"]
ASSERTED = [b"X-Remote-User: jane", b"X-Remote-Group: system:b", b"X-Remote-Group: a, with a comma"]
ANSWERED = [b"Warning: 299 - b", b"Set-Cookie: b=1", b"Warning: 299 - a", b"Set-Cookie: a=2"]


@pytest.mark.parametrize("upgrade", [False, True])
async def test_case_02_the_same_lines_count_and_order(
    identities: Identities, tmp_path: Path, upgrade: bool
) -> None:
    hops = [b"Connection: Upgrade", b"Upgrade: SPDY/3.1"] if upgrade else []
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(identities.balancer)
        await client.send(request(b"/x", *hops, *VERSIONS, *ASSERTED, *IMPERSONATED, method=b"POST"))
        upstream = await it.upstream.next()
        lines = (await upstream.head()).split(b"\r\n")
        assert [line for line in lines if line.startswith(b"X-Stream")] == VERSIONS
        assert [line for line in lines if line.startswith(b"Impersonate")] == IMPERSONATED
        assert [line for line in lines if line.startswith(b"X-Remote")] == ASSERTED
        status = b"101 Switching Protocols" if upgrade else b"200 OK"
        fields = [*ANSWERED, *hops, *([] if upgrade else [b"Content-Length: 0"])]
        answer = b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", b""])
        await upstream.send(answer)
        assert await client.head() == answer
