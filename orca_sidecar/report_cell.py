"""The latest rendered report, in memory shared by the sampler's process and the workers.

A seqlock over an anonymous shared mapping: one writer, any number of readers, no lock that a dead process
could hold. The writer makes the sequence odd, writes, makes it even again; a reader that sees the same even
number before and after its copy has a whole one. CPython has no memory barriers to offer, so each copy also
carries a checksum, which holds on weakly ordered processors too. Readers keep their last copy and look at
one word while nothing changed.

The cell is made before the workers are forked. Its clock is ``time.monotonic_ns()``, one clock for the
whole machine.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Mapping

from orca_sidecar.core.load_report import Format

_BYTES = 16 * 1024
# Words of 8 bytes: sequence, sampled_at, checksum, then the length of each format's line.
_SEQUENCE, _SAMPLED_AT, _CHECKSUM, _LENGTHS = 0, 1, 2, 3
_DATA = 8 * (_LENGTHS + len(Format))
_NEVER = -(1 << 62)
_NO_LINES: tuple[bytes, ...] = (b"",) * len(Format)


class ReportCell:
    """One report, written by one sampler. ``stale_after`` seconds after its sample it is no longer handed
    out."""

    __slots__ = ("_buffer", "_lines", "_seen", "_stale_after_ns", "_valid_until", "_words")

    def __init__(self, stale_after: float = 1.0) -> None:
        self._buffer = memoryview(mmap.mmap(-1, _BYTES))
        self._words = self._buffer.cast("q")
        self._stale_after_ns = int(stale_after * 1e9)
        self._seen = 0
        self._valid_until = _NEVER
        self._lines = _NO_LINES

    def publish(self, lines: Mapping[Format, bytes], sampled_at_ns: int) -> None:
        """Hand out ``lines`` (whole header lines with CRLF) from now on. ValueError if they do not fit."""
        self._write([lines.get(format_, b"") for format_ in Format], sampled_at_ns)

    def withdraw(self) -> None:
        """Report nothing until the next ``publish``: not ready, or a figure that is none."""
        self._write(list(_NO_LINES), _NEVER)

    def line(self, format_: Format, now_ns: int) -> bytes:
        """The header line, or b"" while withdrawn, stale or not configured."""
        if self._words[_SEQUENCE] != self._seen:
            self._read()
        return self._lines[format_] if now_ns <= self._valid_until else b""

    def _write(self, lines: list[bytes], sampled_at_ns: int) -> None:
        data = b"".join(lines)
        if _DATA + len(data) > _BYTES:
            raise ValueError(f"a report of {len(data)} bytes does not fit into {_BYTES - _DATA}")
        words = self._words
        # `| 1` also takes over from a writer that died half-way and left an odd number.
        writing = (words[_SEQUENCE] + 1) | 1
        words[_SEQUENCE] = writing
        words[_SAMPLED_AT] = sampled_at_ns
        for index, line in enumerate(lines):
            words[_LENGTHS + index] = len(line)
        self._buffer[_DATA : _DATA + len(data)] = data
        words[_CHECKSUM] = _checksum(self._buffer, len(data))
        words[_SEQUENCE] = writing + 1

    def _read(self) -> None:
        """Copy what is there. A copy that was torn is left for the next call; the last one serves
        meanwhile."""
        words = self._words
        sequence = words[_SEQUENCE]
        sampled_at = words[_SAMPLED_AT]
        lengths = words[_LENGTHS : _LENGTHS + len(Format)].tolist()
        size = sum(lengths)
        if sequence & 1 or not 0 <= size <= _BYTES - _DATA:
            return
        data = bytes(self._buffer[_DATA : _DATA + size])
        whole = words[_CHECKSUM] == _checksum(self._buffer, size)
        if not whole or words[_SEQUENCE] != sequence:
            return
        lines = []
        start = 0
        for length in lengths:
            lines.append(data[start : start + length])
            start += length
        self._lines = tuple(lines)
        self._valid_until = sampled_at + self._stale_after_ns
        self._seen = sequence


def _checksum(buffer: memoryview, size: int) -> int:
    """Over the sample's time, the lengths and the lines."""
    head = zlib.crc32(buffer[8 * _SAMPLED_AT : 8 * (_SAMPLED_AT + 1)])
    return zlib.crc32(buffer[8 * _LENGTHS : _DATA + size], head)
