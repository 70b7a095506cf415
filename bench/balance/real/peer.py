"""The peer's sidecar, for real: a small proxy whose answers carry KEP-6315's prototype's report.

It is here to be compared with, stands where the sidecar stands and is no part of the product.
"""

from __future__ import annotations

import asyncio
import ssl

import aiohttp
from aiohttp import web

from bench.balance.prototype import SAMPLE_EVERY, PrototypeReport
from bench.balance.scenarios import MEAN_WORK
from orca_sidecar.demo.standin import StandIn

_PASSED = ("Content-Type", "X-Stand-In", "Retry-After")


class PrototypeSidecar:
    """In front of one stand-in, in this process: `start`, then `stop`."""

    def __init__(self, stand_in: StandIn, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self._stand_in = stand_in
        self._context = server
        self._client_context = client
        self._requests = 0.0
        self._report = PrototypeReport(stand_in.capacity.cores)

    async def start(self, host: str, port: int) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._client_context), auto_decompress=False
        )
        self._server = web.Server(self._handle, access_log=None)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._server, host, port, ssl=self._context)
        self._sampling = loop.create_task(self._sample())

    async def stop(self) -> None:
        self._sampling.cancel()
        await asyncio.gather(self._sampling, return_exceptions=True)
        self._listener.close()
        await self._server.shutdown(0.1)
        await self._session.close()

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(SAMPLE_EVERY)
            now = loop.time()
            state = self._stand_in.state()
            if state["running"]:
                # The node's own clients' requests, which come to the API server directly and cost as much each.
                share = float(str(state["background"]))
                self._requests += share * self._stand_in.capacity.cores / MEAN_WORK * (now - last)
                self._report.sample(now, self._requests, self._stand_in.cpu_seconds())
            else:
                self._report.forget()
            last = now

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        probe = request.path in ("/readyz", "/livez", "/healthz")
        if not probe:
            self._requests += 1
        url = "https://{}:{}".format(*self._stand_in.address) + request.path_qs
        try:
            async with self._session.get(url, server_hostname="kubernetes") as upstream:
                body = await upstream.read()
        except aiohttp.ClientError as error:
            return web.Response(status=502, text=str(error))
        headers = {name: upstream.headers[name] for name in _PASSED if name in upstream.headers}
        figures = self._report.figures()
        if figures is not None and not probe and "endpoint-load-metrics-request" in request.headers:
            headers["endpoint-load-metrics"] = (
                f"TEXT cpu_utilization={figures.utilization:.4f}, rps_fractional={figures.rate:.4f}"
            )
        return web.Response(status=upstream.status, body=body, headers=headers)
