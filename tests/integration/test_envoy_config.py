"""config/envoy.yaml in a real Envoy: what reaches a sidecar, and what comes back to a client."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import yaml

from orca_sidecar.demo.envoy import PKI_FOLDER, EnvoyAdmin, bootstrap, envoy_binary
from orca_sidecar.demo.pki import write_pki
from orca_sidecar.demo.processes import Child, free_ports

SHIPPED = Path(__file__).parents[2] / "config" / "envoy.yaml"
ORCA_NAMES = (b"endpoint-load-metrics", b"endpoint-load-metrics-bin", b"endpoint-load-metrics-json")


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    write_pki(folder)
    return folder


@dataclass
class Head:
    """A message's head as it was on the wire."""

    raw: bytes

    @property
    def start_line(self) -> bytes:
        return self.raw.split(b"\r\n", 1)[0]

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.raw.split(b"\r\n")[1:]
        return [
            (name.lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines if line)
        ]

    def values(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.fields if found == name]


@dataclass
class Upstream:
    """A TLS server in a sidecar's place: records every request's head, and the certificate it came with.

    It wants a client certificate of the front-proxy CA, answers /readyz with `ready` and anything else with `answer`
    and, if that is a 101, echoes from then on.
    """

    port: int = 0
    ready: bytes = b"200 OK"
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    heads: list[Head] = field(default_factory=list)
    peers: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while raw := await reader.readuntil(b"\r\n\r\n"):
                head = Head(raw[:-4])
                length = int((head.values(b"content-length") or [b"0"])[0])
                await reader.readexactly(length)
                if head.start_line == b"GET /readyz HTTP/1.1":
                    writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % self.ready)
                    continue
                self.heads.append(head)
                subject = writer.get_extra_info("peercert")["subject"]
                self.peers.add(dict(pair for rdn in subject for pair in rdn)["commonName"])
                writer.write(self.answer)
                while self.answer.startswith(b"HTTP/1.1 101") and (data := await reader.read(65536)):
                    writer.write(data)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Front:
    """A running Envoy with the shipped configuration, and the means to talk to it byte by byte."""

    def __init__(self, pki: Path, port: int, admin: EnvoyAdmin) -> None:
        self.admin = admin
        self._pki = pki
        self._port = port

    def context(self, certificate: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        if certificate is not None:
            context.load_cert_chain(self._pki / f"{certificate}.crt", self._pki / f"{certificate}.key")
        return context

    @asynccontextmanager
    async def connection(
        self, certificate: str | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self._port,
            ssl=self.context(certificate),
            server_hostname="localhost",
            limit=1 << 21,
        )
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def request(self, raw: bytes, certificate: str | None = None) -> tuple[Head, bytes]:
        """Send one request; its response's head, and the body by Content-Length."""
        async with asyncio.timeout(20), self.connection(certificate) as (reader, writer):
            writer.write(raw)
            head = Head((await reader.readuntil(b"\r\n\r\n"))[:-4])
            return head, await reader.readexactly(int((head.values(b"content-length") or [b"0"])[0]))


@pytest.fixture
async def front(pki, tmp_path) -> AsyncIterator[Callable]:
    """Starts an Envoy in front of the given upstreams, each on a port of its own."""
    stack = AsyncExitStack()

    async def start(*upstreams: Upstream) -> Front:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        context.load_verify_locations(pki / "front-proxy-ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        for upstream in upstreams:
            server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, ssl=context, limit=1 << 21)
            stack.callback(server.close)
            upstream.port = server.sockets[0].getsockname()[1]
        port, admin_port = free_ports(2)
        config = bootstrap(
            pki=pki,
            listener=("127.0.0.1", port),
            admin=("127.0.0.1", admin_port),
            nodes=[("127.0.0.1", upstream.port) for upstream in upstreams],
        )
        (tmp_path / "envoy.yaml").write_text(yaml.safe_dump(config))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        command = [str(envoy_binary()), "-c", str(tmp_path / "envoy.yaml"), *options]
        child = await Child.start("envoy", command, tmp_path / "envoy.log")
        stack.push_async_callback(child.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        admin = EnvoyAdmin(("127.0.0.1", admin_port), session)

        async def checked() -> bool:
            try:
                hosts = await admin.hosts()
            except aiohttp.ClientError:
                return False
            return all(
                hosts[upstream.port].healthy == (upstream.ready == b"200 OK") for upstream in upstreams
            )

        await child.ready_when(checked, 20.0)
        return Front(pki, port, admin)

    yield start
    await stack.aclose()


def test_envoy_takes_the_shipped_file_without_a_warning(pki, tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(SHIPPED.read_text().replace(PKI_FOLDER, str(pki)))
    command = [str(envoy_binary()), "-c", str(file), "--mode", "validate", "--log-level", "warning"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert f"configuration '{file}' OK" in run.stdout
    assert run.stderr == ""


async def test_no_identity_header_of_a_client_arrives(front):
    upstream = Upstream()
    envoy = await front(upstream)
    forged = [
        b"X-Remote-User: admin",
        b"x-remote-user: admin",
        b"X-REMOTE-USER: admin",
        b"x-ReMoTe-GrOuP: system:masters",
        b"X-Remote-Group: system:masters",
        b"X-Remote-Group: system:masters",
        b"X-Remote-Uid: 0",
        b"X-Remote-Extra-Scopes: all",
        b"X-Remote-Extra-Authentication.Kubernetes.Io%2Fcredential-Id: x",
        b"X-Remote-Anything-Else: x",
        b"X-Remote-: x",
    ]
    kept = [
        b"Authorization: Bearer t0ken",
        b"Impersonate-User: jane",
        b"Impersonate-Group: a",
        b"Impersonate-Group: b",
    ]
    for head in (b"GET /api HTTP/1.1", b"GET /apis HTTP/1.1\r\nConnection: X-Remote-User, close"):
        await envoy.request(b"\r\n".join([head, b"Host: kubernetes", *forged, *kept, b"", b""]))
    assert len(upstream.heads) == 2
    for arrived in upstream.heads:
        assert b"remote-" not in arrived.raw.lower()
        assert b"masters" not in arrived.raw
        assert arrived.values(b"authorization") == [b"Bearer t0ken"]
        assert arrived.values(b"impersonate-user") == [b"jane"]
        assert arrived.values(b"impersonate-group") == [b"a", b"b"]
    assert upstream.peers == {"load-balancer"}


async def test_no_identity_header_arrives_with_an_upgrade(front):
    upstream = Upstream(
        answer=b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    )
    envoy = await front(upstream)
    head, _ = await envoy.request(
        b"POST /api/v1/namespaces/default/pods/p/exec?command=id HTTP/1.1\r\nHost: kubernetes\r\nContent-Length: 0\r\n"
        b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Remote-User: admin\r\nx-remote-group: system:masters\r\n\r\n"
    )
    assert head.start_line == b"HTTP/1.1 101 Switching Protocols"
    assert b"remote-" not in upstream.heads[0].raw.lower()


async def test_every_request_asks_once_and_whatever_the_client_asked_is_dropped(front):
    upstream = Upstream()
    envoy = await front(upstream)
    await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
    await envoy.request(
        b"GET /api HTTP/1.1\r\nHost: kubernetes\r\nEndpoint-Load-Metrics-Request: JSON\r\n"
        b"endpoint-load-metrics-request: TEXT secret=guess\r\n\r\n"
    )
    asked = [head.values(b"endpoint-load-metrics-request") for head in upstream.heads]
    assert asked == [[b"TEXT"], [b"TEXT"]]


async def test_the_switch_stops_asking_and_starts_again(front):
    upstream = Upstream()
    envoy = await front(upstream)
    for on, expected in ((False, []), (True, [b"TEXT"])):
        await envoy.admin.set_opt_in(on)

        async def switched(expected: list[bytes] = expected) -> bool:
            await envoy.request(
                b"GET /api HTTP/1.1\r\nHost: kubernetes\r\nEndpoint-Load-Metrics-Request: TEXT\r\n\r\n"
            )
            return upstream.heads[-1].values(b"endpoint-load-metrics-request") == expected

        await until(switched)  # the change reaches Envoy's worker a moment after the answer


async def test_the_report_sets_the_weight_and_goes_no_further(front):
    """weight = rps_fractional / utilization: the policy reads the report before the route removes it."""
    reports = (
        b"TEXT cpu_utilization=0.3, rps_fractional=100.0",
        b"TEXT cpu_utilization=0.9, rps_fractional=100.0",
    )
    upstreams = [
        Upstream(
            answer=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nEndpoint-Load-Metrics: %s\r\n"
            b"endpoint-load-metrics-json: {}\r\nX-Kept: yes\r\n\r\nok" % report
        )
        for report in reports
    ]
    envoy = await front(*upstreams)

    async def weighted() -> bool:
        head, body = await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        assert body == b"ok"
        assert head.values(b"x-kept") == [b"yes"]
        assert not [name for name, _ in head.fields if name in ORCA_NAMES]
        hosts = await envoy.admin.hosts()
        return [hosts[upstream.port].weight for upstream in upstreams] == [333, 111]

    await until(weighted)


async def test_a_binary_report_is_removed_as_well(front):
    upstream = Upstream(
        answer=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nendpoint-load-metrics-bin: CQAAAAAAAOA/\r\n\r\n"
    )
    envoy = await front(upstream)
    head, _ = await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
    assert not [name for name, _ in head.fields if name in ORCA_NAMES]


async def test_errors_lower_the_weight(front):
    """error_utilization_penalty 1.0: weight = rps / (utilization + eps / rps) = 100 / (0.5 + 0.5)."""
    upstream = Upstream(
        answer=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
        b"endpoint-load-metrics: TEXT cpu_utilization=0.5, rps_fractional=100.0, eps=50.0\r\n\r\n"
    )
    other = Upstream(answer=upstream.answer.replace(b", eps=50.0", b""))
    envoy = await front(upstream, other)

    async def weighted() -> bool:
        await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
        hosts = await envoy.admin.hosts()
        return [hosts[node.port].weight for node in (upstream, other)] == [100, 200]

    await until(weighted)


async def test_requests_and_answers_pass_as_they_are(front):
    upstream = Upstream(
        answer=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nServer: kube\r\nAudit-Id: 1\r\n"
        b"Warning: 299 - a\r\nWarning: 299 - b\r\n\r\n"
    )
    envoy = await front(upstream)
    target = b"/a//b/../c/./%2e%2e/d%2Fe%3A?q=%&labelSelector=a%3Db%2Cc&&x"
    streams = b"".join(
        b"X-Stream-Protocol-Version: v%d.channel.k8s.io\r\n" % version for version in (4, 3, 2, 1)
    )
    head, _ = await envoy.request(
        b"GET %s HTTP/1.1\r\nHost: kubernetes\r\nX-Forwarded-For: 192.0.2.1\r\nX_Under_Score: 1\r\n"
        b"X-Envoy-Retry-On: 5xx\r\nX-Envoy-Upstream-Rq-Timeout-Ms: 1\r\n%s\r\n" % (target, streams)
    )
    (arrived,) = upstream.heads
    assert arrived.start_line == b"GET %s HTTP/1.1" % target
    assert arrived.values(b"x-stream-protocol-version") == [b"v%d.channel.k8s.io" % v for v in (4, 3, 2, 1)]
    (forwarded,) = arrived.values(b"x-forwarded-for")
    assert re.fullmatch(
        rb"192\.0\.2\.1,[0-9.]+", forwarded
    )  # the peer last; for loopback Envoy names its host
    added = {name for name, _ in arrived.fields} - {
        *(b"host", b"x-forwarded-for", b"x_under_score", b"x-stream-protocol-version"),
        *(b"x-forwarded-proto", b"endpoint-load-metrics-request"),
    }
    assert added == set()
    assert [name for name, _ in head.fields if name != b"date"] == [
        *(b"content-length", b"server", b"audit-id", b"warning", b"warning"),
    ]
    assert head.values(b"server") == [b"kube"]


async def test_a_client_cannot_have_a_write_repeated(front):
    """`x-envoy-retry-on` is Envoy's own request header; from a client it must have no effect."""
    upstream = Upstream(answer=b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    envoy = await front(upstream)
    head, _ = await envoy.request(
        b"POST /api HTTP/1.1\r\nHost: kubernetes\r\nContent-Length: 0\r\nx-envoy-retry-on: 5xx\r\n"
        b"x-envoy-max-retries: 5\r\n\r\n"
    )
    assert head.start_line == b"HTTP/1.1 503 Service Unavailable"
    assert len(upstream.heads) == 1


async def test_heads_up_to_the_sidecars_limit_pass(front):
    upstream = Upstream()
    envoy = await front(upstream)
    groups = b"".join(b"Impersonate-Group: %s-%d\r\n" % (b"g" * 200, number) for number in range(3000))
    head, _ = await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n%s\r\n" % groups)
    assert head.start_line == b"HTTP/1.1 200 OK"
    assert len(upstream.heads[0].values(b"impersonate-group")) == 3000
    head, _ = await envoy.request(
        b"GET /api HTTP/1.1\r\nHost: kubernetes\r\nX: %s\r\n\r\n" % (b"x" * (1100 << 10))
    )
    assert head.start_line.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("protocol", [b"websocket", b"SPDY/3.1"])
async def test_upgrades_become_tunnels(front, protocol):
    upstream = Upstream(
        answer=b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nhello"
        % protocol
    )
    envoy = await front(upstream)
    async with asyncio.timeout(20), envoy.connection() as (reader, writer):
        writer.write(
            b"GET /exec HTTP/1.1\r\nHost: kubernetes\r\nConnection: keep-alive, Upgrade\r\nUpgrade: %s\r\n"
            b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n" % protocol
        )
        head = Head((await reader.readuntil(b"\r\n\r\n"))[:-4])
        assert head.start_line.startswith(b"HTTP/1.1 101")
        assert await reader.readexactly(5) == b"hello"
        sent = b"\x00\x01 any bytes \xff"
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent


async def test_a_client_certificate_without_a_token_is_told_where_it_ended(front):
    upstream = Upstream()
    envoy = await front(upstream)
    # Any certificate will do, even one of an authority that Envoy does not know: it is not verified here.
    for certificate in ("apiserver-lb", "front-proxy-client"):
        head, body = await envoy.request(
            b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n", certificate=certificate
        )
        assert head.start_line == b"HTTP/1.1 401 Unauthorized"
        assert head.values(b"content-type") == [b"application/json"]
        status = json.loads(body)
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 401, "Unauthorized")
        assert "load balancer" in status["message"]
    assert upstream.heads == []


async def test_a_client_certificate_does_not_hinder_a_token(front):
    upstream = Upstream()
    envoy = await front(upstream)
    for credential in (
        b"Authorization: Bearer t",
        b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dA",
    ):
        head, _ = await envoy.request(
            b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n%s\r\n\r\n" % credential,
            certificate="front-proxy-client",
        )
        assert head.start_line == b"HTTP/1.1 200 OK"
    assert len(upstream.heads) == 2
    assert upstream.peers == {"load-balancer"}  # never the client's


async def test_a_node_that_is_not_ready_gets_nothing(front):
    ready, draining = Upstream(), Upstream(ready=b"503 Service Unavailable")
    envoy = await front(ready, draining)
    for _ in range(6):
        await envoy.request(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
    assert (len(ready.heads), len(draining.heads)) == (6, 0)


def test_times_and_limits_fit_the_sidecars():
    text = SHIPPED.read_text()
    config = yaml.safe_load(text)
    (listener,) = config["static_resources"]["listeners"]
    (cluster,) = config["static_resources"]["clusters"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert {route["route"]["timeout"] for route in routes if "route" in route} == {"0s"}
    assert (manager["stream_idle_timeout"], manager["request_timeout"]) == ("0s", "0s")
    assert manager["max_request_headers_kb"] == 1024
    assert seconds(options["common_http_protocol_options"]["idle_timeout"]) < 180
    (thresholds,) = cluster["circuit_breakers"]["thresholds"]
    assert {thresholds[f"max_{kind}"] for kind in ("connections", "pending_requests", "requests")} == {20_000}


def seconds(duration: str) -> float:
    match = re.fullmatch(r"([0-9.]+)s", duration)
    assert match is not None
    return float(match[1])


async def until(condition: Callable) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 (seen from outside)
            await asyncio.sleep(0.05)
