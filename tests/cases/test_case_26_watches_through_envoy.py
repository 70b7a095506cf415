"""1,500 concurrent watches through one real Envoy with the shipped configuration."""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import yaml

from orca_sidecar.demo.envoy import bootstrap, envoy_binary
from orca_sidecar.demo.processes import Child
from tests.integration.proxy_harness import Upstream, Wire, eventually, request
from tests.support.sidecar import Identities, free_port, running

WATCHES = 1500
AT_ONCE = 50


def envoys_pki(identities: Identities, folder: Path) -> Path:
    """The files that the shipped configuration names."""
    folder.mkdir()
    for name, credential in {
        "ca": identities.ca,
        "apiserver-lb": identities.apiserver,
        "load-balancer": identities.reporter,
        "front-proxy-ca": identities.front_proxy_ca,
    }.items():
        shutil.copy(credential.cert_file, folder / f"{name}.crt")
        shutil.copy(credential.key_file, folder / f"{name}.key")
    return folder


async def test_case_26_none_is_refused_and_none_starves(identities: Identities, tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    watching: list[Wire] = []

    async def script(wire: Wire) -> None:
        while True:
            head = await wire.head()
            if b"watch=true" not in head:
                await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                continue
            number = re.search(rb"/ns-(\d+)/", head)
            assert number
            await wire.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                % (len(number[1]), number[1])
            )
            watching.append(wire)
            await wire.gone()

    async with AsyncExitStack() as stack:
        upstream = Upstream(identities.server_context(), script)
        upstream.start()
        stack.push_async_callback(upstream.stop)
        settings = identities.configuration(upstream.port, listener={"maxConnections": 20_000})
        sidecar = await stack.enter_async_context(running(settings, tmp_path))
        await sidecar.ready()
        port, admin_port = free_port(), free_port()
        config = bootstrap(
            pki=envoys_pki(identities, tmp_path / "envoy-pki"),
            listener=("127.0.0.1", port),
            admin=("127.0.0.1", admin_port),
            nodes=[("127.0.0.1", sidecar.port)],
        )
        (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(config))
        command = [
            str(envoy_binary()),
            "-c",
            str(tmp_path / "envoy.yaml"),
            "--concurrency",
            "1",
            "--disable-hot-restart",
        ]
        envoy = await Child.start("envoy", [*command, "--log-level", "warning"], tmp_path / "envoy.log")
        stack.push_async_callback(envoy.stop)
        context = identities.client_context()

        async def answers() -> bool:
            try:
                client = await Wire.connect(port, context)
                await client.send(request(b"/healthz"))
                head, _ = await client.message(b"GET")
                client.sock.close()
                return b" 200 " in head
            except (ConnectionError, EOFError):
                return False

        await envoy.ready_when(answers, 20.0)
        slots = asyncio.Semaphore(AT_ONCE)
        clients: dict[int, Wire] = {}

        async def watch(number: int) -> None:
            async with slots:
                client = clients[number] = await Wire.connect(port, context)
                stack.callback(client.sock.close)
                await client.send(request(b"/api/v1/namespaces/ns-%d/pods?watch=true" % number))
                assert (await client.head()).startswith(b"HTTP/1.1 200 ")
                await client.until(b"%d\r\n" % number)

        await asyncio.gather(*(watch(number) for number in range(WATCHES)))
        await eventually(lambda: len(watching) == WATCHES)
        # All are open at once, and each gets its event; a request besides them is answered.
        assert sidecar.metric("orca_sidecar_requests_in_flight", kind="long_running") == WATCHES
        for wire in watching:
            await wire.send(b"5\r\nevent\r\n")
        await asyncio.gather(*(client.until(b"event\r\n") for client in clients.values()))
        assert await answers()
        assert not upstream.failures
