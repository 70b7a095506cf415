"""What is measured: the target (kube-apiserver's cgroup or process), followed over restarts, and the node.

A sample costs a handful of ``pread`` calls on files that stay open. Looking for the target again, which may
mean a walk through /proc, is done when it is gone, and at most once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple, Protocol

import psutil

from orca_sidecar.load.cgroup import Cgroup, CgroupTree, Limits, OpenFile, Usage, field
from orca_sidecar.settings.load_metrics import SamplerSettings

_SEARCH_EVERY_NS = 1_000_000_000
SHORTEST_STEP_NS = 1_000_000  # below, a counter's granularity would be most of the figure


class TargetMissing(Exception):  # noqa: N818 - a state that passes, not a fault of the program
    """There is nothing to measure at the moment; the message says what was looked for."""


class Load(NamedTuple):
    """Shares of what may be used; CPU's may exceed 1. The node's are 0 where it is not measured."""

    target_cpu: float
    target_memory: float
    node_cpu: float = 0.0
    node_memory: float = 0.0

    @property
    def cpu(self) -> float:
        return max(self.target_cpu, self.node_cpu)

    @property
    def memory(self) -> float:
        return max(self.target_memory, self.node_memory)


class Source(Protocol):
    """Something that uses CPU and memory. ``read`` raises OSError once it is gone."""

    def read(self, now_ns: int) -> Usage: ...

    def close(self) -> None: ...


class Process:
    """A process by its id: CPU time of all its threads, resident memory, against the whole machine."""

    def __init__(self, pid: int, machine: Limits) -> None:
        self.pid = pid
        self._machine = machine
        self._page = os.sysconf("SC_PAGESIZE")
        # The kernel's id of a process's CPU-time clock (clock_getcpuclockid(3)): in ns, where
        # /proc/PID/stat counts hundredths of a second.
        self._clock = ~pid << 3 | 2
        # An open /proc/PID file stays bound to this process, whoever gets its number later.
        self._statm = OpenFile(Path(f"/proc/{pid}/statm"))

    def read(self, now_ns: int) -> Usage:
        resident = int(self._statm.read().split()[1]) * self._page
        if not resident:
            raise ProcessLookupError(f"process {self.pid} has ended")  # a zombie holds no memory
        cpu_seconds = time.clock_gettime_ns(self._clock) / 1e9
        return Usage(cpu_seconds, self._machine.cores, resident, self._machine.memory)

    def close(self) -> None:
        self._statm.close()


class ProcessInCgroup:
    """A process that has limits of its own: its cgroup is what they bind, the process says that it lives."""

    def __init__(self, process: Process, cgroup: Cgroup) -> None:
        self._process = process
        self._cgroup = cgroup

    def read(self, now_ns: int) -> Usage:
        self._process.read(now_ns)
        return self._cgroup.read(now_ns)

    def close(self) -> None:
        self._process.close()
        self._cgroup.close()


class Node:
    """The whole machine: /proc/stat and /proc/meminfo. Stolen time counts as used, waiting for I/O does
    not."""

    def __init__(self, machine: Limits) -> None:
        self._machine = machine
        self._ticks = os.sysconf("SC_CLK_TCK")
        self._stat = OpenFile(Path("/proc/stat"))
        self._meminfo = OpenFile(Path("/proc/meminfo"))

    def read(self, now_ns: int) -> Usage:
        times = [int(word) for word in self._stat.read().split(b"\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = times  # guests' time is in user and nice
        busy = (user + nice + system + irq + softirq + steal) / self._ticks
        meminfo = self._meminfo.read().replace(b" kB", b"")
        total, available = field(meminfo, b"MemTotal:") * 1024, field(meminfo, b"MemAvailable:") * 1024
        return Usage(busy, self._machine.cores, max(total - available, 0), total)

    def close(self) -> None:
        self._stat.close()
        self._meminfo.close()


class Finder(Protocol):
    """Where the target is now. ``cheap``: worth asking once a second even while the last one lives."""

    cheap: bool

    def identify(self) -> Hashable | None:
        """What should be measured, None if there is nothing; another value: another incarnation."""

    def open(self, identity: Hashable, now_ns: int) -> Source:
        """OSError if it has gone since."""

    def __str__(self) -> str: ...


class CgroupFinder:
    """``target.cgroup``: a path below the cgroup root, or a glob, of whose matches the newest is taken."""

    cheap = True

    def __init__(self, tree: CgroupTree, pattern: str) -> None:
        self._tree = tree
        self._pattern = pattern

    def identify(self) -> Hashable | None:
        return self._tree.newest(self._pattern)

    def open(self, identity: Hashable, now_ns: int) -> Source:
        assert isinstance(identity, tuple)
        return self._tree.open(identity[0])

    def __str__(self) -> str:
        return f"cgroup {self._pattern!r} below {self._tree.root}"


class _ProcessFinder:
    def __init__(self, tree: CgroupTree | None, machine: Limits) -> None:
        self._tree = tree
        self._machine = machine

    def open(self, identity: Hashable, now_ns: int) -> Source:
        assert isinstance(identity, int)
        process = Process(identity, self._machine)
        cgroup = self._tree.open_of_process(identity) if self._tree else None
        if cgroup is None:
            return process
        if cgroup.is_limited(now_ns):
            return ProcessInCgroup(process, cgroup)
        cgroup.close()
        return process


class PidFileFinder(_ProcessFinder):
    """``target.pidFile``: the process whose id the file holds."""

    cheap = True

    def __init__(self, tree: CgroupTree | None, machine: Limits, path: Path) -> None:
        super().__init__(tree, machine)
        self._path = path

    def identify(self) -> Hashable | None:
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return None

    def __str__(self) -> str:
        return f"a process id in {self._path}"


class ProcessNameFinder(_ProcessFinder):
    """``target.processName``: the process of that name, the youngest of several."""

    cheap = False

    def __init__(self, tree: CgroupTree | None, machine: Limits, name: str) -> None:
        super().__init__(tree, machine)
        self._name = name

    def identify(self) -> Hashable | None:
        found = [
            (process.info["create_time"], process.pid)
            for process in psutil.process_iter(["name", "create_time", "status"])
            if process.info["name"] == self._name and process.info["status"] != psutil.STATUS_ZOMBIE
        ]
        return max(found)[1] if found else None

    def __str__(self) -> str:
        return f"a process named {self._name!r}"


class Followed:
    """A target over its restarts: ``read`` tells its usage and whether it still is the one of the last
    call."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._identity: Hashable | None = None
        self._source: Source | None = None
        self._searched_ns: int | None = None
        self._why = "not looked for yet"

    def read(self, now_ns: int) -> tuple[Source, Usage]:
        """Raises TargetMissing. The source is another object for every incarnation."""
        due = self._searched_ns is None or now_ns - self._searched_ns >= _SEARCH_EVERY_NS
        if due and (self._source is None or self._finder.cheap):
            self._searched_ns = now_ns
            self._search(now_ns)
        if self._source is None:
            raise TargetMissing(f"{self._finder}: {self._why}")
        try:
            return self._source, self._source.read(now_ns)
        except (OSError, ValueError) as error:
            self._drop(str(error))
            raise TargetMissing(f"{self._finder}: {self._why}") from error

    def close(self) -> None:
        self._drop("closed")

    def _search(self, now_ns: int) -> None:
        try:
            identity = self._finder.identify()
            if identity is not None and identity == self._identity and self._source is not None:
                return
            self._drop("not found")
            if identity is not None:
                self._source = self._finder.open(identity, now_ns)
                self._identity = identity
        except OSError as error:
            self._drop(str(error))

    def _drop(self, why: str) -> None:
        if self._source is not None:
            self._source.close()
        self._source = self._identity = None
        self._why = why


