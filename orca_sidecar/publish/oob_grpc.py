"""Load reports out of band: gRPC ``xds.service.orca.v3.OpenRcaService/StreamCoreMetrics`` (gRFC A51).

A load balancer opens one stream per backend and gets a report at once and then one per interval. The
reports are the sampler's, encoded once per sample whoever listens. While there is none (kube-apiserver not
ready, or the sample too old) the stream is silent: a report that says nothing would still be taken for one.

Whatever gate the in-band reports have, a caller here shows a certificate of the front-proxy authority whose
name may ask. gRPC verifies the chain in the handshake; the verdict on the name is ``judge``'s, asked again
for every report so that a name taken off the list, an expired certificate or a replaced authority ends its
streams.

Import this module only in the process that serves it, after any fork: gRPC's threads do not survive one.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from xds.service.orca.v3.orca_pb2 import OrcaLoadReportRequest  # type: ignore[import-untyped]

from orca_sidecar.publish.credentials import ServerCredentials
from orca_sidecar.settings.load_metrics import OutOfBandSettings

SERVICE = "xds.service.orca.v3.OpenRcaService"
METHOD = "StreamCoreMetrics"

_STREAMS_MAX = 1000  # a balancer has one per backend; this is for all balancers together
_LONGEST_INTERVAL = 3600.0
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the port is a mistake to be told of
    ("grpc.max_concurrent_streams", 100),
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.keepalive_time_ms", 30_000),  # a caller that vanished without a FIN holds a stream for 40 s
    ("grpc.keepalive_timeout_ms", 10_000),
)

Context = aio.ServicerContext[bytes, bytes]


class Verdict(Protocol):
    """What is asked of a caller; ``core.identity.Caller`` is one."""

    @property
    def may_ask(self) -> bool: ...


class OutOfBandServer:
    """``start``, then ``stop``; both once. ``port`` is the bound one."""

    def __init__(
        self,
        settings: OutOfBandSettings,
        credentials: Callable[[], ServerCredentials],
        judge: Callable[[bytes, Sequence[bytes]], Verdict],
        report: Callable[[int], bytes],
    ) -> None:
        """``report(now_ns)``: the serialized OrcaLoadReport, b"" while there is none."""
        self._address = settings.address
        self._min_interval = settings.min_interval
        self._credentials = credentials
        self._judge = judge
        self._report = report
        self._server: aio.Server | None = None
        self._stopping = asyncio.Event()
        self.port = 0
        self.streams = 0
        """Callers being served."""

    async def start(self) -> None:
        """Listen. OSError if the address cannot be bound, or as ``credentials`` raises."""
        server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_STREAMS_MAX)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._stream)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        try:
            self.port = server.add_secure_port(str(self._address), self._server_credentials())
        except RuntimeError as error:
            raise OSError(f"out of band: cannot listen on {self._address}") from error
        self._server = server
        await server.start()

    async def stop(self, grace: float = 1.0) -> None:
        """End every stream with UNAVAILABLE and close; what is left after ``grace`` seconds is cut.

        Envoy 1.40 dials again after 1 to 30 s whatever the status, OK included; only UNIMPLEMENTED is for
        good.
        """
        self._stopping.set()
        if self._server is not None:
            await self._server.stop(grace)

    def _server_credentials(self) -> grpc.ServerCredentials:
        current = self._credentials()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            """gRPC's question at every handshake; None: as before."""
            nonlocal current
            found = self._credentials()
            if found == current:
                return None
            current = found
            return _configuration(found)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(current),
            fetch,  # type: ignore[arg-type]  # None is documented, and missing in the stubs
            require_client_authentication=True,
        )

    async def _stream(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        interval = await self._interval(request, context)
        leaf, chain = _certificates(context)
        self.streams += 1
        try:
            due = time.monotonic()
            while not self._stopping.is_set():
                if not self._judge(leaf, chain).may_ask:
                    await _abort(context, grpc.StatusCode.PERMISSION_DENIED, "may not ask for load reports")
                report = self._report(time.monotonic_ns())
                if report:
                    yield report
                due = max(due + interval, time.monotonic())
                await self._pause(due - time.monotonic())
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "shutting down")
        finally:
            self.streams -= 1

    async def _interval(self, request: bytes, context: Context) -> float:
        """What was asked for in seconds, within the limits; the shortest if nothing was asked for."""
        try:
            asked = OrcaLoadReportRequest.FromString(request).report_interval
        except DecodeError:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "not an OrcaLoadReportRequest")
        seconds: float = asked.seconds + asked.nanos / 1e9
        return min(max(seconds, self._min_interval), _LONGEST_INTERVAL)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond ``stop``."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return


async def _abort(context: Context, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("abort returned")


def _configuration(credentials: ServerCredentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.chain)], credentials.client_authorities
    )


def _certificates(context: Context) -> tuple[bytes, list[bytes]]:
    """The caller's leaf, and whatever else the handshake knows of its chain, as DER."""
    peer = context.auth_context()
    leaf = ssl.PEM_cert_to_DER_cert(b"".join(peer["x509_pem_cert"]).decode())
    end = "-----END CERTIFICATE-----"
    pem = b"".join(peer.get("x509_pem_cert_chain", ())).decode()
    chain = [ssl.PEM_cert_to_DER_cert(part.strip() + "\n" + end) for part in pem.split(end) if part.strip()]
    return leaf, [der for der in chain if der != leaf]
