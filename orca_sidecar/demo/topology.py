"""Everything the demo runs, on loopback: stand-in API servers, a sidecar in front of each, and one Envoy."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import yaml

from .cgroup import make_root
from .envoy import EnvoyAdmin, bootstrap, envoy_binary
from .measure import Reading, Snapshot
from .pki import LOAD_BALANCER_NAME, write_pki
from .processes import Child, free_ports
from .standin import Capacity, StandIn, server_context

LOOPBACK = "127.0.0.1"
START_TIMEOUT = 20.0
SIDECAR_COMMAND = (
    sys.executable,
    "-c",
    "import sys; from orca_sidecar.cli import main; sys.exit(main())",
    "run",
)
"""The `orca-sidecar run` of this very installation."""


@dataclass(frozen=True)
class Node:
    """One control-plane node."""

    stand_in: StandIn
    port: int
    """The sidecar's, which Envoy dials."""
    admin_port: int

    @property
    def name(self) -> str:
        return self.stand_in.name


class Topology:
    """The running parts; an async context manager that stops what it started, in reverse.

    `background` maps node names to the share of their cores that background load takes. Entering raises
    StartupError if a part does not come up, and FileNotFoundError if Envoy is not installed.
    """

    def __init__(
        self,
        folder: Path,
        background: Mapping[str, float],
        *,
        capacity: Capacity | None = None,
        sidecar_command: Sequence[str] = SIDECAR_COMMAND,
    ) -> None:
        self.nodes: list[Node] = []
        self.pki = folder / "pki"
        self._folder = folder
        self._background = background
        self._capacity = capacity or Capacity()
        self._sidecar_command = sidecar_command
        self._stack = AsyncExitStack()
        self._children: list[Child] = []

    async def __aenter__(self) -> Topology:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        envoy = envoy_binary()
        await asyncio.to_thread(write_pki, self.pki)
        make_root(self._folder / "cgroup")
        # Admin ports, plain HTTP.
        self._plain = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.client = await self._stack.enter_async_context(self.session())
        ports = iter(free_ports(2 * len(self._background) + 2))
        for seed, (name, background) in enumerate(self._background.items()):
            stand_in = StandIn(
                name,
                self._capacity,
                server_context(self.pki / "apiserver.crt", self.pki / "apiserver.key"),
                self._folder / "cgroup",
                background=background,
                seed=seed,
            )
            await stand_in.start()
            self._stack.push_async_callback(stand_in.stop)
            self.nodes.append(Node(stand_in, next(ports), next(ports)))
        envoy_address, admin_address = (LOOPBACK, next(ports)), (LOOPBACK, next(ports))
        self.url = f"https://{LOOPBACK}:{envoy_address[1]}"
        self.envoy_admin_url = f"http://{LOOPBACK}:{admin_address[1]}"
        self.envoy = EnvoyAdmin(admin_address, self._plain)

        sidecars = [await self._start_sidecar(node) for node in self.nodes]
        for node, sidecar in zip(self.nodes, sidecars, strict=True):
            url = f"http://{LOOPBACK}:{node.admin_port}/readyz"
            await sidecar.ready_when(lambda url=url: self._answers(url), START_TIMEOUT)  # type: ignore[misc]

        config = bootstrap(
            pki=self.pki,
            listener=envoy_address,
            admin=admin_address,
            nodes=[(LOOPBACK, node.port) for node in self.nodes],
            opt_in=False,
        )
        config_file = self._write("envoy.yaml", config)
        # One worker: every worker keeps a schedule of its own, and one is plenty here.
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        child = await self._start_child("envoy", [str(envoy), "-c", str(config_file), *options])
        await child.ready_when(self._envoy_is_ready, START_TIMEOUT)

    def session(self, certificate: str | None = None) -> aiohttp.ClientSession:
        """A client that trusts the demo's CA and presents `certificate`, one of the PKI, if given."""
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        if certificate is not None:
            context.load_cert_chain(self.pki / f"{certificate}.crt", self.pki / f"{certificate}.key")
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0))

    async def snapshot(self) -> Snapshot:
        """The counters of all nodes now. Raises aiohttp.ClientError if Envoy is gone."""
        hosts = await self.envoy.hosts()
        return Snapshot(
            time.monotonic(),
            {
                node.name: Reading(
                    requests=hosts[node.port].requests,
                    cpu_seconds=node.stand_in.cpu_seconds(),
                    weight=hosts[node.port].weight,
                    cores=node.stand_in.capacity.cores,
                )
                for node in self.nodes
            },
        )

    def obituaries(self) -> list[str]:
        """What the children that ended by themselves said last."""
        return [
            f"{child.name} ended with exit code {child.exit_code}:\n{child.tail()}"
            for child in self._children
            if child.exit_code is not None
        ]

    async def _start_sidecar(self, node: Node) -> Child:
        config_file = self._write(f"{node.name}.yaml", self._sidecar_config(node))
        return await self._start_child(
            f"sidecar {node.name}", [*self._sidecar_command, "--config", str(config_file)]
        )

    def _sidecar_config(self, node: Node) -> dict[str, Any]:
        def pair(name: str) -> dict[str, str]:
            return {"certFile": str(self.pki / f"{name}.crt"), "keyFile": str(self.pki / f"{name}.key")}

        stand_in = node.stand_in
        return {
            "apiVersion": "orca-sidecar.dev/v1alpha1",
            "kind": "SidecarConfiguration",
            "listener": {
                "address": f"{LOOPBACK}:{node.port}",
                "tls": pair("apiserver"),
                "clientCAFile": str(self.pki / "ca.crt"),
            },
            "upstream": {
                "address": "{}:{}".format(*stand_in.address),
                "tls": {"caFile": str(self.pki / "ca.crt"), "serverName": "kubernetes"},
                "frontProxyClient": pair("front-proxy-client"),
            },
            "frontProxy": {"clientCAFile": str(self.pki / "front-proxy-ca.crt")},
            "loadMetrics": {
                "enabled": True,
                "optIn": {"allowedNames": [LOAD_BALANCER_NAME]},
                "sampler": {
                    "cgroupRoot": str(self._folder / "cgroup"),
                    "target": {"cgroup": f"{stand_in.name}/run-*"},
                    "node": False,  # this machine is not the modelled node
                },
            },
            "admin": {"address": f"{LOOPBACK}:{node.admin_port}"},
            "shutdown": {"delay": "0s", "gracePeriod": "2s"},
        }

    def _write(self, name: str, config: Mapping[str, Any]) -> Path:
        path = self._folder / name
        path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        return path

    async def _start_child(self, name: str, command: Sequence[str]) -> Child:
        child = await Child.start(name, command, self._folder / f"{name.replace(' ', '-')}.log")
        self._stack.push_async_callback(child.stop)
        self._children.append(child)
        return child

    async def _answers(self, url: str) -> bool:
        try:
            async with self._plain.get(url, timeout=aiohttp.ClientTimeout(1.0)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _envoy_is_ready(self) -> bool:
        if not await self._answers(f"{self.envoy_admin_url}/ready"):
            return False
        return all(host.healthy for host in (await self.envoy.hosts()).values())
