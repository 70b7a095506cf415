"""Start-up, workers and shutdown of the installed program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from tests.support.sidecar import Identities, Sidecar, running, upstream

REQUEST = b"GET /api/v1/nodes HTTP/1.1\r\nHost: kubernetes\r\n\r\n"
OPT_IN = b"GET /api HTTP/1.1\r\nHost: kubernetes\r\nendpoint-load-metrics-request: TEXT\r\n\r\n"


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    return Identities.make(tmp_path)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An upstream: `/slow` takes half a second, `/watch` never ends, everything else is answered at once."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" /slow" in head:
            await asyncio.sleep(0.5)
        if b"watch=true" in head or b" /stalls" in head or b"/log?follow" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nevent\r\n")
            await reader.read(1)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def connect(
    identities: Identities, sidecar: Sidecar, who: str = "balancer"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = identities.client_context(getattr(identities, who))
    return await asyncio.open_connection("127.0.0.1", sidecar.port, ssl=context, server_hostname="kubernetes")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes = REQUEST) -> bytes:
    writer.write(request)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_a_port_in_use_is_one_clear_message_and_exit_code_4(
    identities: Identities, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for section in ("listener", "admin"):
            sidecar = Sidecar(identities.configuration(1, **{section: {"address": address}}), tmp_path)
            sidecar.start()
            assert await sidecar.exit_code() == 4
            assert address in sidecar.log.replace("', ", ":").replace("('", "")
            assert "Traceback" not in sidecar.log


@pytest.mark.parametrize("workers", [1, 2])
async def test_it_serves_and_ends_in_order(identities: Identities, tmp_path: Path, workers: int) -> None:
    async with (
        upstream(identities, answer) as port,
        running(identities.configuration(port, workers=workers), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        reader, writer = await connect(identities, sidecar)
        assert b"200 OK" in await ask(reader, writer)
        watch_reader, watch_writer = await connect(identities, sidecar)
        watch_writer.write(b"GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        assert (await watch_reader.readuntil(b"event\r\n")).endswith(b"5\r\nevent\r\n")
        slow_reader, slow_writer = await connect(identities, sidecar)
        slow = asyncio.ensure_future(
            ask(slow_reader, slow_writer, REQUEST.replace(b"/api/v1/nodes", b"/slow"))
        )
        await asyncio.sleep(0.1)

        sidecar.process.send_signal(signal.SIGTERM)
        await sidecar.until(lambda: sidecar.admin("/readyz")[0] == 503, 5)
        # Still serving, but the data port tells the load balancer to look away.
        assert b"200 OK" in await ask(reader, writer)
        probe = await ask(reader, writer, REQUEST.replace(b"/api/v1/nodes", b"/readyz"))
        assert probe.startswith(b"HTTP/1.1 503 ")
        assert json.loads(probe.partition(b"\r\n\r\n")[2])["reason"] == "ServiceUnavailable"
        assert b"200 OK" in await slow
        assert await asyncio.wait_for(watch_reader.read(), 10) == b"0\r\n\r\n"
        assert await sidecar.exit_code() == 0
        for opened in (writer, watch_writer, slow_writer):
            opened.transport.abort()


async def test_what_is_not_complete_does_not_end_as_if_it_were(
    identities: Identities, tmp_path: Path
) -> None:
    """When the grace is over a LIST and a log are cut, though a whole chunk was relayed last; a watch may end there."""
    async with (
        upstream(identities, answer) as port,
        running(identities.configuration(port, shutdown={"gracePeriod": "600ms"}), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        answers = {}
        for target in (
            b"/stalls",
            b"/api/v1/namespaces/a/pods/b/log?follow=true",
            b"/api/v1/pods?watch=true",
        ):
            reader, writer = await connect(identities, sidecar)
            writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
            await reader.readuntil(b"event\r\n")
            answers[target] = reader
        assert sidecar.process is not None
        sidecar.process.send_signal(signal.SIGTERM)
        rest = [await asyncio.wait_for(reader.read(), 10) for reader in answers.values()]
        assert rest == [b"", b"", b"0\r\n\r\n"]
        assert await sidecar.exit_code() == 0


async def test_a_report_goes_to_those_who_may_ask_and_do(identities: Identities, tmp_path: Path) -> None:
    async with (
        upstream(identities, answer) as port,
        running(identities.configuration(port), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        await sidecar.until(lambda: '"loadReport": null' not in sidecar.admin("/statusz")[1])
        for who, expected in (("balancer", True), ("reporter", True), ("jane", False)):
            reader, writer = await connect(identities, sidecar, who)
            head = await ask(reader, writer, OPT_IN)
            assert (b"\r\nendpoint-load-metrics: TEXT application_utilization=" in head) is expected, who
            assert b"endpoint-load-metrics:" not in await ask(reader, writer)
            writer.transport.abort()
        assert sidecar.metric("orca_sidecar_load_reports_attached_total", format="text") == 2
        assert sidecar.metric("orca_sidecar_load_report_refusals_total", reason="not_allowed") == 1


async def test_workers_share_connections_evenly_and_one_that_dies_is_replaced(
    identities: Identities, tmp_path: Path
) -> None:
    async with (
        upstream(identities, answer) as port,
        running(identities.configuration(port, workers=2), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        connections = [await connect(identities, sidecar) for _ in range(8)]
        for reader, writer in connections:
            await ask(reader, writer)
        assert sidecar.process is not None
        # The first child is the control process.
        _, *workers = psutil.Process(sidecar.process.pid).children()
        assert len(workers) == 2
        held = {
            worker.pid: sum(
                c.laddr.port == sidecar.port and c.status == "ESTABLISHED" for c in worker.net_connections()
            )
            for worker in workers
        }
        assert sorted(held.values()) == [4, 4]

        os.kill(workers[0].pid, signal.SIGKILL)
        await sidecar.until(lambda: sidecar.log.count("replacing it") == 1)
        alive = 0
        for reader, writer in connections:
            try:
                await ask(reader, writer)
                alive += 1
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
        assert alive == 4
        await sidecar.until(lambda: sidecar.metric("orca_sidecar_workers") == 2)
        reader, writer = await connect(identities, sidecar)
        assert b"200 OK" in await ask(reader, writer)
        # Counters outlive the worker; its gauges do not.
        assert sidecar.metric("orca_sidecar_requests_total") == 8 + 4 + 1
        assert sidecar.metric("orca_sidecar_downstream_connections") == 5
        for _, opened in (*connections, (reader, writer)):
            opened.transport.abort()
