"""The agent with a real HAProxy: weights and states as its stats socket tells them."""

import asyncio
import csv
import io
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orca_sidecar.core.load_report import LoadReport
from orca_sidecar.demo.processes import Child, free_ports
from orca_sidecar.publish.agent_check import AgentCheck
from orca_sidecar.settings.load_metrics import AgentCheckSettings
from tests.integration.balancer import eventually

CONFIGURATION = """
global
    stats socket {folder}/stats.sock mode 600
    maxconn 100
defaults
    mode tcp
    timeout connect 1s
    timeout client 5s
    timeout server 5s
    timeout check 1s
listen nodes
    bind 127.0.0.1:{listen}
    default-server weight 100 agent-check agent-inter 100ms agent-port {agent}
    server one 127.0.0.1:{node}
    server strange 127.0.0.1:{node} source 127.0.0.2
"""


@dataclass
class Lab:
    """A sidecar's agent, whose node a test sets, and a HAProxy that asks it."""

    folder: Path
    serving: bool = True
    report: LoadReport | None = None

    def load(self, application_utilization: float) -> None:
        self.report = LoadReport(application_utilization=application_utilization)

    async def server(self, name: str) -> dict[str, str]:
        reader, writer = await asyncio.open_unix_connection(str(self.folder / "stats.sock"))
        writer.write(b"show stat\n")
        rows = csv.DictReader(io.StringIO((await reader.read()).decode().removeprefix("# ")))
        writer.close()
        return next(row for row in rows if row["svname"] == name)

    async def shows(self, server: str = "one", **expected: str) -> None:
        """Wait until HAProxy's statistics of the server are these."""
        seen: dict[str, str] = {}

        async def is_so() -> bool:
            seen.update(await self.server(server))
            return all(seen[name] == value for name, value in expected.items())

        wanted = ("status", "weight", "agent_status", "last_agt")
        await eventually(is_so, lambda: {name: seen.get(name) for name in wanted})


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    binary = shutil.which("haproxy")
    if binary is None:
        pytest.fail("no haproxy on PATH: install Debian's package haproxy")
    lab = Lab(tmp_path)
    lab.load(1.0)
    settings = AgentCheckSettings.model_validate({"address": "0.0.0.0:0", "allowedSources": ["127.0.0.1/32"]})
    agent = AgentCheck(settings, lambda: lab.serving, lambda: lab.report)
    await agent.start()
    listen, node = free_ports(2)
    configuration = tmp_path / "haproxy.cfg"
    configuration.write_text(
        CONFIGURATION.format(folder=tmp_path, listen=listen, node=node, agent=agent.port)
    )
    command = [binary, "-db", "-f", str(configuration)]
    haproxy = await Child.start("haproxy", command, tmp_path / "haproxy.log")
    try:

        async def listening() -> bool:
            return (tmp_path / "stats.sock").exists()

        await haproxy.ready_when(listening, 20)
        yield lab
    finally:
        await haproxy.stop()
        await agent.stop()


async def test_the_weight_follows_the_headroom(lab: Lab) -> None:
    for utilization, weight in ((1.0, 50), (0.25, 80), (4.0, 20), (500.0, 1), (0.0, 100)):
        lab.load(utilization)
        await lab.shows(status="no check", weight=str(weight))


async def test_another_source_gets_no_answer_and_keeps_its_configured_weight(lab: Lab) -> None:
    """HAProxy asks for this server from 127.0.0.2, which is in no allowed network."""
    await lab.shows(status="no check", weight="50")
    await lab.shows("strange", agent_status="L7RSP", weight="100")


async def test_drain_while_not_serving_and_back_with_its_weight(lab: Lab) -> None:
    await lab.shows(status="no check", weight="50")
    lab.serving = False
    await lab.shows(status="DRAIN (agent)", weight="50")
    lab.load(0.25)
    lab.serving = True
    await lab.shows(status="no check", weight="80")


async def test_without_a_report_the_last_weight_stays(lab: Lab) -> None:
    await lab.shows(status="no check", weight="50")
    lab.serving = False
    await lab.shows(status="DRAIN (agent)", weight="50")
    lab.report = None
    lab.serving = True
    await lab.shows(status="no check", weight="50")
