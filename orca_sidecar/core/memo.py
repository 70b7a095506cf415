"""What was worked out for a key, for the next time: bounded, since callers choose the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_V = TypeVar("_V")

_KEPT = 4096


class Memo(dict[bytes, _V]):
    """`memo[key]` is `read(key)`, called once while the key is remembered.

    Keys longer than `longest` bytes are not remembered, nor is what `read` raises. Emptied when full.
    """

    def __init__(self, read: Callable[[bytes], _V], longest: int = 512) -> None:
        super().__init__()
        self._read = read
        self._longest = longest

    def __missing__(self, key: bytes) -> _V:
        value = self._read(key)
        if len(key) <= self._longest:
            if len(self) >= _KEPT:
                self.clear()
            self[key] = value
        return value
