"""What every proxy is asked to do, and how one is described."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.pki import Pki


@dataclass(frozen=True)
class Job:
    folder: Path
    """Configuration and logs go here."""
    port: int
    """Listen on this port of 127.0.0.1."""
    upstream_port: int
    admin_port: int
    """For a proxy that has an admin listener."""
    pki: Pki
    watched_pid_file: Path
    """The upstream's: the process that a load report is about."""
    workers: int = 1
    """Processes, or event-loop threads."""
    streaming: bool = False
    """The traffic is watches: pass every piece on at once."""
    open_files: int = 20_000
    """What a process may have; at most half as many connections are made on each side."""


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    prepare: Callable[[Job], Sequence[str | Path]]
    """Writes the configuration, returns the command that runs the proxy in the foreground."""
    version: Callable[[], str]
    refuses_strangers: bool = True
    """A caller without a client certificate gets no service at all."""
    speed: float = 1.0
    """Roughly how fast it is beside the others: scales the number of requests of a measurement."""
