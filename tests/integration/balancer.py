"""A real Envoy whose weights come from load reports, and how its admin port tells them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from orca_sidecar.demo.envoy import EnvoyAdmin, envoy_binary
from orca_sidecar.demo.processes import Child, free_ports
from tests.pki import Credential

CLUSTER = "nodes"
_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_HCM = f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"

Address = tuple[str, int]


@dataclass
class Envoy:
    """A running Envoy: `url` goes through its listener, round robin by the weights it computed."""

    url: str
    session: aiohttp.ClientSession
    admin: EnvoyAdmin
    admin_url: str
    log: Path

    async def weights(self) -> dict[int, int]:
        """The weight in use of every host, by its port."""
        return {port: host.weight for port, host in (await self.admin.hosts(CLUSTER)).items()}

    async def out_of_band(self) -> dict[str, int]:
        """The counters and gauges below `lb_orca_oob`."""
        parameters = {"filter": "lb_orca_oob", "format": "json"}
        async with self.session.get(f"{self.admin_url}/stats", params=parameters) as response:
            stats = json.loads(await response.text())["stats"]
        return {stat["name"].rpartition(".")[2]: stat["value"] for stat in stats if "name" in stat}


async def eventually(
    check: Callable[[], Awaitable[bool]], what: Callable[[], object], within: float = 30
) -> None:
    """Wait until `check` holds; fail with what `what` tells after `within` seconds."""
    try:
        async with asyncio.timeout(within):
            while not await check():  # noqa: ASYNC110 - another program's state
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not so within {within:g} s: {what()}") from None


@asynccontextmanager
async def running_envoy(
    folder: Path,
    hosts: Sequence[Address],
    *,
    policy: Mapping[str, Any],
    client: Credential | None = None,
    ca_file: Path | None = None,
) -> AsyncIterator[Envoy]:
    """Envoy in front of `hosts`, over TLS with `client`'s certificate if `ca_file` is given."""
    port, admin_port = free_ports(2)
    cluster: dict[str, Any] = {
        "name": CLUSTER,
        "type": "STATIC",
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.client_side_weighted_round_robin",
                        "typed_config": {
                            "@type": f"{_EXTENSIONS}.load_balancing_policies.client_side_weighted_round_robin.v3"
                            ".ClientSideWeightedRoundRobin",
                            **policy,
                        },
                    }
                }
            ]
        },
        "load_assignment": {
            "cluster_name": CLUSTER,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": _socket_address(host)}} for host in hosts]}
            ],
        },
    }
    if ca_file is not None and client is not None:
        cluster["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": f"{_EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": "kubernetes",
                "common_tls_context": {
                    "tls_certificates": [
                        {
                            "certificate_chain": {"filename": str(client.cert_file)},
                            "private_key": {"filename": str(client.key_file)},
                        }
                    ],
                    "validation_context": {"trusted_ca": {"filename": str(ca_file)}},
                },
            },
        }
    route = {"match": {"prefix": "/"}, "route": {"cluster": CLUSTER}}
    manager = {
        "@type": _HCM,
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "address": _socket_address(("127.0.0.1", port)),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    bootstrap = {
        "admin": {"address": _socket_address(("127.0.0.1", admin_port))},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }
    config = folder / "envoy.json"
    config.write_text(json.dumps(bootstrap))
    command = [str(envoy_binary()), "-c", str(config), "--use-dynamic-base-id", "--concurrency", "1"]
    child = await Child.start("envoy", command, folder / "envoy.log")
    try:
        async with aiohttp.ClientSession() as session:
            admin_url = f"http://127.0.0.1:{admin_port}"

            async def ready() -> bool:
                try:
                    async with session.get(f"{admin_url}/ready") as response:
                        return response.status == 200
                except aiohttp.ClientError:
                    return False

            await child.ready_when(ready, 30)
            yield Envoy(
                url=f"http://127.0.0.1:{port}",
                session=session,
                admin=EnvoyAdmin(("127.0.0.1", admin_port), session),
                admin_url=admin_url,
                log=child.log,
            )
    finally:
        await child.stop()


def _socket_address(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address[0], "port_value": address[1]}}
