"""THE PATH: one request and its response.

Everything here is called by the two connections as bytes arrive; nothing waits, and there is no task per request. The
rules are in `core/`; this file carries them out and keeps the order. The common request takes one call of `begin` and
one of `on_response_data`.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from orca_sidecar import metrics
from orca_sidecar.core.errors import LocalReplyReason, RequestError, ResponseError, Termination
from orca_sidecar.core.framing import LAST_CHUNK, NO_BODY, Body, ChunkedBody, Data, LengthBody, UntilCloseBody
from orca_sidecar.core.head import END_OF_HEAD, HeadBuffer
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.request_head import RequestHead
from orca_sidecar.core.response_head import ResponseHead
from orca_sidecar.core.response_rewrite import rewrite_response

if TYPE_CHECKING:
    from orca_sidecar.proxy.downstream import DownstreamConnection
    from orca_sidecar.proxy.plane import Plane
    from orca_sidecar.proxy.upstream import UpstreamConnection, UpstreamPool

_TRAILER_LIMIT = 16 * 1024
# Metrics' places, looked up once.
_LOAD_BALANCED_REQUESTS = metrics.LOAD_BALANCED_REQUESTS.offset
_LOAD_BALANCED_ERRORS = metrics.LOAD_BALANCED_ERRORS.offset
_REPORTS_STRIPPED = metrics.BACKEND_REPORTS_STRIPPED.slot(metrics.Where.HEADER)
_TERMINATIONS = metrics.TERMINATIONS.offset
_UPGRADES = metrics.UPGRADES.offset
_COMPLETE = Termination.COMPLETE
_DURATIONS = metrics.REQUEST_DURATION.offset
_DURATIONS_PER_VERB = metrics.REQUEST_DURATION.strides[0]
_observe = metrics.REQUEST_DURATION.observe

# Body bytes that wait for a connection; a caller that sends more meanwhile is not read.
_PENDING_LIMIT = 64 * 1024


def request_body(plane: Plane, head: RequestHead) -> Body:
    """How a request's body is told (RFC 9112 §6.3)."""
    if head.chunked:
        return ChunkedBody(RequestError, plane.keep_request_trailer, _TRAILER_LIMIT)
    return LengthBody(head.content_length) if head.content_length else NO_BODY


