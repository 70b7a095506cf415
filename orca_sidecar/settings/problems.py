"""What can be wrong with a configuration, said so that it can be mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``key`` is the path from the top of the file (``listener.tls.certFile``, ``frontProxy.allowedNames[1]``;
    "" for the file as a whole), ``message`` says what is wrong and ``advice`` what to do. ``file`` and
    ``line`` (from 1) say where, as far as it is known.
    """

    key: str
    message: str
    advice: str
    severity: Severity = "error"
    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        kind = "warning" if self.severity == "warning" else ""
        return ": ".join(part for part in (place, kind, self.key, f"{self.message}; {self.advice}") if part)


class ConfigurationError(Exception):
    """A configuration that cannot be used; ``problems`` holds all that is wrong, in the file's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = list(problems)


class InvalidValueError(ValueError):
    """A value that its key cannot take; the key's path and place are added where they are known."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(f"{message}; {advice}")
        self.message = message
        self.advice = advice


def within(key: str, section: str) -> bool:
    """Whether ``key`` is ``section`` or lies below it; everything lies below ""."""
    return not section or key == section or key.startswith((f"{section}.", f"{section}["))


def related(one: str, other: str) -> bool:
    """Whether one of two keys is the other, or lies below it."""
    return within(one, other) or within(other, one)
