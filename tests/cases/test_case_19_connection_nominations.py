"""A Connection line cannot take the identity away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities


@pytest.mark.parametrize("upgrade", [False, True])
@pytest.mark.parametrize(
    "lines",
    [
        [b"Connection:", b"Connection: X-Remote-User, Authorization"],
        [b"Connection: X-Remote-User, X-Remote-Group", b"connection: close, Authorization"],
        [b"Connection: keep-alive, X-Remote-User,X-Remote-Extra-a, X-Forwarded-For"],
    ],
)
async def test_case_19_the_injected_identity_survives(
    identities: Identities, tmp_path: Path, lines: list[bytes], upgrade: bool
) -> None:
    hops = [b"Connection: upgrade", b"Upgrade: websocket"] if upgrade else []
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(identities.jane)
        await client.send(request(b"/api", *lines, *hops, b"Authorization: Bearer somebody-else"))
        upstream = await it.upstream.next()
        head, _ = await upstream.message()
        assert upstream.tls.getpeercert(binary_form=True) is not None
        assert b"\r\nX-Remote-User: jane\r\nX-Remote-Group: developers\r\n" in head
        assert (
            b"\r\nAuthorization: Bearer somebody-else\r\n" in head
        )  # kube-apiserver ignores it beside the user
        assert b"\r\nX-Forwarded-For: 127.0.0.1\r\n" in head
        nominated = [line for line in head.split(b"\r\n") if line.lower().startswith(b"connection:")]
        assert nominated == ([b"Connection: Upgrade"] if upgrade else [])
        await upstream.send(response())
        await client.message(b"GET")
