"""Mode reporter: request rate and requests in flight as kube-apiserver's own /metrics tells them.

What is lost against counting in the proxy: ``apiserver_request_total`` does not tell the load balancer's
requests from those of controllers on the node, so the rate is that of all requests, and it comes every few
seconds rather than ten times a second. A scrape of a large cluster is megabytes that kube-apiserver has to
render; so scrapes are at least ``_EVERY`` seconds apart, and further where one takes long. Here the text is
only searched, never held.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable

import aiohttp

from orca_sidecar.load.probe import UpstreamClient
from orca_sidecar.load.sampler import Totals
from orca_sidecar.settings.schema import UpstreamSettings

_EVERY = 5.0
_SHARE = 50  # a scrape takes at most a fiftieth of the time
_TIMEOUT = 10.0
_LINE_MAX = 64 * 1024

_REQUESTS = b"apiserver_request_total{"
_IN_FLIGHT = b"apiserver_current_inflight_requests{"
_LABEL = re.compile(rb'[{,](code|verb|subresource|request_kind)="([^"]*)"')
_LONG_RUNNING = frozenset({b"WATCH", b"WATCHLIST", b"CONNECT", b"PROXY"})
_HEALTH = (b"/healthz", b"/livez", b"/readyz")


class MetricsText:
    """Sums over the two families, fed with the exposition text in pieces of any size.

    Long-running requests and health checks are left out of ``requests`` and ``errors``.
    """

    def __init__(self) -> None:
        self._rest = b""
        self.requests = 0.0
        self.errors = 0.0
        self.read_only = 0.0
        self.mutating = 0.0
        self.found = False

    def feed(self, data: bytes) -> None:
        """ValueError for a line that is no exposition text."""
        lines = self._rest + data
        end = lines.rfind(b"\n") + 1
        self._rest = lines[end:]
        if len(self._rest) > _LINE_MAX:
            raise ValueError("a line of /metrics has no end")
        for family in (_REQUESTS, _IN_FLIGHT):
            start = 0 if lines.startswith(family) else lines.find(b"\n" + family, 0, end) + 1
            while 0 <= start < end and lines.startswith(family, start):
                stop = lines.index(b"\n", start)
                self._line(family, lines[start:stop])
                next_ = stop + 1
                if not lines.startswith(family, next_):
                    found = lines.find(b"\n" + family, stop, end)
                    next_ = found + 1 if found >= 0 else end
                start = next_

    def _line(self, family: bytes, line: bytes) -> None:
        labels = dict(_LABEL.findall(line))
        value = float(line[line.rindex(b"}") + 1 :].split()[0])
        if family is _IN_FLIGHT:
            if labels.get(b"request_kind") == b"mutating":
                self.mutating += value
            else:
                self.read_only += value
            return
        self.found = True
        if labels.get(b"verb") in _LONG_RUNNING or labels.get(b"subresource", b"").startswith(_HEALTH):
            return
        self.requests += value
        code = labels.get(b"code", b"")
        if code == b"429" or code.startswith(b"5"):
            self.errors += value


class ApiserverMetrics:
    """The sampler's counters in mode reporter. ``detail``: what the last scrape saw."""

    def __init__(self, settings: UpstreamSettings, context: Callable[[], ssl.SSLContext]) -> None:
        self._client = UpstreamClient(settings, context)
        self._totals: Totals | None = None
        self._pause = _EVERY
        self.detail = "not read yet"

    def __call__(self, now_ns: int) -> Totals | None:
        """The totals of the last scrape; None once two more should have followed, since the CPU utilization
        waits for them too."""
        totals = self._totals
        if totals is None or now_ns - totals.taken_ns > 3 * (self._pause + _TIMEOUT) * 1e9:
            return None
        return totals

    async def run(self) -> None:
        """Scrape until cancelled."""
        loop = asyncio.get_running_loop()
        async with self._client.session() as session:
            while True:
                started = loop.time()
                await self.scrape(session)
                took = loop.time() - started
                self._pause = max(_EVERY - took, _SHARE * took)
                await asyncio.sleep(self._pause)

    async def scrape(self, session: aiohttp.ClientSession) -> None:
        """Read once. A failed scrape leaves the totals as they are: the sampler then sees no step."""
        taken_ns = time.monotonic_ns()
        text = MetricsText()
        try:
            async with await self._client.get(session, "/metrics", _TIMEOUT) as response:
                self.detail = f"GET /metrics: {response.status} {response.reason}"
                if response.status != 200:
                    return
                async for data in response.content.iter_any():
                    text.feed(data)
        except TimeoutError:
            self.detail = f"GET /metrics: not read within {_TIMEOUT:g}s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.detail = f"GET /metrics: {error}"
        else:
            if text.found:
                self._totals = Totals(
                    taken_ns, int(text.requests), int(text.errors), int(text.read_only), int(text.mutating)
                )
