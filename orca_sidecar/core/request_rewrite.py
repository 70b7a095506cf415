"""What goes upstream in place of a request head: the rules of the way in, on one screen.

Removed: the opt-in for load reports (always), every identity field (always, before identity is set), hop-by-hop fields.
Set: one X-Forwarded-For with the peer's address last, and the identity lines that `core.identity` decided on.
All other lines pass as sent, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_sidecar.core.head import CRLF, RequestField, field_value
from orca_sidecar.core.request_head import RequestHead

_CONNECTION_UPGRADE = b"Connection: Upgrade"
_TE_TRAILERS = b"TE: trailers"
_NOT_IN_TRAILERS = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"cookie",
        b"expect",
        b"trailer",
        b"range",
    )
)


def rewrite_request(head: RequestHead, peer: bytes, identity: Sequence[bytes]) -> bytes:
    """The head to send upstream, as bytes. `peer` is the caller's address, `identity` complete lines without CRLF."""
    layout = head.layout
    lines = [head.line.upstream, *(layout.kept(head.lines) if not layout.has_hops else _with_hops(head))]
    if layout.forwarded_at >= 0:
        at = layout.forwarded_at if not layout.has_hops else lines.index(layout.forwarded_for(head.lines)[0])
        lines[at] = _forwarded(layout.forwarded_for(head.lines), peer)
    else:
        lines.append(b"X-Forwarded-For: " + peer)
    lines += identity
    if not layout.hosts:
        # An HTTP/1.0 request may come without, as HAProxy's health check does; as 1.1 it may not go (RFC 9112 §3.2).
        lines.insert(1, b"Host:")
    lines.append(b"\r\n")
    return CRLF.join(lines)


def _forwarded(lines: Sequence[bytes], peer: bytes) -> bytes:
    """One X-Forwarded-For line: kube-apiserver's audit reads the first line only (net/http's Header.Get)."""
    if len(lines) == 1:
        return lines[0] + (b", " if field_value(lines[0]) else b" ") + peer
    values = [value for line in lines if (value := field_value(line))]
    return b"X-Forwarded-For: " + b", ".join((*values, peer))


def _with_hops(head: RequestHead) -> list[bytes]:
    """The lines that pass where there are Connection, Upgrade or TE lines among them."""
    field = RequestField
    lines: list[bytes] = []
    trailers = head.accepts_trailers
    connection = head.upgrades
    forwarded = True
    for kind, line in zip(head.layout.kinds, head.lines, strict=True):
        if kind in (field.ORDINARY, field.HOST, field.CONTENT_LENGTH, field.TRANSFER_ENCODING):
            lines.append(line)
        elif kind == field.FORWARDED_FOR and forwarded:
            lines.append(line)
            forwarded = False
        elif kind == field.UPGRADE and head.upgrades:
            lines.append(line)
        elif kind == field.CONNECTION and connection:
            lines.append(_CONNECTION_UPGRADE)
            connection = False
        elif kind == field.TE and trailers:
            lines.append(_TE_TRAILERS)
            trailers = False
    return lines


def may_trail(name: bytes) -> bool:
    """Whether a field that is ordinary in a head may also stand in a request's trailers (`name` in lower case).

    RFC 9110 §6.5.1: fields for authentication and for request modifiers may not. kube-apiserver reads none of them from
    trailers; something behind it might.
    """
    return name not in _NOT_IN_TRAILERS and not name.startswith(
        (b"impersonate-", b"if-", b"content-", b"x-real-ip")
    )
