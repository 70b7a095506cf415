"""Drives the load generator (bench/loadgen): one gated run, so that a window can be put around the measurement alone."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.harness.pki import SERVER_NAME, Pair
from bench.harness.process import BenchError, stop

BUILD = Path(__file__).resolve().parents[1] / "build"
LOADGEN = BUILD / "loadgen"

Mode = Literal["closed", "open", "watch"]


@dataclass(frozen=True)
class LoadResult:
    """One line of the load generator. Latencies in µs; every response passed its checks."""

    responses: int
    body_bytes: int
    events: int
    handshakes: int
    resumed: int
    open_seconds: float
    seconds: float
    p50: float
    p90: float
    p99: float


class Load:
    """A load generator that has warmed up or is about to."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self._process = process
        self._name = name

    def ready(self) -> None:
        """Returns when the warm-up is over, or all watches are open."""
        line = self._line()
        if line.strip() != "ready":
            raise BenchError(f"{self._name}: {_complaint(line)}")

    def start(self) -> None:
        """Lets the measurement go."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def run(self) -> LoadResult:
        """Lets the measurement go; returns its result with all connections still open."""
        self.start()
        return self.result()

    def result(self) -> LoadResult:
        line = self._line()
        try:
            raw: dict[str, Any] = json.loads(line)
        except ValueError:
            raise BenchError(f"{self._name}: {_complaint(line)}") from None
        if not raw["ok"]:
            raise BenchError(f"{self._name}: {raw['error']}: {raw['detail']}")
        latency = raw["latencyMicroseconds"]
        return LoadResult(
            responses=raw["responses"],
            body_bytes=raw["bytes"],
            events=raw["events"],
            handshakes=raw["handshakes"],
            resumed=raw["resumed"],
            open_seconds=raw["openSeconds"],
            seconds=raw["seconds"],
            p50=latency["p50"],
            p90=latency["p90"],
            p99=latency["p99"],
        )

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # ends: the load generator has its own deadline
        if not line:
            self._process.wait(5)
            assert self._process.stderr is not None
            raise BenchError(f"{self._name}: {self._process.stderr.read().strip() or 'no answer'}")
        return line


def _complaint(line: str) -> str:
    try:
        raw = json.loads(line)
        return f"{raw['error']}: {raw['detail']}"
    except ValueError:
        return line.strip()


@contextlib.contextmanager
def load(
    mode: Mode,
    port: int,
    ca: Path,
    caller: Pair,
    head: Path,
    *,
    name: str = "load",
    deadline: float = 60.0,
    **options: int | float | str | None,
) -> Iterator[Load]:
    """Starts a gated load; `options` are the load generator's own, `warm_up=100` being `--warm-up 100`."""
    command = [str(LOADGEN), "--mode", mode, "--connect", f"127.0.0.1:{port}", "--head", str(head), "--gate"]
    command += ["--ca", str(ca), "--server-name", SERVER_NAME, "--deadline", str(deadline)]
    command += ["--cert", str(caller.cert), "--key", str(caller.key)]
    for option, value in options.items():
        if value is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Load(process, name)
    finally:
        stop(process, 5.0)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
