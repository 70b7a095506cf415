"""Start-up, and the processes: a supervisor with a control process and N workers; in mode reporter one alone.

Everything that can fail is tried before anything is served, and answered with one message and exit code 4. The
supervisor itself runs no event loop: it forks from a clean, single-threaded process, so that all workers share the
listening socket, the TLS contexts (and so the keys of session tickets) and the counters, and so that a worker that died is
replaced by another fork while the others keep their connections.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from orca_sidecar import __version__, control, logs, worker
from orca_sidecar.core.identity import IdentityRules
from orca_sidecar.metrics import new_cells, reset_gauges
from orca_sidecar.proxy import sockets
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.runtime import Shared, Signals, run_loop
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust.contexts import server_context, upstream_contexts
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.files import FileWatch, certificate_files
from orca_sidecar.trust.store import TrustStore

EXIT_FAILED_START = 4
# A process that dies is replaced no sooner than this after its own start: no crash loop.
_RESTART_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


def run(cfg: SidecarConfiguration) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    logs.configure(cfg.logging.level, cfg.logging.format)
    try:
        secret = shared_secret(cfg)
        logs.configure(cfg.logging.level, cfg.logging.format, secrets=(secret.decode("utf-8", "replace"),))
        raise_descriptor_limit(cfg.listener.max_connections)
        shared = prepare(cfg, secret)
        if cfg.mode == "proxy":
            sock = sockets.listen(cfg.listener.address.host, cfg.listener.address.port)
            return Supervisor(shared, sock).run()
        run_loop(cfg.event_loop, lambda: report_only(shared))
    except (OSError, ValueError, TrustError) as error:
        log.error("cannot start: %s", error)
        return EXIT_FAILED_START
    return 0


def prepare(cfg: SidecarConfiguration, secret: bytes = b"") -> Shared:
    """Read certificates and make what all processes share. Raises OSError or TrustError."""
    rules = IdentityRules(
        cfg.front_proxy.username_headers,
        cfg.front_proxy.group_headers,
        cfg.front_proxy.uid_headers,
        cfg.front_proxy.extra_headers_prefix,
    )
    files = FileWatch(certificate_files(cfg))
    trust = TrustStore.from_configuration(cfg, rules)
    context, _ = server_context(cfg, trust.bundles)
    if cfg.load_metrics.enabled and cfg.load_metrics.opt_in.gate == "open":
        log.warning("loadMetrics.optIn.gate is open: whoever reaches the listener may learn this node's load")
    return Shared(
        configuration=cfg,
        cells=new_cells(cfg.workers if cfg.mode == "proxy" else 1),
        report=ReportCell(cfg.load_metrics.sampler.stale_after),
        identity_rules=rules,
        trust=trust,
        secret=secret,
        server_context=context,
        upstream_contexts=upstream_contexts(cfg),
        files=files,
    )


def shared_secret(cfg: SidecarConfiguration) -> bytes:
    """The content of `sharedSecretFile` without its last line end; empty with the other gates. Raises OSError, and
    ValueError where there is none."""
    settings = cfg.load_metrics.opt_in
    if settings.gate != "sharedSecret" or settings.shared_secret_file is None:
        return b""
    secret = settings.shared_secret_file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    if not secret:
        # It was filled when the configuration was checked. Empty it would let everybody pass.
        raise ValueError(f"{settings.shared_secret_file} is empty")
    return secret


def raise_descriptor_limit(max_connections: int) -> None:
    """Raise the soft limit of open files to the hard one; a connection needs two, one on each side."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < 2 * max_connections:
        log.warning(
            "the limit of open files is %d, below 2 x listener.maxConnections (%d): raise it, or lower the setting",
            hard,
            2 * max_connections,
        )


