#!/usr/bin/env python3
"""Where the sidecar's time goes under load, as a flame graph.

    bench/profile.py                  small GETs: bench/results/profile-get-2k.svg
    bench/profile.py --load events    or watch events, or body-64k, body-5m
    bench/profile.py --peer haproxy   perf's table alone, for comparison

The flame graph is py-spy's (`make -C bench peers` installs it), with Python's and C's frames, of the process that
does the work. Where perf is installed (Debian: linux-perf) its shares of CPU time by shared object and by symbol are
printed as well: the kernel, libssl and libcrypto, the interpreter, the event loop.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

if not __package__:
    sys.path[0] = str(
        Path(__file__).resolve().parents[1]
    )  # not this folder: this module is named as a library is

from bench.harness.accounting import cpu_ns
from bench.harness.process import BenchError, raise_open_files
from bench.harness.traffic import GET_2K, GET_5M, GET_64K, WATCH
from bench.harness.trial import Scenario, Trial, Workshop
from bench.parts.requests import CONNECTIONS
from bench.parts.watches import STREAMS
from bench.peers import PEERS

HERE = Path(__file__).resolve().parent
PY_SPY = HERE / ".venv" / "bin" / "py-spy"
LONGEST_SECONDS = 30
TARGETS = {"get-2k": GET_2K, "body-64k": GET_64K, "body-5m": GET_5M}
EVENTS = "events"
EVENTS_PER_SECOND = 20.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--load", default="get-2k", choices=[*TARGETS, EVENTS])
    parser.add_argument("--peer", default="sidecar", choices=sorted(PEERS))
    parser.add_argument("--seconds", type=int, default=8, help=f"at most {LONGEST_SECONDS}")
    parser.add_argument("--output", type=Path, help="default: bench/results/profile-LOAD.svg")
    return parser.parse_args()


@contextlib.contextmanager
def under_load(trial: Trial, kind: str, seconds: int) -> Iterator[int]:
    """Keeps the proxy busy meanwhile; yields the pid of the process of it that does the work."""
    assert trial.program is not None
    deadline = seconds + 60
    if kind == EVENTS:
        started = trial.load(
            "watch", WATCH, connections=STREAMS, duration=seconds + 30, deadline=deadline + STREAMS / 100
        )
    else:
        connections = CONNECTIONS if kind == "get-2k" else 8
        started = trial.load(
            "closed",
            TARGETS[kind],
            connections=connections,
            warm_up=500,
            requests=10_000_000,
            deadline=deadline,
        )
    with started as load:
        load.ready()
        before = {pid: cpu_ns(pid) for pid in trial.program.pids()}
        load.start()
        time.sleep(0.5)
        yield max(before, key=lambda pid: cpu_ns(pid) - before[pid])


def flame_graph(pid: int, seconds: int, output: Path) -> None:
    if not PY_SPY.exists():
        raise BenchError("py-spy is not installed: run `make -C bench peers`")
    command = [str(PY_SPY), "record", "--native", "--rate", "200", "--duration", str(seconds)]
    command += ["--output", str(output), "--pid", str(pid)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"py-spy: {done.stderr.strip()}")
    print(f"{output}: open it in a browser")


def perf_table(pid: int, seconds: int, folder: Path) -> None:
    data = folder / "perf.data"
    record = ["perf", "record", "--quiet", "--freq", "999", "--pid", str(pid), "--output", str(data)]
    subprocess.run([*record, "--", "sleep", str(seconds)], capture_output=True, check=True)
    for by, lines in (("dso", 12), ("dso,symbol", 40)):
        report = ["perf", "report", "--input", str(data), "--stdio", "--sort", by, "--percent-limit", "0.4"]
        output = subprocess.run(report, capture_output=True, text=True, check=True).stdout
        rows = [
            line.rstrip(" -") for line in output.splitlines() if line.strip() and not line.startswith("#")
        ]
        print(f"\nshare of CPU time by {by.replace(',', ' and ')}")
        print("\n".join(rows[:lines]))


def main() -> int:
    arguments = parse_arguments()
    seconds = min(arguments.seconds, LONGEST_SECONDS)
    peer = PEERS[arguments.peer]
    scenario = Scenario(
        name=f"profile-{arguments.load}",
        title="",
        subjects=(peer.name,),
        trial=lambda _: {},
        unit="",
        upstream="watches" if arguments.load == EVENTS else "bodies",
        event_rate=EVENTS_PER_SECOND,
    )
    output = arguments.output or HERE / "results" / f"profile-{arguments.load}.svg"
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            workshop = Workshop(Path(name), raise_open_files())
            with (
                workshop.trial(scenario, peer.name, peer) as trial,
                under_load(trial, arguments.load, 2 * seconds) as pid,
            ):
                if shutil.which("perf"):
                    perf_table(pid, seconds, Path(name))
                if peer.name == "sidecar":
                    flame_graph(pid, seconds, output)
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
