"""Start lines: a request's first line with what it asks for, and a response's status line.

Both are read through a memo, since clients ask for the same few things again and again. Only valid lines enter it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from orca_sidecar.core.errors import LocalReplyReason, RequestError, ResponseError
from orca_sidecar.core.memo import Memo
from orca_sidecar.core.request_info import RequestInfo, classify

_METHODS: Final = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Everything but controls and the blank: kube-apiserver takes raw UTF-8 and stray percent signs, so they pass as sent.
_TARGET: Final = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9]) ([\t\x20-\x7e\x80-\xff]*)")


class RequestLine(NamedTuple):
    """A valid request line. `method` and `target` exactly as sent."""

    method: bytes
    target: bytes
    http10: bool
    info: RequestInfo
    upstream: bytes
    """The line to send upstream: the same, as HTTP/1.1."""


def read_request_line(line: bytes) -> RequestLine:
    """Read a request line.

    Raises `RequestError` for one that RFC 9112 §3 does not allow, with one blank between its parts and a version of 1.0 or
    1.1 exactly. CONNECT is refused: kube-apiserver has no use for it and its 2xx would be a tunnel.
    """
    try:
        method, target, version = line.split(b" ")
    except ValueError:
        raise RequestError("malformed request line (RFC 9112 section 3)") from None
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if _VERSION.fullmatch(version):
            raise RequestError("HTTP/1.1 is spoken here", LocalReplyReason.VERSION_NOT_SUPPORTED)
        raise RequestError("malformed version in the request line (RFC 9112 section 2.3)")
    if not _TARGET.fullmatch(target):
        raise RequestError("malformed request target (RFC 9112 section 3.2)")
    if method not in _METHODS and not _TOKEN.fullmatch(method):
        raise RequestError("malformed method (RFC 9110 section 9.1)")
    if method == b"CONNECT":
        raise RequestError("CONNECT is not served", LocalReplyReason.METHOD_NOT_ALLOWED)
    if target[0] != 0x2F:
        _check_other_target(method, target)
    upstream = b"%b %b HTTP/1.1" % (method, target)
    return RequestLine(method, target, version == b"HTTP/1.0", classify(method, target), upstream)


def _check_other_target(method: bytes, target: bytes) -> None:
    """Targets that do not start with a slash: asterisk-form with OPTIONS and absolute-form pass (RFC 9112 §3.2)."""
    if target == b"*" and method == b"OPTIONS":
        return
    if target[:7].lower() == b"http://" or target[:8].lower() == b"https://":
        return
    raise RequestError("malformed request target (RFC 9112 section 3.2)")


REQUEST_LINES: Final = Memo(read_request_line)
"""Request lines read before."""


class StatusLine(NamedTuple):
    """A valid status line."""

    http10: bool
    code: int
    reason: bytes
    downstream: bytes
    """The line to send downstream: the same, as HTTP/1.1."""


def read_status_line(line: bytes) -> StatusLine:
    """Read a status line. Raises `ResponseError` for one that RFC 9112 §4 does not allow."""
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise ResponseError("malformed status line (RFC 9112 section 4)")
    return StatusLine(match[1] == b"0", int(match[2]), match[3], b"HTTP/1.1" + line[8:])


STATUS_LINES: Final = Memo(read_status_line)
"""Status lines read before."""