async def report_only(shared: Shared) -> None:
    """Mode reporter: the control side alone, in this process."""
    signals = Signals(signal.SIGTERM, signal.SIGINT)
    side = control.Control(shared, lambda: 1)
    await side.start()
    log.info("%s", _serving(shared.configuration))
    try:
        await signals.leave.wait()
        log.info("leaving")
        side.leave()
        await signals.pause(shared.configuration.shutdown.delay)
    finally:
        await side.close()


def _serving(cfg: SidecarConfiguration) -> str:
    """What the log says once everything listens."""
    if cfg.mode == "reporter":
        return f"orca-sidecar {__version__} reports the load of {cfg.upstream.address}"
    return f"orca-sidecar {__version__} serves {cfg.listener.address} for {cfg.upstream.address}, workers: {cfg.workers}"


class Supervisor:
    """One control process and N workers, as forks of this process.

    So it is with one worker, too: a sample takes a millisecond, ten times a second, and a scrape several, which in the
    worker's process every hundredth request would wait for.
    """

    def __init__(self, shared: Shared, sock: socket.socket) -> None:
        self._shared = shared
        self._sock = sock
        self._running = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        self._workers: dict[int, int] = {}
        self._started: dict[int, float] = {}
        self._control = 0
        self._leaving = False

    def run(self) -> int:
        """Until all children are gone."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._leave())
        self._control = self._fork_control()
        if not self._control:
            return EXIT_FAILED_START
        for index in range(len(self._shared.cells)):
            self._fork_worker(index)
        log.info("%s", _serving(self._shared.configuration))
        while self._control or self._workers:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                break
            self._on_exit(pid, os.waitstatus_to_exitcode(status))
        return 0

    def _leave(self) -> None:
        """The first signal asks all to leave; a second makes the workers leave at once."""
        log.info("leaving")
        self._leaving = True
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        if self._control:
            os.kill(self._control, signal.SIGUSR1)

    def _on_exit(self, pid: int, code: int) -> None:
        if pid == self._control:
            self._control = 0
            if not self._leaving:
                log.error("the control process ended (%d): replacing it", code)
                self._wait_since(self._started.pop(pid))
                self._control = self._fork_control()
            return
        index = self._workers.pop(pid)
        self._running[0] = len(self._workers)
        reset_gauges(self._shared.cells[index])
        if not self._leaving:
            log.error("worker %d ended (%d): replacing it", index, code)
            self._wait_since(self._started.pop(pid))
        if not self._leaving:
            self._fork_worker(index)
        elif not self._workers and self._control:
            os.kill(self._control, signal.SIGTERM)

    def _wait_since(self, started: float) -> None:
        time.sleep(max(0.0, started + _RESTART_SECONDS - time.monotonic()))

    def _fork_worker(self, index: int) -> None:
        pid = self._fork(lambda: worker.serve(self._shared, index, self._sock))
        self._workers[pid] = index
        self._running[0] = len(self._workers)

    def _fork_control(self) -> int:
        """The control process's id once it serves; 0 if it could not start (it has said why)."""
        reading, writing = os.pipe()

        def started() -> None:
            os.write(writing, b"1")

        pid = self._fork(lambda: control.serve(self._shared, lambda: self._running[0], started))
        os.close(writing)
        ready = os.read(reading, 1)
        os.close(reading)
        return pid if ready else 0

    def _fork(self, main: Callable[[], Coroutine[Any, Any, None]]) -> int:
        pid = os.fork()
        if pid:
            self._started[pid] = time.monotonic()
            return pid
        code = 1
        try:
            # A terminal's ^C reaches every process of the group: the supervisor alone passes it on.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Whoever ends the supervisor ends its children, even with SIGKILL.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            run_loop(self._shared.configuration.event_loop, main)
            code = 0
        except (OSError, ValueError) as error:
            log.error("cannot start: %s", error)
            code = EXIT_FAILED_START
        except BaseException:
            log.exception("a process of the sidecar failed")
        finally:
            sys.stderr.flush()
            os._exit(code)
