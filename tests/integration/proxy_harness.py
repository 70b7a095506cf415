"""The data plane in this process, a raw TLS client for it and a raw TLS upstream behind it.

Both ends speak bytes: what is sent in which TCP segment, and how a connection ends (close_notify, a bare FIN, a reset)
is the test's to say. Every proxy ends with a check that nothing is left: connections, tasks, descriptors, gauges.

    async with proxy(identities) as it:
        client = await it.connect()
        await client.send(b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        peer = await it.upstream.next()
        assert (await peer.head()).startswith(b"GET / ")
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
import yaml

from orca_sidecar import metrics
from orca_sidecar.proxy.sockets import listen
from orca_sidecar.settings.load import load_configuration
from orca_sidecar.supervisor import prepare
from orca_sidecar.worker import DataPlane
from tests.pki import Credential
from tests.support.sidecar import Identities

END = b"\r\n\r\n"
PATIENCE = 10.0
"""Seconds after which a test that waits has failed; never waited for in a test that passes."""


class CutError(ConnectionError):
    """The peer's FIN came without a close_notify: a truncation, as TLS has it."""


class Wire:
    """One TLS connection, of a client or of an upstream."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._loop = asyncio.get_running_loop()
        self._unread = bytearray()
        self._unsent = b""
        self.patience: float | None = PATIENCE
        self.number = 0
        """Of an upstream's connection: how many came before it."""

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext, *, receive_buffer: int = 0) -> Wire:
        """A client's. `receive_buffer`: bytes that the kernel takes for a client that does not read."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = cls(sock, context, "kubernetes")
        try:
            await wire._loop.sock_connect(sock, ("127.0.0.1", port))
            await wire.shake_hands()
        except BaseException:
            sock.close()
            raise
        return wire

    async def shake_hands(self) -> None:
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    self.tls.do_handshake()
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
                else:
                    await self._flush()
                    return

    # -- sending -------------------------------------------------------------------------------------------------

    async def send(self, *segments: bytes) -> None:
        """Send; several arguments go as TLS records of their own, in one TCP segment if they fit."""
        for segment in segments:
            if segment:
                self.tls.write(segment)
        async with asyncio.timeout(self.patience):
            await self._flush()

    async def send_bytewise(self, data: bytes) -> None:
        """Each byte in a TLS record and a TCP segment of its own."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(0)

    def push(self, data: bytes) -> int:
        """Send as much as the kernel takes without waiting, a record at a time; returns how much that was.

        For peers that stop reading. What of the last record did not fit is sent by the next call.
        """
        sent = 0
        while True:
            if not self._unsent:
                record = data[sent : sent + 16384]
                if not record:
                    return sent
                self.tls.write(record)
                self._unsent = self._outgoing.read()
                sent += len(record)
            try:
                self._unsent = self._unsent[self.sock.send(self._unsent) :]
            except BlockingIOError:
                return sent

    # -- receiving -----------------------------------------------------------------------------------------------

    async def receive(self, size: int = 65536) -> bytes:
        """Some bytes; b"" after a close_notify. Raises `CutError` for a FIN without one, ConnectionError for a reset."""
        if self._unread:
            data = bytes(self._unread[:size])
            del self._unread[:size]
            return data
        while True:
            try:
                return self.tls.read(size)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLWantReadError:
                await self._fill()

    async def until(self, separator: bytes) -> bytes:
        """Bytes up to and with `separator`."""
        async with asyncio.timeout(self.patience):
            while (at := self._unread.find(separator)) < 0:
                await self._more()
            return await self.receive(at + len(separator))

    async def exactly(self, size: int) -> bytes:
        """So many bytes."""
        async with asyncio.timeout(self.patience):
            while len(self._unread) < size:
                await self._more()
            return await self.receive(size)

    async def head(self) -> bytes:
        """A head with its blank line."""
        return await self.until(END)

    async def message(self, method: bytes = b"") -> tuple[bytes, bytes]:
        """A head and the raw bytes of its body: of a request, or of a response to `method`."""
        head = await self.head()
        lower = head.lower()
        if method == b"HEAD" or re.match(rb"http/1.. (1..|204|304)", lower):
            return head, b""
        if b"\r\ntransfer-encoding:" in lower:
            body = bytearray()
            while True:
                line = await self.until(b"\r\n")
                body += line
                size = int(line.partition(b";")[0], 16)
                if size == 0:
                    break
                body += await self.exactly(size + 2)
            while (line := await self.until(b"\r\n")) != b"\r\n":
                body += line
            return head, bytes(body + line)
        length = re.search(rb"\r\ncontent-length:\s*(\d+)", lower)
        if length:
            return head, await self.exactly(int(length[1]))
        if method:
            return head, await self.rest()
        return head, b""

    async def rest(self) -> bytes:
        """Everything to the clean end. Raises as `receive` does."""
        data = bytes(self._unread)
        self._unread.clear()
        async with asyncio.timeout(self.patience):
            while piece := await self.receive():
                data += piece
        return data

    async def nothing(self, seconds: float = 0.1) -> None:
        """Fails if anything comes within a moment, an end included."""
        try:
            async with asyncio.timeout(seconds):
                data = await self.receive()
        except TimeoutError:
            return
        raise AssertionError(f"did not expect {data!r}")

    async def end(self) -> str:
        """How the connection ends, with nothing before it: "clean", "cut" or "reset"."""
        try:
            async with asyncio.timeout(self.patience):
                data = await self.receive()
        except CutError:
            return "cut"
        except ConnectionError:
            return "reset"
        assert data == b"", f"expected the end, got {data!r}"
        return "clean"

    async def gone(self) -> None:
        """Wait for the end, however long it takes and however it comes; for an upstream's script."""
        with contextlib.suppress(ConnectionError):
            while await self.receive():
                pass

    # -- ending --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """A close_notify, a FIN."""
        with contextlib.suppress(ssl.SSLError, OSError):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.unwrap()
            await self._flush()
        self.sock.close()

    async def finish(self) -> None:
        """A close_notify alone: this side says no more, and goes on reading."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        await self._flush()

    def cut(self) -> None:
        """A FIN without close_notify."""
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.close()

    def reset(self) -> None:
        """A reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    # -- inside --------------------------------------------------------------------------------------------------

    async def _more(self) -> None:
        held = bytes(self._unread)
        self._unread.clear()
        try:
            piece = await self.receive()
        finally:
            self._unread[:0] = held
        if not piece:
            raise EOFError(f"ended after {held[-300:]!r}")
        self._unread += piece

    async def _fill(self) -> None:
        data = await self._loop.sock_recv(self.sock, 1 << 16)
        if not data:
            raise CutError("a FIN without close_notify")
        self._incoming.write(data)

    async def _flush(self) -> None:
        data = self._unsent + self._outgoing.read()
        self._unsent = b""
        if data:
            await self._loop.sock_sendall(self.sock, data)


