"""Open-loop load: requests leave when the clock says so, whether or not earlier ones were answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import aiohttp

LATENCIES_KEPT = 10_000
REQUEST_TIMEOUT = 30.0


class OpenLoop:
    """Poisson arrivals of GETs for ConfigMaps at `rate` per second, a new name each."""

    def __init__(self, session: aiohttp.ClientSession, url: str, rate: float, *, seed: int = 0) -> None:
        self._session = session
        self._url = url
        self._rate = rate
        self._random = random.Random(seed)  # noqa: S311 (a model's dice)
        self.sent = 0
        self.failed = 0
        """Answers other than 200, and requests without one."""
        self.latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        """Seconds, of the latest answers with status 200."""

    async def run(self) -> None:
        """Send until cancelled; what is then in flight is cancelled too."""
        async with asyncio.TaskGroup() as requests:
            due = time.monotonic()
            while True:
                due += self._random.expovariate(self._rate)
                await asyncio.sleep(due - time.monotonic())
                self.sent += 1
                requests.create_task(self._request(self.sent))

    async def _request(self, number: int) -> None:
        url = f"{self._url}/api/v1/namespaces/default/configmaps/demo-{number}"
        started = time.monotonic()
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(REQUEST_TIMEOUT)) as response:
                await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError):
            status = 0
        if status == 200:
            self.latencies.append(time.monotonic() - started)
        else:
            self.failed += 1
