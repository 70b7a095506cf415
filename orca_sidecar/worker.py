"""Composition root of the data plane: one process's listener, pools and rules, wired and run."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from copy import copy

from orca_sidecar import metrics
from orca_sidecar.core.identity import Pool
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.opt_in import Gate, OptIn
from orca_sidecar.proxy.listener import Listener
from orca_sidecar.proxy.plane import Plane
from orca_sidecar.proxy.upstream import UpstreamPool
from orca_sidecar.runtime import Shared, Signals
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust import contexts
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.files import RELOAD_SECONDS

log = logging.getLogger(__name__)


def opt_in(cfg: SidecarConfiguration, secret: bytes) -> OptIn:
    """The opt-in rules of a configuration."""
    settings = cfg.load_metrics
    return OptIn(
        enabled=settings.enabled,
        gate=Gate(settings.opt_in.gate),
        formats=tuple(Format[name] for name in settings.formats),
        secret=secret,
        count_all=settings.report.rps_scope == "all",
    )


class DataPlane:
    """The data plane of worker `index`. `build` in a running loop; `sock` is the listening socket, shared."""

    def __init__(self, shared: Shared, index: int, sock: socket.socket) -> None:
        cfg = shared.configuration
        cells = shared.cells[index]
        pools = [
            UpstreamPool(
                index=pool,
                host=cfg.upstream.address.host,
                port=cfg.upstream.address.port,
                server_name=cfg.upstream.tls.server_name,
                context=shared.upstream_contexts[pool],
                connect_timeout=cfg.upstream.connect_timeout,
                minimum=cfg.upstream.min_idle_connections,
                maximum=cfg.upstream.max_idle_connections,
                idle_timeout=cfg.upstream.idle_timeout,
                cells=cells,
            )
            for pool in Pool
        ]
        self.plane = Plane(
            header_bytes=cfg.listener.header_bytes,
            header_timeout=cfg.listener.header_timeout,
            idle_timeout=cfg.listener.idle_timeout,
            cells=cells,
            report=shared.report,
            trust=shared.trust,
            identity_rules=shared.identity_rules,
            opt_in=opt_in(cfg, shared.secret),
            pools=(pools[0], pools[1]),
        )
        self.listener = Listener(
            self.plane,
            sock,
            shared.server_context,
            max(1, cfg.listener.max_connections // len(shared.cells)),
            [other for number, other in enumerate(shared.cells) if number != index],
        )

        self._configuration = cfg
        self._files = copy(shared.files)
        self._reloads: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept connections, and look after the certificate files."""
        self._look_at_files()
        self.listener.start()
        self._reloads = asyncio.get_running_loop().create_task(self._watch_files())

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self._look_at_files()

    def _look_at_files(self) -> None:
        if self._files.changed():
            self.reload()

    def reload(self) -> None:
        """Use the certificates that are on disk now, or keep all of the last good ones.

        New handshakes use them, on both sides. Open connections live on, but their callers' certificates are judged again
        at the next request, so that an authority that was taken away no longer counts. Session tickets of before are
        not resumed; a full handshake follows.
        """
        plane = self.plane
        try:
            loaded = contexts.load(self._configuration)
        except (OSError, ValueError, TrustError) as error:
            plane.cells[metrics.CERTIFICATE_RELOADS.slot(metrics.Result.ERROR)] += 1
            log.error("changed certificate files are refused, the last good ones stay in use: %s", error)
            return
        plane.trust.replace(loaded.bundles)
        self.listener.context = loaded.server
        for pool in Pool:
            plane.pools[pool].renew(loaded.upstream[pool])
        plane.cells[metrics.CERTIFICATE_RELOADS.slot(metrics.Result.OK)] += 1
        log.info("changed certificate files are in use")

    async def leave(self, signals: Signals, delay: float, grace: float) -> None:
        """The way out: not ready but serving for `delay`, then no new connections, then up to `grace` for the rest."""
        self.plane.not_ready = True
        await signals.pause(delay)
        self.listener.stop_accepting()
        await self.listener.finish(0.0 if signals.at_once.is_set() else grace, signals.at_once)

    async def close(self) -> None:
        """Close what is left."""
        if self._reloads is not None:
            self._reloads.cancel()
            await asyncio.gather(self._reloads, return_exceptions=True)
        await self.listener.close()


async def serve(shared: Shared, index: int, sock: socket.socket) -> None:
    """One worker process, from start to exit."""
    signals = Signals(signal.SIGTERM)
    data_plane = DataPlane(shared, index, sock)
    data_plane.start()
    try:
        await signals.leave.wait()
        shutdown = shared.configuration.shutdown
        await data_plane.leave(signals, shutdown.delay, shutdown.grace_period)
    finally:
        await data_plane.close()
