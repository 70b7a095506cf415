"""Child processes that are watched while they come up and ended, by their own id, when the demo ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

TAIL_LINES = 20


class StartupError(Exception):
    """Something did not come up; the message names it and ends with the last lines of its log."""


class Child:
    """One program, its output in a file of its own."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, name: str, command: Sequence[str], log: Path) -> Child:
        """Raises OSError if the program cannot be executed."""
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in a terminal goes to the whole group: the demo stops its children itself, in order.
                start_new_session=True,
            )
        return cls(name, process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.returncode

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (its log is empty)"

    async def ready_when(self, check: Callable[[], Awaitable[bool]], seconds: float) -> None:
        """Wait until `check` says yes. Raises StartupError after `seconds`, or if the program ends."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not await check():
            if self.exit_code is not None:
                raise StartupError(f"{self.name} ended with exit code {self.exit_code}:\n{self.tail()}")
            if asyncio.get_running_loop().time() > deadline:
                raise StartupError(f"{self.name} was not ready after {seconds:g} s:\n{self.tail()}")
            await asyncio.sleep(0.1)

    async def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def free_ports(count: int) -> list[int]:
    """`count` loopback ports that nothing listens on.

    Taken below the range that outgoing connections get theirs from (32768 and up on Linux), so that none of
    these is lost between here and the program that will listen on it. Raises OSError if there are not enough.
    """
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(range(20_000, 32_000), 200):
            if len(ports) == count:
                return ports
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    raise OSError(f"no {count} free ports on 127.0.0.1")
