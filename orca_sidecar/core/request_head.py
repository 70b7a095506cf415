"""A request head as the proxy sees it: what it says about framing, upgrade, load reports and identity."""

from __future__ import annotations

from orca_sidecar.core.errors import RequestError
from orca_sidecar.core.framing import request_is_chunked
from orca_sidecar.core.head import LineMemo, RequestField, field_value, split_request


class RequestHead:
    """One request head, validated. `lines` are the field lines as sent; `notable` the indices of those that matter."""

    __slots__ = (
        "chunked",
        "connection",
        "content_length",
        "forwarded_for",
        "http10",
        "identity",
        "lines",
        "method",
        "opt_in",
        "removable",
        "target",
        "te",
        "upgrade",
        "wants_close",
    )

    def __init__(self, block: bytes, memo: LineMemo) -> None:
        """Parse `block`: a head without its final blank line.

        Raises `RequestError` for whatever two parsers could read apart: RFC 9112 §3.2 (Host), §5 (fields), §6.3 (length).
        """
        self.method, self.target, self.http10, self.lines = split_request(block)
        lines = self.lines
        kinds = [*map(memo.__getitem__, lines)]
        self.chunked = False
        self.content_length = 0
        self.wants_close = self.http10
        self.upgrade: list[int] = []
        self.connection: list[int] = []
        self.forwarded_for: list[int] = []
        self.opt_in: list[int] = []
        self.identity: list[int] = []
        self.te: list[int] = []
        self.removable: list[int] = []
        hosts = 0
        lengths: list[bytes] = []
        codings: list[bytes] = []
        for index, kind in enumerate(kinds):
            if not kind:
                continue
            if kind == RequestField.HOST:
                hosts += 1
            elif kind == RequestField.IDENTITY:
                self.identity.append(index)
            elif kind == RequestField.FORWARDED_FOR:
                self.forwarded_for.append(index)
            elif kind == RequestField.OPT_IN:
                self.opt_in.append(index)
            elif kind == RequestField.CONTENT_LENGTH:
                lengths.append(field_value(lines[index]))
            elif kind == RequestField.TRANSFER_ENCODING:
                codings.append(field_value(lines[index]))
            elif kind == RequestField.CONNECTION:
                self.connection.append(index)
            elif kind == RequestField.UPGRADE:
                self.upgrade.append(index)
            elif kind == RequestField.TE:
                self.te.append(index)
            else:
                self.removable.append(index)
        if hosts != 1 and not (hosts == 0 and self.http10):
            raise RequestError("one Host field is required (RFC 9112 section 3.2)")
        if lengths or codings:
            self.chunked, self.content_length = request_is_chunked(
                lengths, codings, old=self.http10, error=RequestError
            )
        if self.connection:
            self._read_connection()
        elif self.upgrade:
            # Without a Connection that says so it is no upgrade (RFC 9110 section 7.8).
            self.removable += self.upgrade
            self.upgrade = []

    def _read_connection(self) -> None:
        values = [field_value(self.lines[index]).lower() for index in self.connection]
        # As kube-apiserver has it: any value that contains the word.
        asked = not self.http10 and any(b"upgrade" in value for value in values)
        if self.upgrade and not (asked and self._upgrades_to_another_protocol()):
            self.removable += self.upgrade
            self.upgrade = []
        if any(token.strip(b" \t") == b"close" for value in values for token in value.split(b",")):
            self.wants_close = True

    def _upgrades_to_another_protocol(self) -> bool:
        """h2c is left away (RFC 9113 §3.1: obsolete), so that such a request is served as an ordinary one."""
        offered = [
            token.strip(b" \t").lower()
            for index in self.upgrade
            for token in field_value(self.lines[index]).split(b",")
        ]
        return any(token and token != b"h2c" for token in offered)

    @property
    def has_body(self) -> bool:
        """Body bytes follow the head."""
        return self.chunked or self.content_length > 0
