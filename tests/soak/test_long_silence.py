"""Silence in real time: `make soak`, twelve minutes. The same rows run with a controlled clock in tests/cases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.sidecar import Identities, running, upstream

pytestmark = pytest.mark.timeout(900)


async def test_case_10_neither_a_watch_nor_a_log_is_cut_while_it_is_silent(tmp_path: Path) -> None:
    """A watch without an event for 330 s, a log without a line for 700 s; idle connections around them are closed."""
    identities = Identities.make(tmp_path)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/readyz" in head:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await asyncio.sleep(330 if b"watch=true" in head else 700)
            writer.write(b"5\r\nevent\r\n0\r\n\r\n")

    async def ask(port: int, target: bytes) -> bytes:
        context = identities.client_context(identities.jane)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="kubernetes"
        )
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        answer = await reader.readuntil(b"0\r\n\r\n")
        writer.transport.abort()
        return answer

    async with (
        upstream(identities, silent) as port,
        running(identities.configuration(port), tmp_path) as sidecar,
    ):
        await sidecar.ready()
        answers = await asyncio.gather(
            ask(sidecar.port, b"/api/v1/pods?watch=true"),
            ask(sidecar.port, b"/api/v1/namespaces/default/pods/x/log?follow=true"),
        )
    assert all(answer.endswith(b"5\r\nevent\r\n0\r\n\r\n") for answer in answers)
