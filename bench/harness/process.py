"""Programs that the bench starts, each with a log file, ended by their own pid when their block ends."""

import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.accounting import process_tree

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


_given: set[int] = set()


class BenchError(Exception):
    """A measurement that cannot be had, with the reason for a reader."""


@dataclass(frozen=True)
class Program:
    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def pids(self) -> list[int]:
        """The program and every process below it."""
        if self.process.poll() is not None:
            raise BenchError(f"{self.name} ended with status {self.process.returncode}: {self.tail()}")
        return process_tree(self.process.pid)

    def tail(self, lines: int = 6) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-lines:]) or "(nothing logged)"


def raise_open_files() -> int:
    """Raises the soft limit of open files to the hard one, for all that is started; returns it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    """A port of 127.0.0.1 that was not given before, outside the range that outgoing connections are given theirs from, so
    that none of the thousands made meanwhile takes it."""
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(min(10_000, lowest_outgoing // 2), lowest_outgoing), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
    raise BenchError("no free port on 127.0.0.1")


def await_port(program: Program, port: int, patience: float = 10.0) -> None:
    """Returns when somebody listens; BenchError where the program ends before, or takes longer."""
    deadline = time.monotonic() + patience
    while True:
        program.pids()  # raises where it ended
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        if time.monotonic() > deadline:
            raise BenchError(f"{program.name} does not listen after {patience:g} s: {program.tail()}")
        time.sleep(0.02)


@contextlib.contextmanager
def on_cpus(cpus: set[int] | None) -> Iterator[None]:
    """What is started meanwhile stays on `cpus`."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str | Path],
    folder: Path,
    cpus: set[int] | None = None,
    patience: float = 5.0,
) -> Iterator[Program]:
    """Starts `command` with `folder` as its working folder, on `cpus`; ends it with SIGTERM, later SIGKILL."""

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # nothing outlives the bench
        if cpus:
            os.sched_setaffinity(0, cpus)

    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare,
        )
    program = Program(name, process, log)
    try:
        yield program
    finally:
        stop(process, patience)


def stop(process: "subprocess.Popen[Any]", patience: float) -> None:
    """Ends a process of ours and what it started; by pid, and only those that were its children when asked."""
    if process.poll() is not None:
        return
    family = process_tree(process.pid)
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
