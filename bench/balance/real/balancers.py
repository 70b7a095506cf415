"""The real balancers, from the shipped configurations with other addresses."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from bench.balance.policies import Balancer, Policy, Report
from bench.balance.settings import OUT_OF_BAND_PERIOD, weighted_policy
from orca_sidecar.demo.envoy import Address, bootstrap, envoy_binary
from orca_sidecar.demo.processes import Child, free_ports

from .clients import Target

LOOPBACK = "127.0.0.1"
START_TIMEOUT = 30.0
HAPROXY_CONFIGURATION = Path(__file__).parents[3] / "config" / "haproxy.cfg"
_EXTENSIONS = "type.googleapis.com/envoy.extensions.load_balancing_policies"
_MESSAGES = {"round_robin": "RoundRobin", "random": "Random", "least_request": "LeastRequest"}


@dataclass(frozen=True)
class Backends:
    """Where the balancer finds the nodes: hosts of their own, the same ports on each."""

    hosts: tuple[str, ...]
    port: int
    out_of_band_port: int
    agent_port: int


class RunningBalancer(Protocol):
    target: Target

    async def weights(self) -> tuple[float, ...]:
        """Of the nodes in their order."""


async def start_balancer(
    policy: Policy,
    backends: Backends,
    folder: Path,
    pki: Path,
    session: aiohttp.ClientSession,
    stack: AsyncExitStack,
) -> RunningBalancer:
    """Start one, and wait until it knows every node as healthy; the stack ends it.

    Raises StartupError, or FileNotFoundError where the program is not installed.
    """
    folder.mkdir()
    if policy.balancer is Balancer.ENVOY:
        return await _start_envoy(policy, backends, folder, pki, session, stack)
    return await _start_haproxy(policy, backends, folder, pki, stack)


# -- Envoy ---------------------------------------------------------------------------------------------------


class RunningEnvoy:
    """One worker: every worker keeps a schedule of its own."""

    def __init__(
        self, target: Target, admin: Address, hosts: Sequence[str], session: aiohttp.ClientSession
    ) -> None:
        self.target = target
        self._url = f"http://{admin[0]}:{admin[1]}/clusters"
        self._hosts = hosts
        self._session = session

    async def weights(self) -> tuple[float, ...]:
        statuses = await self._statuses()
        return tuple(float(statuses[host].get("weight", 1)) for host in self._hosts)

    async def all_healthy(self) -> bool:
        try:
            statuses = await self._statuses()
        except (aiohttp.ClientError, TimeoutError):
            return False
        return len(statuses) == len(self._hosts) and not any(
            host["health_status"].get("failed_active_health_check", False) for host in statuses.values()
        )

    async def _statuses(self) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(2.0)
        async with self._session.get(self._url, params={"format": "json"}, timeout=timeout) as response:
            response.raise_for_status()
            (cluster,) = json.loads(await response.text())["cluster_statuses"]
        return {
            host["address"]["socket_address"]["address"]: host for host in cluster.get("host_statuses", ())
        }


async def _start_envoy(
    policy: Policy,
    backends: Backends,
    folder: Path,
    pki: Path,
    session: aiohttp.ClientSession,
    stack: AsyncExitStack,
) -> RunningEnvoy:
    port, admin_port = free_ports(2)
    config = envoy_configuration(policy, backends, pki, (LOOPBACK, port), (LOOPBACK, admin_port))
    config_file = folder / "envoy.json"
    config_file.write_text(json.dumps(config))
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
    command = [str(envoy_binary()), "-c", str(config_file), *options]
    child = await Child.start("envoy", command, folder / "envoy.log")
    stack.push_async_callback(child.stop)
    envoy = RunningEnvoy(Target(LOOPBACK, port, LOOPBACK), (LOOPBACK, admin_port), backends.hosts, session)
    await child.ready_when(envoy.all_healthy, START_TIMEOUT)
    return envoy


def envoy_configuration(
    policy: Policy, backends: Backends, pki: Path, listener: Address, admin: Address
) -> dict[str, Any]:
    """The shipped configuration with the policy's algorithm, reports in band, out of band or not asked for."""
    replaced = None
    if policy.report is Report.NONE:
        message = f"{_EXTENSIONS}.{policy.algorithm}.v3.{_MESSAGES[policy.algorithm]}"
        extension = {
            "name": f"envoy.load_balancing_policies.{policy.algorithm}",
            "typed_config": {"@type": message},
        }
        replaced = {"policies": [{"typed_extension_config": extension}]}
    config = bootstrap(
        pki=pki,
        listener=listener,
        admin=admin,
        nodes=[(host, backends.port) for host in backends.hosts],
        opt_in=policy.report is not Report.NONE and not policy.out_of_band,
        load_balancing_policy=replaced,
    )
    if policy.out_of_band:
        weighted_policy(config).update(
            enable_oob_load_report=True,
            oob_reporting_period=f"{OUT_OF_BAND_PERIOD}s",
            oob_reporting_config={"port_value": backends.out_of_band_port},
        )
    return config


