"""HAProxy's agent-check: who connects gets one line of ASCII, and the connection is closed.

``up ready NN%``: NN by headroom, 1/(1 + application_utilization), which is 1 - u while CPU alone counts.
HAProxy multiplies it into the configured weight in whole numbers, so it is never below 1%; configure
``weight 100``. ``drain`` while kube-apiserver is not ready or the sidecar is leaving; HAProxy keeps that
state until it hears ``ready`` again, hence the words that come with every weight (HAProxy configuration
manual, "agent-check").
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence
from typing import cast

from orca_sidecar.core.load_report import LoadReport
from orca_sidecar.settings.load_metrics import AgentCheckSettings

_LINGER = 1.0
"""Seconds in which a client may close first; a close with unread bytes (``agent-send``) would be a reset,
and a reset may overtake the answer."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def answer(serving: bool, report: LoadReport | None) -> bytes:
    """The line. Without a report (a sample too old) the weight is left as it is."""
    if not serving:
        return b"drain\n"
    if report is None:
        return b"up ready\n"
    return b"up ready %d%%\n" % max(round(100 / (1 + report.application_utilization)), 1)


def is_allowed(host: str, sources: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks; an IPv4 one may come mapped into IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return any(address in network for network in sources)


class AgentCheck:
    """``start``, then ``stop``; ``port`` is the bound one."""

    def __init__(
        self,
        settings: AgentCheckSettings,
        serving: Callable[[], bool],
        report: Callable[[], LoadReport | None],
    ) -> None:
        self._address = settings.address
        self._sources = settings.allowed_sources
        self._serving = serving
        self._report = report
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen. OSError if the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._sources, lambda: answer(self._serving(), self._report())),
            self._address.host,
            self._address.port,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening. Until then ``drain`` is answered, so stop last."""
        if self._server is not None:
            self._server.close()


class _Connection(asyncio.Protocol):
    def __init__(self, sources: Sequence[Network], line: Callable[[], bytes]) -> None:
        self._sources = sources
        self._line = line
        self._linger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are no asyncio.Transport, only as good as one
        peer = stream.get_extra_info("peername")
        if not peer or not is_allowed(peer[0], self._sources):
            stream.close()
            return
        stream.write(self._line())
        try:
            stream.write_eof()
        except OSError:  # HAProxy resets the connection as soon as it has the line
            stream.close()
            return
        self._linger = asyncio.get_running_loop().call_later(_LINGER, stream.close)

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
