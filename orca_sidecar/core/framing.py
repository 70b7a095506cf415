"""How long a body is, and where it ends (RFC 9112 §6 and §7).

A body object is fed what came off the wire and returns what to send on and what lies behind the message's end. Chunked
framing is passed as it came, without extensions and with trailers that `keep_trailer` lets through: what is sent on is
framed unambiguously, because nothing but `1*HEXDIG CRLF` was accepted as a chunk's size.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Protocol, TypeAlias

from orca_sidecar.core.errors import ProtocolError
from orca_sidecar.core.head import CRLF

# 15 digits: a size that a signed 64-bit integer holds. RFC 9112 §7.1 warns of overflow; so does every desync study.
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(;[\t\x20-\x7e\x80-\xff]*)?")
_PLAIN_SIZE_LINE = 17
_LINE_LIMIT = 4096

LAST_CHUNK = b"0\r\n\r\n"


Data: TypeAlias = bytes | memoryview
"""Bytes off the wire; a view is valid only until the next read."""


class Body(Protocol):
    """A body in flight."""

    done: bool
    """The last byte of the message has been fed."""

    def feed(self, data: Data) -> tuple[Data, Data]:
        """Take bytes off the wire; return (bytes to send on, bytes behind the end of the message)."""
        ...


class EmptyBody:
    """No body: the message ended with its head."""

    __slots__ = ()
    done = True

    def feed(self, data: Data) -> tuple[Data, Data]:
        """Everything is behind the end."""
        return b"", data


NO_BODY = EmptyBody()


class LengthBody:
    """A body of a known length (RFC 9112 §6.2)."""

    __slots__ = ("done", "remaining")

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.done = length == 0

    def feed(self, data: Data) -> tuple[Data, Data]:
        """Pass up to the remaining length."""
        size = len(data)
        if size < self.remaining:
            self.remaining -= size
            return data, b""
        end = self.remaining
        self.remaining = 0
        self.done = True
        return (data, b"") if size == end else (data[:end], data[end:])


class UntilCloseBody:
    """A response body that ends with its connection (RFC 9112 §6.3 item 8). `done` never becomes true by feeding."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: Data) -> tuple[Data, Data]:
        """Everything belongs to the body."""
        return data, b""


class _State(Enum):
    SIZE = 0
    DATA = 1
    DATA_END = 2
    TRAILERS = 3


# Looking up an enumeration's member costs more than the comparison it is for (CPython 3.11).
_SIZE, _DATA, _DATA_END, _TRAILERS = _State


@lru_cache(maxsize=4096)
def _plain_chunk_size(line: bytes) -> int:
    """The size on a chunk's first line, or 0 where it says more, or nothing good: then the slow path has a look."""
    match = _CHUNK_SIZE.fullmatch(line)
    return int(match[1], 16) if match is not None and match[2] is None else 0


