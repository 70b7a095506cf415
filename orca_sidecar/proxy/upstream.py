"""Connections to the local kube-apiserver, and the pools that keep them.

Two pools: one whose connections present the front-proxy client certificate, for requests on which an identity is asserted,
and one without a certificate, for all others (kube-apiserver answers 401 to a request without identity on the former).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING

from orca_sidecar import metrics
from orca_sidecar.core.pool_policy import Idle, plan
from orca_sidecar.logs import RateLimited
from orca_sidecar.proxy.sockets import tune
from orca_sidecar.proxy.tls_connection import TLSConnection

if TYPE_CHECKING:
    from orca_sidecar.proxy.exchange import Exchange

log = logging.getLogger(__name__)
_limited = RateLimited(log)


class UpstreamConnection(TLSConnection):
    """One HTTP/1.1 connection to kube-apiserver. It carries one exchange at a time."""

    __slots__ = ("exchange", "idle_since", "on_open", "pool", "used")

    def __init__(self, pool: UpstreamPool, on_open: asyncio.Future[None]) -> None:
        super().__init__(pool.context, pool.server_name)
        self.pool = pool
        self.on_open: asyncio.Future[None] | None = on_open
        self.exchange: Exchange | None = None
        self.idle_since = 0
        self.used = False

    # -- the connection's side -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tune(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def handshake_complete(self) -> None:
        self.pool.all.add(self)
        if self.on_open is not None and not self.on_open.done():
            self.on_open.set_result(None)
        self.on_open = None

    def data_received(self, data: memoryview) -> None:
        exchange = self.exchange
        if exchange is None:
            # Bytes that nobody asked for: whatever they are, no later request may take them for its answer.
            self.discard()
            return
        exchange.on_response_data(data)

    def peer_closed(self) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.on_upstream_closed(clean=True)

    def lost(self) -> None:
        self.pool.forget(self)
        if self.on_open is not None and not self.on_open.done():
            self.on_open.set_exception(self.tls_error or ConnectionError("closed in the TLS handshake"))
        exchange = self.exchange
        if exchange is not None:
            exchange.on_upstream_closed(clean=False)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.downstream.pause_for_upstream()

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.downstream.resume_for_upstream()

    # -- the exchange's side -------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Close without waiting for anything: this connection is not in order for another request."""
        self.exchange = None
        self.pool.forget(self)
        self.abort()

    def close_when_flushed(self, *, complete: bool) -> None:
        """Deliver what is queued, then close: the end of a tunnel."""
        self.exchange = None
        self.pool.forget(self)
        self.close(complete=complete)


