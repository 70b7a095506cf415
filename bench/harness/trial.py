"""One measurement of one proxy: started afresh, checked, warmed up, measured, ended."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.harness.accounting import Window
from bench.harness.loadgen import Load, Mode, load
from bench.harness.pki import KeyKind, Pki, make_pki
from bench.harness.preflight import await_service, check_job
from bench.harness.process import BenchError, Program, free_port, running
from bench.harness.traffic import GET_2K, write_head
from bench.harness.upstream import nginx_upstream, watch_upstream
from bench.peers.job import Job, Peer

DIRECT = "direct"
"""The subject that is no proxy: the load goes to the upstream itself."""


@dataclass(frozen=True)
class Scenario:
    """One row of the results: a way to load a proxy and what to read from it."""

    name: str
    title: str
    subjects: tuple[str, ...]
    trial: "Callable[[Trial], Mapping[str, float]]"
    """Returns figures by name; called with everything running."""
    unit: str
    """What the main figure (the first that `trial` returns) is in."""
    repeats: int = 3
    upstream: Literal["bodies", "watches"] = "bodies"
    event_rate: float = 0.0
    keys: KeyKind = "p256"
    workers: int = 1
    pinned: bool = True


@dataclass
class Workshop:
    """What all trials share: a folder, certificates, CPUs."""

    folder: Path
    open_files: int
    _pki: dict[KeyKind, Pki] = field(default_factory=dict)
    _checked: set[tuple[str, KeyKind]] = field(default_factory=set)
    _count: int = 0

    def pki(self, kind: KeyKind) -> Pki:
        if kind not in self._pki:
            self._pki[kind] = make_pki(self.folder / f"pki-{kind}", kind)
        return self._pki[kind]

    @property
    def max_watches(self) -> int:
        """How many connections a proxy can hold on both sides within the limit of open files."""
        return (self.open_files - 512) // 2

    def cpus(self, pinned: bool) -> tuple[set[int] | None, set[int] | None]:
        """(the proxy's, everybody else's): the proxy has the last CPU to itself where there are two or more."""
        available = sorted(os.sched_getaffinity(0))
        if not pinned or len(available) < 2:
            return None, None
        return {available[-1]}, set(available[:-1])

    @contextlib.contextmanager
    def trial(self, scenario: Scenario, peer: Peer | None) -> Iterator["Trial"]:
        """Starts upstream and proxy (`peer` None: no proxy), checks that they do the job, and ends them after."""
        self._count += 1
        folder = self.folder / f"{self._count:03}-{scenario.name}-{peer.name if peer else DIRECT}"
        folder.mkdir()
        pki = self.pki(scenario.keys)
        proxy_cpus, other_cpus = self.cpus(scenario.pinned)
        with contextlib.ExitStack() as stack:
            pid_file: Path | None = None
            if scenario.upstream == "bodies":
                upstream, pid_file = stack.enter_context(nginx_upstream(folder / "up", pki, other_cpus))
            else:
                upstream = stack.enter_context(
                    watch_upstream(folder / "up", pki, other_cpus, scenario.event_rate)
                )
            if peer is None:
                yield Trial(scenario, folder, upstream, pki, None, self.max_watches, other_cpus, 1.0)
                return
            job = Job(
                folder=folder,
                port=free_port(),
                upstream_port=upstream,
                admin_port=free_port(),
                pki=pki,
                workers=scenario.workers,
                streaming=scenario.upstream == "watches",
                open_files=self.open_files,
                watched_pid_file=pid_file,
            )
            program = stack.enter_context(running(peer.name, peer.prepare(job), folder, proxy_cpus))
            await_service(program, job.port, pki, GET_2K)
            if scenario.upstream == "bodies" and (peer.name, scenario.keys) not in self._checked:
                check_job(peer, job.port, pki)
                self._checked.add((peer.name, scenario.keys))
            try:
                yield Trial(
                    scenario,
                    folder,
                    job.port,
                    pki,
                    program,
                    self.max_watches,
                    other_cpus,
                    peer.speed,
                    job.admin_port,
                )
                program.pids()  # a proxy that died has no figure
            except BenchError as error:
                raise BenchError(f"{error} (its log ends: {program.tail(2)})") from error


@dataclass
class Trial:
    """What a scenario works with."""

    scenario: Scenario
    folder: Path
    port: int
    pki: Pki
    program: Program | None
    max_watches: int
    load_cpus: set[int] | None
    speed: float
    admin_port: int = 0
    foreign: float = 0.0
    """Cores used by strangers, the worst of this trial's windows."""

    def scaled(self, count: int, at_least: int = 200) -> int:
        """`count` requests for a proxy of full speed, fewer for a slow one."""
        return max(at_least, int(count * self.speed))

    @contextlib.contextmanager
    def load(self, mode: Mode, target: str, **options: int | float | str | None) -> Iterator[Load]:
        """A gated load on the proxy; every response must be a 200 and bear exactly one load report."""
        head = write_head(self.folder, target, mode)
        name = self.program.name if self.program else DIRECT
        deadline = float(options.pop("deadline", None) or 60.0)
        previous = os.sched_getaffinity(0)
        if self.load_cpus:
            os.sched_setaffinity(0, self.load_cpus)  # the load generator inherits it
        try:
            with load(
                mode,
                self.port,
                self.pki,
                head,
                name=name,
                deadline=deadline,
                require_header="endpoint-load-metrics",
                **options,
            ) as started:
                yield started
        finally:
            os.sched_setaffinity(0, previous)

    @contextlib.contextmanager
    def window(self) -> Iterator[Window]:
        """Accounts for the proxy's processes; the CPU time of no proxy is 0."""
        window = Window(self.program.pids() if self.program else [])
        with window:
            yield window
        self.foreign = max(self.foreign, window.foreign)