class ChunkedBody:
    """A chunked body (RFC 9112 §7.1).

    `decode`: send on the data alone, for an HTTP/1.0 caller; trailers are lost then, as they must be.
    `keep_trailer(line)` says whether a trailer line passes; it raises for a line that is no field line.
    """

    __slots__ = (
        "_decode",
        "_error",
        "_held",
        "_keep_trailer",
        "_limit",
        "_remaining",
        "_state",
        "_trailers",
        "done",
    )

    def __init__(
        self,
        error: type[ProtocolError],
        keep_trailer: Callable[[bytes], bool],
        trailer_limit: int,
        *,
        decode: bool = False,
    ) -> None:
        self.done = False
        self._error = error
        self._keep_trailer = keep_trailer
        self._limit = trailer_limit
        self._decode = decode
        self._held = b""
        self._remaining = 0
        self._state = _SIZE
        self._trailers: list[bytes] | None = None

    @property
    def at_boundary(self) -> bool:
        """What was sent on so far ends with a whole chunk: a last chunk may follow."""
        return self._state is _SIZE

    def feed(self, data: Data) -> tuple[Data, Data]:
        """Pass chunks. Incomplete lines are held back, so that what is sent on can be ended at a boundary."""
        if not self._held and not self._decode:
            # Two common cases at once: the middle of a large chunk, and one event of a watch.
            if self._state is _DATA and len(data) < self._remaining:
                self._remaining -= len(data)
                return data, b""
            if self._state is _SIZE:
                data = bytes(data)
                end = data.find(CRLF, 0, _PLAIN_SIZE_LINE)
                chunk = _plain_chunk_size(data[:end]) if end > 0 else 0
                if chunk and end + chunk + 4 == len(data) and data.endswith(CRLF):
                    return data, b""
        data = bytes(data)
        if self._held:
            data = self._held + data
            self._held = b""
        out: list[bytes] = []
        size = len(data)
        start = position = 0  # data[start:position] is checked and not yet in `out`
        while position < size:
            state = self._state
            if state is _DATA:
                taken = min(self._remaining, size - position)
                self._remaining -= taken
                if self._decode:
                    out.append(data[position : position + taken])
                position += taken
                if self._remaining == 0:
                    self._state = _DATA_END
            elif state is _DATA_END:
                if not data.startswith(CRLF, position):
                    if position + 1 == size and data[position] == 0x0D:
                        break
                    raise self._error("a chunk is longer than its size (RFC 9112 section 7.1)")
                position += 2
                self._state = _SIZE
            elif state is _SIZE:
                end = data.find(CRLF, position, position + _LINE_LIMIT)
                if end < 0:
                    self._check_unfinished(data, position, _LINE_LIMIT)
                    break
                match = _CHUNK_SIZE.fullmatch(data, position, end)
                if match is None:
                    raise self._error("malformed chunk size (RFC 9112 section 7.1)")
                self._remaining = int(match[1], 16)
                if self._remaining == 0:
                    # The last chunk is held back until the trailer section is complete.
                    if not self._decode:
                        out.append(data[start:position])
                    start = position = end + 2
                    self._state = _TRAILERS
                    self._trailers = []
                    continue
                if match[2] is not None and not self._decode:
                    out.append(data[start : match.end(1)])
                    start = end
                position = end + 2
                self._state = _DATA
            else:
                end = data.find(CRLF, position)
                if end < 0:
                    self._check_unfinished(data, position, self._limit)
                    break
                line = data[position:end]
                start = position = end + 2
                if not line:
                    self.done = True
                    out.append(self._end_of_body())
                    return b"".join(out), data[position:]
                self._limit -= len(line) + 2
                if self._limit < 0:
                    raise self._error("the trailer section is too large")
                if self._keep_trailer(line):
                    assert self._trailers is not None
                    self._trailers.append(line)
        if position < size:
            self._held = data[position:]
        if self._decode:
            return b"".join(out), b""
        if not out:
            return (data if start == 0 and position == size else data[start:position]), b""
        out.append(data[start:position])
        return b"".join(out), b""

    def _end_of_body(self) -> bytes:
        if self._decode:
            return b""
        if not self._trailers:
            return LAST_CHUNK
        return b"0\r\n" + CRLF.join(self._trailers) + b"\r\n\r\n"

    def _check_unfinished(self, data: bytes, position: int, limit: int) -> None:
        """An unfinished line: refuse early what can no longer become a good one."""
        if len(data) - position > limit:
            raise self._error("a line of the chunked framing is too long (RFC 9112 section 7.1)")
        bare = data.find(b"\n", position)
        if bare >= 0:
            raise self._error("bare LF in the chunked framing (RFC 9112 section 2.2)")


def content_length(values: list[bytes], error: type[ProtocolError]) -> int | None:
    """The one length that the Content-Length values name; None without any.

    Stricter than RFC 9112 §6.3 item 5: a repeated field or a list is refused even where all values agree.
    """
    if not values:
        return None
    if len(values) > 1:
        raise error("more than one Content-Length (RFC 9112 section 6.3)")
    return length_of(values[0], error)


def length_of(value: bytes, error: type[ProtocolError]) -> int:
    """A Content-Length's value as a number: 1 to 18 digits and nothing else."""
    if not value.isdigit() or len(value) > 18:
        raise error("malformed Content-Length (RFC 9110 section 8.6)")
    return int(value)


def is_chunked(values: list[bytes], error: type[ProtocolError]) -> bool:
    """Whether the Transfer-Encoding values say chunked; any other coding, or more than one, is refused.

    RFC 9112 §6.1. kube-apiserver neither sends nor takes another coding.
    """
    if not values:
        return False
    if len(values) > 1 or values[0].lower() != b"chunked":
        raise error("a Transfer-Encoding other than chunked (RFC 9112 section 6.1)")
    return True


def request_is_chunked(
    lengths: list[bytes], codings: list[bytes], *, old: bool, error: type[ProtocolError]
) -> tuple[bool, int]:
    """The framing of a request body: (chunked, length). RFC 9112 §6.3, and nothing that two readers could read apart."""
    chunked = is_chunked(codings, error)
    length = content_length(lengths, error)
    if chunked and length is not None:
        raise error("Content-Length beside Transfer-Encoding (RFC 9112 section 6.3)")
    if chunked and old:
        raise error("Transfer-Encoding on HTTP/1.0 (RFC 9112 section 6.1)")
    return chunked, length or 0
