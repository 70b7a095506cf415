"""Composition root of the data plane: one process's listener, pools and rules, wired and run."""

from __future__ import annotations

import signal
import socket

from orca_sidecar.core.identity import Pool
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.opt_in import Gate, OptIn
from orca_sidecar.proxy.listener import Listener
from orca_sidecar.proxy.plane import Plane
from orca_sidecar.proxy.upstream import UpstreamPool
from orca_sidecar.runtime import Shared, Signals
from orca_sidecar.settings.schema import SidecarConfiguration


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

    def start(self) -> None:
        """Accept connections."""
        self.listener.start()

    async def leave(self, signals: Signals, delay: float, grace: float) -> None:
        """The way out: not ready but serving for `delay`, then no new connections, then up to `grace` for the rest."""
        self.plane.not_ready = True
        await signals.pause(delay)
        self.listener.stop_accepting()
        await self.listener.finish(0.0 if signals.at_once.is_set() else grace, signals.at_once)

    async def close(self) -> None:
        """Close what is left."""
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
