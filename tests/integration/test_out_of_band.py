"""The out-of-band service with a real Envoy as its subscriber: weights without any traffic, over mutual TLS.

Envoy's OOB port is one for all hosts of a cluster, so each node here has a loopback address of its own.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orca_sidecar.core.identity import IdentityRules
from orca_sidecar.core.load_report import LoadReport
from orca_sidecar.core.report_encoding import encode_bin
from orca_sidecar.demo.processes import free_ports
from orca_sidecar.publish.credentials import CredentialFiles
from orca_sidecar.publish.oob_grpc import OutOfBandServer
from orca_sidecar.settings.load_metrics import OutOfBandSettings
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust.store import TrustStore
from tests.integration.balancer import Envoy, eventually, running_envoy
from tests.pki import SERVER, Authority, Pki

HOSTS = ("127.0.0.1", "127.0.0.2")
PERIOD = 0.2


@dataclass
class Node:
    """A sidecar's out-of-band side; `utilization` None withdraws its report."""

    host: str
    port: int
    credentials: CredentialFiles
    trust: TrustStore
    utilization: float | None
    server: OutOfBandServer | None = None

    async def start(self) -> None:
        settings = OutOfBandSettings.model_validate({"address": f"{self.host}:{self.port}"})
        self.server = OutOfBandServer(settings, self.credentials, self.trust.judge, self.report)
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()

    def report(self, now_ns: int) -> bytes:
        if self.utilization is None:
            return b""
        return encode_bin(LoadReport(application_utilization=self.utilization, rps_fractional=100))

    @property
    def streams(self) -> int:
        return self.server.streams if self.server else 0


@dataclass
class Lab:
    pki: Pki
    ca: Authority
    front_proxy_ca: Authority
    configuration: SidecarConfiguration
    nodes: list[Node] = field(default_factory=list)

    @asynccontextmanager
    async def envoy(self, name: str = "envoy") -> AsyncIterator[Envoy]:
        """An Envoy whose certificate, of the front-proxy CA, has this CN."""
        policy: dict[str, Any] = {
            "enable_oob_load_report": True,
            "oob_reporting_period": f"{PERIOD}s",
            "oob_reporting_config": {"port_value": self.nodes[0].port},
            "weight_update_period": "0.1s",
            "blackout_period": "0.1s",
            "weight_expiration_period": "60s",
        }
        # Nothing listens on the hosts' own ports: the weights come without a single request.
        hosts = [(node.host, port) for node, port in zip(self.nodes, free_ports(2), strict=True)]
        certificate = self.pki.leaf(self.front_proxy_ca, cn=name)
        async with running_envoy(
            self.pki.folder, hosts, policy=policy, client=certificate, ca_file=self.ca.cert_file
        ) as envoy:
            yield envoy


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    pki = Pki(tmp_path)
    ca, front_proxy_ca = pki.ca("ca"), pki.ca("front-proxy-ca")
    leaf = pki.leaf(ca, cn="apiserver", eku=SERVER, san=["kubernetes"])
    configuration = SidecarConfiguration.model_validate(
        {
            "apiVersion": "orca-sidecar.dev/v1alpha1",
            "kind": "SidecarConfiguration",
            "listener": {
                "tls": {"certFile": str(leaf.cert_file), "keyFile": str(leaf.key_file)},
                "clientCAFile": str(ca.cert_file),
            },
            "upstream": {"tls": {"caFile": str(ca.cert_file)}},
            "frontProxy": {"clientCAFile": str(front_proxy_ca.cert_file)},
            "loadMetrics": {"enabled": True, "optIn": {"allowedNames": ["envoy"]}},
        }
    )
    lab = Lab(pki, ca, front_proxy_ca, configuration)
    proxy = configuration.front_proxy
    rules = IdentityRules(
        proxy.username_headers, proxy.group_headers, proxy.uid_headers, proxy.extra_headers_prefix
    )
    trust = TrustStore.from_configuration(configuration, rules)
    credentials = CredentialFiles(leaf.cert_file, leaf.key_file, front_proxy_ca.cert_file)
    (port,) = free_ports(1)
    async with AsyncExitStack() as stack:
        for host, utilization in zip(HOSTS, (0.3, 0.9), strict=True):
            node = Node(host, port, credentials, trust, utilization)
            await node.start()
            stack.push_async_callback(node.stop)
            lab.nodes.append(node)
        yield lab


async def wait_for_weights(envoy: Envoy, expected: Sequence[int]) -> None:
    seen: list[int] = []

    async def settled() -> bool:
        seen[:] = sorted((await envoy.weights()).values(), reverse=True)
        return seen == list(expected)

    await eventually(settled, lambda: seen)


async def wait_for_statistic(envoy: Envoy, name: str, at_least: int) -> None:
    seen: dict[str, int] = {}

    async def reached() -> bool:
        seen.update(await envoy.out_of_band())
        return seen[name] >= at_least

    await eventually(reached, lambda: seen)


async def test_weights_come_without_traffic_and_no_report_is_an_error(lab: Lab) -> None:
    async with lab.envoy() as envoy:
        await wait_for_weights(envoy, [333, 111])
        await wait_for_statistic(envoy, "reports_received", 20)
        statistics = await envoy.out_of_band()
        assert statistics["report_errors"] == 0
        assert statistics["stream_failures"] == 0
        assert [node.streams for node in lab.nodes] == [1, 1]
        lab.nodes[1].utilization = 0.2
        await wait_for_weights(envoy, [500, 333])


async def test_an_idle_nodes_report_is_taken(lab: Lab) -> None:
    """The smallest report that is made: a utilization that would be written as zero."""
    lab.nodes[0].utilization = 0.0
    async with lab.envoy() as envoy:
        await wait_for_weights(envoy, [1_000_000, 111])
        assert (await envoy.out_of_band())["report_errors"] == 0


async def test_envoy_leaves_a_draining_node_and_comes_back_to_its_successor(lab: Lab) -> None:
    async with lab.envoy() as envoy:
        await wait_for_weights(envoy, [333, 111])
        node, other = lab.nodes
        await node.stop()
        assert node.streams == 0
        await wait_for_statistic(envoy, "stream_failures", 1)
        assert (await envoy.out_of_band())["stream_terminated"] == 0  # that one would be for good
        assert other.streams == 1
        node.utilization = 0.1
        await node.start()
        await wait_for_weights(envoy, [1000, 111])
        assert node.streams == 1


async def test_a_silent_node_is_dialled_again_and_keeps_its_last_weight(lab: Lab) -> None:
    async with lab.envoy() as envoy:
        await wait_for_weights(envoy, [333, 111])
        node = lab.nodes[0]
        node.utilization = None
        await wait_for_statistic(envoy, "stream_failures", 1)
        assert sorted((await envoy.weights()).values()) == [111, 333]
        node.utilization = 0.5
        await wait_for_weights(envoy, [200, 111])
        assert (await envoy.out_of_band())["report_errors"] == 0


async def test_case_5_a_name_that_may_not_ask_gets_no_report(lab: Lab) -> None:
    async with lab.envoy("somebody") as envoy:
        await wait_for_statistic(envoy, "stream_failures", 4)
        statistics = await envoy.out_of_band()
        assert statistics["reports_received"] == 0
        assert set((await envoy.weights()).values()) == {1}
