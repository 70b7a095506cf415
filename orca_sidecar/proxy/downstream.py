"""One HTTP/1.1 connection of a caller: heads in, exchanges, and what the sidecar answers itself."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence

from orca_sidecar import metrics
from orca_sidecar.core.errors import LocalReplyReason, RequestError, Termination, local_reply
from orca_sidecar.core.framing import Data
from orca_sidecar.core.head import END_OF_HEAD, HeadBuffer, field_value
from orca_sidecar.core.identity import Caller, CallerKind
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.opt_in import Refusal
from orca_sidecar.core.request_head import RequestHead
from orca_sidecar.core.request_rewrite import rewrite_request
from orca_sidecar.proxy.exchange import Exchange, request_body
from orca_sidecar.proxy.plane import Plane
from orca_sidecar.proxy.tls_connection import State, TLSConnection
from orca_sidecar.trust.contexts import peer_certificates

# Bytes behind the current request (pipelined requests, or what a client sends before the 101) before reading stops.
_AHEAD_LIMIT = 64 * 1024
# How long bytes of a request that was answered early are read and thrown away, so that closing does not reset the
# connection under the answer (RFC 9112 §9.6).
_LINGER_SECONDS = 1.0

_LOAD_REPORT_REFUSALS = metrics.LOAD_REPORT_REFUSALS.offset
_ANSWERED = metrics.TERMINATIONS.slot(Termination.LOCAL_REPLY)
_REQUESTS_BY_IDENTITY = metrics.REQUESTS_BY_IDENTITY.offset

_FRONT_PROXY = CallerKind.FRONT_PROXY
_HANDSHAKE_NS = 10 * 10**9
_NEW_NS = 10**9

_UPSTREAM_SLOW = 1
_AHEAD = 2


class DownstreamConnection(TLSConnection):
    """A caller's connection. It has at most one exchange at a time; what was sent ahead waits in order."""

    __slots__ = (
        "_ahead",
        "_head_buffer",
        "_opt_in",
        "_pauses",
        "_plane",
        "caller",
        "discarding",
        "exchange",
        "over_limit",
        "peer",
        "served",
        "waiting_since",
        "write_paused",
    )

    caller: Caller

    def __init__(self, plane: Plane, context: ssl.SSLContext, *, over_limit: bool) -> None:
        super().__init__(context, None)
        self._plane = plane
        self.over_limit = over_limit
        self.exchange: Exchange | None = None
        self.write_paused = False
        self.discarding = False
        self.served = 0
        self.waiting_since = time.monotonic_ns()
        self.peer = b""
        self._ahead = b""
        self._head_buffer: HeadBuffer | None = None
        self._opt_in: tuple[Sequence[bytes], Caller, Format | Refusal] | None = None
        self._pauses = 0

    # -- the connection's side -----------------------------------------------------------------------------------

    def handshake_complete(self) -> None:
        self.peer = self.peer_address.encode()
        self.caller = self._judge()
        self.waiting_since = time.monotonic_ns()

    def data_received(self, data: memoryview) -> None:
        exchange = self.exchange
        if exchange is None:
            if self._ahead or self.write_paused:
                self._wait_behind(data)  # `_next_ahead` is on its way: what came first goes first
            elif not self.discarding:
                self._on_head_data(bytes(data))
        elif exchange.takes_request_data:
            self._on_body_data(exchange, data)
        else:
            self._wait_behind(data)

    def peer_closed(self) -> None:
        """asyncio has no half-close, and net/http's server ends the request of a caller that closed its side, too."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_downstream_closed(clean=True)

    def lost(self) -> None:
        plane = self._plane
        plane.connections.discard(self)
        plane.cells[metrics.DOWNSTREAM_CONNECTIONS.offset] -= 1
        if self.peer == b"":
            plane.count_handshake_failure(self.tls_error, timed_out=self.discarding)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.on_downstream_closed(clean=False)

    def pause_writing(self) -> None:
        """The caller is slow: stop reading what is meant for it."""
        self.write_paused = True
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is None:
            if self._ahead:
                asyncio.get_running_loop().call_soon(self._next_ahead)
        elif self.exchange.upstream is not None:
            self.exchange.upstream.resume_reading()

    # -- requests ------------------------------------------------------------------------------------------------

    def _on_head_data(self, data: bytes) -> None:
        """Bytes of a head, with no exchange under way."""
        buffer = self._head_buffer
        end = data.find(END_OF_HEAD) if buffer is None else -1
        try:
            if 0 <= end <= self._plane.header_bytes:
                self._on_head(data[:end], data[end + 4 :])
                return
            if buffer is None:
                buffer = self._head_buffer = HeadBuffer(self._plane.header_bytes, RequestError)
                self.waiting_since = time.monotonic_ns()
            found = buffer.feed(data)
            if found is not None:
                self._head_buffer = None
                self._on_head(*found)
        except RequestError as error:
            self._refuse(error.reason, str(error))

    def _on_head(self, block: bytes, rest: bytes) -> None:
        """One whole head: decide where it goes. Raises `RequestError`."""
        plane = self._plane
        self.served += 1
        head = RequestHead(block, plane.request_memo)
        info = head.line.info
        if self.over_limit:
            raise RequestError("too many connections", LocalReplyReason.TOO_MANY_CONNECTIONS)
        caller = self.caller
        if caller.kind and not plane.trust.still_valid(caller, time.time()):
            # Its certificate's time is over, or the CA files changed since it was judged.
            caller = self.caller = self._judge()
        if head.asks_upgrade and caller.kind is _FRONT_PROXY:
            # A balancer may pass on what its client sent without waiting for the 101. Where none comes, that must not be
            # taken for the next request: it would have the balancer's authority.
            head.wants_close = True
        plane.cells[_REQUESTS_BY_IDENTITY + caller.kind] += 1
        lines = head.lines
        assertion = plane.identity_rules.decide(caller, head.layout.identity(lines), lines)
        if assertion.stripped:
            plane.cells[metrics.FORGED_IDENTITY_HEADERS_STRIPPED.offset + caller.kind] += assertion.stripped
        if assertion.refusal:
            plane.count_identity_refusal(assertion.refusal)
            self._answer(LocalReplyReason.IDENTITY_REFUSED, assertion.refusal.message, head, rest)
            return
        if plane.not_ready and info.health_probe and head.line.target.partition(b"?")[0] == b"/readyz":
            self._answer(LocalReplyReason.DRAINING, "shutting down", head, rest)
            return
        asked = self._asked_for(head, caller) if head.layout.opt_ins else None
        exchange = self.exchange = Exchange(
            plane,
            self,
            head,
            plane.pools[assertion.pool],
            asked if isinstance(asked, Format) else None,
            counted=not info.health_probe and plane.opt_in.counts(asked, caller.may_ask),
        )
        try:
            behind = exchange.begin(rewrite_request(head, self.peer, assertion.lines), rest)
        except RequestError as error:
            exchange.fail_request(error)
            return
        if behind and self.exchange is exchange:
            self._wait_behind(behind)

    def _asked_for(self, head: RequestHead, caller: Caller) -> Format | Refusal:
        """What the opt-in comes to; remembered, since a load balancer sends the same line with every request."""
        plane = self._plane
        said = head.layout.opt_in(head.lines)
        if self._opt_in is not None and self._opt_in[0] == said and self._opt_in[1] is caller:
            asked = self._opt_in[2]
        else:
            asked = plane.opt_in.judge([*map(field_value, said)], caller.may_ask)
            self._opt_in = (said, caller, asked)
        if asked.__class__ is Refusal:
            plane.cells[_LOAD_REPORT_REFUSALS + asked] += 1
        return asked

    def _judge(self) -> Caller:
        return self._plane.trust.judge(*peer_certificates(self.ssl_object))

    def _on_body_data(self, exchange: Exchange, data: Data) -> None:
        try:
            rest = exchange.on_request_data(data)
        except RequestError as error:
            exchange.fail_request(error)
            return
        if rest:
            self._wait_behind(rest)

    def _wait_behind(self, data: Data) -> None:
        """Bytes behind the current request: the next one, or a tunnel's, once it is known which."""
        self._ahead += bytes(data)
        if len(self._ahead) > _AHEAD_LIMIT:
            self._pause(_AHEAD)

    @property
    def has_sent_ahead(self) -> bool:
        """The caller did not wait for the response."""
        return bool(self._ahead)

    # -- the exchange's side -------------------------------------------------------------------------------------

    def finished(self, *, close: bool, linger: bool) -> None:
        """The response was relayed or given. `linger`: bytes of its request may still be on their way."""
        self.exchange = None
        if close:
            self._close_after_answer(linger=linger)
            return
        self.waiting_since = time.monotonic_ns()
        if self._pauses:
            self._resume(_UPSTREAM_SLOW)
        if self._ahead:
            # Not from here: a thousand pipelined requests must not become a thousand stack frames.
            asyncio.get_running_loop().call_soon(self._next_ahead)

    def _next_ahead(self) -> None:
        """The next request of those sent ahead; the caller is read again once few enough of them are left."""
        if self.exchange is not None or self.write_paused:
            return
        data, self._ahead = self._ahead, b""
        if data and not self.discarding and not self.is_closing:
            self._on_head_data(data)
        if len(self._ahead) <= _AHEAD_LIMIT:
            self._resume(_AHEAD)

    def on_tunnel(self) -> None:
        """The 101 was relayed: what the caller sent before reading it belongs to the tunnel."""
        data, self._ahead = self._ahead, b""
        self._resume(_AHEAD)
        if data and self.exchange is not None:
            self._on_body_data(self.exchange, data)

    def truncated(self, *, abort: bool) -> None:
        """The response cannot be completed. `abort`: only a reset says so, since closing is how its length is told."""
        self.exchange = None
        self.discarding = True
        if abort:
            self.reset()
        else:
            self.close()

    def close_when_flushed(self, *, complete: bool = True) -> None:
        """Deliver what is queued, then close."""
        self.exchange = None
        self.discarding = True
        self.close(complete=complete)

    def pause_for_upstream(self) -> None:
        """The upstream takes no more for now."""
        self._pause(_UPSTREAM_SLOW)

    def resume_for_upstream(self) -> None:
        """It takes more."""
        self._resume(_UPSTREAM_SLOW)

    def _pause(self, why: int) -> None:
        if not self._pauses:
            self.pause_reading()
        self._pauses |= why

    def _resume(self, why: int) -> None:
        if self._pauses & why:
            self._pauses &= ~why
            if not self._pauses:
                self.resume_reading()

    # -- answers of the sidecar's own ----------------------------------------------------------------------------

    def send_local_reply(self, reason: LocalReplyReason, message: str, method: bytes, *, close: bool) -> int:
        """Write a `metav1.Status`; returns its code."""
        answer = local_reply(reason, message)
        self._plane.count_local_reply(answer, self.peer, message)
        connection = b"Connection: close\r\n\r\n" if close else b"\r\n"
        body = b"" if method == b"HEAD" else answer.body
        self.write(answer.head + connection + body)
        return answer.code

    def _answer(self, reason: LocalReplyReason, message: str, head: RequestHead, rest: bytes) -> None:
        """Answer a well-formed request without asking the upstream. Raises `RequestError` for a malformed body.

        A body that came with its head is passed over; for one that did not, the connection is closed.
        """
        body = request_body(self._plane, head)
        behind: Data = rest
        if not body.done:
            _, behind = body.feed(rest)
        close = head.wants_close or not body.done or reason is LocalReplyReason.DRAINING
        code = self.send_local_reply(reason, message, head.line.method, close=close)
        plane = self._plane
        plane.cells[plane.requests_slot(head.line.info, code)] += 1
        plane.cells[_ANSWERED] += 1
        self._ahead = bytes(behind) + self._ahead
        self.finished(close=close, linger=not body.done)

    def _refuse(self, reason: LocalReplyReason, message: str) -> None:
        """Answer what is no request; nothing behind it is read, since nobody can say where it begins."""
        self.send_local_reply(reason, message, b"", close=True)
        self._plane.cells[_ANSWERED] += 1
        self._close_after_answer(linger=True)

    def _close_after_answer(self, *, linger: bool) -> None:
        self.discarding = True
        self._ahead = b""
        if not linger or self.is_closing:
            self.close()
            return
        if self._pauses:
            self._pauses = 0
            self.resume_reading()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self.close)

    # -- the listener's side -------------------------------------------------------------------------------------

    def sweep(self, now: int) -> None:
        """Once a second: a head that does not come, or a connection that nobody uses. `now`: monotonic nanoseconds."""
        if self.exchange is not None and self._pauses and self.was_reset:
            self.abort()
        if self.exchange is not None or self.discarding:
            return
        waited = now - self.waiting_since
        if self.state is State.HANDSHAKE:
            if waited > _HANDSHAKE_NS:
                self.discarding = True
                self.abort()
            return
        if self._head_buffer is not None or not self.served:
            if waited > self._plane.header_timeout_ns:
                if self._head_buffer is not None:
                    self._refuse(LocalReplyReason.HEADER_TIMEOUT, "the request's head did not come in time")
                else:
                    self.close_when_flushed()
        elif waited > self._plane.idle_timeout_ns:
            self.close_when_flushed()

    def leave(self) -> None:
        """The sidecar accepts no more: close if idle; an exchange under way ends with `Connection: close`.

        A new connection gets a moment for its first request, as in net/http's Shutdown.
        """
        if not self.served and time.monotonic_ns() - self.waiting_since < _NEW_NS:
            return
        if self.exchange is None and self._head_buffer is None and not self._ahead and not self.discarding:
            self.close_when_flushed()
