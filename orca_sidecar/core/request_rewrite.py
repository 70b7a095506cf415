"""What goes upstream in place of a request head: the rules of the way in, on one screen.

Removed: the opt-in for load reports (always), every identity field (always, before identity is set), hop-by-hop fields.
Set: one X-Forwarded-For with the peer's address last, and the identity lines that `core.identity` decided on.
All other lines pass as sent, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_sidecar.core.head import CRLF, field_value
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
    lines = head.lines
    gone = head.identity + head.opt_in
    if head.removable:
        gone += head.removable
    forwarded = head.forwarded_for
    if forwarded:
        if len(forwarded) == 1:
            line = lines[forwarded[0]]
            lines[forwarded[0]] = line + b", " + peer if field_value(line) else line + b" " + peer
        else:
            # kube-apiserver's audit reads the first line only (net/http: Header.Get), so that all go into it.
            values = [value for index in forwarded if (value := field_value(lines[index]))]
            values.append(peer)
            lines[forwarded[0]] = b"X-Forwarded-For: " + b", ".join(values)
            gone += forwarded[1:]
    if head.connection:
        if head.upgrade:
            lines[head.connection[0]] = _CONNECTION_UPGRADE
            gone += head.connection[1:]
        else:
            gone += head.connection
    if head.te:
        if any(
            token.partition(b";")[0].strip(b" \t").lower() == b"trailers"
            for index in head.te
            for token in field_value(lines[index]).split(b",")
        ):
            lines[head.te[0]] = _TE_TRAILERS
            gone += head.te[1:]
        else:
            gone += head.te
    if gone:
        gone.sort(reverse=True)
        for index in gone:
            del lines[index]
    if not forwarded:
        lines.append(b"X-Forwarded-For: " + peer)
    lines += identity
    lines.append(b"\r\n")
    return head.method + b" " + head.target + b" HTTP/1.1\r\n" + CRLF.join(lines)


def may_trail(name: bytes) -> bool:
    """Whether a field that is ordinary in a head may also stand in a request's trailers (`name` in lower case).

    RFC 9110 §6.5.1: fields for authentication and for request modifiers may not. kube-apiserver reads none of them from
    trailers; something behind it might.
    """
    return name not in _NOT_IN_TRAILERS and not name.startswith(
        (b"impersonate-", b"if-", b"content-", b"x-real-ip")
    )
