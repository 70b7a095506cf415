"""What a cgroup uses and may use: cgroup v2 and v1, its files kept open and read again in place.

v2 (kernel Documentation/admin-guide/cgroup-v2.rst): one tree; ``cpu.stat`` usage_usec, ``cpu.max``,
``memory.current``, ``memory.stat`` inactive_file, ``memory.max``. v1 (cgroup-v1/): one tree per controller
below the root; ``cpuacct.usage``, ``cpu.cfs_quota_us`` / ``cpu.cfs_period_us``, ``memory.usage_in_bytes``,
``memory.stat`` total_inactive_file, ``memory.limit_in_bytes``. Memory in use is what kubelet calls the
working set: page cache that nobody touched lately is given back before anything is killed for it.
"""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_LIMITS_EVERY_NS = 1_000_000_000  # limits can be changed in place, but not ten times a second
_PAGE = 8192


class Usage(NamedTuple):
    """``cpu_seconds`` is a counter; ``cores`` and ``memory_limit`` are what a utilization of 1 means."""

    cpu_seconds: float
    cores: float
    memory: float
    memory_limit: float


class Limits(NamedTuple):
    """Cores and bytes."""

    cores: float
    memory: float

    def tighter(self, other: Limits) -> Limits:
        """What binds of two."""
        return Limits(min(self.cores, other.cores), min(self.memory, other.memory))


class OpenFile:
    """A small kernel file that is opened once and read from its start each time."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """OSError when what it told about is gone (ENODEV from a cgroup, ESRCH from a process)."""
        return os.pread(self._fd, _PAGE, 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def field(raw: bytes, name: bytes) -> int:
    """The number after ``name`` in a file of ``name value`` lines. ValueError if there is none."""
    start = (b"\n" + raw).find(b"\n" + name + b" ")
    if start < 0:
        raise ValueError(f"no {name.decode()!r} line")
    return int(raw[start + len(name) + 1 :].split(b"\n", 1)[0])


class Cgroup(ABC):
    """One cgroup. ``read`` raises OSError once it has been removed."""

    def __init__(self, cpu: Path, memory: Path, memory_stat: Path, machine: Limits) -> None:
        self._cpu = OpenFile(cpu)
        self._memory = OpenFile(memory)
        self._memory_stat = OpenFile(memory_stat)
        self._machine = machine
        self._limits = machine
        self._limits_read_ns: int | None = None

    def read(self, now_ns: int) -> Usage:
        limits = self.limits(now_ns)
        memory = int(self._memory.read()) - self._inactive_file(self._memory_stat.read())
        return Usage(self._cpu_seconds(self._cpu.read()), limits.cores, max(memory, 0), limits.memory)

    def limits(self, now_ns: int) -> Limits:
        """The smallest limits on the way to the root; the machine's cores and memory where there are none."""
        if self._limits_read_ns is None or now_ns - self._limits_read_ns >= _LIMITS_EVERY_NS:
            limits = self._machine
            for found in self._limits_on_path():
                limits = limits.tighter(found)
            self._limits = limits
            self._limits_read_ns = now_ns
        return self._limits

    def is_limited(self, now_ns: int) -> bool:
        """True if anything binds it besides the machine."""
        return self.limits(now_ns) != self._machine

    def close(self) -> None:
        for file in (self._cpu, self._memory, self._memory_stat):
            file.close()

    @abstractmethod
    def _cpu_seconds(self, raw: bytes) -> float: ...

    @abstractmethod
    def _inactive_file(self, raw: bytes) -> int: ...

    @abstractmethod
    def _limits_on_path(self) -> Iterator[Limits]: ...


class _CgroupV2(Cgroup):
    def __init__(self, root: Path, path: str, machine: Limits) -> None:
        folder = root / path
        super().__init__(folder / "cpu.stat", folder / "memory.current", folder / "memory.stat", machine)
        self._folders = _up(root, path)

    def _cpu_seconds(self, raw: bytes) -> float:
        return field(raw, b"usage_usec") / 1e6

    def _inactive_file(self, raw: bytes) -> int:
        return field(raw, b"inactive_file")

    def _limits_on_path(self) -> Iterator[Limits]:
        for folder in self._folders:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
            memory = _text(folder / "memory.max")
            yield Limits(
                int(quota) / int(period) if quota.isdigit() and period.isdigit() else float("inf"),
                int(memory) if memory.isdigit() else float("inf"),
            )


