"""One measurement of one proxy: started afresh, checked, warmed up, measured, ended."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.accounting import Window
from bench.harness.kube import kube_upstream
from bench.harness.loadgen import Load, Mode, load
from bench.harness.pki import KeyKind, Pki, make_pki
from bench.harness.preflight import await_service, check_job
from bench.harness.process import BenchError, Program, free_port, on_cpus, running
from bench.harness.traffic import GET_2K, REPORT, write_head
from bench.harness.upstream import Upstream, UpstreamKind, nginx_upstream, watch_upstream
from bench.peers.job import Job, Peer

DIRECT = "direct"
"""The subject that is no proxy: the load goes to the upstream itself."""
DIRECT_HTTP2 = "direct-http2"
"""The same over HTTP/2, by a load generator that the scenario brings."""
NO_PROXY = (DIRECT, DIRECT_HTTP2)


@dataclass(frozen=True)
class Scenario:
    """One table of the results: a way to load a proxy and what to read from it."""

    name: str
    title: str
    subjects: tuple[str, ...]
    trial: "Callable[[Trial], Mapping[str, float]]"
    """Returns figures by name; called with everything running."""
    unit: str
    """What the main figure (the first that `trial` returns) is in."""
    repeats: int = 3
    upstream: UpstreamKind = "bodies"
    event_rate: float = 0.0
    keys: KeyKind = "p256"
    workers: int = 1
    pinned: bool = True


@dataclass
class Trial:
    """What a scenario works with."""

    scenario: Scenario
    subject: str
    folder: Path
    upstream: Upstream
    port: int
    """Where the load goes."""
    program: Program | None
    """The proxy, where there is one."""
    max_watches: int
    load_cpus: set[int] | None
    speed: float = 1.0
    foreign: float = 0.0
    """Cores used by strangers, the worst of this trial's windows."""

    def scaled(self, count: int) -> int:
        """`count` requests for a proxy of full speed, fewer for a slow one; 200 are always enough to ask for."""
        return max(min(count, 200), int(count * self.speed))

    @contextlib.contextmanager
    def load(
        self,
        mode: Mode,
        target: str,
        *,
        reports: bool = True,
        deadline: float = 60.0,
        **options: int | float | str | None,
    ) -> Iterator[Load]:
        """A gated load; every response must be a 200, and with `reports` bear exactly one load report where there is a
        proxy or a stand-in for kube-apiserver to send it."""
        if reports and (self.program is not None or self.upstream.sends_reports):
            options["require_header"] = REPORT
        caller = self.upstream.pki.load_balancer if self.program else self.upstream.direct_caller
        head = write_head(self.folder, target, mode, self.upstream.groups)
        with (
            on_cpus(self.load_cpus),
            load(
                mode,
                self.port,
                self.upstream.pki.ca,
                caller,
                head,
                name=self.subject,
                deadline=deadline,
                **options,
            ) as started,
        ):
            yield started

    @contextlib.contextmanager
    def window(self, *more_pids: int) -> Iterator[Window]:
        """Accounts for the proxy's processes (the CPU time of no proxy is 0), and for `more_pids` by pid."""
        window = Window(self.program.pids() if self.program else [], list(more_pids))
        with window:
            yield window
        self.foreign = max(self.foreign, window.foreign)


@dataclass
class Workshop:
    """What all trials share: a folder, certificates, CPUs."""

    folder: Path
    open_files: int
    _pki: dict[KeyKind, Pki] = field(default_factory=dict)
    _checked: set[tuple[str, KeyKind]] = field(default_factory=set)
    _count: int = 0

    @property
    def max_watches(self) -> int:
        """How many connections a proxy can hold on both sides within the limit of open files."""
        return (self.open_files - 512) // 2

    @contextlib.contextmanager
    def trial(self, scenario: Scenario, subject: str, peer: Peer | None) -> Iterator[Trial]:
        """Starts upstream and proxy (`peer` None: no proxy), checks that they do the job, and ends them after."""
        self._count += 1
        folder = self.folder / f"{self._count:03}-{scenario.name}-{subject}"
        folder.mkdir()
        proxy_cpus, other_cpus = _cpus(scenario.pinned)
        with contextlib.ExitStack() as stack:
            upstream = stack.enter_context(self._upstream(scenario, folder / "upstream", other_cpus))
            if peer is None:
                yield Trial(
                    scenario, subject, folder, upstream, upstream.port, None, self.max_watches, other_cpus
                )
                return
            job = Job(
                folder=folder,
                port=free_port(),
                upstream_port=upstream.port,
                admin_port=free_port(),
                pki=upstream.pki,
                watched_pid_file=upstream.pid_file,
                workers=scenario.workers,
                streaming=scenario.upstream == "watches",
                open_files=self.open_files,
            )
            program = stack.enter_context(running(peer.name, peer.prepare(job), folder, proxy_cpus))
            try:
                await_service(program, job.port, upstream.pki, GET_2K, upstream.groups)
                if scenario.upstream == "bodies" and (peer.name, scenario.keys) not in self._checked:
                    check_job(peer, job.port, upstream.pki)
                    self._checked.add((peer.name, scenario.keys))
                yield Trial(
                    scenario,
                    subject,
                    folder,
                    upstream,
                    job.port,
                    program,
                    self.max_watches,
                    other_cpus,
                    peer.speed,
                )
                program.pids()  # a proxy that died has no figure
            except BenchError as error:
                raise BenchError(f"{error} (its log ends: {program.tail(2)})") from error

    def _upstream(
        self, scenario: Scenario, folder: Path, cpus: set[int] | None
    ) -> contextlib.AbstractContextManager[Upstream]:
        if scenario.upstream == "kube-apiserver":
            return kube_upstream(folder, cpus)
        if scenario.keys not in self._pki:
            self._pki[scenario.keys] = make_pki(self.folder / f"pki-{scenario.keys}", scenario.keys)
        pki = self._pki[scenario.keys]
        if scenario.upstream == "bodies":
            return nginx_upstream(folder, pki, cpus)
        return watch_upstream(folder, pki, cpus, scenario.event_rate)


def _cpus(pinned: bool) -> tuple[set[int] | None, set[int] | None]:
    """(the proxy's, everybody else's): the proxy has the last CPU to itself where there are two or more."""
    available = sorted(os.sched_getaffinity(0))
    if not pinned or len(available) < 2:
        return None, None
    return {available[-1]}, set(available[:-1])
