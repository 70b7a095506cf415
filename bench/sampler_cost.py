#!/usr/bin/env python3
"""What the sampler costs: its share of a core, with the default report and with everything switched on.

    bench/sampler_cost.py [--seconds 20] [--interval 100ms] [--cgroup-root /sys/fs/cgroup --cgroup PATH]

Measures the CPU time of a process that does nothing but sample, by the same `run()` as in the sidecar:
target and node read, figures smoothed, the report rendered and put into the report cell. Without `--cgroup`
the target is a process (this one). Between two samples the processor's caches forget the sampler, and more
so on a busy machine: a loop without pauses would show a third of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from orca_sidecar.core.load_report import NAMED_METRICS
from orca_sidecar.load.sampler import Sampler, Totals
from orca_sidecar.load.sources import open_sources
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.settings.load_metrics import LoadMetricsSettings


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--interval", default="100ms")
    parser.add_argument("--cgroup-root", default="/sys/fs/cgroup")
    parser.add_argument("--cgroup", default="")
    return parser.parse_args()


EVERYTHING = {"formats": ["TEXT", "JSON", "BIN"], "report": {"namedMetrics": list(NAMED_METRICS)}}


def settings(arguments: argparse.Namespace, pid_file: str, report: dict[str, Any]) -> LoadMetricsSettings:
    target = {"cgroup": arguments.cgroup} if arguments.cgroup else {"pidFile": pid_file}
    return LoadMetricsSettings.model_validate(
        {
            **report,
            "enabled": True,
            "sampler": {
                "interval": arguments.interval,
                "cgroupRoot": arguments.cgroup_root,
                "target": target,
                "node": True,
            },
        }
    )


class Counters:
    """150 requests a second, and how often it was asked."""

    def __init__(self) -> None:
        self.samples = 0

    def __call__(self, now_ns: int) -> Totals:
        self.samples += 1
        return Totals(now_ns, self.samples * 15, 0, 3, 1)


async def measure(configured: LoadMetricsSettings, seconds: float) -> tuple[float, int]:
    """CPU seconds used, and the samples taken, in `seconds` of sampling after a warm-up of one."""
    counters = Counters()
    sampler = Sampler(configured, open_sources(configured.sampler), counters, ReportCell(), lambda: "")
    task = asyncio.get_running_loop().create_task(sampler.run())
    await asyncio.sleep(1)
    if sampler.latest is None:
        sys.exit(f"nothing is reported: {sampler.detail}")
    samples, cpu = counters.samples, time.process_time()
    await asyncio.sleep(seconds)
    used = time.process_time() - cpu
    task.cancel()
    return used, counters.samples - samples


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        pid_file = Path(folder, "pid")
        pid_file.write_text(str(os.getpid()))
        for name, report in (("default", {}), ("everything", EVERYTHING)):
            configured = settings(arguments, str(pid_file), report)
            used, taken = uvloop.run(measure(configured, arguments.seconds))
            print(
                f"{name:<11} {taken} samples in {arguments.seconds:g} s, {used / taken * 1e6:.0f} µs each: "
                f"{used / arguments.seconds:.3%} of a core"
            )


if __name__ == "__main__":
    main()