class _CgroupV1(Cgroup):
    def __init__(self, root: Path, paths: Mapping[str, str], machine: Limits) -> None:
        memory_root = _controller(root, "memory")
        memory = memory_root / paths["memory"]
        usage = _controller(root, "cpuacct") / paths["cpuacct"] / "cpuacct.usage"
        super().__init__(usage, memory / "memory.usage_in_bytes", memory / "memory.stat", machine)
        self._cpu_folders = _up(_controller(root, "cpu"), paths["cpu"])
        self._memory_folders = _up(memory_root, paths["memory"])

    def _cpu_seconds(self, raw: bytes) -> float:
        return int(raw) / 1e9

    def _inactive_file(self, raw: bytes) -> int:
        return field(raw, b"total_inactive_file")

    def _limits_on_path(self) -> Iterator[Limits]:
        for folder in self._cpu_folders:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit():  # "-1": no quota
                yield Limits(int(quota) / int(period), float("inf"))
        for folder in self._memory_folders:
            limit = _text(folder / "memory.limit_in_bytes")  # no limit: a number above any memory
            if limit.isdigit():
                yield Limits(float("inf"), int(limit))


class CgroupTree:
    """The mounted cgroup file system(s) below ``root``. FileNotFoundError if it holds neither version."""

    def __init__(self, root: Path, machine: Limits) -> None:
        self.root = root
        self.is_v2 = (root / "cgroup.controllers").exists()
        self._machine = machine
        self._memory_root = root if self.is_v2 else _controller(root, "memory")
        self._inode_is_age = _is_kernel_tree(self._memory_root)

    def open(self, path: str) -> Cgroup:
        """The cgroup at ``path`` below the root (v1: below each controller's). OSError if it is not there."""
        path = path.strip("/")
        return self._open(dict.fromkeys(("", "cpu", "cpuacct", "memory"), path))

    def open_of_process(self, pid: int) -> Cgroup | None:
        """The cgroup of a process, None where its path cannot be seen from here; OSError if it is gone."""
        paths: dict[str, str] = {}
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path.strip("/")
        wanted = ("",) if self.is_v2 else ("cpu", "cpuacct", "memory")
        # A path with ".." lies outside this process's cgroup namespace; "" is the root, which nothing limits.
        if not all(paths.get(name) and ".." not in paths[name].split("/") for name in wanted):
            return None
        try:
            return self._open(paths)
        except FileNotFoundError:  # a controller that is not enabled, or another mount
            return None

    def newest(self, pattern: str) -> tuple[str, int] | None:
        """The path of the cgroup that matches, the newest of several, and its inode; None if none does.

        In the kernel's own trees the inode number tells the age: it only ever rises, while the times shown
        are those of the first look at a folder, which may come again under memory pressure.
        """
        found: list[tuple[int, str, int]] = []
        for path in glob.glob(pattern.strip("/"), root_dir=self._memory_root):
            try:
                status = os.stat(self._memory_root / path)
            except FileNotFoundError:
                continue
            age = status.st_ino if self._inode_is_age else status.st_mtime_ns
            found.append((age, path, status.st_ino))
        if not found:
            return None
        _, path, inode = max(found)
        return path, inode

    def _open(self, paths: Mapping[str, str]) -> Cgroup:
        if self.is_v2:
            return _CgroupV2(self.root, paths[""], self._machine)
        return _CgroupV1(self.root, paths, self._machine)


def _up(root: Path, path: str) -> list[Path]:
    """The folder at ``path``, its parents, and the root itself (in a cgroup namespace that one has
    limits)."""
    folder = root / path
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _text(path: Path) -> str:
    """A limit's file; "" where there is none, as in a root, or without the controller."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _controller(root: Path, name: str) -> Path:
    """v1: the folder of a controller, which may be mounted with others (``cpu,cpuacct``)."""
    for folder in sorted(root.iterdir()):
        if name in folder.name.split(","):
            return folder
    raise FileNotFoundError(f"{root}: neither cgroup.controllers (v2) nor a folder for {name!r} (v1)")


def _is_kernel_tree(folder: Path) -> bool:
    """True for a mounted cgroup file system, False for anything that only looks like one."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0] in ("cgroup", "cgroup2")
    return False
