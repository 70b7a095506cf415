"""The admin listener: plain HTTP for probes, Prometheus and people. It never shares a port with the proxy.

    GET /metrics    every metric, in Prometheus' text format or OpenMetrics, as the scraper accepts
    GET /livez      200 "ok" while the event loop turns: restart the process when it does not answer
    GET /readyz     200 "ok" while every condition holds, else 503 and the list of them; ?verbose lists always
    GET /statusz    one JSON object: versions, uptime, the load report, conditions, connections, certificates

Nothing here is secret and nothing changes state, so that whoever reaches the address may read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orca_sidecar.settings.addresses import Address

_SHUTDOWN_TIMEOUT: Final = 1.0


class Condition(NamedTuple):
    """One of the things that readiness needs."""

    name: str
    ok: bool
    detail: str = ""
    """Why it does not hold."""


class AdminServer:
    """Serves the routes above on the running event loop.

    `conditions` and `status` are called for each request that needs them, so they must not block; `status`
    returns what JSON can hold.
    """

    def __init__(
        self,
        address: Address,
        collector: Collector,
        conditions: Callable[[], Iterable[Condition]],
        status: Callable[[], Mapping[str, object]],
    ) -> None:
        self._configured = address
        self._conditions = conditions
        self._status = status
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/statusz", self._statusz)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT)

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be had."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._configured.host, self._configured.port).start()
        except BaseException:
            await self._runner.cleanup()
            raise

    async def stop(self) -> None:
        """Close the listener and its connections; requests being answered have a second to end."""
        await self._runner.cleanup()

    @property
    def address(self) -> Address:
        """Where it listens, once started: of use where port 0 was configured."""
        host, port = self._runner.addresses[0][:2]
        return Address(host, port)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(",".join(request.headers.getall(hdrs.ACCEPT, [])))
        return web.Response(body=encode(self._registry), headers={hdrs.CONTENT_TYPE: content_type})

    async def _livez(self, request: web.Request) -> web.Response:
        return _plain("ok")

    async def _readyz(self, request: web.Request) -> web.Response:
        conditions = list(self._conditions())
        ready = all(condition.ok for condition in conditions)
        if ready and "verbose" not in request.query:
            return _plain("ok")
        lines = [_line(condition) for condition in conditions]
        lines.append("readyz check passed" if ready else "readyz check failed")
        return _plain("\n".join(lines) + "\n", 200 if ready else 503)

    async def _statusz(self, request: web.Request) -> web.Response:
        conditions = [condition._asdict() for condition in self._conditions()]
        text = json.dumps({**self._status(), "conditions": conditions}, indent=2) + "\n"
        return web.Response(text=text, content_type="application/json", headers=_UNCACHED)


def _line(condition: Condition) -> str:
    """A line as in kube-apiserver's own /readyz?verbose."""
    if condition.ok:
        return f"[+]{condition.name} ok"
    return f"[-]{condition.name} failed: {' '.join(condition.detail.split()) or 'no reason given'}"


_UNCACHED: Final = {hdrs.CACHE_CONTROL: "no-cache, no-store", "X-Content-Type-Options": "nosniff"}


def _plain(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, headers=_UNCACHED)
