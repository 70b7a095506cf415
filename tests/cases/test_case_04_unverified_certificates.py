"""Client certificates that nobody vouches for."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.pki import SERVER, Credential, Pki
from tests.support.sidecar import Identities

HOUR = timedelta(hours=1)


def credential(kind: str, identities: Identities, folder: Path) -> Credential:
    pki = Pki(folder)
    if kind == "unknown CA":
        return pki.leaf(pki.ca("stranger"), cn="jane", o=["system:masters"])
    if kind == "expired":
        return pki.leaf(identities.ca, cn="jane", not_before=-2 * HOUR, not_after=-HOUR)
    if kind == "not yet valid":
        return pki.leaf(identities.ca, cn="jane", not_before=HOUR)
    return pki.leaf(identities.ca, cn="jane", eku=SERVER)


@pytest.mark.parametrize("kind", ["unknown CA", "expired", "not yet valid", "serverAuth only"])
async def test_case_04_alone_401_and_with_a_token_the_tokens_user(
    identities: Identities, tmp_path: Path, kind: str
) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(credential(kind, identities, tmp_path / "other"))
        for lines in ([], [b"Authorization: Basic YTpi"], [b"X-Remote-User: admin"]):
            await client.send(request(b"/api", *lines))
            head, body = await client.message(b"GET")
            assert head.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert json.loads(body)["reason"] == "Unauthorized"
        await client.send(request(b"/api", b"Authorization: Bearer good"))
        upstream = await it.upstream.next()
        head, _ = await upstream.message()
        assert b"\r\nAuthorization: Bearer good\r\n" in head
        assert b"x-remote" not in head.lower()
        assert upstream.tls.getpeercert(binary_form=True) is None
        await upstream.send(response())
        assert (await client.message(b"GET"))[1] == b"ok"
        assert len(it.upstream.connections) == 1
