"""What is raised when certificates, keys or authorities cannot be used."""

from __future__ import annotations

from pathlib import Path


class TrustError(Exception):
    """A file that cannot be used, named in the text. Never holds any of the file's content."""

    def __init__(self, path: Path | None, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