class Meter:
    """Counters into utilizations: CPU over the time since the last reading of the same incarnation."""

    def __init__(self) -> None:
        self._source: Source | None = None
        self._cpu_seconds = 0.0
        self._read_ns = 0

    def step(self, source: Source, usage: Usage, now_ns: int) -> tuple[float, float] | None:
        """(CPU, memory) as shares of the limits; None if there is nothing yet to take the difference to."""
        elapsed_ns = now_ns - self._read_ns
        used = usage.cpu_seconds - self._cpu_seconds
        continued = source is self._source and used >= 0
        if continued and elapsed_ns < SHORTEST_STEP_NS:
            return None
        self._source, self._cpu_seconds, self._read_ns = source, usage.cpu_seconds, now_ns
        if not continued:
            return None
        return used / (elapsed_ns / 1e9) / usage.cores, usage.memory / usage.memory_limit


class LoadSources:
    """The target's load and, where wanted, the node's."""

    def __init__(self, target: Followed, node: Node | None) -> None:
        self._target = target
        self._node = node
        self._target_meter = Meter()
        self._node_meter = Meter()

    def measure(self, now_ns: int) -> Load | None:
        """None while a first reading waits for its second; raises TargetMissing."""
        target = self._target_meter.step(*self._target.read(now_ns), now_ns)
        if self._node is None:
            return Load(*target) if target else None
        node = self._node_meter.step(self._node, self._node.read(now_ns), now_ns)
        return Load(*target, *node) if target and node else None

    def close(self) -> None:
        self._target.close()
        if self._node is not None:
            self._node.close()


def machine_limits() -> Limits:
    """This machine's cores and memory in bytes."""
    return Limits(psutil.cpu_count() or 1, psutil.virtual_memory().total)


def open_sources(settings: SamplerSettings) -> LoadSources:
    """The sources of ``loadMetrics.sampler``; the first target that is set wins.

    FileNotFoundError if a cgroup is named and ``cgroup_root`` holds no cgroup tree. A process target needs
    none: it is then measured against the whole machine.
    """
    machine = machine_limits()
    target = settings.target
    tree: CgroupTree | None
    try:
        tree = CgroupTree(settings.cgroup_root, machine)
    except OSError:
        if target.cgroup:
            raise
        tree = None
    finder: Finder
    if target.cgroup and tree:
        finder = CgroupFinder(tree, target.cgroup)
    elif target.pid_file:
        finder = PidFileFinder(tree, machine, target.pid_file)
    else:
        finder = ProcessNameFinder(tree, machine, target.process_name)
    return LoadSources(Followed(finder), Node(machine) if settings.node else None)
