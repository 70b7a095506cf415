"""A response head as the proxy sees it."""

from __future__ import annotations

from orca_sidecar.core.errors import ResponseError
from orca_sidecar.core.framing import content_length, is_chunked
from orca_sidecar.core.head import LineMemo, ResponseField, field_value, split_response


class ResponseHead:
    """One response head, validated. `lines` are the field lines as sent."""

    __slots__ = (
        "chunked",
        "code",
        "coding",
        "connection",
        "length",
        "lines",
        "persistent",
        "priority_level",
        "reason",
        "removable",
        "reports",
        "says_close",
        "upgrade",
    )

    def __init__(self, block: bytes, memo: LineMemo) -> None:
        """Parse `block`: a head without its final blank line. Raises `ResponseError` for ambiguous framing.

        `length` is None without a Content-Length. `persistent`: the connection may serve another request afterwards,
        as far as the head tells (RFC 9112 §9.3).
        """
        minor, self.code, self.reason, self.lines = split_response(block)
        lines = self.lines
        kinds = [*map(memo.__getitem__, lines)]
        self.connection: list[int] = []
        self.upgrade: list[int] = []
        self.reports: list[int] = []
        self.removable: list[int] = []
        self.priority_level = b""
        self.says_close = False
        self.chunked = False
        self.length: int | None = None
        lengths: list[bytes] = []
        self.coding: list[int] = []
        for index, kind in enumerate(kinds):
            if not kind:
                continue
            if kind == ResponseField.CONTENT_LENGTH:
                lengths.append(field_value(lines[index]))
            elif kind == ResponseField.TRANSFER_ENCODING:
                self.coding.append(index)
            elif kind == ResponseField.LOAD_REPORT:
                self.reports.append(index)
            elif kind == ResponseField.CONNECTION:
                self.connection.append(index)
            elif kind == ResponseField.UPGRADE:
                self.upgrade.append(index)
            elif kind == ResponseField.PRIORITY_LEVEL:
                self.priority_level = field_value(lines[index])
            else:
                self.removable.append(index)
        if lengths or self.coding:
            self.chunked = is_chunked([field_value(lines[index]) for index in self.coding], ResponseError)
            self.length = content_length(lengths, ResponseError)
            if self.chunked and (self.length is not None or minor == 0):
                raise ResponseError(
                    "Transfer-Encoding beside Content-Length or on HTTP/1.0 (RFC 9112 section 6.3)"
                )
        keep_alive = minor == 1
        if self.connection:
            tokens = {
                token.strip(b" \t").lower()
                for index in self.connection
                for token in field_value(lines[index]).split(b",")
            }
            self.says_close = b"close" in tokens
            keep_alive = keep_alive and not self.says_close
        self.persistent = keep_alive

    def has_no_body(self, method: bytes) -> bool:
        """No body follows, whatever the fields say (RFC 9112 §6.3 items 1 and 2)."""
        code = self.code
        return method == b"HEAD" or code == 204 or code == 304 or code < 200
