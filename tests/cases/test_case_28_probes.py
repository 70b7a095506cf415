"""TCP probes that connect and close."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from pathlib import Path

import pytest

from orca_sidecar import metrics
from tests.integration.proxy_harness import descriptors, echo_ok, eventually, proxy, request
from tests.support.sidecar import Identities

BOTH_EVENT_LOOPS = True
PROBES = 300


@pytest.mark.parametrize("how", ["close", "reset", "after a moment"])
async def test_case_28_no_log_flood_and_no_leak(
    identities: Identities, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.DEBUG)
    loop = asyncio.get_running_loop()
    async with proxy(identities, tmp_path, echo_ok) as it:
        client = await it.connect()
        await client.send(request())
        await client.message(b"GET")
        await asyncio.sleep(0.05)
        before = descriptors()
        for number in range(PROBES):
            probe = socket.socket()
            probe.setblocking(False)
            await loop.sock_connect(probe, ("127.0.0.1", it.port))
            if how == "reset":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif how == "after a moment":
                await asyncio.sleep(0)
            probe.close()
            if number % 20 == 0:
                await client.send(request())
                assert (await client.message(b"GET"))[1] == b"ok"
        await eventually(lambda: len(it.plane.connections) == 1 and not it.listener._taking)
        assert it.cells[metrics.DOWNSTREAM_CONNECTIONS.offset] == 1
        assert it.count(metrics.HANDSHAKE_FAILURES, "closed") == PROBES
        assert descriptors() <= before
        assert len(caplog.records) <= 10, caplog.text
        await client.send(request())
        assert (await client.message(b"GET"))[1] == b"ok"