Script = Callable[[Wire], Awaitable[None]]


class Upstream:
    """A TLS server. Its connections go to `script`, or where there is none to whoever waits for `next()`."""

    def __init__(self, context: ssl.SSLContext, script: Script | None) -> None:
        self.context = context
        self.script = script
        self.connections: list[Wire] = []
        self.failures: list[BaseException] = []
        self.sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.sock.setblocking(False)
        self.port: int = self.sock.getsockname()[1]
        self._ready: asyncio.Queue[Wire] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self.resume()

    def resume(self) -> None:
        """Accept connections."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def pause(self) -> None:
        """Accept none for now: the kernel does, and no handshake goes on."""
        if self._accepting.cancelled():
            return
        self._accepting.cancel()
        for error in await asyncio.gather(self._accepting, return_exceptions=True):
            if not isinstance(error, asyncio.CancelledError):
                self.failures.append(error)

    async def next(self) -> Wire:
        """The next connection that was opened."""
        async with asyncio.timeout(PATIENCE):
            return await self._ready.get()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self.sock)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(self._serve(Wire(sock, self.context, None)))

    async def _serve(self, wire: Wire) -> None:
        try:
            await wire.shake_hands()
            wire.number = len(self.connections)
            self.connections.append(wire)
            if self.script is None:
                await self._ready.put(wire)
            else:
                wire.patience = None  # an idle connection may wait for its request
                await self.script(wire)
        except (ConnectionError, EOFError, ssl.SSLError):
            wire.sock.close()  # how the proxy's connections end is not an upstream's failure
        except asyncio.CancelledError:
            wire.sock.close()
        except BaseException as error:
            self.failures.append(error)
            wire.sock.close()

    async def drop(self) -> None:
        """End every connection that a script serves, as a process that is killed does."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        await self.pause()
        await self.drop()
        for wire in self.connections:
            wire.sock.close()
        self.sock.close()


