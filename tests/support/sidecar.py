"""The installed `orca-sidecar` as a process, in front of an upstream of the test's own."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orca_sidecar.demo.processes import free_ports
from tests.pki import CLIENT, SERVER, Authority, Credential, Pki, trusting

PROGRAM = Path(sys.executable).with_name("orca-sidecar")
START_SECONDS = 20.0


_given: set[int] = set()


def free_port() -> int:
    """A loopback port outside the range that outgoing connections take theirs from; another one at every call."""
    while True:
        (port,) = free_ports(1)
        if port not in _given:
            _given.add(port)
            return port


@dataclass(frozen=True)
class Identities:
    """One cluster's certificates."""

    ca: Authority
    front_proxy_ca: Authority
    apiserver: Credential
    balancer: Credential
    reporter: Credential
    front_proxy_client: Credential
    jane: Credential

    @classmethod
    def make(cls, folder: Path) -> Identities:
        """A new set, in `folder`. `balancer` may speak for others, `reporter` may only ask for reports."""
        pki = Pki(folder)
        ca, front_proxy_ca = pki.ca("ca"), pki.ca("front-proxy-ca")
        return cls(
            ca,
            front_proxy_ca,
            pki.leaf(ca, cn="kube-apiserver", eku=SERVER, san=["kubernetes", "127.0.0.1"]),
            pki.leaf(front_proxy_ca, cn="balancer", eku=CLIENT),
            pki.leaf(front_proxy_ca, cn="reporter", eku=CLIENT),
            pki.leaf(front_proxy_ca, cn="front-proxy-client", eku=CLIENT),
            pki.leaf(ca, cn="jane", o=["developers"], eku=CLIENT),
        )

    def client_context(self, credential: Credential | None = None) -> ssl.SSLContext:
        """For a client of the sidecar or of the upstream; the server's name is `kubernetes`."""
        context = trusting(self.ca.cert_file)
        if credential is not None:
            context.load_cert_chain(credential.cert_file, credential.key_file)
        return context

    def server_context(self) -> ssl.SSLContext:
        """For an upstream that asks for the front-proxy client's certificate, as kube-apiserver does."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.apiserver.cert_file, self.apiserver.key_file)
        context.load_verify_locations(self.front_proxy_ca.cert_file)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def configuration(self, upstream_port: int, **changes: Any) -> dict[str, Any]:
        """A configuration on free loopback ports. `changes` are merged into it, section by section.

        The load that is measured is this process's.
        """
        pid_file = self.ca.cert_file.parent / "measured.pid"
        pid_file.write_text(f"{os.getpid()}\n")
        settings: dict[str, Any] = {
            "apiVersion": "orca-sidecar.dev/v1alpha1",
            "kind": "SidecarConfiguration",
            "listener": {
                "address": f"127.0.0.1:{free_port()}",
                "tls": {"certFile": str(self.apiserver.cert_file), "keyFile": str(self.apiserver.key_file)},
                "clientCAFile": str(self.ca.cert_file),
                "maxConnections": 1000,
            },
            "upstream": {
                "address": f"127.0.0.1:{upstream_port}",
                "tls": {"caFile": str(self.ca.cert_file)},
                "frontProxyClient": {
                    "certFile": str(self.front_proxy_client.cert_file),
                    "keyFile": str(self.front_proxy_client.key_file),
                },
                "probe": {"interval": "100ms"},
            },
            "frontProxy": {"clientCAFile": str(self.front_proxy_ca.cert_file), "allowedNames": ["balancer"]},
            "loadMetrics": {
                "enabled": True,
                "optIn": {"allowedNames": ["reporter"]},
                "sampler": {"target": {"pidFile": str(pid_file)}},
            },
            "admin": {"address": f"127.0.0.1:{free_port()}"},
            "shutdown": {"delay": "200ms", "gracePeriod": "5s"},
            "logging": {"format": "text"},
        }
        return merged(settings, changes)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `over`, mappings merged."""
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        result[key] = (
            merged(known, value) if isinstance(value, Mapping) and isinstance(known, Mapping) else value
        )
    return result


class Sidecar:
    """A running `orca-sidecar run`."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self.settings = settings
        self._configuration = folder / "config.yaml"
        self._log = folder / "sidecar.log"
        self._configuration.write_text(yaml.safe_dump(dict(settings)))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return int(self.settings["listener"]["address"].rpartition(":")[2])

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start it, without waiting."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "run", "--config", self._configuration], stdout=log, stderr=log
            )

    def admin(self, path: str) -> tuple[int, str]:
        """GET from the admin listener: code and body; (0, …) while nothing listens."""
        url = f"http://{self.settings['admin']['address']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        from prometheus_client.parser import text_string_to_metric_families

        total = 0.0
        for family in text_string_to_metric_families(self.admin("/metrics")[1]):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    total += sample.value
        return total

    async def until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for something about this process. Fails with its log."""
        deadline = time.monotonic() + seconds
        while not await asyncio.to_thread(condition):
            assert self.process is not None
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(
                    f"not seen within {seconds}s, exit code {self.process.poll()}; log:\n{self.log}"
                )
            await asyncio.sleep(0.02)

    async def ready(self) -> None:
        """Wait until /readyz says so."""
        await self.until(lambda: self.admin("/readyz")[0] == 200)

    async def exit_code(self, seconds: float = 20.0) -> int:
        """Wait for its end."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, seconds)

    def stop(self) -> None:
        """End it, whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class running:  # noqa: N801 - used as a context manager is named
    """A sidecar for the length of a block. `async with` where its upstream lives on this event loop: it has to turn while
    the sidecar leaves."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._sidecar = Sidecar(settings, folder)

    def __enter__(self) -> Sidecar:
        self._sidecar.start()
        return self._sidecar

    def __exit__(self, *_: object) -> None:
        self._sidecar.stop()

    async def __aenter__(self) -> Sidecar:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._sidecar.stop)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def upstream(identities: Identities, handler: Handler) -> AsyncIterator[int]:
    """A TLS server in this process: `handler` gets each connection. Gives its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=identities.server_context())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.sleep(0)
