"""Files as the kernel shows a container's cgroup (version 2), for a stand-in API server to be measured by.

Only what a load sampler reads is there: `cpu.stat`, `cpu.max`, `memory.current`, `memory.max`, `memory.stat`,
and `cgroup.controllers` at the root, by which version 2 is recognised
(Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

CPU_PERIOD = 100_000
"""Microseconds of `cpu.max`'s period; the kernel's default."""


def make_root(root: Path) -> None:
    """Make `root` look like the mount point of a version 2 hierarchy."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")


class CgroupFiles:
    """One container's folder. A restarted container has another folder, and its counters begin at zero."""

    def __init__(self, folder: Path, *, cores: float, memory_limit: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "cpu.max").write_text(f"{round(cores * CPU_PERIOD)} {CPU_PERIOD}\n")
        (folder / "memory.max").write_text(f"{memory_limit}\n")
        # Kept open and overwritten in place at a constant length: a reader never meets an empty or a cut
        # file.
        self._files = {
            name: os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o644)
            for name in ("cpu.stat", "memory.current", "memory.stat")
        }
        self.write(cpu_seconds=0.0, memory=0, inactive_file=0)

    def write(self, *, cpu_seconds: float, memory: int, inactive_file: int) -> None:
        """CPU used since the folder was made; bytes in use, of which `inactive_file` are reclaimable page
        cache.
        """
        microseconds = round(cpu_seconds * 1e6)
        self._put(
            "cpu.stat", f"usage_usec {microseconds:020d}\nuser_usec {microseconds:020d}\nsystem_usec 0\n"
        )
        self._put("memory.current", f"{memory:020d}\n")
        self._put("memory.stat", f"anon {memory - inactive_file:020d}\ninactive_file {inactive_file:020d}\n")

    def _put(self, name: str, text: str) -> None:
        os.pwrite(self._files[name], text.encode(), 0)

    def remove(self) -> None:
        """The container is gone, and its cgroup with it."""
        for descriptor in self._files.values():
            os.close(descriptor)
        shutil.rmtree(self.folder)
