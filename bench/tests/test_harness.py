"""The accounting: CPU time is the kernel's, and a stranger's is told from our own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.harness.accounting import Window, cpu_ns, process_tree
from bench.harness.goals import GOALS
from bench.harness.process import BenchError, free_port, running
from bench.harness.runner import Outcome, Results

SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"


PARENT = f"""
import subprocess, sys, threading, time
child = subprocess.Popen([sys.executable, "-c", {SPIN + "time.sleep(30)"!r}])
thread = threading.Thread(target=lambda: exec({SPIN!r}))
thread.start()
thread.join()
time.sleep(30)
"""


def test_cpu_time_of_a_child_with_threads_and_children(tmp_path: Path) -> None:
    with running("spinner", [sys.executable, "-c", PARENT], tmp_path) as started:
        deadline = time.monotonic() + 30
        # The parent's was spent by a thread that has ended.
        while len(used := [cpu_ns(pid) for pid in started.pids()]) < 2 or min(used) < 300_000_000:
            assert time.monotonic() < deadline, used
            time.sleep(0.05)
        with Window(started.pids()) as window:
            time.sleep(0.2)
        assert window.cpu_ns < 100_000_000
        parent = started.process.pid
    assert process_tree(parent) == [parent]


def test_a_program_that_ends_early_is_told_with_its_last_words(tmp_path: Path) -> None:
    with running("hasty", [sys.executable, "-c", "print('bad luck')"], tmp_path) as program:
        program.process.wait(10)
        with pytest.raises(BenchError, match="hasty ended with status 0: bad luck"):
            program.pids()


def test_a_stranger_is_told_from_our_own(tmp_path: Path) -> None:
    """A process that is not below this one is a stranger: its parent has left it to init."""
    orphan = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -c "while True: pass" >/dev/null 2>&1 & echo $!'],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = int(orphan.stdout)
    try:
        assert pid not in process_tree(1_000_000_000)
        before = cpu_ns(pid)
        with Window([]) as window:
            time.sleep(1.0)
        used = (cpu_ns(pid) - before) / 1e9
        assert window.foreign > 0.8 * used
    finally:
        subprocess.run(["kill", "-KILL", str(pid)], check=True)


def test_a_free_port_is_not_one_of_those_for_outgoing_connections() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not low <= free_port() <= high


def test_goals_are_computed_from_medians() -> None:
    def outcome(*values: float) -> Outcome:
        return Outcome(samples={"cpuMicroseconds": list(values)})

    results: Results = {"get-2k": {"envoy": outcome(40, 10, 50), "sidecar": outcome(30, 99, 20)}}
    figures = {goal.key: goal.figure(results) for goal in GOALS}
    assert figures.pop("cpuPerRequestVsEnvoy") == pytest.approx(30 / 40)
    assert set(figures.values()) == {None}
