"""TLS on a plain TCP transport, for both sides of the proxy.

The event loops' own TLS costs more than all of the proxy's rules: for every read it asks OpenSSL once more than there are
records, and the "want read" that answers is a Python exception each time; it also holds 256 KiB a connection. Here
OpenSSL is asked while there are bytes to decrypt and not again, on one pair of buffers for the whole process. It also
leaves no doubt about ends: `peer_closed` is true only after a close_notify (RFC 8446 §6.1), so that a cut is never
taken for the end of a body.

Written for one thread: the shared buffers are filled and emptied within one callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from enum import IntEnum
from time import monotonic_ns
from typing import Any, cast

# One read from the socket, and what a read decrypts at most before it is handed on.
_CIPHERTEXT = memoryview(bytearray(128 * 1024))
_PLAINTEXT = memoryview(bytearray(128 * 1024))
# What OpenSSL makes a record of. Written in such pieces, so that the buffer of a connection that once carried a large
# body does not stay large: memory BIOs never shrink.
_RECORD = 16 * 1024
# Bytes queued for a peer that reads too slowly before the other side is no longer read.
WRITE_HIGH_WATER = 256 * 1024
# How long a peer may take to read what is queued when its connection is closed, and to close it, too.
FLUSH_SECONDS = 30.0
# Sent within this time of one another, messages are sent together: several times what one takes to be worked off, and
# less than kube-apiserver takes to answer.
_BUSY_NS = 100_000
# So many at most, so that none waits for all of the thousand events that one poll may bring. More bring nothing more.
_TOGETHER = 32
_TCP_CLOSE = 7  # a state of Linux' struct tcp_info


class State(IntEnum):
    """Of a connection; it only ever goes up."""

    HANDSHAKE = 0
    OPEN = 1
    CLOSING = 2
    """Closed by this side: what is queued is still delivered, nothing is read."""
    LOST = 3


# Looking up an enumeration's member costs more than the comparison it is for (CPython 3.11).
_HANDSHAKE, _OPEN, _CLOSING, _LOST = State


class TLSConnection(asyncio.BufferedProtocol):
    """One connection. Subclasses answer `handshake_complete`, `data_received`, `peer_closed` and `lost`."""

    __slots__ = ("_flush_timer", "_incoming", "_outgoing", "_tcp", "_tls", "ssl_object", "state", "tls_error")

    _tcp: asyncio.Transport

    def __init__(self, context: ssl.SSLContext, server_name: str | None) -> None:
        """A server's connection if `server_name` is None, else a client's, to a server whose certificate has that name."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        # What `ssl.SSLObject` passes each call on to: it is called two or three times a request.
        self._tls: Any = cast(Any, self.ssl_object)._sslobj
        self.state = _HANDSHAKE
        self.tls_error: ssl.SSLError | None = None
        """What ended the handshake or the connection, if TLS did."""
        self._flush_timer: asyncio.TimerHandle | None = None

    # -- for subclasses to answer --------------------------------------------------------------------------------

    def handshake_complete(self) -> None:
        """The peer can be written to, and its certificate looked at."""
        raise NotImplementedError

    def data_received(self, data: memoryview) -> None:
        """Decrypted bytes, in a buffer that is used again afterwards: what is kept has to be copied."""
        raise NotImplementedError

    def peer_closed(self) -> None:
        """A close_notify: what the peer sent is complete."""
        raise NotImplementedError

    def lost(self) -> None:
        """The connection is gone, however it ended. Called once."""
        raise NotImplementedError

    # -- for subclasses and their users --------------------------------------------------------------------------

    def write(self, data: bytes | memoryview) -> None:
        """Encrypt and queue. Does nothing once the connection is closed, by whichever side."""
        if self.state is not _OPEN:
            return
        tls, outgoing = self._tls, self._outgoing
        try:
            if len(data) <= _RECORD:
                waits = outgoing.pending
                tls.write(data)
                if not waits:
                    _sender.send(self)
                elif outgoing.pending > _RECORD:
                    self._flush()
                return
            records = [outgoing.read()]
            view = memoryview(data)
            for start in range(0, len(view), _RECORD):
                tls.write(view[start : start + _RECORD])
                records.append(outgoing.read())
            self._tcp.writelines(records)
        except ssl.SSLError as error:
            self._fail(error)

    def close(self, *, complete: bool = True) -> None:
        """Deliver what is queued, say close_notify if it is `complete`, and wait up to FLUSH_SECONDS for the peer to close.

        What it still sends is thrown away, but it is read: bytes that reach a closed socket make the kernel reset the
        connection, and what was not delivered yet is lost (RFC 9112 section 9.6). Clients of SPDY and WebSocket answer
        what they read.
        """
        if self.state >= _CLOSING:
            return
        was_open = self.state is _OPEN
        self.state = _CLOSING
        if not was_open or self._tcp.is_closing():
            self._tcp.close()
            return
        if complete:
            # "Want read" is the usual answer: the peer's own close_notify is not waited for (RFC 8446 section 6.1).
            with contextlib.suppress(ssl.SSLError):
                self._tls.shutdown()
        self._flush()
        self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._tcp.abort)
        with contextlib.suppress(OSError):  # the peer reset the connection, and `connection_lost` is to come
            self._tcp.write_eof()
        self._tcp.resume_reading()

    def abort(self) -> None:
        """Close at once; what is queued is thrown away."""
        if self.state is not _LOST:
            self.state = _CLOSING
            self._tcp.abort()

    def reset(self) -> None:
        """Close at once, and so that the peer cannot take it for an end: many take a FIN alone for one."""
        if not self._tcp.is_closing():
            self._flush()
            with contextlib.suppress(OSError):
                sock = self._tcp.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    @property
    def was_reset(self) -> bool:
        """The peer is gone. For a connection that is not read, and so cannot be told by the event loop."""
        if self._tcp.is_closing() or not hasattr(socket, "TCP_INFO"):
            return False
        sock = self._tcp.get_extra_info("socket")
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)

    @property
    def is_closing(self) -> bool:
        """Closed by either side, though `lost` may still be to come."""
        return self.state >= _CLOSING or self._tcp.is_closing()

    @property
    def is_delivered(self) -> bool:
        """Closed, and the kernel has all of it: it needs this process no longer."""
        return self.state >= _CLOSING and not self.has_unsent_bytes

    @property
    def has_unsent_bytes(self) -> bool:
        """The kernel has not taken everything that was written."""
        return self._outgoing.pending > 0 or self._tcp.get_write_buffer_size() > 0

    def pause_reading(self) -> None:
        """Take no more from the peer for now."""
        if self.state is _OPEN:
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Take more."""
        if self.state is _OPEN:
            self._tcp.resume_reading()

    # -- the event loop's side -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        if not self.ssl_object.server_side:
            self._shake_hands()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _CIPHERTEXT

    def buffer_updated(self, nbytes: int) -> None:
        state = self.state
        if state >= _CLOSING:
            return
        self._incoming.write(_CIPHERTEXT[:nbytes])
        if state is _HANDSHAKE:
            self._shake_hands()
            if self.state is not _OPEN or not self._incoming.pending:
                return
        self._read()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self.state = _LOST
        self.lost()

    # -- inside --------------------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._fail(error)
        else:
            self._flush()
            self.state = _OPEN
            self.handshake_complete()

    def _read(self) -> None:
        """Decrypt what came and hand it on, record after record, without asking once too often."""
        tls, incoming = self._tls, self._incoming
        size = len(_PLAINTEXT)
        closed = False
        while self.state is _OPEN:
            filled = 0
            try:
                while filled < size:
                    count = tls.read(size - filled, _PLAINTEXT[filled:] if filled else _PLAINTEXT)
                    if not count:
                        closed = True
                        break
                    filled += count
                    # OpenSSL keeps a part of a record only where there was no room for it: then it is asked again below.
                    if not incoming.pending:
                        break
            except ssl.SSLWantReadError:
                pass  # a part of a record
            except ssl.SSLError as error:
                self._fail(error)
                return
            if self._outgoing.pending:
                self._flush()  # OpenSSL answered by itself: a key update
            if filled:
                self.data_received(_PLAINTEXT[:filled])
            if closed:
                if self.state is _OPEN:
                    self.peer_closed()
                    self.close()
                    self._tcp.close()  # nothing more comes
                return
            if filled < size:
                return

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._tcp.write(self._outgoing.read())

    def _fail(self, error: ssl.SSLError) -> None:
        """TLS is broken: OpenSSL's alert is sent, then the connection closed."""
        self.tls_error = error
        self.state = _CLOSING
        self._flush()
        self._tcp.close()

    @property
    def peer_address(self) -> str:
        """The peer's IP address, or "unknown" if it was gone before it could be asked for."""
        address = self._tcp.get_extra_info("peername")
        return str(address[0]) if address else "unknown"


class _Sender:
    """Hands encrypted bytes to the kernel: at once while little is going on, else together, when what one poll of the
    event loop brought is worked off, as Envoy does.

    Under load, nearly each write that went out by itself found its peer asleep, and waking it cost an eighth of the CPU
    time of a small GET. Under little load there is nothing to gather, and the way through the event loop costs as much
    CPU time again and a tenth of the latency that a proxy adds.
    """

    def __init__(self) -> None:
        self._waiting: list[TLSConnection] = []
        self._sent_ns = 0

    def send(self, connection: TLSConnection) -> None:
        """`connection` has bytes to send, and had none before."""
        if not self._waiting:
            now = monotonic_ns()
            if now - self._sent_ns > _BUSY_NS:
                self._sent_ns = now
                connection._flush()
                return
            asyncio.get_running_loop().call_soon(self._send_all)
        self._waiting.append(connection)
        if len(self._waiting) >= _TOGETHER:
            self._send_all()

    def _send_all(self) -> None:
        connections, self._waiting = self._waiting, []
        for connection in connections:
            if connection.state is _OPEN:  # closing flushed it, or threw away what was queued
                connection._flush()
        self._sent_ns = monotonic_ns()


_sender = _Sender()
