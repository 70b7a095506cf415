"""A plain client that says who it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.proxy_harness import proxy, request, response
from tests.support.sidecar import Identities

NAMES = (
    *(
        b"X-Remote-User",
        b"X-Remote-Group",
        b"X-Remote-Uid",
        b"X-Remote-Extra-Scopes",
        b"X-Remote-Extra-",
        b"X-Who",
    ),
    *(b"X-Groups", b"X-Unique", b"X-More-A", b"X-More-%2f"),
)
CUSTOM = {
    "usernameHeaders": ["X-Who", "X-Remote-User"],
    "groupHeaders": ["X-Groups"],
    "uidHeaders": ["X-Unique"],
    "extraHeadersPrefix": ["X-More-"],
}


@pytest.mark.parametrize("who", ["nobody", "jane", "reporter"])
async def test_case_06_nothing_forged_reaches_the_upstream(
    identities: Identities, tmp_path: Path, who: str
) -> None:
    spelled = [spelling for name in NAMES for spelling in (name, name.lower(), name.upper(), name.swapcase())]
    async with proxy(identities, tmp_path, frontProxy=CUSTOM) as it:
        client = await it.connect(None if who == "nobody" else getattr(identities, who))
        upstream = None
        for lines in (
            [name + b": forged" for name in spelled],
            *([name + b":forged"] for name in spelled),
            *([b"Connection: " + name, name + b":\tforged", name + b": forged"] for name in NAMES),
        ):
            for path, hops in ((b"/api", []), (b"/exec", [b"Connection: Upgrade", b"Upgrade: websocket"])):
                await client.send(request(path, *hops, *lines))
                if upstream is None or upstream.sock.fileno() < 0:
                    upstream = await it.upstream.next()
                head, _ = await upstream.message()
                assert b"forged" not in head
                assert (b"\r\nX-Who: jane\r\nX-Groups: developers\r\n" in head) == (who == "jane")
                if hops:  # an upgrade's connection is not used again
                    await upstream.send(response(b"", b"403 Forbidden", b"Connection: close"))
                    await client.head()
                    await client.close()
                    await upstream.close()
                    client = await it.connect(None if who == "nobody" else getattr(identities, who))
                else:
                    await upstream.send(response())
                    await client.message(b"GET")
