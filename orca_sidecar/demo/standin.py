"""A stand-in for kube-apiserver with a capacity that is modelled, not burnt: a TLS server for demos and
benchmarks.

It answers /healthz, /livez and /readyz at once and everything else when its virtual cores have done the work,
refuses with 429 above its in-flight limit as API Priority and Fairness does, fills memory with LISTs, and is
killed and restarted, as by the kernel and the kubelet, when that exceeds its limit. What it uses is written
as cgroup files, for a sidecar's sampler to read as it would the real ones.

    python -m orca_sidecar.demo.standin --listen 127.0.0.1:6443 --control 127.0.0.1:7443 --cert-file …
    --key-file … \\
        --cgroup-root /tmp/cgroup --name a --background 0.6

The control listener (plain HTTP, for loopback) changes a running one: `GET /state`, `POST /set` with a JSON
object of `background`, `speed` and `ready`, `POST /restart`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import ssl
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import uvloop
from aiohttp import web

from orca_sidecar.core.request_info import classify

from .capacity import Memory, ServiceTime, VirtualCores, check_background, check_speed, service_time
from .cgroup import CgroupFiles, make_root

MIB = 1 << 20
DEFAULT_SERVICE = service_time("exponential:0.008")
WRITE_INTERVAL = 0.02
"""Seconds between two updates of the cgroup files: well below a sampler's interval, so that it meets fresh
figures.
"""
IDLE_TIMEOUT = 90.0
"""Seconds a keep-alive connection may be idle; kube-apiserver's."""
REAP = 0.001
"""Seconds until requests of closed connections are cancelled; to aiohttp, 0 would be no limit."""

_HEADERS = {
    "Cache-Control": "no-cache, private",
    "X-Kubernetes-Pf-Flowschema-Uid": "5f9c1d0a-0000-4000-8000-000000000001",
    "X-Kubernetes-Pf-Prioritylevel-Uid": "5f9c1d0a-0000-4000-8000-000000000002",
}
_OBJECT = json.dumps(
    {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "settings", "namespace": "default", "resourceVersion": "1"},
        "data": {"settings": "x" * 1900},
    }
).encode()
_LIST = (
    b'{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[' + b",".join([_OBJECT] * 10) + b"]}"
)
_TOO_MANY = json.dumps(
    {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "too many requests, please try again later",
        "reason": "TooManyRequests",
        "code": 429,
    }
).encode()


@dataclass(frozen=True)
class Capacity:
    """What one stand-in can do."""

    cores: int = 2
    service: ServiceTime = DEFAULT_SERVICE
    list_work: float = 5.0
    """Work of a LIST, in requests of the other kinds."""
    inflight_limit: int = 600
    """kube-apiserver's --max-requests-inflight and --max-mutating-requests-inflight together."""
    memory_limit: int = 2048 * MIB
    memory_base: int = 512 * MIB
    page_cache: int = 64 * MIB
    """Inactive file cache: part of memory.current that a kernel short of memory takes back first."""
    list_memory: int = 8 * MIB
    """Bytes that a LIST holds from its arrival on."""
    list_hold: float = 2.0
    """Seconds for which it holds them after its end, until garbage collection."""
    random_background: bool = False
    """Background work arrives as requests do instead of evenly spaced: a busy node then delays more."""
    restart_seconds: float = 3.0
    """From being killed to listening again."""
    cold_seconds: float = 2.0
    """From listening again to being ready."""


@dataclass
class Totals:
    """Counted over all lives of a stand-in, health probes left out."""

    served: int = 0
    rejected: int = 0
    oom_kills: int = 0


class _Life:
    """From one start of the API server to its end: restarting forgets all of it."""

    def __init__(
        self,
        capacity: Capacity,
        folder: Path,
        background: float,
        speed: float,
        now: float,
        dice: random.Random,
    ) -> None:
        self.cores = VirtualCores(
            capacity.cores,
            background=background,
            speed=speed,
            now=now,
            random=dice if capacity.random_background else None,
        )
        self.memory = Memory(capacity.memory_limit, capacity.memory_base)
        self.files = CgroupFiles(folder, cores=capacity.cores, memory_limit=capacity.memory_limit)
        self.inflight = 0
        self.ready_at = now


