"""How exchanges end, what the sidecar answers by itself, and the exceptions of the rules in this package.

Faults of the caller and of the upstream are different types, and each carries what is needed to answer it, so that
no status is ever chosen by looking at a message's text.
"""

from __future__ import annotations

import json
from enum import IntEnum
from typing import NamedTuple


class Termination(IntEnum):
    """How an exchange ended. One is counted and, where it is not COMPLETE, logged for every exchange."""

    COMPLETE = 0
    LOCAL_REPLY = 1
    """The sidecar answered; `LocalReplyReason` says why."""
    DOWNSTREAM_CLOSED = 2
    """The caller went away before the response had been relayed."""
    UPSTREAM_CLOSED = 3
    """The upstream ended a response that had begun: shown downstream as a truncation."""
    MALFORMED_RESPONSE = 4
    """The framing of a response body broke after its head had been relayed."""
    MALFORMED_REQUEST_BODY = 5
    """The framing of a request body broke after its response had begun."""
    TUNNEL_CLOSED = 6
    """An upgraded connection was closed by one of its sides: how every tunnel ends."""
    DRAINED = 7
    """The sidecar is shutting down: a watch was ended at a chunk boundary, or the grace period was over."""


class LocalReplyReason(IntEnum):
    """Why the sidecar answered a request itself."""

    BAD_REQUEST = 0
    HEADERS_TOO_LARGE = 1
    HEADER_TIMEOUT = 2
    VERSION_NOT_SUPPORTED = 3
    METHOD_NOT_ALLOWED = 4
    IDENTITY_REFUSED = 5
    TOO_MANY_CONNECTIONS = 6
    UPSTREAM_UNREACHABLE = 7
    UPSTREAM_CLOSED = 8
    MALFORMED_RESPONSE = 9
    DRAINING = 10


class _Shape(NamedTuple):
    code: int
    phrase: bytes
    reason: str
    retry_after: int


_SHAPES: dict[LocalReplyReason, _Shape] = {
    LocalReplyReason.BAD_REQUEST: _Shape(400, b"Bad Request", "BadRequest", 0),
    LocalReplyReason.HEADERS_TOO_LARGE: _Shape(
        431, b"Request Header Fields Too Large", "RequestEntityTooLarge", 0
    ),
    LocalReplyReason.HEADER_TIMEOUT: _Shape(408, b"Request Timeout", "Timeout", 0),
    LocalReplyReason.VERSION_NOT_SUPPORTED: _Shape(505, b"HTTP Version Not Supported", "BadRequest", 0),
    LocalReplyReason.METHOD_NOT_ALLOWED: _Shape(405, b"Method Not Allowed", "MethodNotAllowed", 0),
    LocalReplyReason.IDENTITY_REFUSED: _Shape(401, b"Unauthorized", "Unauthorized", 0),
    # Nothing of the request was sent in these two, so that any client may safely try again: client-go does on Retry-After.
    LocalReplyReason.TOO_MANY_CONNECTIONS: _Shape(503, b"Service Unavailable", "ServiceUnavailable", 1),
    LocalReplyReason.UPSTREAM_UNREACHABLE: _Shape(503, b"Service Unavailable", "ServiceUnavailable", 1),
    # The request may have been carried out: no Retry-After. 502 is "InternalError" in apimachinery's own mapping.
    LocalReplyReason.UPSTREAM_CLOSED: _Shape(502, b"Bad Gateway", "InternalError", 0),
    LocalReplyReason.MALFORMED_RESPONSE: _Shape(502, b"Bad Gateway", "InternalError", 0),
    LocalReplyReason.DRAINING: _Shape(503, b"Service Unavailable", "ServiceUnavailable", 0),
}


class LocalReply(NamedTuple):
    """A response of the sidecar's own: always a `metav1.Status` in JSON, as every client of kube-apiserver expects."""

    reason: LocalReplyReason
    code: int
    head: bytes
    """Status line and fields, without a Connection field and without the blank line."""
    body: bytes


def local_reply(reason: LocalReplyReason, message: str) -> LocalReply:
    """Render a `metav1.Status` failure. `message` must hold nothing secret and nothing that a caller sent."""
    code, phrase, kube_reason, retry_after = _SHAPES[reason]
    status: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"orca-sidecar: {message}",
        "reason": kube_reason,
    }
    if retry_after:
        status["details"] = {"retryAfterSeconds": retry_after}
    status["code"] = code
    body = json.dumps(status, separators=(",", ":")).encode() + b"\n"
    head = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (
        code,
        phrase,
        len(body),
    )
    if retry_after:
        head += b"Retry-After: %d\r\n" % retry_after
    return LocalReply(reason, code, head, body)


class ProtocolError(Exception):
    """A message that broke a rule of HTTP/1.1 that this proxy insists on. The text names the rule's RFC section."""


class RequestError(ProtocolError):
    """The caller's fault: answered locally with `reason`, then the connection is closed."""

    def __init__(self, message: str, reason: LocalReplyReason = LocalReplyReason.BAD_REQUEST) -> None:
        super().__init__(message)
        self.reason = reason


class ResponseError(ProtocolError):
    """The upstream's fault: answered with 502 where nothing was relayed yet, and its connection is dropped."""
