"""Socket options of both sides."""

from __future__ import annotations

import contextlib
import socket

KEEPALIVE_SECONDS = 30
KEEPALIVE_PROBES = 3


def tune(sock: socket.socket) -> None:
    """TCP_NODELAY and keepalive: a powered-off peer is noticed within a minute, or, while something is on its way to it,
    when the kernel gives up sending it again (`net.ipv4.tcp_retries2`: a quarter of an hour).

    A watch may be silent for an hour, so nothing but the kernel can tell. TCP_USER_TIMEOUT would be sooner, but it also
    resets a peer that is alive and does not read for as long (tcp(7)), as `kubectl logs -f | less` does. On Linux an
    accepted socket inherits all of these from its listening socket.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_SECONDS // KEEPALIVE_PROBES),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        number = getattr(socket, option, None)
        if number is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, number, value)


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A non-blocking listening TCP socket. Raises OSError, with the address in its text."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        tune(sock)
        sock.bind((host, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return sock
