"""A TLS upstream in a thread of its own that writes down what arrives, byte for byte, and on which pool.

It reads HTTP/1.1 by itself, and strictly: what it cannot read is a failure of the proxy in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

Line = tuple[bytes, bytes]
"""A field line: its name as it arrived, and its value without outer blanks."""


@dataclass
class Arrival:
    """One request. `with_certificate`: its connection presented the front-proxy client's certificate."""

    with_certificate: bool
    method: bytes
    target: bytes
    lines: list[Line]
    body: bytes = b""
    trailers: list[Line] = field(default_factory=list)
    complete: bool = False

    def values(self, name: bytes) -> list[bytes]:
        return [value for other, value in self.lines if other.lower() == name.lower()]


class Recorder:
    """Serves until left. The last part of a request's path says how it is answered:

    `refused` 403; `accepted` 101, and what follows is `tunnelled`; `early` 413 before its body is read; `slow` 200 after a
    moment; `held` 200 once `release()` was called; anything else 200. The sidecar's own probes, of /readyz, are not kept.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder")
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.arrivals: list[Arrival] = []
        self.faults: list[str] = []
        """What could not be read as HTTP/1.1."""
        self.tunnelled = b""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context, limit=2**21, backlog=1000)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def clear(self) -> None:
        """Forget what arrived, and hold again."""
        self._loop.call_soon_threadsafe(self._released.clear)
        self.arrivals.clear()
        self.faults.clear()
        self.tunnelled = b""

    def release(self) -> None:
        """Answer what is held."""
        self._loop.call_soon_threadsafe(self._released.set)

    @property
    def targets(self) -> list[bytes]:
        """What arrived, in order."""
        return [arrival.target for arrival in self.arrivals]

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until something has arrived."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110 - another thread's state
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"not within {seconds:g} s; arrived: {self.targets[-20:]}") from None

    def _run(self, coroutine: object) -> asyncio.Server:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)  # type: ignore[arg-type]

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with_certificate = bool(writer.get_extra_info("peercert"))
        try:
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                while await self._request(reader, writer, with_certificate):
                    pass
        except ValueError as error:
            self.faults.append(str(error))
        finally:
            writer.transport.abort()

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, with_certificate: bool
    ) -> bool:
        """Read one request and answer it; False where the connection ends with it."""
        head = await reader.readuntil(b"\r\n\r\n")
        start, *rest = head[:-4].split(b"\r\n")
        method, target, version = start.split(b" ")
        if version != b"HTTP/1.1":
            raise ValueError(f"a version of {version!r}")
        arrival = Arrival(with_certificate, method, target, [_line(line) for line in rest])
        if target != b"/readyz":
            self.arrivals.append(arrival)
        last = target.rpartition(b"/")[2]
        if last == b"early":
            writer.write(b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\n\r\nno")
        await self._body(reader, arrival)
        arrival.complete = True
        if last == b"early":
            return True
        if last == b"accepted":
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
            )
            while data := await reader.read(65536):
                self.tunnelled += data
            return False
        if last == b"slow":
            await asyncio.sleep(0.002)
        if last == b"held":
            await self._released.wait()
        code = b"403 Forbidden" if last == b"refused" else b"200 OK"
        body = b"" if method == b"HEAD" else b"ok"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n%b" % (code, body))
        return True

    async def _body(self, reader: asyncio.StreamReader, arrival: Arrival) -> None:
        codings, lengths = arrival.values(b"transfer-encoding"), arrival.values(b"content-length")
        if len(codings) + len(lengths) > 1:
            raise ValueError(f"ambiguous framing: {codings} {lengths}")
        if lengths:
            arrival.body = await reader.readexactly(int(lengths[0]))
        elif codings:
            while size := int((await reader.readuntil(b"\r\n"))[:-2], 16):
                arrival.body += await reader.readexactly(size)
                if await reader.readexactly(2) != b"\r\n":
                    raise ValueError("a chunk that does not end where it says")
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                arrival.trailers.append(_line(line[:-2]))


def _line(line: bytes) -> Line:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip(b" \t") or b"\n" in line or b"\r" in line:
        raise ValueError(f"no field line: {line!r}")
    return name, value.strip(b" \t")
