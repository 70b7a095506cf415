"""Targets that are followed over restarts, real processes, and counters turned into utilizations."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator
from pathlib import Path

import pytest

from orca_sidecar.load.cgroup import CgroupTree, Limits, Usage
from orca_sidecar.load.sources import (
    CgroupFinder,
    Followed,
    Load,
    LoadSources,
    Meter,
    Node,
    PidFileFinder,
    Process,
    ProcessNameFinder,
    TargetMissing,
    machine_limits,
    open_sources,
)
from orca_sidecar.settings.load_metrics import SamplerSettings, TargetSettings

GIB = 1 << 30
MACHINE = Limits(cores=4, memory=8 * GIB)
SECOND = 1_000_000_000


class FakeSource:
    """One incarnation, with counters that a test sets; `gone` makes it vanish."""

    def __init__(self, cpu_seconds: float = 0.0) -> None:
        self.usage = Usage(cpu_seconds, 4, GIB, 2 * GIB)
        self.gone = False
        self.closed = False

    def use(self, cpu_seconds: float) -> None:
        self.usage = self.usage._replace(cpu_seconds=self.usage.cpu_seconds + cpu_seconds)

    def read(self, now_ns: int) -> Usage:
        if self.gone:
            raise ProcessLookupError("gone")
        return self.usage

    def close(self) -> None:
        self.closed = True


class FakeFinder:
    def __init__(self, source: FakeSource | None, cheap: bool = False) -> None:
        self.cheap = cheap
        self.source = source
        self.searches = 0

    def identify(self) -> Hashable | None:
        self.searches += 1
        return id(self.source) if self.source else None

    def open(self, identity: Hashable, now_ns: int) -> FakeSource:
        assert self.source is not None
        return self.source

    def __str__(self) -> str:
        return "the fake"


def followed(source: FakeSource | None, cheap: bool = False) -> tuple[LoadSources, FakeFinder]:
    finder = FakeFinder(source, cheap)
    return LoadSources(Followed(finder), None), finder


class TestMeter:
    def test_cpu_is_relative_to_the_limit_and_may_exceed_one(self) -> None:
        meter, source = Meter(), FakeSource()
        assert meter.step(source, Usage(10.0, 0.5, GIB, 2 * GIB), 0) is None
        assert meter.step(source, Usage(10.1, 0.5, GIB, 2 * GIB), SECOND) == pytest.approx((0.2, 0.5))
        assert meter.step(source, Usage(10.8, 0.5, GIB, 4 * GIB), 2 * SECOND) == pytest.approx((1.4, 0.25))

    def test_a_counter_that_falls_or_another_source_starts_again(self) -> None:
        meter, source = Meter(), FakeSource()
        meter.step(source, Usage(1000.0, 1, 0, 1), 0)
        assert meter.step(source, Usage(1.0, 1, 0, 1), SECOND) is None
        assert meter.step(source, Usage(1.5, 1, 0, 1), 2 * SECOND) == (0.5, 0.0)
        assert meter.step(FakeSource(), Usage(5000.0, 1, 0, 1), 3 * SECOND) is None

    def test_two_readings_at_once_give_no_figure_and_lose_nothing(self) -> None:
        meter, source = Meter(), FakeSource()
        meter.step(source, Usage(1.0, 1, 0, 1), 0)
        assert meter.step(source, Usage(1.2, 1, 0, 1), 10) is None
        assert meter.step(source, Usage(1.5, 1, 0, 1), SECOND) == (0.5, 0.0)


class TestFollowed:
    def test_a_restart_gives_no_negative_and_no_huge_figure(self) -> None:
        old, new = FakeSource(5000.0), FakeSource(3.0)
        sources, finder = followed(old)
        assert sources.measure(0) is None
        old.use(2.0)
        assert sources.measure(SECOND) == Load(0.5, 0.5)
        old.gone, finder.source = True, new
        with pytest.raises(TargetMissing):
            sources.measure(2 * SECOND)
        assert old.closed
        assert sources.measure(3 * SECOND) is None
        new.use(1.0)
        assert sources.measure(4 * SECOND) == Load(0.25, 0.5)

    def test_it_looks_for_a_missing_target_once_a_second(self) -> None:
        sources, finder = followed(None)
        for step in range(30):
            with pytest.raises(TargetMissing, match="the fake: not found"):
                sources.measure(step * SECOND // 10)
        assert finder.searches == 3

    def test_a_target_that_is_dear_to_find_is_not_looked_for_while_it_lives(self) -> None:
        sources, finder = followed(FakeSource())
        for step in range(100):
            sources.measure(step * SECOND)
        assert finder.searches == 1

    def test_a_cheap_one_is_and_another_incarnation_replaces_a_living_one(self) -> None:
        old, new = FakeSource(), FakeSource(7.0)
        sources, finder = followed(old, cheap=True)
        sources.measure(0)
        assert sources.measure(SECOND) is not None
        finder.source = new
        assert sources.measure(2 * SECOND) is None
        assert old.closed
        assert sources.measure(3 * SECOND) == Load(0.0, 0.5)


def group(folder: Path, usec: int, memory: int = GIB) -> None:
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text(f"usage_usec {usec}\n")
    (folder / "memory.current").write_text(f"{memory}\n")
    (folder / "memory.stat").write_text("inactive_file 0\n")
    (folder / "memory.max").write_text(f"{2 * GIB}\n")


def test_a_container_whose_cgroup_path_changes_at_a_restart(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    first, second = tmp_path / "pod" / "cri-1.scope", tmp_path / "pod" / "cri-2.scope"
    group(first, usec=9_000_000)
    os.utime(first, (100, 100))
    tree = CgroupTree(tmp_path, MACHINE)
    sources = LoadSources(Followed(CgroupFinder(tree, "pod/cri-*.scope")), None)
    assert sources.measure(0) is None
    (first / "cpu.stat").write_text("usage_usec 10000000\n")
    assert sources.measure(SECOND) == Load(0.25, 0.5)
    group(second, usec=100_000, memory=GIB // 2)
    shutil.rmtree(first)
    assert sources.measure(2 * SECOND) is None
    (second / "cpu.stat").write_text("usage_usec 500000\n")
    assert sources.measure(3 * SECOND) == Load(pytest.approx(0.1), 0.25)
    shutil.rmtree(second)
    with pytest.raises(TargetMissing, match=r"cgroup 'pod/cri-\*.scope' below .*: not found"):
        sources.measure(4 * SECOND)


# --- real processes ---

BUSY = """
import time
end = time.process_time() + {seconds}
while time.process_time() < end:
    pass
