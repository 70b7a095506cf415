"""Whether the local kube-apiserver is ready: GET /readyz once an interval.

200 is ready. So are 401 and 403: a kube-apiserver that refuses anonymous probes answers, and is asked again
with ``probe.tokenFile`` where one is configured. Everything else is not: 5xx (kube-apiserver fails /readyz
at once on SIGTERM), a connection refused, and no answer within the timeout three times in a row, as of a
stopped process. One late answer is what a busy node gives, and a busy node must go on reporting: Envoy gives
one whose report has stopped the median weight.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp

from orca_sidecar import __version__
from orca_sidecar.settings.schema import UpstreamSettings

_READY = frozenset({200, 401, 403})
_LATE_IN_A_ROW = 3


class UpstreamClient:
    """The sidecar's own requests to kube-apiserver, apart from the traffic it forwards.

    ``context`` is asked for every request, so that a reloaded CA is used by the next connection.
    """

    def __init__(self, settings: UpstreamSettings, context: Callable[[], ssl.SSLContext]) -> None:
        self._origin = f"https://{settings.address}"
        self._server_name = settings.tls.server_name
        self._token_file = settings.probe.token_file
        self._context = context

    def session(self) -> aiohttp.ClientSession:
        """One connection, no cookies, no proxy from the environment. Close it, or use it as a context."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"orca-sidecar/{__version__}", "Accept-Encoding": "identity"},
        )

    async def get(self, session: aiohttp.ClientSession, path: str, within: float) -> aiohttp.ClientResponse:
        """The response's head. Raises aiohttp.ClientError, OSError, or TimeoutError: ``within`` seconds are
        for the body too."""
        return await session.get(
            self._origin + path,
            ssl=self._context(),
            server_hostname=self._server_name,
            headers=self._credentials(),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=within),
        )

    def _credentials(self) -> dict[str, str]:
        """The token is read again each time: kubelet and cert managers replace such files in place."""
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {read_token(self._token_file)}"}


def read_token(path: Path) -> str:
    """A bearer token from its file. OSError if it cannot be read, ValueError if it is not one line of
    ASCII."""
    token = path.read_text().strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError(f"{path} does not hold a bearer token")
    return token


class Probe:
    """``ready`` is False until the first answer; ``detail`` says in a few words what the last probe saw."""

    def __init__(self, settings: UpstreamSettings, context: Callable[[], ssl.SSLContext]) -> None:
        self._client = UpstreamClient(settings, context)
        self._interval = settings.probe.interval
        self._timeout = settings.probe.timeout
        self._late = 0
        self.ready = False
        self.detail = "not probed yet"

    async def run(self) -> None:
        """Probe until cancelled."""
        loop = asyncio.get_running_loop()
        async with self._client.session() as session:
            while True:
                due = loop.time() + self._interval
                await self.probe(session)
                await asyncio.sleep(max(due - loop.time(), 0))

    async def probe(self, session: aiohttp.ClientSession) -> None:
        """Ask once."""
        try:
            async with await self._client.get(session, "/readyz", self._timeout) as response:
                self._late = 0
                self.ready = response.status in _READY
                self.detail = f"GET /readyz: {response.status} {response.reason}"
        except TimeoutError:
            self._late += 1
            self.ready = self.ready and self._late < _LATE_IN_A_ROW
            self.detail = f"GET /readyz: no answer within {self._timeout:g}s, {self._late} in a row"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._late = 0
            self.ready, self.detail = False, f"GET /readyz: {_reason(error)}"


def _reason(error: Exception) -> str:
    """The error in words; aiohttp's own for one of its connectors shows the context object, and asyncio's no reason."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        named = cause.errno and cause.errno > 0 and not isinstance(cause, ssl.SSLError)
        return f"cannot connect to {error.host}:{error.port}: {os.strerror(cause.errno or 0) if named else cause}"
    return str(error)
