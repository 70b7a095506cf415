"""A front proxy's name signed by the wrong authority, and the right authority's signature on another name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orca_sidecar.core.load_report import Format
from tests.integration.proxy_harness import proxy, request, response
from tests.pki import Pki
from tests.support.sidecar import Identities

FORGED = (b"X-Remote-User: admin", b"X-Remote-Group: system:masters", b"Endpoint-Load-Metrics-Request: TEXT")
REPORT = b"endpoint-load-metrics: TEXT cpu_utilization=0.5\r\n"


@pytest.mark.parametrize(
    ("authority", "user"), [("ca", b"X-Remote-User: balancer"), ("front_proxy_ca", None)]
)
async def test_case_05_its_headers_are_dropped_and_there_is_no_report(
    identities: Identities, tmp_path: Path, authority: str, user: bytes | None
) -> None:
    cn = "balancer" if user else "somebody-else"
    impostor = Pki(tmp_path / "other").leaf(getattr(identities, authority), cn=cn)
    async with proxy(identities, tmp_path) as it:
        it.shared.report.publish({Format.TEXT: REPORT}, time.monotonic_ns())
        client = await it.connect(impostor)
        await client.send(request(b"/api", *FORGED))
        upstream = await it.upstream.next()
        head, _ = await upstream.message()
        assert b"admin" not in head
        assert b"masters" not in head
        assert b"endpoint-load" not in head.lower()
        assert (upstream.tls.getpeercert(binary_form=True) is not None) == bool(user)
        if user:
            assert b"\r\n" + user + b"\r\n" in head
        else:
            assert b"x-remote" not in head.lower()
        await upstream.send(response())
        assert b"endpoint-load-metrics" not in (await client.message(b"GET"))[0]

        genuine = await it.connect(identities.balancer)
        await genuine.send(request(b"/api", *FORGED))
        other = upstream if user else await it.upstream.next()
        assert b"\r\nX-Remote-User: admin\r\n" in await other.head()
        await other.send(response())
        assert (await genuine.head()).endswith(REPORT + b"\r\n")
