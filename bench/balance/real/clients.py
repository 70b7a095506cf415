"""Clients of a balancer: HTTP/1.1 over TLS, one kept connection each, requests sent when the clock says so."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bench.balance.scenarios import CLIENTS
from bench.balance.trace import OK, Outcome
from bench.balance.workload import Request

TIMEOUT = 15.0
"""Seconds that a client waits for an answer."""


@dataclass(frozen=True)
class Target:
    """A balancer's listener and the name in its certificate."""

    host: str
    port: int
    server_name: str


@dataclass(frozen=True)
class Answer:
    status: int
    server: str
    """The stand-in that answered; "" if none did."""


NO_ANSWER = Answer(0, "")


class Connection:
    """One connection, used for one request at a time, and until `ends` (the loop's clock)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: float) -> None:
        self._reader = reader
        self._writer = writer
        self.ends = ends
        self.busy = False

    @classmethod
    async def open(cls, target: Target, context: ssl.SSLContext, ends: float) -> Connection:
        reader, writer = await asyncio.open_connection(
            target.host, target.port, ssl=context, server_hostname=target.server_name
        )
        return cls(reader, writer, ends)

    async def get(self, path: str) -> Answer:
        """Raises ConnectionError or asyncio.IncompleteReadError when the connection ends instead."""
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: kubernetes\r\nUser-Agent: bench\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        status, fields = _parse(head)
        await self._reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection", "").lower() == "close":
            self.ends = 0.0
        return Answer(status, fields.get("x-stand-in", ""))

    def close(self) -> None:
        self._writer.transport.abort()


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.lower()] = value.strip()
    return int(first.split(" ", 2)[1]), fields


class Clients:
    """Send requests as their times come. One `Clients` is one run.

    A client uses a connection that is idle, or else opens one; with `lifetimes` a connection is used no
    longer than the workload says, without for ever.
    """

    def __init__(self, targets: Sequence[Target], context: ssl.SSLContext, *, lifetimes: bool) -> None:
        self._targets = targets
        self._context = context
        self._lifetimes = lifetimes
        self._connections: defaultdict[tuple[int, int], list[Connection]] = defaultdict(list)
        self.lateness: list[float] = []
        """Seconds by which each request was sent after its time."""

    async def connect(self) -> None:
        """Open the first connection of every client beforehand, where connections are for ever."""
        if self._lifetimes:
            return
        for client in range(CLIENTS):
            for balancer in range(len(self._targets)):
                request = Request(0.0, False, 0.0, client, balancer, math.inf)
                (await self._open(request)).busy = False

    async def run(self, requests: Sequence[Request], servers: Sequence[str], started: float) -> list[Outcome]:
        """Send them all, the first second of the run being `started` of the loop's clock; wait for the
        answers."""
        loop = asyncio.get_running_loop()
        numbers = {name: number for number, name in enumerate(servers)}
        async with asyncio.TaskGroup() as group:
            tasks = []
            for request in requests:
                pause = started + request.at - loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                self.lateness.append(max(loop.time() - started - request.at, 0.0))
                tasks.append(group.create_task(self._send(request, numbers)))
        return sorted(task.result() for task in tasks)

    def close(self) -> None:
        for connections in self._connections.values():
            for connection in connections:
                connection.close()

    async def _send(self, request: Request, numbers: dict[str, int]) -> Outcome:
        sent = time.perf_counter()  # the event loop's own clock counts in milliseconds
        name = "" if request.is_list else f"/{request.client}"
        path = f"/api/v1/namespaces/default/configmaps{name}"
        answer = NO_ANSWER
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                answer = await self._answer(request, path)
        node = numbers.get(answer.server, -1)
        return Outcome(request.at, request.is_list, node, answer.status, time.perf_counter() - sent)

    async def probe(self, request: Request) -> float | None:
        """Seconds until the answer to something that costs an API server nothing; None for no good one."""
        sent = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._answer(request, "/livez")
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return None
        return time.perf_counter() - sent if answer.status == OK else None

    async def _answer(self, request: Request, path: str) -> Answer:
        connection = self._idle(request)
        if connection is not None:
            try:
                return await self._get(request, connection, path)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # closed meanwhile, which is no answer to a GET: as Go's client, once more on a new one
        return await self._get(request, await self._open(request), path)

    async def _get(self, request: Request, connection: Connection, path: str) -> Answer:
        try:
            answer = await connection.get(path)
        except BaseException:
            connection.close()
            self._connections[request.client, request.balancer].remove(connection)
            raise
        connection.busy = False
        return answer

    def _idle(self, request: Request) -> Connection | None:
        """One to use, marked as busy; those whose time is over are closed."""
        connections = self._connections[request.client, request.balancer]
        now = asyncio.get_running_loop().time()
        for connection in [one for one in connections if not one.busy and one.ends <= now]:
            connection.close()
            connections.remove(connection)
        idle = next((one for one in connections if not one.busy), None)
        if idle is not None:
            idle.busy = True
        return idle

    async def _open(self, request: Request) -> Connection:
        now = asyncio.get_running_loop().time()
        ends = now + request.lifetime if self._lifetimes else math.inf
        connection = await Connection.open(self._targets[request.balancer], self._context, ends)
        connection.busy = True
        self._connections[request.client, request.balancer].append(connection)
        return connection
