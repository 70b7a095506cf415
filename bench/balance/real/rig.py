"""Three sidecars on loopback, and one run after another through them: stand-ins, balancers and clients anew
each time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from bench.balance.measures import percentile
from bench.balance.policies import Balancer, Policy, Report
from bench.balance.scenarios import Change, Timeline
from bench.balance.settings import sidecar_load_metrics
from bench.balance.trace import SAMPLE_EVERY, Hop, Kill, Sample, Trace
from bench.balance.workload import Request, requests
from orca_sidecar.demo.pki import write_pki
from orca_sidecar.demo.processes import Child, StartupError, free_ports
from orca_sidecar.demo.standin import Capacity, StandIn, server_context
from orca_sidecar.demo.topology import SIDECAR_COMMAND

from .balancers import LOOPBACK, START_TIMEOUT, Backends, RunningBalancer, start_balancer
from .clients import Clients
from .peer import PrototypeSidecar

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
"""One for each node: Envoy's out-of-band port is the same on all hosts of a cluster."""
_HOP_EVERY = 0.1
_SAMPLE_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class Rig:
    """Use as a context; `rps_scope_all` is the sidecars' setting."""

    def __init__(self, folder: Path, *, rps_scope_all: bool) -> None:
        self._folder = folder
        self._pki = folder / "pki"
        self._cgroups = folder / "cgroup"
        self._rps_scope_all = rps_scope_all
        self._stack = AsyncExitStack()
        self._runs = itertools.count(1)

    async def __aenter__(self) -> Rig:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._folder.mkdir(parents=True)
        await asyncio.to_thread(write_pki, self._pki)
        self._cgroups.mkdir()
        (self._cgroups / "cgroup.controllers").write_text("cpu memory\n")
        self._session = await self._stack.enter_async_context(aiohttp.ClientSession())
        nodes = len(HOSTS)
        port, out_of_band, agent, peer, *rest = free_ports(4 + 2 * nodes)
        self._peer_port = peer
        self._upstream_ports, self._admin_ports = rest[:nodes], rest[nodes:]
        self._backends = Backends(HOSTS, port, out_of_band, agent)
        children = [await self._start_sidecar(number) for number in range(nodes)]
        for child, admin in zip(children, self._admin_ports, strict=True):
            await child.ready_when(lambda admin=admin: self._is_up(admin), START_TIMEOUT)  # type: ignore[misc]

    async def _start_sidecar(self, number: int) -> Child:
        config_file = self._folder / f"sidecar-{number + 1}.yaml"
        config_file.write_text(json.dumps(self._sidecar_configuration(number)))
        command = [*SIDECAR_COMMAND, "--config", str(config_file)]
        child = await Child.start(f"sidecar {number + 1}", command, config_file.with_suffix(".log"))
        self._stack.push_async_callback(child.stop)
        return child

    def _sidecar_configuration(self, number: int) -> dict[str, Any]:
        def pair(name: str) -> dict[str, str]:
            return {"certFile": str(self._pki / f"{name}.crt"), "keyFile": str(self._pki / f"{name}.key")}

        host, backends = HOSTS[number], self._backends
        ca = str(self._pki / "ca.crt")
        return {
            "apiVersion": "orca-sidecar.dev/v1alpha1",
            "kind": "SidecarConfiguration",
            "listener": {
                "address": f"{host}:{backends.port}",
                "tls": pair("apiserver"),
                "clientCAFile": ca,
            },
            "upstream": {
                "address": f"{LOOPBACK}:{self._upstream_ports[number]}",
                "tls": {"caFile": ca, "serverName": "kubernetes"},
                "frontProxyClient": pair("front-proxy-client"),
            },
            "frontProxy": {"clientCAFile": str(self._pki / "front-proxy-ca.crt")},
            "loadMetrics": {
                **sidecar_load_metrics(rps_scope_all=self._rps_scope_all),
                "sampler": {
                    "cgroupRoot": str(self._cgroups),
                    "target": {"cgroup": f"node-{number + 1}-*/run-*"},
                    "node": False,  # this machine is not the modelled node
                },
                "outOfBand": {"enabled": True, "address": f"{host}:{backends.out_of_band_port}"},
                "agentCheck": {"enabled": True, "address": f"{host}:{backends.agent_port}"},
            },
            "admin": {"address": f"{LOOPBACK}:{self._admin_ports[number]}"},
            "shutdown": {"delay": "0s", "gracePeriod": "2s"},
        }

    # -- one run -----------------------------------------------------------------------------------------------

    async def run(self, timeline: Timeline, policy: Policy, seed: int) -> Trace:
        """Raises StartupError, OSError or aiohttp.ClientError where a part does not come up or is gone."""
        number = next(self._runs)
        async with AsyncExitStack() as stack:
            stand_ins = await self._start_stand_ins(timeline, seed, number, stack)
            backends = self._backends
            if policy.report is Report.PROTOTYPE:
                backends = await self._start_peers(stand_ins, stack)
            else:
                await self._wait_for_reports()
            balancers = [
                await start_balancer(
                    policy, backends, self._folder / f"run-{number}-{index}", self._pki, self._session, stack
                )
                for index in range(timeline.balancers)
            ]
            context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
            clients = Clients(
                [balancer.target for balancer in balancers],
                context,
                lifetimes=policy.balancer
                is Balancer.HAPROXY,  # Envoy balances requests, whatever their connection
            )
            stack.callback(clients.close)
            await clients.connect()
            workload = requests(timeline, seed)
            trace = Trace()
            started = asyncio.get_running_loop().time() + 0.1
            async with _in_background(_measure_hops(trace, clients, workload, started)):
                await _drive(timeline, workload, stand_ins, balancers[0], clients, trace, started)
            return trace

    async def _start_stand_ins(
        self, timeline: Timeline, seed: int, run: int, stack: AsyncExitStack
    ) -> list[StandIn]:
        context = server_context(self._pki / "apiserver.crt", self._pki / "apiserver.key")
        works = _works(requests(timeline, seed), timeline)
        stand_ins = []
        for number, node in enumerate(timeline.nodes):
            stand_in = StandIn(
                f"node-{number + 1}-{run}",
                # Each request gets the work that the workload says, in the order of arrival.
                _with_service(node.capacity, works),
                context,
                self._cgroups,
                background=node.background,
                seed=seed * len(timeline.nodes) + number,
            )
            await stand_in.start(LOOPBACK, self._upstream_ports[number])
            stack.push_async_callback(stand_in.stop)
            stand_ins.append(stand_in)
        return stand_ins

    async def _start_peers(self, stand_ins: list[StandIn], stack: AsyncExitStack) -> Backends:
        server = server_context(self._pki / "apiserver.crt", self._pki / "apiserver.key")
        client = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        for host, stand_in in zip(HOSTS, stand_ins, strict=True):
            peer = PrototypeSidecar(stand_in, server, client)
            await peer.start(host, self._peer_port)
            stack.push_async_callback(peer.stop)
        return Backends(HOSTS, self._peer_port, 0, 0)

    async def _wait_for_reports(self) -> None:
        """Until every sidecar measures this run's stand-in."""
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while not all([await self._reports(admin) for admin in self._admin_ports]):
            if asyncio.get_running_loop().time() > deadline:
                raise StartupError("a sidecar did not report within its time")
            await asyncio.sleep(0.1)

    async def _reports(self, admin: int) -> bool:
        return bool((await self._status(admin)).get("loadReport"))

    async def _is_up(self, admin: int) -> bool:
        try:
            return bool(await self._status(admin))
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _status(self, admin: int) -> dict[str, Any]:
        url = f"http://{LOOPBACK}:{admin}/statusz"
        async with self._session.get(url, timeout=aiohttp.ClientTimeout(2.0)) as response:
            status: dict[str, Any] = await response.json(content_type=None)
        return status


