"""Message heads: their field lines, split and classified, never re-encoded.

A head keeps every field line as it was sent. What the proxy must act on is found by classifying *whole lines* through a
memo: on a kept-alive connection nearly every line (Host, User-Agent, Accept, the asserted user, …) was seen before, so
that the common head costs one `split` and one dictionary look-up a line. A line that is not in the memo is validated
first; only valid lines enter it. Measured on a 1.1 KB head of 18 lines: 2.4 µs, against 5.2 µs with a look-up by name
and a scan of the block for control characters, and about 8 µs for a parser object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from orca_sidecar.core.errors import LocalReplyReason, ProtocolError, RequestError

CRLF = b"\r\n"
END_OF_HEAD = b"\r\n\r\n"

# RFC 9110 §5.1 and §5.5. Stricter than the RFC's grammar for recipients: no obs-fold (RFC 9112 §5.2), no blank before the
# colon (§5.1), no bare CR or LF (§2.2), no control character but HTAB. Bytes from 0x80 (obs-text) are opaque and pass.
_FIELD_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t\x20-\x7e\x80-\xff]*)")


class RequestField(IntEnum):
    """What a request's field line is to the proxy. ORDINARY lines pass as sent."""

    ORDINARY = 0
    HOST = 1
    CONTENT_LENGTH = 2
    TRANSFER_ENCODING = 3
    CONNECTION = 4
    UPGRADE = 5
    TE = 6
    HOP_BY_HOP = 7
    FORWARDED_FOR = 8
    OPT_IN = 9
    IDENTITY = 10


class ResponseField(IntEnum):
    """What a response's field line is to the proxy. ORDINARY lines pass as sent."""

    ORDINARY = 0
    CONTENT_LENGTH = 2
    TRANSFER_ENCODING = 3
    CONNECTION = 4
    UPGRADE = 5
    HOP_BY_HOP = 7
    LOAD_REPORT = 8
    PRIORITY_LEVEL = 9


# Exactly these are hop by hop here. What a Connection line nominates (RFC 9110 §7.6.1) is not removed: kube-apiserver
# ignores nominations, and honouring one lets a caller take away its Content-Length or the identity that is asserted.
REQUEST_FIELDS: dict[bytes, RequestField] = {
    b"host": RequestField.HOST,
    b"content-length": RequestField.CONTENT_LENGTH,
    b"transfer-encoding": RequestField.TRANSFER_ENCODING,
    b"connection": RequestField.CONNECTION,
    b"upgrade": RequestField.UPGRADE,
    b"te": RequestField.TE,
    b"keep-alive": RequestField.HOP_BY_HOP,
    b"proxy-connection": RequestField.HOP_BY_HOP,
    b"http2-settings": RequestField.HOP_BY_HOP,
    b"x-forwarded-for": RequestField.FORWARDED_FOR,
    b"endpoint-load-metrics-request": RequestField.OPT_IN,
}
RESPONSE_FIELDS: dict[bytes, ResponseField] = {
    b"content-length": ResponseField.CONTENT_LENGTH,
    b"transfer-encoding": ResponseField.TRANSFER_ENCODING,
    b"connection": ResponseField.CONNECTION,
    b"upgrade": ResponseField.UPGRADE,
    b"te": ResponseField.HOP_BY_HOP,
    b"keep-alive": ResponseField.HOP_BY_HOP,
    b"proxy-connection": ResponseField.HOP_BY_HOP,
    b"http2-settings": ResponseField.HOP_BY_HOP,
    b"endpoint-load-metrics": ResponseField.LOAD_REPORT,
    b"endpoint-load-metrics-bin": ResponseField.LOAD_REPORT,
    b"endpoint-load-metrics-json": ResponseField.LOAD_REPORT,
    b"x-kubernetes-pf-prioritylevel-uid": ResponseField.PRIORITY_LEVEL,
}

# Lines that hold secrets are not kept; neither are long ones, nor those that are new with every message.
_UNKEPT = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
        b"sec-websocket-protocol",
        b"sec-websocket-key",
        b"x-request-id",
        b"traceparent",
        b"audit-id",
    )
)
_KEPT_LINES = 4096
_KEPT_LENGTH = 256
_KEPT_LAYOUTS = 512
_KEPT_FIELDS = 256  # a layout of a head with more lines is not kept: a head may have 200,000

LinePick: TypeAlias = Callable[[list[bytes]], Sequence[bytes]]
"""Picks some lines out of a head's."""

_L = TypeVar("_L")


