"""kubectl, run to its end or in the background."""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.processes import ENVIRONMENT


class Running:
    """A kubectl in the background, read line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._unread = process, b""

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    def line(self, within: float = 20.0) -> bytes:
        """The next line of its output, without the line feed."""
        deadline = time.monotonic() + within
        stdout = self._process.stdout
        assert stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no line within {within:g} s, but {self._unread!r}"
            piece = stdout.read(65536)
            assert piece, f"its output ended with {self._unread!r}"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def wait(self, within: float = 20.0) -> int:
        """Its exit code."""
        return self._process.wait(within)


@dataclass(frozen=True)
class Kubectl:
    """kubectl with one kubeconfig."""

    program: Path
    kubeconfig: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, *arguments: str | Path) -> list[str | Path]:
        return [self.program, "--kubeconfig", self.kubeconfig, *arguments]

    @property
    def env(self) -> dict[str, str]:
        # Discovery is cached below KUBECACHEDIR by server address, so routes do not share it.
        return {**ENVIRONMENT, "KUBECACHEDIR": str(self.kubeconfig.parent / "kube-cache"), **self.environment}

    def run(
        self, *arguments: str | Path, stdin: bytes | str = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[bytes]:
        if isinstance(stdin, str):
            stdin = stdin.encode()
        return subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, env=self.env, timeout=timeout
        )

    def __call__(self, *arguments: str | Path, stdin: bytes | str = b"", timeout: float = 60.0) -> str:
        """Run and return what it printed; fails with its error output unless the exit code is 0."""
        done = self.run(*arguments, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, (
            f"kubectl {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr.decode()}"
        )
        return done.stdout.decode()

    @contextlib.contextmanager
    def started(
        self,
        *arguments: str | Path,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.STDOUT,
        preexec_fn: Callable[[], None] | None = None,
    ) -> Iterator[Running]:
        """Run in the background, ended on leaving."""
        process = subprocess.Popen(
            self.command(*arguments),
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=preexec_fn,
            env=self.env,
        )
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(15)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def with_environment(self, **environment: str) -> Kubectl:
        return Kubectl(self.program, self.kubeconfig, {**self.environment, **environment})
