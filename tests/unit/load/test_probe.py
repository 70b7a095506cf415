"""The readiness probe, and mode reporter's scrapes, against a real TLS server."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from orca_sidecar.load.apiserver_metrics import ApiserverMetrics
from orca_sidecar.load.probe import Probe
from orca_sidecar.settings.schema import UpstreamSettings
from tests.pki import SERVER, Authority, Pki, trusting


class Apiserver:
    """A stand-in with kubeadm's peculiarity: its certificate names `kubernetes` and no address."""

    def __init__(self) -> None:
        self.status = 200
        self.hang = asyncio.Event()
        self.hang.set()
        self.metrics = b""
        self.asked = asyncio.Semaphore(0)
        self.requests: list[web.BaseRequest] = []
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.asked.release()
        await self.hang.wait()
        if request.path == "/metrics":
            return web.Response(status=self.status, body=self.metrics)
        assert request.path == "/readyz"
        return web.Response(status=self.status, headers={"Location": "/elsewhere"})


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def ca(pki: Pki) -> Authority:
    return pki.ca("ca")


@pytest.fixture
async def apiserver(pki: Pki, ca: Authority) -> AsyncIterator[Apiserver]:
    leaf = pki.leaf(ca, cn="kube-apiserver", eku=SERVER, san=["kubernetes"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.cert_file, leaf.key_file)
    apiserver = Apiserver()
    runner = web.ServerRunner(web.Server(apiserver.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    apiserver.port = runner.addresses[0][1]
    yield apiserver
    apiserver.hang.set()
    await runner.cleanup()


def settings(port: int, ca: Authority, **probe: object) -> UpstreamSettings:
    return UpstreamSettings.model_validate(
        {"address": f"127.0.0.1:{port}", "tls": {"caFile": str(ca.cert_file)}, "probe": probe}
    )


def context(ca: Authority) -> ssl.SSLContext:
    return trusting(ca.cert_file)


def make_probe(apiserver: Apiserver, ca: Authority, **probe: object) -> Probe:
    return Probe(settings(apiserver.port, ca, **probe), lambda: context(ca))


async def once(probe: Probe) -> None:
    async with probe._client.session() as session:
        await probe.probe(session)


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (200, True),
        (401, True),
        (403, True),
        (204, False),
        (302, False),
        (404, False),
        (429, False),
        (500, False),
    ],
)
async def test_what_counts_as_ready(apiserver: Apiserver, ca: Authority, status: int, ready: bool) -> None:
    probe = make_probe(apiserver, ca)
    assert not probe.ready
    apiserver.status = status
    await once(probe)
    assert probe.ready is ready
    assert str(status) in probe.detail
    assert len(apiserver.requests) == 1  # a redirect is not followed


async def test_case_27_no_answer_within_the_timeout_is_not_ready(apiserver: Apiserver, ca: Authority) -> None:
    probe = make_probe(apiserver, ca, timeout="100ms")
    await once(probe)
    assert probe.ready
    apiserver.hang.clear()
    for late in (1, 2, 3):
        await once(probe)
        assert probe.ready is (late < 3)
        assert probe.detail == f"GET /readyz: no answer within 0.1s, {late} in a row"


async def test_late_answers_of_a_busy_node_do_not_add_up(apiserver: Apiserver, ca: Authority) -> None:
    probe = make_probe(apiserver, ca, timeout="100ms")
    await once(probe)
    for _ in range(3):
        apiserver.hang.clear()
        await once(probe)
        await once(probe)
        apiserver.hang.set()
        await once(probe)
        assert probe.ready


async def test_no_answer_at_the_start_is_not_ready(apiserver: Apiserver, ca: Authority) -> None:
    probe = make_probe(apiserver, ca, timeout="100ms")
    apiserver.hang.clear()
    await once(probe)
    assert not probe.ready


async def test_a_refused_connection_is_not_ready_and_says_so(ca: Authority) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    probe = Probe(settings(port, ca), lambda: context(ca))
    await once(probe)
    assert not probe.ready
    assert probe.detail == f"GET /readyz: cannot connect to 127.0.0.1:{port}: Connection refused"


async def test_a_server_certificate_of_another_authority_is_not_ready(
    apiserver: Apiserver, ca: Authority, pki: Pki
) -> None:
    other = pki.ca("other")
    probe = Probe(settings(apiserver.port, ca), lambda: context(other))
    await once(probe)
    assert not probe.ready
    assert "certificate" in probe.detail
    assert not apiserver.requests


async def test_the_token_is_read_again_for_every_probe_and_never_told(
    apiserver: Apiserver, ca: Authority, tmp_path: Path
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("first-token\n")
    probe = make_probe(apiserver, ca, tokenFile=str(token_file))
    await once(probe)
    token_file.write_text("second-token\n")
    await once(probe)
    sent = [request.headers["Authorization"] for request in apiserver.requests]
    assert sent == ["Bearer first-token", "Bearer second-token"]
    assert "token" not in probe.detail
    token_file.write_text("two\nlines")
    await once(probe)
    assert not probe.ready
    assert probe.detail == f"GET /readyz: {token_file} does not hold a bearer token"
    assert len(apiserver.requests) == 2


async def test_without_a_token_file_no_credentials_are_sent(apiserver: Apiserver, ca: Authority) -> None:
    await once(make_probe(apiserver, ca))
    assert "Authorization" not in apiserver.requests[0].headers
    assert apiserver.requests[0].headers["Accept-Encoding"] == "identity"


async def test_run_sees_the_upstream_go_and_come_back(apiserver: Apiserver, ca: Authority) -> None:
    probe = make_probe(apiserver, ca, interval="10ms")
    task = asyncio.create_task(probe.run())
    try:
        async with asyncio.timeout(20):
            for status, ready in ((200, True), (500, False), (200, True)):
                apiserver.status = status
                # The first may have been under way; when the third has come, the second's answer was judged.
                for _ in range(3):
                    await apiserver.asked.acquire()
                assert probe.ready is ready
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_reporter_mode_reads_rate_and_in_flight_from_metrics(
    apiserver: Apiserver, ca: Authority
) -> None:
    apiserver.metrics = (
        b'apiserver_current_inflight_requests{request_kind="mutating"} 3\n'
        b'apiserver_current_inflight_requests{request_kind="readOnly"} 12\n'
        b'apiserver_request_total{code="200",subresource="",verb="GET"} 1e+03\n'
        b'apiserver_request_total{code="503",subresource="",verb="LIST"} 4\n'
    )
    scraper = ApiserverMetrics(settings(apiserver.port, ca), lambda: context(ca))
    assert scraper(time.monotonic_ns()) is None
    async with scraper._client.session() as session:
        await scraper.scrape(session)
        first = scraper(time.monotonic_ns())
        assert first is not None
        assert first[1:] == (1004, 4, 12, 3)
        apiserver.status = 403
        await scraper.scrape(session)
        assert scraper(time.monotonic_ns()) == first
        assert scraper.detail == "GET /metrics: 403 Forbidden"
    assert scraper(first.taken_ns + 10_000_000_000) == first
    assert scraper(first.taken_ns + 60_000_000_000) is None