class LineMemo(dict[bytes, int], Generic[_L]):
    """Field line → what it is, and the sequence of what all lines of a head are → its layout.

    `memo[line]` validates and classifies a line that was not seen before, and raises `ProtocolError` (made by `error`) for
    one that is no field line. A client sends its fields in the same order each time, so that what follows from
    their order, which lines pass and where those stand that matter, is worked out once: `layout(lines)`.
    Both memos are bounded: emptied when full.
    """

    def __init__(
        self,
        fields: Mapping[bytes, int],
        error: type[ProtocolError],
        layout: Callable[[bytes], _L],
        identity: Callable[[bytes], object] | None = None,
    ) -> None:
        super().__init__()
        self._names: dict[bytes, int] = dict(fields)
        self._limit = len(fields) + _KEPT_LINES
        self._fields = fields
        self._error = error
        self._make = layout
        self._identity = identity
        self._layouts: dict[bytes, _L] = {}
        self._changing: dict[bytes, int] = {}

    def layout(self, lines: list[bytes]) -> _L:
        """The layout of a head with these field lines. Raises `ProtocolError` for the first malformed line."""
        kinds = bytes(map(self.__getitem__, lines))
        layout = self._layouts.get(kinds)
        if layout is None:
            layout = self._make(kinds)
            if len(kinds) <= _KEPT_FIELDS:
                if len(self._layouts) >= _KEPT_LAYOUTS:
                    self._layouts.clear()
                self._layouts[kinds] = layout
        return layout

    def __missing__(self, line: bytes) -> int:
        # A request's ID and the like, new each time: the name as sent was valid before, and a printable value is.
        name, colon, value = line.partition(b":")
        known = self._changing.get(name)
        if known is not None and colon and value.isascii() and value.decode("ascii").isprintable():
            return known
        match = _FIELD_LINE.fullmatch(line)
        if match is None:
            raise self._error("malformed field line (RFC 9112 section 5)")
        name = match[1].lower()
        kind = self._names.get(name)
        if kind is None:
            kind = self._classify(name)
        if name in _UNKEPT:
            if len(self._changing) >= _KEPT_FIELDS:
                self._changing.clear()
            self._changing[match[1]] = kind
        elif len(line) <= _KEPT_LENGTH:
            if len(self) >= _KEPT_LINES:
                self.clear()
            self[line] = kind
        return kind

    def _classify(self, name: bytes) -> int:
        """What a field of a name is that was not seen before."""
        kind = 0
        if self._identity is not None and self._identity(name) is not None:
            kind = int(RequestField.IDENTITY)
        if len(name) <= _KEPT_LENGTH:
            if len(self._names) >= self._limit:
                self._names = dict(self._fields)
            self._names[name] = kind
        return kind


class Positions:
    """Where the fields of each kind stand in a head, from `kinds`: a byte for each line."""

    def __init__(self, kinds: bytes) -> None:
        self._kinds = kinds

    def of(self, kind: int) -> tuple[int, ...]:
        """The indices of the lines of one kind."""
        return tuple(index for index, other in enumerate(self._kinds) if other == kind)

    def lines(self, *kinds: int) -> LinePick:
        """A function that picks the lines of these kinds out of a head, in order."""
        return self.pick([index for index, other in enumerate(self._kinds) if other in kinds])

    def lone(self, kind: int, *, without: int) -> int:
        """The index of the one line of a kind where there is none of the other; -1 if it is not so."""
        found = self.of(kind)
        return found[0] if len(found) == 1 and without not in self._kinds else -1

    def pick(self, indices: Sequence[int]) -> LinePick:
        """A function that picks the lines at `indices`; in C where there are several."""
        if not indices:
            return lambda lines: ()
        if len(indices) == 1:
            only = indices[0]
            return lambda lines: (lines[only],)
        return itemgetter(*indices)


def field_value(line: bytes) -> bytes:
    """The value of a valid field line without its outer blanks (RFC 9112 §5.1)."""
    return line[line.index(b":") + 1 :].strip(b" \t")


def field_name(line: bytes) -> bytes:
    """The name of a valid field line, as sent."""
    return line[: line.index(b":")]


class HeadBuffer:
    """Collects one head. Each byte is looked at once, however small the pieces it comes in.

    `limit`: the most bytes of a head, its blank line left out. A bare LF is refused as soon as it is seen
    (RFC 9112 §2.2), so that a caller who ends lines with LF alone does not wait for an answer.
    """

    __slots__ = ("_data", "_error", "_limit", "_scanned")

    def __init__(self, limit: int, error: type[ProtocolError]) -> None:
        self._data: bytearray | None = None
        self._limit = limit
        self._error = error
        self._scanned = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The head without its blank line and what lies behind it, or None while it is incomplete."""
        if self._data is None:
            end = data.find(END_OF_HEAD)
            if 0 <= end <= self._limit:
                return data[:end], data[end + 4 :]
            self._data = bytearray(data)
        else:
            self._data += data
            end = self._data.find(END_OF_HEAD, max(0, self._scanned - 3))
        size = len(self._data)
        if end > self._limit or (end < 0 and size > self._limit + 4):
            if self._error is RequestError:
                raise RequestError(
                    f"request line and headers exceed {self._limit} bytes", LocalReplyReason.HEADERS_TOO_LARGE
                )
            raise self._error(f"the head exceeds {self._limit} bytes")
        if end >= 0:
            found = bytes(self._data[:end]), bytes(self._data[end + 4 :])
            self._data = None
            return found
        start = max(0, self._scanned - 1)
        if self._data.count(b"\n", start) != self._data.count(CRLF, start) + (
            start > 0 and self._data[start] == 0x0A
        ):
            raise self._error("bare LF in a head (RFC 9112 section 2.2)")
        self._scanned = size
        return None
