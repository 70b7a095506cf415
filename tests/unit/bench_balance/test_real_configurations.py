"""The configurations that the real runs start are ones that the real programs take."""

import asyncio
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from bench.balance.policies import POLICIES, Balancer, Policy
from bench.balance.real.balancers import Backends, envoy_configuration, haproxy_configuration
from bench.balance.real.peer import PrototypeSidecar
from bench.balance.real.rig import HOSTS
from orca_sidecar.demo.envoy import envoy_binary
from orca_sidecar.demo.pki import write_pki
from orca_sidecar.demo.processes import free_ports
from orca_sidecar.demo.standin import Capacity, StandIn, server_context

BACKENDS = Backends(HOSTS, 6444, 6445, 6446)
LISTENER, ADMIN = ("127.0.0.1", 20001), ("127.0.0.1", 20002)
ENVOYS = [policy for policy in POLICIES if policy.balancer is Balancer.ENVOY]
HAPROXIES = [policy for policy in POLICIES if policy.balancer is Balancer.HAPROXY]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    write_pki(folder)
    return folder


@pytest.mark.parametrize("policy", ENVOYS, ids=lambda policy: policy.name)
def test_envoy_takes_it(policy: Policy, pki: Path, tmp_path: Path) -> None:
    config = envoy_configuration(policy, BACKENDS, pki, LISTENER, ADMIN)
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(config))
    command = [str(envoy_binary()), "-c", str(file), "--mode", "validate", "--disable-hot-restart"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    assert policy.algorithm in text
    assert ("enable_oob_load_report" in text) == policy.out_of_band


@pytest.mark.parametrize("policy", HAPROXIES, ids=lambda policy: policy.name)
def test_haproxy_takes_it(policy: Policy, pki: Path, tmp_path: Path) -> None:
    binary = shutil.which("haproxy")
    if binary is None:
        pytest.fail("no haproxy on PATH: install Debian's package haproxy")
    text = haproxy_configuration(policy, BACKENDS, pki, LISTENER, tmp_path / "stats.sock")
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)
    done = subprocess.run(
        [binary, "-c", "-f", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert ("agent-check" in text.split("backend", 1)[1]) == policy.ours
    assert f"balance {policy.algorithm}" in text


async def test_the_peers_answers_carry_its_report_to_whom_asks(pki: Path, tmp_path: Path) -> None:
    context = server_context(pki / "apiserver.crt", pki / "apiserver.key")
    client = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    stand_in = StandIn("node", Capacity(), context, tmp_path / "cgroup", background=0.5)
    peer = PrototypeSidecar(stand_in, context, client)
    (port,) = free_ports(1)
    await stand_in.start()
    await peer.start("127.0.0.1", port)
    try:
        async with aiohttp.ClientSession() as session:

            async def report(headers: dict[str, str]) -> str | None:
                url = f"https://127.0.0.1:{port}/api/v1/namespaces/default/configmaps/x"
                async with session.get(
                    url, headers=headers, ssl=client, server_hostname="kubernetes"
                ) as answer:
                    assert answer.status == 200
                    return answer.headers.get("endpoint-load-metrics")

            asked = {"endpoint-load-metrics-request": "TEXT"}
            async with asyncio.timeout(20):
                while await report(asked) is None:  # noqa: ASYNC110 - it has a clock of its own
                    await asyncio.sleep(0.05)
            line = await report(asked)
            assert line is not None
            assert line.startswith("TEXT cpu_utilization=")
            rate = float(line.rpartition("=")[2])
            assert rate > 50  # the background's requests are counted
            assert await report({}) is None
    finally:
        await peer.stop()
        await stand_in.stop()