class StandIn:
    """One stand-in API server on one TLS listener.

    Its cgroup is `<cgroup_root>/<name>/run-<n>`, with n counting its starts: a sampler's `target.cgroup` is
    then `<name>/run-*`. `background` and `speed` are `VirtualCores`'.
    """

    def __init__(
        self,
        name: str,
        capacity: Capacity,
        context: ssl.SSLContext,
        cgroup_root: Path,
        *,
        background: float = 0.0,
        speed: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.totals = Totals()
        self.address = ("127.0.0.1", 0)
        self._context = context
        self._cgroup_root = cgroup_root
        self._background = background
        self._speed = speed
        self._random = random.Random(seed)  # noqa: S311 (a model's dice)
        self._headers = {**_HEADERS, "X-Stand-In": name}
        self._ready = True
        self._starts = 0
        self._used_before = 0.0
        self._life: _Life | None = None
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._writer: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen, ready at once; `address` then holds the port. Raises OSError if it is taken."""
        make_root(self._cgroup_root)
        self.address = (host, port)
        await self._begin(cold=0.0)
        self._writer = asyncio.create_task(self._write_files())

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        tasks = [task for task in (self._writer, self._restarting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._die()
        await self._reap()

    def restart(self) -> None:
        """Be killed now: connections are cut. Comes back, cold, after `restart_seconds`."""
        if self._life is not None:
            self._die()
            self._restarting = asyncio.create_task(self._come_back())

    def set(
        self, *, background: float | None = None, speed: float | None = None, ready: bool | None = None
    ) -> None:
        """Change what is given, all or nothing. Raises ValueError for a share or speed that cannot be."""
        background = self._background if background is None else background
        speed = self._speed if speed is None else speed
        check_background(background)
        check_speed(speed)
        self._background, self._speed = background, speed
        self._ready = self._ready if ready is None else ready
        if self._life is not None:
            now = time.monotonic()
            self._life.cores.set_background(now, background)
            self._life.cores.set_speed(now, speed)

    @property
    def ready(self) -> bool:
        return self._ready and self._life is not None and time.monotonic() >= self._life.ready_at

    def cpu_seconds(self) -> float:
        """CPU seconds used so far, over all lives: what utilization is the slope of."""
        return self._used_before + (
            self._life.cores.used(time.monotonic()) if self._life is not None else 0.0
        )

    def state(self) -> dict[str, object]:
        """Everything there is to know from outside, as JSON-ready figures; bytes and seconds."""
        life = self._life
        return {
            "name": self.name,
            "running": life is not None,
            "ready": self.ready,
            "cores": self.capacity.cores,
            "background": self._background,
            "speed": self._speed,
            "cpuSeconds": self.cpu_seconds(),
            "inflight": life.inflight if life is not None else 0,
            "memory": life.memory.used(time.monotonic()) if life is not None else 0,
            "memoryLimit": self.capacity.memory_limit,
            **asdict(self.totals),
        }

    async def _begin(self, cold: float) -> None:
        self._starts += 1
        folder = self._cgroup_root / self.name / f"run-{self._starts}"
        now = time.monotonic()
        life = _Life(self.capacity, folder, self._background, self._speed, now, self._random)
        life.ready_at = now + cold
        self._life = life
        self._write(life)
        self._server = web.Server(self._handle, access_log=None, keepalive_timeout=IDLE_TIMEOUT)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._server, *self.address, ssl=self._context, backlog=1024
        )
        self.address = self._listener.sockets[0].getsockname()[:2]

    def _die(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._life is not None:
            self._used_before = self.cpu_seconds()
            self._life.files.remove()
            self._life = None
        if self._server is not None:
            for connection in self._server.connections:
                connection.force_close()

    async def _reap(self) -> None:
        """Collect what still runs for connections that are closed."""
        if self._server is not None:
            await self._server.shutdown(REAP)

    async def _come_back(self) -> None:
        await self._reap()
        await asyncio.sleep(self.capacity.restart_seconds)
        await self._begin(self.capacity.cold_seconds)

    async def _write_files(self) -> None:
        while True:
            if self._life is not None:
                self._write(self._life)
            await asyncio.sleep(WRITE_INTERVAL)

    def _write(self, life: _Life) -> None:
        now = time.monotonic()
        cache = self.capacity.page_cache
        memory = life.memory.used(now) + cache
        life.files.write(cpu_seconds=life.cores.used(now), memory=memory, inactive_file=cache)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        info = classify(request.method.encode(), request.raw_path.encode())
        if info.health_probe:
            healthy = self.ready or request.path != "/readyz"
            return web.Response(status=200 if healthy else 503, text="ok" if healthy else "not ready")
        life = self._life
        if life is None:
            raise web.HTTPServiceUnavailable
        if life.inflight >= self.capacity.inflight_limit:
            self.totals.rejected += 1
            return _json(429, _TOO_MANY, {**self._headers, "Retry-After": "1"})
        life.inflight += 1
        try:
            await request.read()
            is_list = info.verb == "list"
            now = time.monotonic()
            work = self.capacity.service(self._random)
            done = life.cores.submit(now, work * self.capacity.list_work if is_list else work)
            if is_list:
                life.memory.hold(self.capacity.list_memory, done + self.capacity.list_hold)
                if life.memory.used(now) > self.capacity.memory_limit:
                    self.totals.oom_kills += 1
                    self.restart()
            await asyncio.sleep(done - now)
        finally:
            life.inflight -= 1
        if self._life is life:
            self.totals.served += 1
        return _json(200, _LIST if is_list else _OBJECT, self._headers)


def _json(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


def control_app(stand_in: StandIn) -> web.Application:
    """The control listener's three endpoints; a bad value is a 400 that says which."""

    async def state(request: web.Request) -> web.Response:
        return web.json_response(stand_in.state())

    async def set_values(request: web.Request) -> web.Response:
        try:
            stand_in.set(**await request.json())
        except (TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return web.json_response(stand_in.state())

    async def restart(request: web.Request) -> web.Response:
        stand_in.restart()
        return web.json_response(stand_in.state())

    app = web.Application()
    app.add_routes([web.get("/state", state), web.post("/set", set_values), web.post("/restart", restart)])
    return app


def server_context(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    return context


async def serve(stand_in: StandIn, listen: tuple[str, int], control: tuple[str, int]) -> None:
    """Run until SIGTERM or SIGINT. Raises OSError if a port is taken."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runner = web.AppRunner(control_app(stand_in), access_log=None)
    await runner.setup()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(stand_in.stop)
        await stand_in.start(*listen)
        await web.TCPSite(runner, *control).start()
        await stopped.wait()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(argv: Sequence[str] | None = None) -> int:
    default = Capacity()
    parser = argparse.ArgumentParser(
        prog="standin", description="A stand-in API server of modelled capacity."
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--listen", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--control", type=_address, required=True, metavar="HOST:PORT")
    parser.add_argument("--cert-file", type=Path, required=True)
    parser.add_argument("--key-file", type=Path, required=True)
    parser.add_argument("--cgroup-root", type=Path, required=True)
    parser.add_argument("--background", type=float, default=0.0, help="share of the cores, 0 to below 1")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=default.cores)
    parser.add_argument("--random-background", action="store_true", help="background work arrives at random")
    parser.add_argument(
        "--service", type=service_time, default=default.service, help="e.g. exponential:0.008"
    )
    for name in ("list_work", "list_hold", "restart_seconds", "cold_seconds"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(default, name))
    for name in ("inflight_limit", "memory_limit", "memory_base", "page_cache", "list_memory"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(default, name))
    options = parser.parse_args(argv)
    capacity = replace(default, **{name: getattr(options, name) for name in default.__dataclass_fields__})
    stand_in = StandIn(
        options.name,
        capacity,
        server_context(options.cert_file, options.key_file),
        options.cgroup_root,
        background=options.background,
        speed=options.speed,
        seed=options.seed,
    )
    uvloop.run(serve(stand_in, options.listen, options.control))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
