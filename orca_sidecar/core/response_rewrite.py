"""What goes downstream in place of a response head: the rules of the way out, on one screen.

Removed: load reports of a backend in every spelling (always), hop-by-hop fields. Set: `Connection: close` where this
connection ends with the response, and the load report that the sampler rendered. All other lines pass as sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_sidecar.core.head import CRLF
from orca_sidecar.core.response_head import ResponseHead

_CONNECTION_CLOSE = b"Connection: close"
# These say with Connection and Upgrade which protocol follows, or would be spoken (RFC 9110 §7.8, §15.5.22).
_KEEPS_UPGRADE = (101, 426)


def rewrite_response(head: ResponseHead, report_line: bytes, *, close: bool, http10: bool) -> bytes:
    """The head to send downstream, with its blank line. `report_line` is a whole line with CRLF, or empty."""
    layout = head.layout
    lines: Sequence[bytes]
    if layout.has_upgrade and head.code in _KEEPS_UPGRADE:
        lines = layout.kept_upgrading(head.lines)
    else:
        lines = layout.kept(head.lines)
    if http10 and head.chunked:
        coding = layout.transfer_encoding(head.lines)
        lines = [line for line in lines if line not in coding]
    if close:
        lines = [*lines, _CONNECTION_CLOSE]
    start = head.line.downstream if not http10 else b"HTTP/1.0" + head.line.downstream[8:]
    return CRLF.join((start, *lines, report_line + CRLF))


def may_trail(name: bytes) -> bool:
    """Whether a field that is ordinary in a head may also stand in a response's trailers (`name` in lower case)."""
    return name not in (b"set-cookie", b"trailer", b"www-authenticate") and not name.startswith(b"content-")
