"""Every format and field of an in-band report, read by a real Envoy: the weights are the ones computed here.

Envoy 1.40 counts no in-band report, so a report that it dropped shows only in a weight that is another
host's median.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from orca_sidecar.core.load_report import FIELDS, NAMED_METRICS, Format, LoadReport
from orca_sidecar.core.report_encoding import render
from tests.integration.balancer import Envoy, eventually, running_envoy

PENALTY = 2.0
POLICY = {
    "weight_update_period": "0.1s",
    "blackout_period": "0.1s",
    "weight_expiration_period": "60s",
    "error_utilization_penalty": PENALTY,
}


def lines(
    report: LoadReport, *, separator: str = "=", fields: tuple[str, ...] = FIELDS
) -> Mapping[Format, bytes]:
    checked = report.checked()
    assert checked is not None
    return render(checked, list(Format), separator, fields)


def full(rate: float, application_utilization: float, eps: float = 0.0) -> LoadReport:
    """A report with every field and every metric that can be configured."""
    return LoadReport(
        application_utilization=application_utilization,
        cpu_utilization=0.9,
        mem_utilization=0.8,
        rps_fractional=rate,
        eps=eps,
        named_metrics=dict.fromkeys(NAMED_METRICS, 1.5),
        utilization={"disk": 0.5},
    )


CPU_AND_RATE = ("rps_fractional", "cpu_utilization")
# Each with a weight of its own, as rate / (utilization + penalty * eps / rate), in whole numbers.
CASES: dict[str, tuple[bytes, int]] = {
    "text": (lines(full(100, 0.5))[Format.TEXT], 200),
    "text for older Envoys": (lines(full(100, 0.4), separator=":")[Format.TEXT], 250),
    "json": (lines(full(99, 0.33))[Format.JSON], 300),
    "bin": (lines(full(100, 0.25))[Format.BIN], 400),
    "errors": (lines(full(100, 0.1, eps=5.0))[Format.TEXT], 500),
    "errors in bin": (lines(full(120, 0.1, eps=6.0))[Format.BIN], 600),
    "cpu alone": (lines(full(630, 0.1), fields=CPU_AND_RATE)[Format.TEXT], 700),
    "cpu alone in json": (lines(full(720, 0.1), fields=CPU_AND_RATE)[Format.JSON], 800),
    "above full use": (lines(full(1900, 19.0))[Format.TEXT], 100),
    "idle": (lines(LoadReport(rps_fractional=0.2))[Format.TEXT], 2000),
}


class Node:
    """A backend that attaches a header line, given as the report cell holds it, to every response."""

    def __init__(self, line: bytes) -> None:
        name, value = line.decode().removesuffix("\r\n").split(": ", 1)
        self.headers = {name: value}
        self.requests = 0
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        return web.Response(text="ok", headers=self.headers)

    async def start(self, stack: AsyncExitStack) -> None:
        runner = web.ServerRunner(web.Server(self.handle))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]


Lab = tuple[Envoy, dict[str, Node]]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        nodes = {name: Node(line) for name, (line, _) in CASES.items()}
        for node in nodes.values():
            await node.start(stack)
        hosts = [("127.0.0.1", node.port) for node in nodes.values()]
        envoy = await stack.enter_async_context(running_envoy(tmp_path, hosts, policy=POLICY))
        yield envoy, nodes


async def send(envoy: Envoy, requests: int) -> None:
    async def one() -> None:
        async with envoy.session.get(envoy.url) as response:
            assert response.status == 200
            await response.read()

    for _ in range(requests // 10):
        await asyncio.gather(*(one() for _ in range(10)))


async def test_every_format_and_field_becomes_the_weight_that_was_computed(lab: Lab) -> None:
    envoy, nodes = lab
    expected = {node.port: CASES[name][1] for name, node in nodes.items()}
    seen: dict[int, int] = {}

    async def settled() -> bool:
        await send(envoy, 50)
        seen.update(await envoy.weights())
        return seen == expected

    await eventually(settled, lambda: {name: seen[node.port] for name, node in nodes.items()})
    for node in nodes.values():
        node.requests = 0
    total = sum(expected.values()) // 10 * 10
    await send(envoy, total)
    shares = {name: node.requests / total for name, node in nodes.items()}
    for name, (_, weight) in CASES.items():
        assert shares[name] == pytest.approx(weight / sum(expected.values()), rel=0.1), name


async def test_a_named_metric_can_be_what_is_balanced_by(tmp_path: Path) -> None:
    line = lines(LoadReport(0.5, 0.5, 0.5, 100.0, 0.0, {"inflight_share": 0.2}))[Format.TEXT]
    policy = {**POLICY, "metric_names_for_computing_utilization": ["named_metrics.inflight_share"]}
    async with AsyncExitStack() as stack:
        node = Node(line)
        await node.start(stack)
        hosts = [("127.0.0.1", node.port)]
        envoy = await stack.enter_async_context(running_envoy(tmp_path, hosts, policy=policy))

        async def settled() -> bool:
            await send(envoy, 10)
            return await envoy.weights() == {node.port: 500}

        await eventually(settled, lambda: "the weight is not rate / inflight_share")
