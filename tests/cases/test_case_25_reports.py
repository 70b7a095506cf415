"""Load reports at the edges: the first request, an idle node, an upstream that is down, a sample that is old."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from orca_sidecar import metrics
from orca_sidecar.core.load_report import Format
from tests.integration.proxy_harness import Upstream, Wire, echo_ok, proxy, request, response
from tests.support.sidecar import Identities, running

ASKING = request(b"/api/v1/nodes", b"Endpoint-Load-Metrics-Request: TEXT")
REPORT = b"endpoint-load-metrics: TEXT cpu_utilization=0.5, rps_fractional=1.0\r\n"
FIGURE = re.compile(r"[a-z_.]+=[0-9]+\.[0-9]+")


def reports(head: bytes) -> list[bytes]:
    return [line for line in head.split(b"\r\n") if line.lower().startswith(b"endpoint-load-metrics")]


async def test_case_25_a_and_b_the_first_request_and_an_idle_node(
    identities: Identities, tmp_path: Path
) -> None:
    """No report or a good one: finite figures, and above zero those that Envoy divides by."""
    upstream = Upstream(identities.server_context(), echo_ok)
    upstream.start()
    try:
        async with running(identities.configuration(upstream.port), tmp_path) as sidecar:
            await sidecar.until(lambda: sidecar.admin("/livez")[0] == 200)
            client = await Wire.connect(sidecar.port, identities.client_context(identities.reporter))
            seen = 0
            for number in range(200):
                await client.send(ASKING)
                lines = reports((await client.message(b"GET"))[0])
                assert len(lines) <= 1
                for line in lines:
                    kind, _, figures = line.decode().partition(": ")[2].partition(" ")
                    assert kind == "TEXT"
                    assert all(FIGURE.fullmatch(figure) for figure in figures.split(", ")), figures
                    values = {
                        name: float(value) for name, value in (f.split("=") for f in figures.split(", "))
                    }
                    assert values["rps_fractional"] > 0
                    assert values["application_utilization"] > 0
                    assert values["cpu_utilization"] > 0
                    seen += 1
                if number == 10:
                    await sidecar.until(lambda: '"loadReport": null' not in sidecar.admin("/statusz")[1])
            assert seen > 100
            await client.close()
    finally:
        await upstream.stop()


@pytest.mark.parametrize("failure", ["refused", "closes", "malformed"])
async def test_case_25_c_the_proxys_own_errors_carry_no_report(
    identities: Identities, tmp_path: Path, failure: str
) -> None:
    async def script(wire: Wire) -> None:
        await wire.message()
        if failure == "malformed":
            await wire.send(b"nonsense\r\n\r\n")
        wire.cut()

    async with proxy(identities, tmp_path, script) as it:
        it.shared.report.publish({Format.TEXT: REPORT}, time.monotonic_ns())
        if failure == "refused":
            await it.upstream.pause()
            it.upstream.sock.close()
        client = await it.connect(identities.balancer)
        for _ in range(20):
            await client.send(ASKING)
            head, _ = await client.message(b"GET")
            assert head.split(b" ")[1] in (b"502", b"503")
            assert reports(head) == []
        # They count as errors of a balanced node, though.
        assert it.cells[metrics.LOAD_BALANCED_ERRORS.offset] == 20


async def test_case_25_d_a_stale_report_is_not_sent(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path, echo_ok) as it:
        client = await it.connect(identities.reporter)
        for age, expected in ((0.0, 1), (0.5, 1), (1.5, 0), (3600.0, 0)):
            it.shared.report.publish({Format.TEXT: REPORT}, time.monotonic_ns() - int(age * 1e9))
            await client.send(ASKING)
            assert len(reports((await client.message(b"GET"))[0])) == expected, age
        it.shared.report.publish({Format.TEXT: REPORT}, time.monotonic_ns())
        it.shared.report.withdraw()
        await client.send(ASKING)
        assert reports((await client.message(b"GET"))[0]) == []
        assert it.count(metrics.LOAD_REPORT_REFUSALS, "unavailable") == 3


async def test_case_25_an_upstreams_own_report_never_passes(identities: Identities, tmp_path: Path) -> None:
    async with proxy(identities, tmp_path) as it:
        client = await it.connect(identities.reporter)
        await client.send(ASKING)
        upstream = await it.upstream.next()
        await upstream.message()
        await upstream.send(
            response(b"ok", b"200 OK", REPORT.strip(), b"endpoint-load-metrics-bin: CgYKBA==")
        )
        assert reports((await client.message(b"GET"))[0]) == []
        it.shared.report.publish({Format.TEXT: REPORT}, time.monotonic_ns())
        await client.send(ASKING)
        await upstream.message()
        await upstream.send(response(b"ok", b"200 OK", b"Endpoint-Load-Metrics: TEXT cpu_utilization=9"))
        assert reports((await client.message(b"GET"))[0]) == [REPORT.strip()]