class UpstreamPool:
    """A LIFO pool: the connection used last is the one least likely to have been closed meanwhile."""

    def __init__(
        self,
        *,
        index: int,
        host: str,
        port: int,
        server_name: str,
        context: ssl.SSLContext,
        connect_timeout: float,
        minimum: int,
        maximum: int,
        idle_timeout: float,
        cells: memoryview,
    ) -> None:
        self.all: set[UpstreamConnection] = set()
        self._idle: list[UpstreamConnection] = []
        self._waiters: deque[Exchange] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spare = 0  # connections on their way that no request waits for
        self._wanted = 0  # and those on their way for the requests that wait
        self._address = (host, port)
        self.server_name = server_name
        self.context = context
        self._connect_timeout = connect_timeout
        self._minimum = minimum
        self._maximum = maximum
        self._idle_timeout = idle_timeout
        self._cells = cells
        self._connects_ok = metrics.UPSTREAM_CONNECTS.slot(index, 0)
        self._connects_error = metrics.UPSTREAM_CONNECTS.slot(index, 1)
        self._active_slot = metrics.UPSTREAM_CONNECTIONS.slot(index, 0)
        self._idle_slot = metrics.UPSTREAM_CONNECTIONS.slot(index, 1)
        self._closed = False

    def acquire(self, exchange: Exchange) -> UpstreamConnection | None:
        """An idle connection at once, or None: then `exchange.on_upstream` or `.on_connect_failed` is called later."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if not connection.is_closing:
                connection.exchange = exchange
                return connection
        self._waiters.append(exchange)
        # Not one for each that ever waited: those of requests that were cancelled meanwhile will do.
        if self._wanted < len(self._waiters):
            self._spawn_wanted()
        return None

    def acquire_fresh(self, exchange: Exchange) -> None:
        """Open a connection for this exchange alone: for the one retry of a safe request."""
        self._spawn(self._connect_fresh(exchange))

    def cancel(self, exchange: Exchange) -> None:
        """The exchange no longer waits. Its connection, when it comes, goes to the next one or to the pool."""
        if exchange in self._waiters:
            self._waiters.remove(exchange)

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose last response was complete and whose request had been sent whole."""
        connection.exchange = None
        connection.used = True
        if connection.is_closing:
            self.forget(connection)
        elif connection.ssl_object.context is not self.context:
            self.forget(connection)
            connection.close()
        else:
            self._offer(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection is gone or will be."""
        self.all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def renew(self, context: ssl.SSLContext) -> None:
        """Use another context for new connections; idle ones are closed, those in use are not reused afterwards."""
        self.context = context
        for connection in list(self._idle):
            self.forget(connection)
            connection.close()

    def sweep(self, now: int) -> None:
        """Once a second: close the stale, warm the pool, publish the gauges. `now`: monotonic nanoseconds."""
        idle = self._idle
        decision = plan(
            [Idle(connection.used, (now - connection.idle_since) / 1e9) for connection in idle],
            self._spare,
            minimum=0 if self._closed else self._minimum,
            idle_timeout=self._idle_timeout,
        )
        for connection in [idle[index] for index in decision.close]:
            self.forget(connection)
            connection.close()
        for _ in range(decision.open):
            self._spare += 1
            self._spawn(self._connect_spare())
        self.publish()

    def publish(self) -> None:
        """Write the gauges."""
        self._cells[self._idle_slot] = len(self._idle)
        self._cells[self._active_slot] = len(self.all) - len(self._idle)

    async def close(self) -> None:
        """Close every connection and wait for what is on its way."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.all):
            connection.discard()
        self.publish()

    # -- inside --------------------------------------------------------------------------------------------------

    def _offer(self, connection: UpstreamConnection) -> None:
        """To the request that has waited longest, else to the pool."""
        while self._waiters:
            exchange = self._waiters.popleft()
            connection.exchange = exchange
            exchange.on_upstream(connection, reused=connection.used)
            return
        if self._closed or len(self._idle) >= self._maximum:
            self.forget(connection)
            connection.close()
            return
        connection.idle_since = time.monotonic_ns()
        self._idle.append(connection)

    def _spawn(self, coroutine: object) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type,var-annotated]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _log_failure(self, error: OSError) -> None:
        host, port = self._address
        _limited.warning(
            "connect", "no connection to %s:%d: %s", host, port, str(error) or type(error).__name__
        )

    async def _connect_spare(self) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            self._log_failure(error)
        else:
            self._offer(connection)
        finally:
            self._spare -= 1

    def _spawn_wanted(self) -> None:
        self._wanted += 1
        self._spawn(self._connect_wanted())

    async def _connect_wanted(self) -> None:
        """For the requests that wait: to the first in line. If it fails, the one that has waited for as long fails, too."""
        since = time.monotonic_ns()
        try:
            connection = await self._open()
        except OSError as error:
            self._wanted -= 1
            self._log_failure(error)
            if self._waiters and self._waiters[0].started_ns > since:
                self._spawn_wanted()
            elif self._waiters:
                self._waiters.popleft().on_connect_failed()
        else:
            self._wanted -= 1
            self._offer(connection)

    async def _connect_fresh(self, exchange: Exchange) -> None:
        """For this request alone."""
        try:
            connection = await self._open()
        except OSError as error:
            self._log_failure(error)
            exchange.on_connect_failed()
            return
        if exchange.is_over:
            self._offer(connection)
        else:
            connection.exchange = exchange
            exchange.on_upstream(connection, reused=False)

    async def _open(self) -> UpstreamConnection:
        """Connect and shake hands. Every failure is an OSError (TimeoutError and ssl.SSLError are), and counted."""
        loop = asyncio.get_running_loop()
        opened = loop.create_future()
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(self._connect_timeout):
                # The loop makes the socket. One given to it (`sock=`) uvloop takes over only after this call has been
                # woken; a connection that is lost before leaves a socket object that closes its descriptor a second
                # time when it is collected, and that may be another connection's by then.
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self, opened), *self._address
                )
                await opened
            if connection.is_closing:
                raise ConnectionError("closed after the TLS handshake")
        except BaseException as error:
            opened.cancel()
            if connection is not None:
                connection.discard()
            if isinstance(error, OSError):
                self._cells[self._connects_error] += 1
            raise
        self._cells[self._connects_ok] += 1
        connection.idle_since = time.monotonic_ns()
        return connection
