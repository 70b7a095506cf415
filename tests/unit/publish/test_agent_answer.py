"""The agent's line, who gets it, and that it arrives whole whatever the client sends."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from orca_sidecar.core.load_report import LoadReport
from orca_sidecar.publish.agent_check import AgentCheck, answer, is_allowed
from orca_sidecar.settings.load_metrics import AgentCheckSettings


@pytest.mark.parametrize(
    ("application_utilization", "weight"),
    [(0.0001, 100), (0.25, 80), (1.0, 50), (4.0, 20), (19.0, 5), (39.0, 2), (99.0, 1), (1e6, 1)],
)
def test_the_weight_is_the_headroom_and_never_below_one_percent(
    application_utilization: float, weight: int
) -> None:
    report = LoadReport(application_utilization=application_utilization)
    assert answer(True, report) == b"up ready %d%%\n" % weight


def test_without_a_report_the_weight_is_left_as_it_is() -> None:
    assert answer(True, None) == b"up ready\n"


def test_not_serving_is_drain_whatever_the_load() -> None:
    assert answer(False, LoadReport()) == b"drain\n"
    assert answer(False, None) == b"drain\n"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::1", False),
        ("fd00::5", True),
        ("fd00::5%eth0", True),
        ("fd01::5", False),
    ],
)
def test_allowed_sources(host: str, allowed: bool) -> None:
    sources = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("fd00::/64")]
    assert is_allowed(host, sources) is allowed


Start = Callable[..., Awaitable[AgentCheck]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts an agent on a free port, and stops it."""
    running: list[AgentCheck] = []

    async def start(serving: Callable[[], bool] = lambda: True, **settings: object) -> AgentCheck:
        values = {"address": "127.0.0.1:0", **settings}
        agent = AgentCheck(
            AgentCheckSettings.model_validate(values),
            serving,
            lambda: LoadReport(application_utilization=1.0),
        )
        await agent.start()
        running.append(agent)
        return agent

    yield start
    for agent in running:
        await agent.stop()


async def ask(agent: AgentCheck, send: bytes = b"") -> bytes:
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        if send:
            writer.write(send)
        data = await reader.read()
        writer.close()
        return data


async def test_one_line_and_the_connection_is_closed(start: Start) -> None:
    agent = await start()
    assert await ask(agent) == b"up ready 50%\n"


async def test_what_a_client_sends_does_not_cost_it_the_answer(start: Start) -> None:
    agent = await start()
    assert await ask(agent, send=b"hello from agent-send\n" * 1000) == b"up ready 50%\n"


async def test_drain_and_back(start: Start) -> None:
    serving = True
    agent = await start(lambda: serving)
    serving = False
    assert await ask(agent) == b"drain\n"
    serving = True
    assert await ask(agent) == b"up ready 50%\n"


async def test_other_sources_are_closed_on_without_an_answer(start: Start) -> None:
    agent = await start(allowedSources=["10.0.0.0/8"])
    assert await ask(agent) == b""


async def test_a_client_that_stays_is_closed_on(start: Start) -> None:
    agent = await start()
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
        assert await reader.read() == b"up ready 50%\n"
        with pytest.raises(ConnectionError):
            await write_for_ever(writer)
        writer.close()


async def write_for_ever(writer: asyncio.StreamWriter) -> None:
    """Ends with ConnectionError, when the kernel says that nobody reads any more."""
    while True:
        writer.write(b"still here\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def test_an_address_in_use_is_said(start: Start) -> None:
    agent = await start()
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await start(address=f"127.0.0.1:{agent.port}")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_answers_on_either_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def ask() -> bytes:
        settings = AgentCheckSettings.model_validate({"address": "127.0.0.1:0"})
        agent = AgentCheck(settings, lambda: True, lambda: LoadReport(application_utilization=1.0))
        await agent.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            async with asyncio.timeout(5):
                line = await reader.read()
            writer.close()
            return line
        finally:
            await agent.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(ask()) == b"up ready 50%\n"
