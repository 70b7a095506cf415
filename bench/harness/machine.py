"""Where and with what a result was had."""

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.harness.process import BenchError
from bench.peers.job import Peer

_ROOT = Path(__file__).resolve().parents[2]


def describe_machine(peers: Iterable[Peer]) -> dict[str, Any]:
    """Machine, kernel, versions of every program that takes part, commit and command; raises BenchError where one is
    not installed."""
    versions = {}
    for peer in peers:
        try:
            versions[peer.name] = peer.version()
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"{peer.title} does not run: {error}") from error
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    upstream = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["bench/run.py", *sys.argv[1:]]),
        "commit": _commit(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "memoryGigabytes": round(int(memory[1]) / 1024**2) if memory else None,
        "kernel": platform.release(),
        "versions": versions,
        "upstream": upstream.strip().rpartition(": ")[2],
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    return commit + ("+changes" if git("status", "--porcelain", "--", "orca_sidecar", "bench/*.py") else "")
