"""Real programs as children of this process: one log file each, ended by their own handle.

A program that does not become ready in time fails the test with the tail of its log.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

READY_WITHIN = 60.0
"""Seconds a program may take to become ready; on an idle machine each takes under five."""

ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if not key.lower().endswith("_proxy") and key != "KUBECONFIG"
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str, within: float = 20.0) -> None:
    """Poll until `condition()` is true; fail with `what` and the last answer or error otherwise."""
    deadline, last = time.monotonic() + within, ""
    while time.monotonic() < deadline:
        try:
            answer = condition()
            if answer:
                return
            last = repr(answer)
        except (OSError, http.client.HTTPException) as error:
            last = repr(error)
        time.sleep(0.03)
    raise AssertionError(f"not within {within:g} s: {what}; last seen: {last}")


class Program:
    """A child process with one log file."""

    def __init__(
        self, name: str, command: Sequence[str | Path], folder: Path, cwd: Path | None = None
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT, cwd=cwd
            )

    def wait_ready(self, ready: Callable[[], object]) -> None:
        try:
            wait_until(lambda: self.process.poll() is not None or ready(), f"{self.name} ready", READY_WITHIN)
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}"
        except AssertionError as error:
            tail = self.log.read_bytes()[-6000:].decode(errors="replace")
            self.stop()
            raise AssertionError(f"{error}\n--- tail of {self.log.name} ---\n{tail}") from None

    def stop(self) -> int:
        """End the program, by force after 15 s; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


class Started:
    """Something that is started on construction: entered when it is ready, stopped on leaving."""

    def wait_ready(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
