"""`orca-sidecar demo`: watch load move away from a busy API server, on one machine, in half a minute."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop

from .load import OpenLoop
from .measure import Snapshot, Summary, summarize
from .processes import StartupError
from .table import LiveTable, render
from .topology import LOOPBACK, Topology

BACKGROUND = {"cp-1": 0.6, "cp-2": 0.1, "cp-3": 0.1}
HOT = "cp-1"
OPT_IN = {"endpoint-load-metrics-request": "TEXT"}
REPORT_HEADERS = ("endpoint-load-metrics", "endpoint-load-metrics-bin", "endpoint-load-metrics-json")

ROUND_ROBIN = "round robin: Envoy asks for no report"
WEIGHTED = "weighted: Envoy asks for the load report"

EXIT_OK = 0
EXIT_NOT_SHOWN = 1
"""Everything ran, and what the demo is there to show did not happen."""
EXIT_START = 4
EXIT_INTERRUPTED = 130

INTERVAL = 0.5
"""Seconds between two readings."""
SHOWN = 4
"""Readings that the live table looks back."""
KEPT = 20
"""Readings that the summary looks back after --keep-running."""


class InterruptedRunError(Exception):
    """A signal came before there was anything to sum up."""


@dataclass(frozen=True)
class Result:
    before: Summary
    after: Summary
    report_to_client: str | None
    report_to_envoy: str | None

    def problems(self) -> list[str]:
        """What should have been seen and was not."""
        found = []
        if not self.after.share[HOT] < self.before.share[HOT]:
            found.append(f"the share of {HOT}, the busy node, did not fall")
        if self.report_to_client is not None:
            found.append("a load report reached a client behind Envoy")
        if self.report_to_envoy is None:
            found.append("the sidecar's answer to Envoy's certificate carried no load report")
        return found


def least_possible(summary: Summary) -> float:
    """The least max/mean of the same work: no balancer takes a node below its background load."""
    mean = sum(summary.utilization.values()) / len(summary.utilization)
    return max(1.0, max(BACKGROUND.values()) / mean) if mean else 1.0


class Demo:
    """One run over a topology that is up."""

    def __init__(self, topology: Topology, seconds: float, rate: float, stop: asyncio.Event) -> None:
        self._topology = topology
        self._seconds = seconds
        self._rate = rate
        self._stop = stop
        self._table = LiveTable(sys.stdout)
        self._readings: deque[Snapshot] = deque(maxlen=KEPT + 1)
        self._started = 0.0

    async def run(self, keep_running: bool) -> Result:
        """Round robin for a third of the time, then the report; the result compares that third with the last
        one.

        Raises InterruptedRunError, and aiohttp.ClientError if Envoy or a sidecar is gone.
        """
        third = self._seconds / 3
        warm_up = min(1.0, third / 3)
        self._started = time.monotonic()
        load = OpenLoop(self._topology.client, self._topology.url, self._rate)
        driver = asyncio.create_task(load.run())
        try:
            # The first moments open connections; that is not what either phase is about.
            await self._watch(warm_up, ROUND_ROBIN)
            first = await self._read()
            await self._watch(third - warm_up, ROUND_ROBIN)
            switched = await self._read()
            await self._topology.envoy.set_opt_in(True)
            await self._watch(third, WEIGHTED)
            settled = await self._read()
            await self._watch(third, WEIGHTED)
            last = await self._read()
            if self._stop.is_set():
                raise InterruptedRunError
            if keep_running:
                await self._watch(math.inf, f"{WEIGHTED} (Ctrl-C ends)")
                last = await self._read()
                settled = next(reading for reading in self._readings if reading.at >= settled.at)
            to_client, to_envoy = await self._reports()
        finally:
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
        print(f"\n{load.sent} requests, {load.failed} failed, {_percentiles(load.latencies)}")
        return Result(summarize(first, switched), summarize(settled, last), to_client, to_envoy)

    async def _watch(self, seconds: float, title: str) -> None:
        """Take readings and show them for a while, or until a signal says to stop."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), min(INTERVAL, end - loop.time()))
            except TimeoutError:
                latest = await self._read()
                earlier = self._readings[max(0, len(self._readings) - 1 - SHOWN)]
                if earlier is not latest:
                    self._table.show(
                        summarize(earlier, latest), f"{latest.at - self._started:4.0f} s  {title}"
                    )

    async def _read(self) -> Snapshot:
        snapshot = await self._topology.snapshot()
        self._readings.append(snapshot)
        return snapshot

    async def _reports(self) -> tuple[str | None, str | None]:
        """The load report that a client behind Envoy sees though it asks for one, and the one that Envoy
        sees.
        """
        topology = self._topology
        path = "/api/v1/namespaces/default/configmaps/settings"
        async with topology.client.get(topology.url + path, headers=OPT_IN) as response:
            to_client = _report(response.headers)
        url = f"https://{LOOPBACK}:{topology.nodes[0].port}{path}"
        async with (
            topology.session("load-balancer") as as_envoy,
            as_envoy.get(url, headers=OPT_IN, server_hostname="kubernetes") as response,
        ):
            return to_client, _report(response.headers)


