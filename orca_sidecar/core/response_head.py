"""A response head as the proxy sees it."""

from __future__ import annotations

from orca_sidecar.core.errors import ResponseError
from orca_sidecar.core.framing import content_length, is_chunked, length_of
from orca_sidecar.core.head import (
    CRLF,
    RESPONSE_FIELDS,
    LineMemo,
    LinePick,
    Positions,
    ResponseField,
    field_value,
)
from orca_sidecar.core.memo import Memo
from orca_sidecar.core.start_line import STATUS_LINES


class ResponseLayout:
    """Which lines of a response head are what. The attributes that are functions pick their lines out of a head."""

    __slots__ = (
        "connection",
        "content_length",
        "has_connection",
        "has_upgrade",
        "is_framed",
        "kept",
        "kept_upgrading",
        "kinds",
        "lone_length",
        "priority_level",
        "reports",
        "transfer_encoding",
    )

    def __init__(self, kinds: bytes) -> None:
        """`kinds`: a `ResponseField` for each line."""
        field = ResponseField
        at = Positions(kinds)
        self.kinds = kinds
        self.reports = kinds.count(field.LOAD_REPORT)
        self.is_framed = field.CONTENT_LENGTH in kinds or field.TRANSFER_ENCODING in kinds
        self.lone_length = at.lone(field.CONTENT_LENGTH, without=field.TRANSFER_ENCODING)
        """Index of the Content-Length where it alone frames the body, as nearly always; else -1."""
        self.has_connection = field.CONNECTION in kinds
        self.has_upgrade = field.UPGRADE in kinds
        self.content_length = at.lines(field.CONTENT_LENGTH)
        self.transfer_encoding = at.lines(field.TRANSFER_ENCODING)
        self.connection = at.lines(field.CONNECTION)
        self.priority_level = at.lines(field.PRIORITY_LEVEL)
        passing = (field.ORDINARY, field.CONTENT_LENGTH, field.TRANSFER_ENCODING, field.PRIORITY_LEVEL)
        self.kept = at.lines(*passing)
        """What passes as sent."""
        self.kept_upgrading = at.lines(*passing, field.CONNECTION, field.UPGRADE)
        """What passes where another protocol is spoken of (101, 426)."""


_LENGTHS = Memo(lambda line: length_of(field_value(line), ResponseError), longest=64)


class ResponseHead:
    """One response head, validated. `lines` are the field lines as sent, `line` is the line before them.

    `length` is None without a Content-Length. `persistent`: the connection may serve another request afterwards, as
    far as the head tells (RFC 9112 §9.3). `says_close`: it has `Connection: close`.
    """

    __slots__ = ("chunked", "code", "layout", "length", "line", "lines", "persistent", "says_close")

    def __init__(self, block: bytes, memo: LineMemo[ResponseLayout]) -> None:
        """Parse `block`: a head without its final blank line. Raises `ResponseError` for ambiguous framing."""
        lines = self.lines = block.split(CRLF)
        line = self.line = STATUS_LINES[lines.pop(0)]
        self.code = line.code
        layout = self.layout = memo.layout(lines)
        self.chunked = False
        self.length: int | None = None
        self.says_close = False
        self.persistent = not line.http10
        if layout.lone_length >= 0:
            self.length = _LENGTHS[lines[layout.lone_length]]
        elif layout.is_framed:
            self.chunked = is_chunked(self._values(layout.transfer_encoding), ResponseError)
            self.length = content_length(self._values(layout.content_length), ResponseError)
            if self.chunked and (self.length is not None or line.http10):
                raise ResponseError(
                    "Transfer-Encoding beside Content-Length or on HTTP/1.0 (RFC 9112 section 6.3)"
                )
            if self.chunked and (self.code < 200 or self.code == 204):
                raise ResponseError("Transfer-Encoding where no body can be (RFC 9112 section 6.1)")
        if layout.has_connection:
            values = self._values(layout.connection)
            self.says_close = any(
                token.strip(b" \t").lower() == b"close" for value in values for token in value.split(b",")
            )
            self.persistent = self.persistent and not self.says_close

    def has_no_body(self, method: bytes) -> bool:
        """No body follows, whatever the fields say (RFC 9112 §6.3 items 1 and 2)."""
        code = self.code
        return method == b"HEAD" or code == 204 or code == 304 or code < 200

    @property
    def priority_level(self) -> bytes:
        """The UID of API Priority and Fairness' level, empty without one."""
        values = self._values(self.layout.priority_level)
        return values[0] if values else b""

    def _values(self, pick: LinePick) -> list[bytes]:
        return [field_value(line) for line in pick(self.lines)]


def response_memo() -> LineMemo[ResponseLayout]:
    """A memo for response lines."""
    return LineMemo(RESPONSE_FIELDS, ResponseError, ResponseLayout)
