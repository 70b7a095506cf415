"""The out-of-band service, asked by gRPC's own client over mutual TLS."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from google.protobuf.duration_pb2 import Duration
from grpc import aio
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest

from orca_sidecar.core.identity import Caller, CallerKind
from orca_sidecar.publish.credentials import CredentialFiles
from orca_sidecar.publish.oob_grpc import METHOD, SERVICE, OutOfBandServer
from orca_sidecar.settings.load_metrics import OutOfBandSettings
from tests.pki import SERVER, Authority, Credential, Pki


@dataclass
class Lab:
    """A server, what it reports, and who may ask; `judged` collects the verdicts asked for."""

    folder: Path
    pki: Pki
    ca: Authority
    front_proxy_ca: Authority
    allowed: set[str] = field(default_factory=lambda: {"balancer"})
    report: bytes = OrcaLoadReport(cpu_utilization=0.3, rps_fractional=10).SerializeToString()
    asked_for_report: list[int] = field(default_factory=list)
    """When the server took a report, in ns of the monotonic clock."""
    chains: list[Sequence[bytes]] = field(default_factory=list)
    server: OutOfBandServer | None = None

    async def start(self, **settings: object) -> OutOfBandServer:
        leaf = self.pki.leaf(self.ca, cn="apiserver", eku=SERVER, san=["kubernetes"])
        self.server = OutOfBandServer(
            OutOfBandSettings.model_validate({"address": "127.0.0.1:0", **settings}),
            CredentialFiles(leaf.cert_file, leaf.key_file, self.front_proxy_ca.cert_file),
            self.judge,
            self.take_report,
        )
        await self.server.start()
        return self.server

    def judge(self, leaf_der: bytes, chain_der: Sequence[bytes]) -> Caller:
        self.chains.append(chain_der)
        subject = x509.load_der_x509_certificate(leaf_der).subject
        name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        return Caller(CallerKind.REPORT_ONLY if name in self.allowed else CallerKind.UNLISTED, name)

    def take_report(self, now_ns: int) -> bytes:
        self.asked_for_report.append(now_ns)
        return self.report

    def balancer(self, name: str = "balancer") -> Credential:
        return self.pki.leaf(self.front_proxy_ca, cn=name)

    def channel(self, credential: Credential | None) -> aio.Channel:
        assert self.server is not None
        credentials = grpc.ssl_channel_credentials(
            self.ca.cert_file.read_bytes(),
            credential.key_file.read_bytes() if credential else None,
            credential.cert_file.read_bytes() if credential else None,
        )
        options = [("grpc.ssl_target_name_override", "kubernetes")]
        return aio.secure_channel(f"127.0.0.1:{self.server.port}", credentials, options=options)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    pki = Pki(tmp_path)
    lab = Lab(tmp_path, pki, pki.ca("ca"), pki.ca("front-proxy-ca"))
    yield lab
    if lab.server is not None:
        await lab.server.stop(0)


Call = aio.UnaryStreamCall[bytes, bytes]


def subscribe(channel: aio.Channel, seconds: float | None = None) -> Call:
    request = OrcaLoadReportRequest()
    if seconds is not None:
        request.report_interval.CopyFrom(Duration(seconds=int(seconds), nanos=int(seconds % 1 * 1e9)))
    return channel.unary_stream(f"/{SERVICE}/{METHOD}")(request.SerializeToString(), timeout=20)


async def read(call: Call) -> OrcaLoadReport:
    data = await call.read()
    assert isinstance(data, bytes), await call.code()
    return OrcaLoadReport.FromString(data)


async def read_for_ever(call: Call) -> None:
    while True:
        await read(call)


async def test_a_report_at_once_and_then_one_an_interval(lab: Lab) -> None:
    await lab.start(minInterval="10ms")
    async with lab.channel(lab.balancer()) as channel:
        call = subscribe(channel, 0.2)
        assert await read(call) == OrcaLoadReport(cpu_utilization=0.3, rps_fractional=10)
        lab.report = OrcaLoadReport(cpu_utilization=0.9, rps_fractional=5).SerializeToString()
        assert (await read(call)).cpu_utilization == 0.9
        await read(call)
    first, _, third, *_ = lab.asked_for_report
    assert third - first > 0.35e9  # two intervals, short of timer slack


async def test_the_interval_is_at_least_the_minimum(lab: Lab) -> None:
    await lab.start(minInterval="300ms")
    async with lab.channel(lab.balancer()) as channel:
        for seconds in (None, 0.0, 0.001):
            lab.asked_for_report.clear()
            call = subscribe(channel, seconds)
            await read(call)
            await read(call)
            first, second, *_ = lab.asked_for_report
            assert second - first > 0.25e9
            call.cancel()


async def test_silence_while_there_is_no_report(lab: Lab) -> None:
    await lab.start(minInterval="10ms")
    report, lab.report = lab.report, b""
    async with lab.channel(lab.balancer()) as channel:
        call = subscribe(channel)
        reading = asyncio.ensure_future(call.read())
        while len(lab.asked_for_report) < 20:  # noqa: ASYNC110 - counts calls from the server's side
            await asyncio.sleep(0.01)
        assert not reading.done()
        lab.report = report
        assert await asyncio.wait_for(reading, 10) == report


async def test_a_name_in_no_list_is_denied(lab: Lab) -> None:
    await lab.start()
    async with lab.channel(lab.balancer("somebody")) as channel:
        call = subscribe(channel)
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert await call.details() == "may not ask for load reports"


async def test_a_name_taken_off_the_list_loses_its_stream(lab: Lab) -> None:
    await lab.start(minInterval="10ms")
    async with lab.channel(lab.balancer()) as channel:
        call = subscribe(channel)
        await read(call)
        lab.allowed.clear()
        with pytest.raises(aio.AioRpcError, match="may not ask for load reports"):
            await read_for_ever(call)
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("who", ["nobody", "client CA", "unknown CA"])
async def test_case_5_without_a_front_proxy_certificate_there_is_no_connection(lab: Lab, who: str) -> None:
    await lab.start()
    credential = {
        "nobody": None,
        "client CA": lab.pki.leaf(lab.ca, name="x", cn="balancer"),
        "unknown CA": lab.pki.leaf(lab.pki.ca("unknown"), name="y", cn="balancer"),
    }[who]
    async with lab.channel(credential) as channel:
        assert await subscribe(channel).code() is grpc.StatusCode.UNAVAILABLE
    assert not lab.chains


async def test_a_callers_intermediates_are_judged_with_it(lab: Lab) -> None:
    await lab.start()
    intermediate = lab.pki.ca("intermediate", issuer=lab.front_proxy_ca)
    async with lab.channel(lab.pki.leaf(intermediate, cn="balancer")) as channel:
        await read(subscribe(channel))
    assert intermediate.der in lab.chains[0]


async def test_many_subscribers_share_the_samples(lab: Lab) -> None:
    server = await lab.start(minInterval="1h")
    async with lab.channel(lab.balancer()) as channel:
        calls = [subscribe(channel) for _ in range(50)]
        for call in calls:
            await read(call)
        assert server.streams == 50
        assert (
            len(lab.asked_for_report) == 50
        )  # one encoded report handed to each; nothing is measured for them
        for call in calls:
            call.cancel()
        async with asyncio.timeout(10):
            while server.streams:  # noqa: ASYNC110 - the server's own count, over the network
                await asyncio.sleep(0.01)


async def test_stop_ends_the_streams_at_once(lab: Lab) -> None:
    server = await lab.start(minInterval="1h")
    async with lab.channel(lab.balancer()) as channel:
        call = subscribe(channel)
        await read(call)
        started = time.monotonic()
        await server.stop(grace=20)
        assert time.monotonic() - started < 10
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "shutting down"


async def test_other_methods_and_other_requests(lab: Lab) -> None:
    await lab.start()
    async with lab.channel(lab.balancer()) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Other")(b"", timeout=20)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        call = channel.unary_stream(f"/{SERVICE}/{METHOD}")(b"\xff\xff", timeout=20)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_renewed_certificate_and_other_authorities_are_used_by_new_connections(lab: Lab) -> None:
    await lab.start()
    async with lab.channel(lab.balancer()) as channel:
        await read(subscribe(channel))
    lab.front_proxy_ca = lab.pki.ca("front-proxy-ca")  # a new key, in the same file
    lab.ca = lab.pki.ca("ca")
    lab.pki.leaf(lab.ca, cn="apiserver", eku=SERVER, san=["kubernetes"])
    async with lab.channel(lab.balancer()) as channel:
        await read(subscribe(channel))


async def test_an_address_in_use_is_said(lab: Lab) -> None:
    server = await lab.start()
    other = Lab(lab.folder, lab.pki, lab.ca, lab.front_proxy_ca)
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await other.start(address=f"127.0.0.1:{server.port}")


async def test_case_28_port_scans_leave_nothing_in_the_log(tmp_path: Path) -> None:
    """In a process of its own: what gRPC's core writes to stderr is decided when it is loaded."""
    pki = Pki(tmp_path)
    leaf = pki.leaf(pki.ca("ca"), cn="apiserver", eku=SERVER)
    front_proxy_ca = pki.ca("front-proxy-ca")
    script = f"""
import asyncio
import sys
from pathlib import Path
from orca_sidecar.publish.credentials import CredentialFiles
from orca_sidecar.publish.oob_grpc import OutOfBandServer
from orca_sidecar.settings.load_metrics import OutOfBandSettings

async def main():
    files = (Path({str(leaf.cert_file)!r}), Path({str(leaf.key_file)!r}), Path({str(front_proxy_ca.cert_file)!r}))
    settings = OutOfBandSettings.model_validate({{"address": "127.0.0.1:0"}})
    server = OutOfBandServer(settings, CredentialFiles(*files), None, lambda now_ns: b"")
    await server.start()
    for sent in (b"", b"GET / HTTP/1.0\\r\\n\\r\\n", b"\\x16\\x03\\x01\\x00\\x05hello"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()
    await server.stop()

asyncio.run(asyncio.wait_for(main(), 30))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE
    )
    _, written = await process.communicate()
    assert (process.returncode, written.decode()) == (0, "")