print(flush=True)
input()
"""


class Child:
    """A real process that uses a given CPU time and then waits to be told to end."""

    def __init__(self, seconds: float, executable: str = sys.executable) -> None:
        self.process = subprocess.Popen(
            [executable, "-c", BUSY.format(seconds=seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PYTHONHOME": sys.base_prefix},
        )
        self.pid = self.process.pid

    def wait_until_used(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(0.3)
    yield child
    child.end()


def test_a_real_process_by_its_cpu_clock_and_resident_memory(child: Child) -> None:
    child.wait_until_used()
    process = Process(child.pid, MACHINE)
    usage = process.read(0)
    assert 0.3 <= usage.cpu_seconds < 3.0
    assert usage.cores == 4
    assert 1 << 20 < usage.memory < GIB
    child.end()
    with pytest.raises(ProcessLookupError):
        process.read(0)


def test_a_zombie_is_gone(child: Child) -> None:
    child.wait_until_used()
    process = Process(child.pid, MACHINE)
    process.read(0)
    child.process.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
    with pytest.raises(ProcessLookupError, match="has ended"):
        process.read(0)


def test_a_pid_file_is_followed_to_a_new_process(child: Child, tmp_path: Path) -> None:
    pid_file = tmp_path / "apiserver.pid"
    sources = LoadSources(Followed(PidFileFinder(None, MACHINE, pid_file)), None)
    with pytest.raises(TargetMissing, match=f"a process id in {pid_file}: not found"):
        sources.measure(0)
    pid_file.write_text(f"{child.pid}\n")
    child.wait_until_used()
    assert sources.measure(SECOND) is None
    load = sources.measure(2 * SECOND)
    assert load is not None
    assert 0 <= load.target_cpu < 0.01
    successor = Child(0.2)
    try:
        successor.wait_until_used()
        pid_file.write_text(f"{successor.pid}\n")
        assert sources.measure(3 * SECOND) is None
        load = sources.measure(4 * SECOND)
        assert load is not None
        assert 0 <= load.target_cpu < 0.01
    finally:
        successor.end()


def test_the_youngest_process_of_a_name(tmp_path: Path) -> None:
    executable = tmp_path / "fake-apiserver"
    shutil.copy(os.path.realpath(sys.executable), executable)
    finder = ProcessNameFinder(None, MACHINE, "fake-apiserver")
    assert finder.identify() is None
    first = Child(0.0, str(executable))
    try:
        first.wait_until_used()
        assert finder.identify() == first.pid
        time.sleep(0.02)  # process start times are told in hundredths of a second
        second = Child(0.0, str(executable))
        try:
            second.wait_until_used()
            assert finder.identify() == second.pid
        finally:
            second.end()
        assert finder.identify() == first.pid
    finally:
        first.end()


def test_a_process_with_a_limited_cgroup_is_measured_by_it(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    group(tmp_path / "pod" / "app", usec=1_000_000)
    tree = CgroupTree(tmp_path, MACHINE)
    monkeypatch.setattr(tree, "open_of_process", lambda pid: tree.open("pod/app"))
    finder = PidFileFinder(tree, MACHINE, tmp_path / "pid")
    source = finder.open(child.pid, 0)
    assert source.read(0) == (1.0, 4, GIB, 2 * GIB)
    child.end()
    with pytest.raises(ProcessLookupError):  # the folder is still there; the process is not
        source.read(0)


def test_a_process_with_an_unlimited_cgroup_is_measured_by_itself(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    group(tmp_path / "app", usec=1_000_000)
    (tmp_path / "app" / "memory.max").write_text("max\n")
    tree = CgroupTree(tmp_path, MACHINE)
    monkeypatch.setattr(tree, "open_of_process", lambda pid: tree.open("app"))
    child.wait_until_used()
    source = PidFileFinder(tree, MACHINE, tmp_path / "pid").open(child.pid, 0)
    assert source.read(0).memory_limit == MACHINE.memory


def test_the_cgroup_of_a_process_that_cannot_be_seen_from_here_is_none(child: Child, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    assert CgroupTree(tmp_path, MACHINE).open_of_process(child.pid) is None
    child.end()
    with pytest.raises(OSError):
        CgroupTree(tmp_path, MACHINE).open_of_process(child.pid)


def test_the_node_agrees_with_the_kernel(child: Child) -> None:
    node, meter = Node(machine_limits()), Meter()
    start = time.monotonic_ns()
    assert meter.step(node, node.read(start), start) is None
    child.wait_until_used()
    now = time.monotonic_ns()
    figures = meter.step(node, node.read(now), now)
    assert figures is not None
    cpu, memory = figures
    elapsed = (now - start) / 1e9
    # The child alone used almost 0.3 s of CPU; nothing can use more than every core (plus a tick each).
    assert 0.2 / elapsed / machine_limits().cores < cpu < 1.0 + 0.05 / elapsed
    assert 0 < memory < 1


def test_the_larger_of_target_and_node_counts() -> None:
    load = Load(target_cpu=0.2, target_memory=0.7, node_cpu=0.5, node_memory=0.3)
    assert (load.cpu, load.memory) == (0.5, 0.7)


class TestOpenSources:
    def test_the_first_target_that_is_set_wins(self, child: Child, tmp_path: Path) -> None:
        (tmp_path / "cgroup.controllers").write_text("cpu memory")
        group(tmp_path / "app", usec=0)
        pid_file = tmp_path / "pid"
        pid_file.write_text("0")
        target = TargetSettings(cgroup="app", pid_file=pid_file, process_name="no-such")
        sources = open_sources(SamplerSettings(cgroup_root=tmp_path, target=target, node=False))
        assert sources.measure(0) is None
        assert sources.measure(SECOND) == Load(0.0, 0.5)
        for target, said in (
            (TargetSettings(pid_file=tmp_path / "none", process_name="no-such"), "a process id in"),
            (TargetSettings(process_name="no-such"), "a process named 'no-such'"),
        ):
            with pytest.raises(TargetMissing, match=said):
                open_sources(SamplerSettings(cgroup_root=tmp_path, target=target)).measure(0)

    def test_without_a_cgroup_tree_processes_can_still_be_measured(
        self, tmp_path: Path, child: Child
    ) -> None:
        pid_file = tmp_path / "pid"
        pid_file.write_text(str(child.pid))
        target = TargetSettings(pid_file=pid_file)
        sources = open_sources(SamplerSettings(cgroup_root=tmp_path / "none", target=target))
        assert sources.measure(0) is None
        assert sources.measure(SECOND) is not None
        with pytest.raises(FileNotFoundError):
            open_sources(SamplerSettings(cgroup_root=tmp_path / "none", target=TargetSettings(cgroup="app")))
