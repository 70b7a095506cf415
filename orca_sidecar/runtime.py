"""What every process of the sidecar has: the shared state made before any fork, an event loop, and signals."""

from __future__ import annotations

import asyncio
import gc
import signal
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import uvloop

from orca_sidecar.core.identity import IdentityRules
from orca_sidecar.metrics import Cells
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust.files import FileWatch
from orca_sidecar.trust.store import TrustStore


@dataclass(frozen=True, slots=True)
class Shared:
    """Made once by the supervisor; the cells and the report cell are memory that all processes see."""

    configuration: SidecarConfiguration
    cells: list[Cells]
    """One segment a worker."""
    report: ReportCell
    identity_rules: IdentityRules
    trust: TrustStore
    secret: bytes
    """The shared secret of the opt-in; empty with the other gates."""
    server_context: ssl.SSLContext
    upstream_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
    """By `core.identity.Pool`: without a client certificate, and with the front-proxy client's."""
    files: FileWatch
    """The certificate files as they were when the above was made of them. To be copied: a process that takes another one's
    place later sees that they have changed since."""


class Signals:
    """SIGTERM, or another of `numbers`: the first asks to leave in order, a second to leave at once."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.leave = asyncio.Event()
        self.at_once = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.leave.is_set():
            self.at_once.set()
        self.leave.set()

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond a second signal."""
        try:
            async with asyncio.timeout(seconds):
                await self.at_once.wait()
        except TimeoutError:
            pass


def run_loop(event_loop: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main()` to its end on the configured event loop (`uvloop` or `asyncio`)."""
    factory = uvloop.new_event_loop if event_loop == "uvloop" else asyncio.new_event_loop
    # The data path makes no reference cycles, and a full collection looks at every object: with 10,000 watches that is a
    # pause of tens of milliseconds. What start-up made is left out for good, and the rest is looked at seldom.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
