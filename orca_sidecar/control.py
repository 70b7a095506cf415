"""Composition root of the control side, once per sidecar: sampler, probe, admin, and the ways out besides the header."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric

from orca_sidecar import __version__, metrics
from orca_sidecar.admin.server import AdminServer, Condition
from orca_sidecar.core.identity import Pool
from orca_sidecar.load.apiserver_metrics import ApiserverMetrics
from orca_sidecar.load.probe import Probe
from orca_sidecar.load.sampler import Counters, Sampler, Totals
from orca_sidecar.load.sources import open_sources
from orca_sidecar.publish.agent_check import AgentCheck
from orca_sidecar.publish.credentials import CredentialFiles
from orca_sidecar.runtime import Shared, Signals
from orca_sidecar.trust import contexts
from orca_sidecar.trust.contexts import certificate_expiries
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.files import RELOAD_SECONDS

if TYPE_CHECKING:
    from orca_sidecar.publish.oob_grpc import OutOfBandServer

log = logging.getLogger(__name__)

_SAMPLER_FRESH_SECONDS = 5.0


class ProxyCounters:
    """What the data plane counted, over all workers."""

    def __init__(self, cells: list[metrics.Cells]) -> None:
        self._cells = cells

    def __call__(self, now_ns: int) -> Totals:
        cells = self._cells
        in_flight = metrics.REQUESTS_IN_FLIGHT
        return Totals(
            now_ns,
            metrics.LOAD_BALANCED_REQUESTS.total(cells),
            metrics.LOAD_BALANCED_ERRORS.total(cells),
            in_flight.total(cells, metrics.InFlight.READ_ONLY),
            in_flight.total(cells, metrics.InFlight.MUTATING),
        )


class Control:
    """Everything of which there is one: build in a running loop, `start`, `leave`, `close`.

    `workers()` tells how many worker processes run.
    """

    def __init__(self, shared: Shared, workers: Callable[[], int]) -> None:
        cfg = shared.configuration
        self._shared = shared
        self._workers = workers
        self._leaving = False
        self._started_ns = time.monotonic_ns()
        self._tasks: list[asyncio.Task[None]] = []
        self._plain = shared.upstream_contexts[Pool.PLAIN]
        self._files = copy(shared.files)
        self._probe = Probe(cfg.upstream, lambda: self._plain)
        self._scraper: ApiserverMetrics | None = None
        self._sampler: Sampler | None = None
        if cfg.load_metrics.enabled:
            counters: Counters = ProxyCounters(shared.cells)
            if cfg.mode == "reporter":
                counters = self._scraper = ApiserverMetrics(cfg.upstream, lambda: self._plain)
            self._sampler = Sampler(
                cfg.load_metrics,
                open_sources(cfg.load_metrics.sampler),
                counters,
                shared.report,
                self._withheld,
            )
        self._out_of_band: OutOfBandServer | None = None
        self._agent_check: AgentCheck | None = None
        if self._sampler is not None:
            self._publish(self._sampler)
        self._admin = AdminServer(
            cfg.admin.address,
            metrics.Collector(shared.cells, [self._computed]),
            self._conditions,
            self._status,
        )

    def _withheld(self) -> str:
        """Why no load may be reported, "" if it may."""
        if self._leaving:
            return "the sidecar is leaving"
        return "" if self._probe.ready else f"kube-apiserver is not ready: {self._probe.detail}"

    def _publish(self, sampler: Sampler) -> None:
        """The ways out besides the response header."""
        cfg = self._shared.configuration
        if cfg.load_metrics.out_of_band.enabled:
            # Here, not at the top: gRPC's threads do not survive a fork, and without this option nobody pays for it.
            from orca_sidecar.publish.oob_grpc import OutOfBandServer

            self._out_of_band = OutOfBandServer(
                cfg.load_metrics.out_of_band,
                CredentialFiles(
                    cfg.listener.tls.cert_file, cfg.listener.tls.key_file, cfg.front_proxy.client_ca_file
                ),
                self._shared.trust.judge,
                sampler.encoded,
            )
        if cfg.load_metrics.agent_check.enabled:
            self._agent_check = AgentCheck(
                cfg.load_metrics.agent_check,
                lambda: self._probe.ready and not self._leaving,
                lambda: sampler.current(time.monotonic_ns()),
            )

    async def start(self) -> None:
        """Bind the listeners of this side and begin to probe and sample. Raises OSError, or ValueError for a bad file."""
        await self._admin.start()
        if self._out_of_band is not None:
            await self._out_of_band.start()
        if self._agent_check is not None:
            await self._agent_check.start()
        self._run(self._probe.run())
        self._run(self._watch_files())
        if self._sampler is not None:
            self._run(self._sampler.run())
        if self._scraper is not None:
            self._run(self._scraper.run())

    async def _watch_files(self) -> None:
        """The probe and out of band use changed authorities, too: all files or none, as the data plane, which reports."""
        while True:
            if self._files.changed():
                with contextlib.suppress(OSError, ValueError, TrustError):
                    loaded = contexts.load(self._shared.configuration)
                    self._plain = loaded.upstream[Pool.PLAIN]
                    self._shared.trust.replace(loaded.bundles)
            await asyncio.sleep(RELOAD_SECONDS)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._on_task_end)
        self._tasks.append(task)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # The report goes stale and /readyz says so: better than a proxy that stops serving.
            log.error("a control task ended", exc_info=error)

    def leave(self) -> None:
        """Not ready from now on; nothing is reported any more, and out-of-band streams end."""
        self._leaving = True
        if self._out_of_band is not None:
            # At once, so that balancers dial this node's successor rather than wait for a stream that is silent.
            self._run(self._out_of_band.stop())
            self._out_of_band = None

    async def close(self) -> None:
        """Stop everything; the agent-check last, since until then it answers `drain`."""
        if self._out_of_band is not None:
            await self._out_of_band.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._shared.report.withdraw()
        await self._admin.stop()
        if self._agent_check is not None:
            await self._agent_check.stop()

    # -- what the admin listener shows ---------------------------------------------------------------------------

    def _conditions(self) -> list[Condition]:
        conditions = [
            Condition("serving", not self._leaving, "shutting down" if self._leaving else ""),
            Condition("upstream", self._probe.ready, self._probe.detail),
        ]
        if self._shared.configuration.mode == "proxy":
            running = self._workers()
            conditions.insert(0, Condition("listener", running > 0, f"{running} worker(s)"))
        if self._sampler is not None:
            age = _age(self._sampler, self._started_ns)
            conditions.append(
                Condition("sampler", age < _SAMPLER_FRESH_SECONDS, f"the last sample is {age:.1f}s old")
            )
        return conditions

    def _status(self) -> dict[str, object]:
        report = self._sampler.latest if self._sampler else None
        cells = self._shared.cells
        return {
            "version": __version__,
            "uptimeSeconds": round((time.monotonic_ns() - self._started_ns) / 1e9),
            "downstreamConnections": metrics.DOWNSTREAM_CONNECTIONS.total(cells),
            "requestsInFlight": {
                kind.name.lower(): metrics.REQUESTS_IN_FLIGHT.total(cells, kind) for kind in metrics.InFlight
            },
            "mode": self._shared.configuration.mode,
            "workers": self._workers(),
            "upstream": self._probe.detail,
            "loadReport": dict(report.figures()) if report else None,
            "loadReportWithheld": self._sampler.detail if self._sampler else "loadMetrics.enabled is false",
            "certificateExpiries": {
                path: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
                for path, at in certificate_expiries(self._shared.configuration)
            },
        }

    def _computed(self) -> Iterable[Metric]:
        yield metrics.BUILD_INFO.value(1, __version__, platform.python_version())
        yield metrics.WORKERS.value(self._workers())
        yield metrics.UPSTREAM_READY.value(self._probe.ready)
        yield metrics.CERTIFICATE_NOT_AFTER.metric(
            *(((path,), at) for path, at in certificate_expiries(self._shared.configuration))
        )
        if self._sampler is not None:
            yield metrics.SAMPLER_AGE.value(_age(self._sampler, self._started_ns))
            report = self._sampler.latest
            if report is not None:
                yield metrics.LOAD_REPORT.metric(*(((name,), value) for name, value in report.figures()))


def _age(sampler: Sampler, started_ns: int) -> float:
    """Seconds since the last sample; before the first, since the start."""
    return (time.monotonic_ns() - (sampler.sampled_at_ns or started_ns)) / 1e9


async def serve(shared: Shared, workers: Callable[[], int], started: Callable[[], None]) -> None:
    """The control process. SIGUSR1: the sidecar is leaving; SIGTERM: the workers are gone. Calls `started` once it serves.

    Raises OSError where an address cannot be had.
    """
    signals = Signals(signal.SIGTERM)
    control = Control(shared, workers)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, control.leave)
    await control.start()
    started()
    try:
        await signals.leave.wait()
    finally:
        await control.close()
