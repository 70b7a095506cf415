"""A request head as the proxy sees it: what it says about framing, upgrade, load reports and identity."""

from __future__ import annotations

from collections.abc import Callable

from orca_sidecar.core.errors import LocalReplyReason, RequestError
from orca_sidecar.core.framing import request_is_chunked
from orca_sidecar.core.head import (
    CRLF,
    REQUEST_FIELDS,
    LineMemo,
    LinePick,
    Positions,
    RequestField,
    field_value,
)
from orca_sidecar.core.start_line import REQUEST_LINES

# A head of a megabyte may hold a quarter of a million lines, which take a quarter of a second: more than any caller is due.
_MOST_FIELDS = 10_000


class RequestLayout:
    """Which lines of a request head are what. The attributes that are functions pick their lines out of a head."""

    __slots__ = (
        "connection",
        "content_length",
        "forwarded_at",
        "forwarded_for",
        "has_hops",
        "hosts",
        "identity",
        "is_framed",
        "kept",
        "kinds",
        "opt_in",
        "opt_ins",
        "te",
        "transfer_encoding",
        "upgrade",
    )

    def __init__(self, kinds: bytes) -> None:
        """`kinds`: a `RequestField` for each line."""
        field = RequestField
        at = Positions(kinds)
        self.kinds = kinds
        self.hosts = kinds.count(field.HOST)
        self.opt_ins = kinds.count(field.OPT_IN)
        self.is_framed = field.CONTENT_LENGTH in kinds or field.TRANSFER_ENCODING in kinds
        self.has_hops = any(kind in kinds for kind in (field.CONNECTION, field.UPGRADE, field.TE))
        self.identity = at.lines(field.IDENTITY)
        self.opt_in = at.lines(field.OPT_IN)
        self.forwarded_for = at.lines(field.FORWARDED_FOR)
        self.content_length = at.lines(field.CONTENT_LENGTH)
        self.transfer_encoding = at.lines(field.TRANSFER_ENCODING)
        self.connection = at.lines(field.CONNECTION)
        self.upgrade = at.lines(field.UPGRADE)
        self.te = at.lines(field.TE)
        passing = (field.ORDINARY, field.HOST, field.CONTENT_LENGTH, field.TRANSFER_ENCODING)
        forwarded = at.of(field.FORWARDED_FOR)[:1]
        kept = [index for index, kind in enumerate(kinds) if kind in passing or index in forwarded]
        self.forwarded_at = 1 + kept.index(forwarded[0]) if forwarded else -1
        """Place of the first X-Forwarded-For behind the request line and among the lines that `kept` picks, or -1."""
        self.kept = at.pick(kept)
        """What passes as sent, and the first X-Forwarded-For."""


class RequestHead:
    """One request head, validated. `lines` are the field lines as sent, `line` is the line before them."""

    __slots__ = (
        "asks_upgrade",
        "chunked",
        "content_length",
        "layout",
        "line",
        "lines",
        "upgrades",
        "wants_close",
    )

    def __init__(self, block: bytes, memo: LineMemo[RequestLayout]) -> None:
        """Parse `block`: a head without its final blank line.

        Raises `RequestError` for whatever two parsers could read apart: RFC 9112 §3.2 (Host), §5 (fields), §6.3
        (length).
        """
        lines = self.lines = block.split(CRLF)
        if len(lines) > 1 + _MOST_FIELDS:
            raise RequestError(f"more than {_MOST_FIELDS} header fields", LocalReplyReason.HEADERS_TOO_LARGE)
        line = self.line = REQUEST_LINES[lines.pop(0)]
        http10 = line.http10
        layout = self.layout = memo.layout(lines)
        if layout.hosts != 1 and not (layout.hosts == 0 and http10):
            raise RequestError("one Host field is required (RFC 9112 section 3.2)")
        self.chunked = False
        self.content_length = 0
        self.asks_upgrade = False
        """It asks for another protocol (RFC 9110 §7.8): bytes of that protocol may follow it."""
        self.upgrades = False
        """It does, and the proxy asks kube-apiserver."""
        self.wants_close = http10
        if layout.is_framed:
            self.chunked, self.content_length = request_is_chunked(
                self._values(layout.content_length),
                self._values(layout.transfer_encoding),
                old=http10,
                error=RequestError,
            )
        if layout.has_hops:
            connection = [value.lower() for value in self._values(layout.connection)]
            # As kube-apiserver has it: any Connection value that contains the word.
            if not http10 and any(b"upgrade" in value for value in connection):
                offered = self._offered_protocols()
                self.asks_upgrade = any(offered)
                # h2c (RFC 9113 §3.1: obsolete), alone or not, is passed over: in its tunnel requests would pass under no
                # rule, on the connections that assert identities too.
                self.upgrades = self.asks_upgrade and b"h2c" not in offered
            if any(token.strip(b" \t") == b"close" for value in connection for token in value.split(b",")):
                self.wants_close = True

    @property
    def accepts_trailers(self) -> bool:
        """TE says trailers (RFC 9110 §10.1.4)."""
        return any(
            token.partition(b";")[0].strip(b" \t").lower() == b"trailers"
            for value in self._values(self.layout.te)
            for token in value.split(b",")
        )

    def _offered_protocols(self) -> list[bytes]:
        return [
            token.strip(b" \t").lower()
            for value in self._values(self.layout.upgrade)
            for token in value.split(b",")
        ]

    def _values(self, pick: LinePick) -> list[bytes]:
        return [field_value(line) for line in pick(self.lines)]


def request_memo(identity: Callable[[bytes], object] | None = None) -> LineMemo[RequestLayout]:
    """A memo for request lines. `identity` tells of a lower-case name whether it is an identity field (not None)."""
    return LineMemo(REQUEST_FIELDS, RequestError, RequestLayout, identity)
