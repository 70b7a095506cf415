"""What the kernel says a set of processes used: CPU time in nanoseconds, resident memory, and what everybody else
used meanwhile.

CPU time is read from each process's CPU clock (clock_getcpuclockid(3)): all threads, living and ended, in
nanoseconds, from the scheduler's own accounting. The ticks of /proc/PID/stat are the same clock cut to 10 ms.
"""

import os
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NANOSECONDS = 1_000_000_000
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """CPU time of a process since its start, in ns; ProcessLookupError where it is gone."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # CPUCLOCK_SCHED of the whole thread group
    except OSError as error:
        raise ProcessLookupError(f"process {pid} is gone") from error


def _parents() -> dict[int, int]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def process_tree(root: int) -> list[int]:
    """The pids of a process and of all its descendants, the root first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    tree = [root]
    for pid in tree:
        tree.extend(sorted(children.get(pid, ())))
    return tree


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory, shared pages counted once for each process."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in pids)


def _idle_ns() -> int:
    """Idle and waiting time of all CPUs, ns. What is neither idle nor ours was somebody else's, steal included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) * NANOSECONDS // TICKS


def _usage_of_tree() -> dict[int, int]:
    """CPU time of the bench and of all that it started, by pid."""
    return _usage_of_living(process_tree(os.getpid()))


def _usage_of_ended() -> int:
    """CPU time of all that the bench started and that has ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((ended.ru_utime + ended.ru_stime) * NANOSECONDS)


def _usage(pids: Iterable[int]) -> dict[int, int]:
    return {pid: cpu_ns(pid) for pid in pids}


@dataclass
class Window:
    """A stretch of time: `with Window(pids) as window: …`, then its figures.

    `cpu_ns` is of the processes `pids`, `cpu_ns_by_pid` of those and of `more_pids`; `foreign` is how many cores'
    worth of CPU time went to programs that are none of the bench's, on average.
    """

    pids: list[int]
    more_pids: list[int] = field(default_factory=list)
    cpu_ns: int = 0
    cpu_ns_by_pid: Mapping[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    foreign: float = 0.0

    def __enter__(self) -> "Window":
        self._ours_before = _usage_of_tree()
        self._ended_before = _usage_of_ended()
        self._idle_before = _idle_ns()
        self._started = time.monotonic_ns()
        self._before = _usage([*self.pids, *self.more_pids])
        return self

    def __exit__(self, *_: object) -> None:
        after = _usage([*self.pids, *self.more_pids])
        elapsed = time.monotonic_ns() - self._started
        idle = _idle_ns() - self._idle_before
        # Programs may have started meanwhile, or ended, or both.
        alive = _usage_of_tree()
        ours = sum(used - self._ours_before.get(pid, 0) for pid, used in alive.items())
        gone = sum(used for pid, used in self._ours_before.items() if pid not in alive)
        ours += max(0, _usage_of_ended() - self._ended_before - gone)
        self.seconds = elapsed / NANOSECONDS
        self.cpu_ns_by_pid = {pid: used - self._before[pid] for pid, used in after.items()}
        self.cpu_ns = sum(self.cpu_ns_by_pid[pid] for pid in self.pids)
        cpus = os.cpu_count() or 1
        self.foreign = max(0.0, (cpus * elapsed - idle - ours) / elapsed)


def busiest_strangers(seconds: float, count: int = 3) -> list[tuple[str, float]]:
    """(name, cores used) of the busiest processes that are not the bench's, over a fresh stretch of time."""
    ours = set(process_tree(os.getpid()))
    before = _usage_of_living(pid for pid in _parents() if pid not in ours)
    time.sleep(seconds)
    used = []
    for pid, usage in before.items():
        after = _usage_or_none(pid)
        if after is not None and after > usage:
            used.append((_name(pid), (after - usage) / NANOSECONDS / seconds))
    return sorted(used, key=lambda item: -item[1])[:count]


def _usage_of_living(pids: Iterable[int]) -> dict[int, int]:
    """As `_usage`, without those that are gone."""
    return {pid: usage for pid in pids if (usage := _usage_or_none(pid)) is not None}


def _usage_or_none(pid: int) -> int | None:
    try:
        return cpu_ns(pid)
    except ProcessLookupError:
        return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"