def _report(headers: Mapping[str, str]) -> str | None:
    return next((headers[name] for name in REPORT_HEADERS if name in headers), None)


def _percentiles(latencies: Sequence[float]) -> str:
    if not latencies:
        return "no answer"
    ordered = sorted(latencies)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return f"latency p50 {p50:.0f} ms, p99 {p99:.0f} ms"


def _print_summary(result: Result) -> None:
    print()
    print("\n".join(render(result.before, f"before: {ROUND_ROBIN}")))
    print()
    print("\n".join(render(result.after, f"after: {WEIGHTED}")))
    best = least_possible(result.after)
    print(f"  the least possible, as background load does not move: {best:.2f}")
    print()
    print(f"  report seen by Envoy:  {result.report_to_envoy or 'none'}")
    print(f"  report seen by client: {result.report_to_client or 'none'}")
    print()


async def _main(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orca-sidecar-demo-")))
        print("starting three stand-in API servers, three sidecars and Envoy …", flush=True)
        try:
            topology = await stack.enter_async_context(Topology(folder, BACKGROUND))
        except (StartupError, OSError) as error:
            return _fail(str(error), EXIT_START)
        print(f"Envoy: {topology.url} (admin {topology.envoy_admin_url}); logs and configurations: {folder}")
        background = ", ".join(f"{name} {share:.0%}" for name, share in BACKGROUND.items())
        print(f"{options.rate:g} requests/s; background load {background}\n", flush=True)
        try:
            result = await Demo(topology, options.seconds, options.rate, stop).run(options.keep_running)
        except InterruptedRunError:
            return _fail("interrupted", EXIT_INTERRUPTED)
        except (aiohttp.ClientError, TimeoutError) as error:
            return _fail("\n".join([f"a part is gone: {error!r}", *topology.obituaries()]), EXIT_NOT_SHOWN)
    _print_summary(result)
    problems = result.problems()
    if problems:
        _fail("; ".join(problems), EXIT_NOT_SHOWN)
    print(json.dumps({"before": result.before.to_json(), "after": result.after.to_json()}), flush=True)
    return EXIT_NOT_SHOWN if problems else EXIT_OK


def _fail(message: str, code: int) -> int:
    print(f"orca-sidecar demo: {message}", file=sys.stderr, flush=True)
    return code


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above zero, not {text}")
    return value


def main(argv: Sequence[str]) -> int:
    """Run the demo. Exit codes: 0; 1 (ran, and did not show it); 2 usage; 4 (a part did not come up); 130."""
    parser = argparse.ArgumentParser(prog="orca-sidecar demo", description=__doc__)
    parser.add_argument("--seconds", type=_positive, default=30.0, help="length of the run (default 30)")
    parser.add_argument("--rate", type=_positive, default=150.0, help="requests per second (default 150)")
    parser.add_argument("--keep-running", action="store_true", help="stay until Ctrl-C")
    options = parser.parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(options))
