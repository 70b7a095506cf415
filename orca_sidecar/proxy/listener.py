"""The listening socket: accepting, handshakes, limits, the once-a-second sweep, and leaving.

Connections are accepted here rather than by the event loop's server, so that a failed handshake is counted with its
reason, and so that workers can share one listening socket fairly: a worker that has more connections than another leaves
the next one to it for a moment. (SO_REUSEPORT spreads by hash: of a load balancer's eight connections one worker may get
seven.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import select
import socket
import ssl
import time
from collections.abc import Sequence

from orca_sidecar import metrics
from orca_sidecar.logs import RateLimited
from orca_sidecar.proxy.downstream import DownstreamConnection
from orca_sidecar.proxy.plane import Plane

_SWEEP_SECONDS = 1.0
_ACCEPTS_PER_TURN = 16
# Callers beyond maxConnections are told so with a 503; beyond this many more, their connections are just closed.
_OVER_LIMIT = 256
# Out of descriptors or memory: wait, or the level-triggered readiness of the socket spins the loop.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_PAUSE = 0.1
# How long a connection is left to a worker that has fewer, and how often that is looked at; then whoever is awake takes it.
_COURTESY_SECONDS = 0.05
_COURTESY_STEP = 0.002

_OPEN = metrics.DOWNSTREAM_CONNECTIONS.offset

log = logging.getLogger(__name__)


class Listener:
    """Accepts callers' connections on `sock` for `plane`."""

    def __init__(
        self,
        plane: Plane,
        sock: socket.socket,
        context: ssl.SSLContext,
        max_connections: int,
        others: Sequence[memoryview] = (),
    ) -> None:
        """`others`: the counters of the other workers, whose connections are compared with this one's."""
        self._plane = plane
        self._others = others
        self._sock = sock
        self.context = context
        """For new handshakes."""
        self._max_connections = max_connections
        self._taking: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._accepting = False
        self._yielding_since = 0.0
        self._log = RateLimited(log)

    def start(self) -> None:
        """Accept from now on."""
        self._accepting = True
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    def _accept(self) -> None:
        cells = self._plane.cells
        for _ in range(_ACCEPTS_PER_TURN):
            if self._yields():
                self._pause(_COURTESY_STEP)
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._log.error("accept", "cannot accept: %s", error.strerror)
                self._pause(_EXHAUSTED_PAUSE)
                return
            finally:
                self._yielding_since = 0.0
            open_ = cells[_OPEN]
            cells[metrics.DOWNSTREAM_CONNECTIONS_TOTAL.offset] += 1
            if open_ >= self._max_connections + _OVER_LIMIT:
                sock.close()
                continue
            cells[_OPEN] += 1
            sock.setblocking(False)
            task = asyncio.get_running_loop().create_task(
                self._take(sock, over_limit=open_ >= self._max_connections)
            )
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    def _yields(self) -> bool:
        """Whether to leave the next connection to a worker that has fewer: not for longer than _COURTESY_SECONDS."""
        mine = self._plane.cells[_OPEN]
        if not any(mine > other[_OPEN] for other in self._others):
            return False
        now = asyncio.get_running_loop().time()
        self._yielding_since = self._yielding_since or now
        return now - self._yielding_since < _COURTESY_SECONDS

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        loop.call_later(seconds, self._unpause)

    def _unpause(self) -> None:
        if not self._accepting:
            return
        if not select.select([self._sock], [], [], 0)[0]:
            self._yielding_since = 0.0  # another worker took it
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    async def _take(self, sock: socket.socket, *, over_limit: bool) -> None:
        """Hand an accepted socket to the event loop; TLS is the connection's own."""
        connection = DownstreamConnection(self._plane, self.context, over_limit=over_limit)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except OSError:
            sock.close()
            self._plane.cells[_OPEN] -= 1
            return
        if not connection.is_closing:
            self._plane.connections.add(connection)

    async def _sweep(self) -> None:
        """Timeouts of waiting callers, the pools' upkeep and the gauges: a look at each connection once a second."""
        while True:
            now = time.monotonic_ns()
            for connection in list(self._plane.connections):
                connection.sweep(now)
            for pool in self._plane.pools:
                pool.sweep(now)
            await asyncio.sleep(_SWEEP_SECONDS)

    # -- leaving -------------------------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Refuse new connections; idle ones are closed, others end with the response under way."""
        self._plane.draining = True
        if self._accepting:
            self._accepting = False
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
        for connection in list(self._plane.connections):
            connection.leave()

    async def finish(self, grace: float, at_once: asyncio.Event) -> None:
        """Wait up to `grace` seconds for what is in flight, or until `at_once` is set.

        Watches would outlast any grace: they are ended one by one over its first half, at a moment when a whole event was
        relayed, so that their callers do not all come back to the other nodes at once. Everything else gets the whole grace.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        timers = [
            loop.call_later(random.uniform(0, grace / 2), self._end_watch, connection)  # noqa: S311
            for connection in self._plane.connections
        ]
        while loop.time() < deadline and not at_once.is_set():
            for connection in list(self._plane.connections):
                connection.leave()
            if all(connection.is_delivered for connection in self._plane.connections):
                break
            await asyncio.sleep(min(0.05, max(0.0, deadline - loop.time())))
        for timer in timers:
            timer.cancel()
        for connection in list(self._plane.connections):
            if connection.exchange is not None:
                connection.exchange.drain()
            else:
                connection.close_when_flushed()
        await asyncio.sleep(0.05 if self._plane.connections else 0)

    @staticmethod
    def _end_watch(connection: DownstreamConnection) -> None:
        exchange = connection.exchange
        if exchange is not None and exchange.is_watch:
            exchange.drain()

    async def close(self) -> None:
        """Close everything at once."""
        self.stop_accepting()
        tasks = [*self._taking, *([self._sweeper] if self._sweeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._plane.connections):
            connection.abort()
        for pool in self._plane.pools:
            await pool.close()