class Proxy:
    """The data plane, wired as a worker wires it, on this loop."""

    def __init__(
        self, identities: Identities, upstream: Upstream, folder: Path, changes: dict[str, Any]
    ) -> None:
        self.identities = identities
        self.upstream = upstream
        by_name = changes.pop("by_name", False)
        settings = identities.configuration(upstream.port, **changes)
        settings["upstream"].setdefault("minIdleConnections", 0)
        if by_name:
            settings["upstream"]["address"] = f"localhost:{upstream.port}"
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(settings))
        self.shared = prepare(load_configuration(path))
        sock = listen("127.0.0.1", 0)
        self.port: int = sock.getsockname()[1]
        self.data_plane = DataPlane(self.shared, 0, sock)
        self.plane = self.data_plane.plane
        self.listener = self.data_plane.listener
        self.cells = self.shared.cells[0]
        self.wires: list[Wire] = []

    async def connect(self, who: Credential | None = None, *, receive_buffer: int = 0) -> Wire:
        """A caller's connection."""
        context = self.identities.client_context(who)
        wire = await Wire.connect(self.port, context, receive_buffer=receive_buffer)
        self.wires.append(wire)
        return wire

    def count(self, family: metrics.Counter | metrics.Gauge, *labels: str) -> int:
        """One cell, by its labels' values."""
        return self.cells[family.named(*labels)]

    def left(self) -> dict[str, int]:
        """What should be nothing once nobody is connected."""
        for pool in self.plane.pools:
            pool.publish()
        found = {
            "connections": len(self.plane.connections),
            "downstream_connections": self.cells[metrics.DOWNSTREAM_CONNECTIONS.offset],
            "upgrades": self.cells[metrics.UPGRADES.offset],
        }
        for kind in ("read_only", "mutating", "long_running"):
            found[f"in_flight {kind}"] = self.count(metrics.REQUESTS_IN_FLIGHT, kind)
        for pool_name in ("plain", "front_proxy"):
            found[f"active {pool_name}"] = self.count(metrics.UPSTREAM_CONNECTIONS, pool_name, "active")
        for number, pool in enumerate(self.plane.pools):
            found[f"waiters {number}"] = len(pool._waiters)
        return {name: value for name, value in found.items() if value}

    async def settled(self, seconds: float = 5.0) -> None:
        """Wait until no connection and no request is left."""
        await eventually(lambda: not self.left(), seconds, self.left)

    async def settled_downstream(self) -> None:
        """Wait until no caller is connected."""
        await eventually(lambda: not self.plane.connections)


async def eventually(
    condition: Callable[[], object], seconds: float = PATIENCE, describe: Callable[[], object] = lambda: ""
) -> None:
    """Wait for something that will be so in a moment."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        assert loop.time() < deadline, f"not so after {seconds} s: {describe()}"
        await asyncio.sleep(0.005)


def descriptors() -> int:
    """Open files of this process. libuv opens /dev/null once, to be able to refuse a connection when files run out."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}") != "/dev/null"
    return count


@contextlib.asynccontextmanager
async def proxy(
    identities: Identities, folder: Path, script: Script | None = None, **changes: Any
) -> AsyncIterator[Proxy]:
    """A proxy in front of an upstream that runs `script` on each connection. `changes` are configuration sections."""
    loop = asyncio.get_running_loop()
    # uvloop makes these once, at the first use.
    await loop.run_in_executor(None, lambda: None)
    before_tasks, before_files = asyncio.all_tasks(), descriptors()
    upstream = Upstream(identities.server_context(), script)
    upstream.start()
    it = Proxy(identities, upstream, folder, changes)
    it.data_plane.start()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    try:
        yield it
        for wire in it.wires:
            if wire.sock.fileno() >= 0:
                await wire.close()
        await it.settled()
    finally:
        for wire in it.wires:
            wire.sock.close()
        await it.data_plane.close()
        await upstream.stop()
        loop.set_exception_handler(None)
    assert not upstream.failures, upstream.failures
    assert not faults, faults
    await eventually(
        lambda: asyncio.all_tasks() == before_tasks, 2, lambda: asyncio.all_tasks() - before_tasks
    )
    if descriptors() > before_files:
        gc.collect()  # slow, and seldom needed
    await eventually(
        lambda: descriptors() <= before_files, 2, lambda: f"{descriptors()} files, {before_files} before"
    )


@pytest.fixture(scope="session")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """One cluster's certificates."""
    return Identities.make(tmp_path_factory.mktemp("pki"))


def loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """For a conftest's `pytest_asyncio_loop_factories`: uvloop, as the product's default, or both where the module says
    `BOTH_EVENT_LOOPS = True`.
    """
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if getattr(item.module, "BOTH_EVENT_LOOPS", False):  # type: ignore[attr-defined]
        factories["asyncio"] = asyncio.new_event_loop
    return factories


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`monotonic(seconds)` moves the clock that the data plane reads; nothing waits."""
    import time

    real, moved = time.monotonic_ns, 0

    def advance(seconds: float) -> None:
        nonlocal moved
        moved += int(seconds * 1e9)

    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + moved)
    return advance


def response(body: bytes = b"ok", code: bytes = b"200 OK", *lines: bytes) -> bytes:
    """A response with a Content-Length."""
    return b"\r\n".join([b"HTTP/1.1 " + code, b"Content-Length: %d" % len(body), *lines, b"", b""]) + body


def request(
    target: bytes = b"/api/v1/namespaces/a/pods/b", *lines: bytes, method: bytes = b"GET", body: bytes = b""
) -> bytes:
    """A request; a body brings its Content-Length."""
    fields = [b"Host: kubernetes", *lines]
    if body:
        fields.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", *fields, b"", b""]) + body


async def echo_ok(wire: Wire) -> None:
    """An upstream that answers every request with 200."""
    while True:
        await wire.message()
        await wire.send(response())
