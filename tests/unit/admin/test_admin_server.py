"""The admin routes, over real sockets on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from orca_sidecar import metrics
from orca_sidecar.admin.server import AdminServer, Condition
from orca_sidecar.settings.addresses import Address

ANY_PORT = Address("127.0.0.1", 0)


class State:
    """What the routes ask for."""

    def __init__(self) -> None:
        self.conditions = [Condition("listener", True), Condition("sampler", True)]
        self.status: dict[str, object] = {"version": "0.1.0", "report": {"cpu_utilization": 0.25}}
        (self.cells,) = metrics.new_cells(1)
        self.server = AdminServer(
            ANY_PORT, metrics.Collector([self.cells]), lambda: self.conditions, lambda: self.status
        )


@pytest.fixture
async def state() -> AsyncIterator[State]:
    state = State()
    await state.server.start()
    yield state
    await state.server.stop()


@pytest.fixture
async def client(state: State) -> AsyncIterator[ClientSession]:
    async with ClientSession(f"http://{state.server.address}") as session:
        yield session


async def test_livez(client: ClientSession) -> None:
    async with client.get("/livez") as response:
        assert response.status == 200
        assert await response.text() == "ok"


async def test_livez_does_not_depend_on_readiness(state: State, client: ClientSession) -> None:
    state.conditions = [Condition("upstream", False, "connection refused")]
    async with client.get("/livez") as response:
        assert response.status == 200


async def test_readyz_is_short_while_all_is_well(client: ClientSession) -> None:
    async with client.get("/readyz") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        assert response.headers["Cache-Control"] == "no-cache, no-store"
        assert await response.text() == "ok"


async def test_readyz_verbose(client: ClientSession) -> None:
    for query in ("?verbose", "?verbose=true"):
        async with client.get("/readyz" + query) as response:
            assert response.status == 200
            assert await response.text() == "[+]listener ok\n[+]sampler ok\nreadyz check passed\n"


async def test_readyz_lists_what_fails(state: State, client: ClientSession) -> None:
    state.conditions = [
        Condition("listener", True),
        Condition("sampler", False, "no sample for 3.2 s\n[+]forged ok"),
        Condition("upstream", False),
    ]
    async with client.get("/readyz") as response:
        assert response.status == 503
        assert (await response.text()).splitlines() == [
            "[+]listener ok",
            "[-]sampler failed: no sample for 3.2 s [+]forged ok",
            "[-]upstream failed: no reason given",
            "readyz check failed",
        ]
    state.conditions = []
    async with client.get("/readyz") as response:
        assert response.status == 200


async def test_statusz(state: State, client: ClientSession) -> None:
    state.conditions = [Condition("upstream", False, "timed out")]
    async with client.get("/statusz") as response:
        assert response.status == 200
        assert response.content_type == "application/json"
        assert json.loads(await response.text()) == {
            "version": "0.1.0",
            "report": {"cpu_utilization": 0.25},
            "conditions": [{"name": "upstream", "ok": False, "detail": "timed out"}],
        }


async def test_metrics_are_current(state: State, client: ClientSession) -> None:
    for expected in (1, 2):
        state.cells[metrics.UPSTREAM_RETRIES.slot()] += 1
        async with client.get("/metrics") as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            families = {
                family.name: family for family in text_string_to_metric_families(await response.text())
            }
        assert families["orca_sidecar_upstream_retries"].samples[0].value == expected


async def test_metrics_in_openmetrics_for_who_accepts_it(client: ClientSession) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    async with client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert (await response.text()).endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/statusz"])
async def test_routes_take_get_and_head_only(client: ClientSession, path: str) -> None:
    async with client.head(path) as response:
        assert response.status == 200
        assert await response.read() == b""
    async with client.post(path) as response:
        assert response.status == 405


async def test_nothing_else_is_served(client: ClientSession) -> None:
    async with client.get("/") as response:
        assert response.status == 404


async def test_requests_are_not_logged(client: ClientSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with client.get("/livez") as response:
            assert response.status == 200
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


async def test_an_address_in_use_is_said(state: State) -> None:
    second = AdminServer(
        state.server.address, metrics.Collector([state.cells]), lambda: state.conditions, lambda: state.status
    )
    with pytest.raises(OSError, match="address already in use") as caught:
        await second.start()
    assert str(state.server.address.port) in str(caught.value)


async def test_stop_closes_the_port_and_idle_connections(state: State) -> None:
    reader, writer = await asyncio.open_connection(*state.server.address)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 OK\r\n")
    address = state.server.address
    await state.server.stop()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(tuple(address))


async def test_ipv6() -> None:
    state = State()
    server = AdminServer(Address("::1", 0), metrics.Collector([state.cells]), lambda: [], lambda: {})
    await server.start()
    try:
        assert server.address.host == "::1"
        async with ClientSession(f"http://{server.address}") as session, session.get("/readyz") as response:
            assert response.status == 200
    finally:
        await server.stop()