def _works(workload: list[Request], timeline: Timeline) -> Iterator[float]:
    """In CPU seconds; a stand-in multiplies a LIST's itself."""
    factor = timeline.nodes[0].capacity.list_work
    return itertools.cycle([request.work / (factor if request.is_list else 1.0) for request in workload])


def _with_service(capacity: Capacity, works: Iterator[float]) -> Capacity:
    def service(_random: Random) -> float:
        return next(works)

    return replace(capacity, service=service)


async def _measure_hops(trace: Trace, clients: Clients, workload: list[Request], started: float) -> None:
    """Ask again and again for something that costs the stand-in nothing, as one client after another; and see
    how much longer than asked for this process sleeps, as the stand-in does for a request's work."""
    for request in itertools.cycle(workload):
        hop = await clients.probe(request)
        slept = time.perf_counter()
        await asyncio.sleep(request.work)
        overslept = time.perf_counter() - slept - request.work
        if hop is not None:
            trace.hops.append(Hop(asyncio.get_running_loop().time() - started, hop + overslept))
        await asyncio.sleep(_HOP_EVERY)


async def _drive(
    timeline: Timeline,
    workload: list[Request],
    stand_ins: list[StandIn],
    balancer: RunningBalancer,
    clients: Clients,
    trace: Trace,
    started: float,
) -> None:
    loop = asyncio.get_running_loop()
    async with _in_background(
        _sample(timeline, trace, stand_ins, balancer, started), _change(timeline, stand_ins, started)
    ):
        names = [stand_in.name for stand_in in stand_ins]
        trace.outcomes = await clients.run(workload, names, started)
        await asyncio.sleep(max(started + timeline.seconds + SAMPLE_EVERY - loop.time(), 0))
    trace.lateness = percentile(sorted(clients.lateness), 0.99)