class Exchange:
    """One request and its response, from the parsed request head to the last byte of the response.

    `upstream` is the connection that carries it, None before one is found and after the response. `is_over`: it was
    answered, cut or abandoned, and takes no further part in anything.
    """

    __slots__ = (
        "_closes",
        "_code",
        "_counted",
        "_head_buffer",
        "_head_bytes",
        "_http10",
        "_in_flight",
        "_info",
        "_method",
        "_pending",
        "_plane",
        "_pool",
        "_report_format",
        "_request_body",
        "_response_body",
        "_retryable",
        "_reusable",
        "_until_close",
        "_upgrades",
        "downstream",
        "is_over",
        "is_tunnel",
        "started_ns",
        "upstream",
    )

    def __init__(
        self,
        plane: Plane,
        downstream: DownstreamConnection,
        head: RequestHead,
        pool: UpstreamPool,
        report_format: Format | None,
        counted: bool,
    ) -> None:
        self._plane = plane
        self.downstream = downstream
        self.upstream: UpstreamConnection | None = None
        self.is_over = False
        self.is_tunnel = False
        line = head.line
        info = self._info = line.info
        self._pool = pool
        self._report_format = report_format
        self._counted = counted
        self._method = line.method
        self._http10 = line.http10
        self._closes = head.wants_close
        self._upgrades = head.upgrades
        self._head_bytes = b""
        self._head_buffer: HeadBuffer | None = None
        self._pending: list[bytes] | None = None
        self._response_body: Body | None = None
        self._until_close = False
        self._reusable = True
        self._code = 0
        self._request_body: Body = request_body(plane, head)
        self._retryable = info.retry_safe and not self._upgrades and self._request_body is NO_BODY
        cells = plane.cells
        self._in_flight = plane.in_flight_slot(info)
        cells[self._in_flight] += 1
        if counted:
            cells[_LOAD_BALANCED_REQUESTS] += 1
        self.started_ns = monotonic_ns()

    # -- the way in ----------------------------------------------------------------------------------------------

    def begin(self, head: bytes, rest: Data) -> Data:
        """Send the rewritten head and what came of the body with it; return what lies behind the request."""
        self._head_bytes = head
        forward: Data = b""
        if rest and not self._request_body.done:
            forward, rest = self._request_body.feed(rest)
        connection = self._pool.acquire(self)
        if connection is None:
            self._wait_with(forward)
        else:
            self.upstream = connection
            if self.downstream.write_paused:
                connection.pause_reading()
            connection.write(b"".join((head, forward)) if forward else head)
        return rest

    @property
    def takes_request_data(self) -> bool:
        """What the caller sends belongs to this exchange: its body has not ended, or it is a tunnel."""
        return not self._request_body.done

    @property
    def is_watch(self) -> bool:
        """It ends by itself only after half an hour or more, and may be ended at any event."""
        return self._info.verb == "watch"

    def on_request_data(self, data: Data) -> Data:
        """Bytes of the body or the tunnel; returns what lies behind the request. Raises `RequestError`."""
        forward, rest = self._request_body.feed(data)
        if forward:
            if self.upstream is not None:
                self.upstream.write(forward)
            else:
                self._wait_with(forward)
        return rest

    def _wait_with(self, forward: Data) -> None:
        """No connection yet: keep what came of the body, within bounds."""
        if self._pending is None:
            self._pending = []
        if forward:
            self._pending.append(bytes(forward))
            if sum(map(len, self._pending)) > _PENDING_LIMIT:
                self.downstream.pause_for_upstream()

    def on_upstream(self, connection: UpstreamConnection, *, reused: bool) -> None:
        """The pool found or opened a connection."""
        self.upstream = connection
        self._retryable = self._retryable and reused
        if self.downstream.write_paused:
            connection.pause_reading()
        self.downstream.resume_for_upstream()  # first: the write may pause it again
        pending, self._pending = self._pending, None
        connection.write(b"".join((self._head_bytes, *(pending or ()))))

    def on_connect_failed(self) -> None:
        """No connection could be opened, and nothing of the request was sent."""
        if not self.is_over:
            self.reply(LocalReplyReason.UPSTREAM_UNREACHABLE, "kube-apiserver cannot be reached")

    # -- the way out ---------------------------------------------------------------------------------------------

    def on_response_data(self, data: memoryview) -> None:
        """Bytes from kube-apiserver."""
        body = self._response_body
        try:
            if body is None:
                self._on_head_data(bytes(data))
                return
            forward, rest = body.feed(data)
            if forward:
                self.downstream.write(forward)
            if body.done:
                self._complete(rest)
        except ResponseError as error:
            self._plane.log_upstream_fault(error)
            self._drop_upstream()
            if self._response_body is None:
                self.reply(LocalReplyReason.MALFORMED_RESPONSE, "kube-apiserver sent a malformed response")
            else:
                self.cut(Termination.MALFORMED_RESPONSE)

    def _on_head_data(self, data: bytes) -> None:
        self._retryable = False
        while True:
            end = data.find(END_OF_HEAD) if self._head_buffer is None else -1
            if 0 <= end <= self._plane.header_bytes:
                block, data = data[:end], data[end + 4 :]
            else:
                if self._head_buffer is None:
                    self._head_buffer = HeadBuffer(self._plane.header_bytes, ResponseError)
                found = self._head_buffer.feed(data)
                if found is None:
                    return
                self._head_buffer = None
                block, data = found
            head = ResponseHead(block, self._plane.response_memo)
            if head.layout.reports:
                self._plane.cells[_REPORTS_STRIPPED] += head.layout.reports
            if head.code >= 200 or head.code == 101:
                break
            # Informational: another head follows (RFC 9110 section 15.2). HTTP/1.0 does not know them.
            if not self._http10:
                self.downstream.write(rewrite_response(head, b"", close=False, http10=False))
        self._head_bytes = b""
        self._relay_head(head, data)

    def _relay_head(self, head: ResponseHead, data: bytes) -> None:
        plane = self._plane
        self._code = head.code
        body = self._frame(head)
        # The connection ends with this response where the caller asked for it; where kube-apiserver says so, so that a
        # pinned client leaves a dying node; where only closing tells the length; and where the request's body is still on
        # its way, since its rest could not be told from the next request. So it is where an upgrade is refused and the
        # caller did not wait: what it sent may have been meant for the tunnel.
        if (
            head.says_close
            or self._until_close
            or not self._request_body.done
            or plane.draining
            or (self._upgrades and self.downstream.has_sent_ahead)
        ):
            self._closes = True
        report = b""
        if self._report_format is not None:
            report = plane.report_line(self._report_format)
        if head.code == 429 and head.priority_level:
            plane.count_priority_level(head.priority_level)
        closes = self._closes and not self.is_tunnel
        out = rewrite_response(head, report, close=closes, http10=self._http10)
        rest: Data = data
        if data:
            forward, rest = body.feed(data)
            out += forward
        self._response_body = body
        self.downstream.write(out)
        if self.is_tunnel:
            self.downstream.on_tunnel()
        elif body.done:
            self._complete(rest)

    def _frame(self, head: ResponseHead) -> Body:
        """How the response's body is told (RFC 9112 §6.3)."""
        self._reusable = head.persistent
        if head.code == 101:
            if not self._upgrades or not self._request_body.done:
                raise ResponseError(
                    "a 101 that nobody asked for, or before the request's end (RFC 9110 section 7.8)"
                )
            self.is_tunnel = True
            self._reusable = False
            self._request_body = UntilCloseBody()
            self._plane.cells[_UPGRADES] += 1
            self._plane.cells[self._in_flight] -= 1
            return UntilCloseBody()
        if self._upgrades:
            # kube-apiserver answers for what it proxies by hand, on a connection that it closes afterwards.
            self._reusable = False
        if head.has_no_body(self._method):
            return NO_BODY
        if head.chunked:
            self._until_close = self._http10
            return ChunkedBody(
                ResponseError, self._plane.keep_response_trailer, _TRAILER_LIMIT, decode=self._http10
            )
        if head.length is not None:
            return LengthBody(head.length)
        self._until_close = True
        self._reusable = False
        return UntilCloseBody()

    def _complete(self, rest: Data) -> None:
        """The response ended. `rest` is what the upstream sent behind it: nobody asked for that."""
        connection = self.upstream
        assert connection is not None
        self.upstream = None
        whole = self._request_body.done
        if (
            self._reusable
            and whole
            and not rest
            and (self._request_body is NO_BODY or not connection.has_unsent_bytes)
        ):
            if self.downstream.write_paused:
                connection.resume_reading()
            self._pool.release(connection)
        else:
            connection.discard()
        self._end(_COMPLETE)
        self.downstream.finished(close=self._closes, linger=not whole or self._upgrades)

    # -- other ends ----------------------------------------------------------------------------------------------

    def on_upstream_closed(self, *, clean: bool) -> None:
        """kube-apiserver's side is gone; `clean`: with a close_notify, so that nothing was cut off behind our back."""
        connection = self.upstream
        self.upstream = None
        if connection is None or self.is_over:
            return
        connection.discard()
        if self.is_tunnel:
            self._end(Termination.TUNNEL_CLOSED)
            self.downstream.close_when_flushed(complete=clean)
        elif self._response_body is None:
            self._lost_before_response()
        elif clean and isinstance(self._response_body, UntilCloseBody):
            self._end(_COMPLETE)
            self.downstream.finished(close=True, linger=not self._request_body.done)
        else:
            self.cut(Termination.UPSTREAM_CLOSED)

    def _lost_before_response(self) -> None:
        """Once, and only for a request that may be sent twice, on a connection that died of its age."""
        if self._retryable and self._head_buffer is None:
            self._retryable = False
            self._plane.cells[metrics.UPSTREAM_RETRIES.offset] += 1
            self._pool.acquire_fresh(self)
        else:
            self.reply(
                LocalReplyReason.UPSTREAM_CLOSED, "kube-apiserver closed the connection without an answer"
            )

    def on_downstream_closed(self, *, clean: bool) -> None:
        """The caller is gone: so is its request, at once. A tunnel's last bytes are still delivered.

        `clean`: it said so with a close_notify; how a tunnel ends on one side is how it ends on the other.
        """
        if self.is_over:
            return
        connection = self.upstream
        self.upstream = None
        if connection is None:
            self._pool.cancel(self)
        elif self.is_tunnel:
            connection.close_when_flushed(complete=clean)
        else:
            connection.discard()
        self._end(Termination.TUNNEL_CLOSED if self.is_tunnel else Termination.DOWNSTREAM_CLOSED)

    def fail_request(self, error: RequestError) -> None:
        """The request's body broke a rule: whatever of it was sent stays incomplete."""
        self._drop_upstream()
        if self._response_body is None:
            self.reply(error.reason, str(error))
        else:
            self.cut(Termination.MALFORMED_REQUEST_BODY)

    def reply(self, reason: LocalReplyReason, message: str) -> None:
        """Answer with a Status; only before anything of a response was relayed."""
        whole = self._request_body.done
        self._drop_upstream()
        self._code = self.downstream.send_local_reply(
            reason, message, self._method, close=self._closes or not whole
        )
        self._end(Termination.LOCAL_REPLY)
        self.downstream.finished(close=self._closes or not whole, linger=not whole)

    def cut(self, termination: Termination) -> None:
        """End a response that cannot be completed so that the caller sees a truncation."""
        self._drop_upstream()
        self._end(termination)
        self.downstream.truncated(abort=self._until_close)

    def drain(self) -> None:
        """The sidecar is leaving. A watch ends cleanly where a whole event was relayed last, as kube-apiserver ends one
        when its time is over; everything else would seem complete without being it, so it is cut."""
        body = self._response_body
        if self.is_watch and isinstance(body, ChunkedBody) and body.at_boundary and not self._http10:
            self.downstream.write(LAST_CHUNK)
            self._drop_upstream()
            self._end(Termination.DRAINED)
            self.downstream.finished(close=True, linger=False)
        else:
            self.cut(Termination.DRAINED)

    def _drop_upstream(self) -> None:
        connection = self.upstream
        self.upstream = None
        if connection is not None:
            connection.discard()
        else:
            self._pool.cancel(self)

    def _end(self, termination: Termination) -> None:
        """Count it. Called once."""
        self.is_over = True
        plane = self._plane
        cells = plane.cells
        if self.is_tunnel:
            cells[_UPGRADES] -= 1
        else:
            cells[self._in_flight] -= 1
            if not self._info.long_running:
                child = _DURATIONS + self._info.verb_index * _DURATIONS_PER_VERB
                _observe(cells, child, monotonic_ns() - self.started_ns)
        code = self._code
        if self._counted and (code == 429 or code >= 500):
            cells[_LOAD_BALANCED_ERRORS] += 1
        cells[plane.requests_slot(self._info, code)] += 1
        cells[_TERMINATIONS + termination] += 1