# -- HAProxy -------------------------------------------------------------------------------------------------


class RunningHaproxy:
    def __init__(self, target: Target, socket: Path, nodes: int) -> None:
        self.target = target
        self._socket = socket
        self._nodes = nodes

    async def weights(self) -> tuple[float, ...]:
        servers = await self._servers()
        return tuple(
            float(server["weight"]) if _takes_connections(server["status"]) else 0.0 for server in servers
        )

    async def all_healthy(self) -> bool:
        servers = await self._servers()
        # A check has passed, not only not failed yet.
        return len(servers) == self._nodes and all(
            server["status"] == "UP" and server["check_status"].startswith("L7OK") for server in servers
        )

    async def _servers(self) -> list[dict[str, str]]:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except (FileNotFoundError, ConnectionRefusedError):
            return []
        writer.write(b"show stat\n")
        text = (await reader.read()).decode().removeprefix("# ")
        writer.close()
        rows = csv.DictReader(io.StringIO(text))
        return [row for row in rows if row["svname"].startswith("cp-")]


def _takes_connections(status: str) -> bool:
    return status.startswith(("UP", "no check"))


async def _start_haproxy(
    policy: Policy, backends: Backends, folder: Path, pki: Path, stack: AsyncExitStack
) -> RunningHaproxy:
    binary = shutil.which("haproxy")
    if binary is None:
        raise FileNotFoundError("no haproxy on PATH: install Debian's package haproxy")
    (port,) = free_ports(1)
    socket = folder / "stats.sock"
    config_file = folder / "haproxy.cfg"
    config_file.write_text(haproxy_configuration(policy, backends, pki, (LOOPBACK, port), socket))
    child = await Child.start("haproxy", [binary, "-db", "-f", str(config_file)], folder / "haproxy.log")
    stack.push_async_callback(child.stop)
    haproxy = RunningHaproxy(Target(LOOPBACK, port, "kubernetes"), socket, len(backends.hosts))
    await child.ready_when(haproxy.all_healthy, START_TIMEOUT)
    return haproxy


def haproxy_configuration(
    policy: Policy, backends: Backends, pki: Path, listener: Address, socket: Path
) -> str:
    """The shipped configuration with the policy's algorithm, and without the agent where none is asked.

    Raises ValueError where the shipped file no longer reads as expected.
    """
    text = HAPROXY_CONFIGURATION.read_text()
    replacements = {
        r"/run/haproxy/admin\.sock": str(socket),
        r"/etc/haproxy/pki": str(pki),
        r"bind :6443": f"bind {listener[0]}:{listener[1]}",
        r"balance roundrobin": f"balance {policy.algorithm}",
        r"maxconn 20000": "maxconn 2000",
        r"agent-port 6446": f"agent-port {backends.agent_port}",
    }
    for number, host in enumerate(backends.hosts):
        replacements[rf"10\.0\.0\.1{number + 1}:6444"] = f"{host}:{backends.port}"
    if policy.report is Report.NONE:
        replacements[r"\n *default-server agent-check[^\n]*"] = ""
    for pattern, replacement in replacements.items():
        text, count = re.subn(pattern, replacement.replace("\\", r"\\"), text)
        if not count:
            raise ValueError(f"{HAPROXY_CONFIGURATION} has no {pattern!r}")
    return text