@contextlib.asynccontextmanager
async def _in_background(*coroutines: Any) -> AsyncIterator[None]:
    """Run these meanwhile; one that fails fails the run at its end."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _sample(
    timeline: Timeline, trace: Trace, stand_ins: list[StandIn], balancer: RunningBalancer, started: float
) -> None:
    loop = asyncio.get_running_loop()
    kills = [0] * len(stand_ins)
    weights = (1.0,) * len(stand_ins)
    for step in range(round(timeline.seconds / SAMPLE_EVERY) + 1):
        await asyncio.sleep(max(started + step * SAMPLE_EVERY - loop.time(), 0))
        now = loop.time() - started
        cpu_seconds = tuple(stand_in.cpu_seconds() for stand_in in stand_ins)
        memory = tuple(_memory_share(stand_in) for stand_in in stand_ins)
        for number, stand_in in enumerate(stand_ins):
            for _ in range(stand_in.totals.oom_kills - kills[number]):
                trace.kills.append(Kill(now, number))
            kills[number] = stand_in.totals.oom_kills
        with contextlib.suppress(*_SAMPLE_ERRORS):
            weights = await balancer.weights()
        trace.samples.append(Sample(now, cpu_seconds, memory, weights))


def _memory_share(stand_in: StandIn) -> float:
    state = stand_in.state()
    return float(str(state["memory"])) / float(str(state["memoryLimit"]))


async def _change(timeline: Timeline, stand_ins: list[StandIn], started: float) -> None:
    loop = asyncio.get_running_loop()
    for change in timeline.changes:
        await asyncio.sleep(max(started + change.at - loop.time(), 0))
        _apply(change, stand_ins[change.node])


def _apply(change: Change, stand_in: StandIn) -> None:
    stand_in.set(background=change.background, speed=change.speed)
    if change.restart:
        stand_in.restart()


def needs_rps_of_all(policy: Policy) -> bool:
    """Which of the two sidecar configurations a policy runs with."""
    return policy.balancer is Balancer.HAPROXY
