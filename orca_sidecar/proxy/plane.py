"""What all connections of a process share: the settings that the path reads, the rules, the pools, the counters."""

from __future__ import annotations

import logging
import ssl
from time import monotonic_ns
from typing import TYPE_CHECKING

from orca_sidecar import metrics
from orca_sidecar.core.errors import LocalReply, ResponseError
from orca_sidecar.core.head import ResponseField, field_name
from orca_sidecar.core.identity import IdentityRules, Refusal
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.opt_in import OptIn
from orca_sidecar.core.opt_in import Refusal as OptInRefusal
from orca_sidecar.core.request_head import request_memo
from orca_sidecar.core.request_info import RequestInfo
from orca_sidecar.core.request_rewrite import may_trail as may_trail_request
from orca_sidecar.core.response_head import response_memo
from orca_sidecar.core.response_rewrite import may_trail as may_trail_response
from orca_sidecar.logs import RateLimited
from orca_sidecar.metrics import HandshakeFailure
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.trust.store import TrustStore

if TYPE_CHECKING:
    from orca_sidecar.proxy.downstream import DownstreamConnection
    from orca_sidecar.proxy.upstream import UpstreamPool

_IDENTITY_REFUSALS = [refusal for refusal in Refusal if refusal]


class Plane:
    """One process's data plane. `pools` are indexed by `core.identity.Pool`."""

    def __init__(
        self,
        *,
        header_bytes: int,
        header_timeout: float,
        idle_timeout: float,
        cells: memoryview,
        report: ReportCell,
        trust: TrustStore,
        identity_rules: IdentityRules,
        opt_in: OptIn,
        pools: tuple[UpstreamPool, UpstreamPool],
    ) -> None:
        self.header_bytes = header_bytes
        self.header_timeout_ns = int(header_timeout * 1e9)
        self.idle_timeout_ns = int(idle_timeout * 1e9)
        self.cells = cells
        self.trust = trust
        self.identity_rules = identity_rules
        self.opt_in = opt_in
        self.pools = pools
        self.connections: set[DownstreamConnection] = set()
        self.request_memo = request_memo(identity_rules.kind_of)
        self.response_memo = response_memo()
        self.not_ready = False
        """The data port answers /readyz with 503: the load balancer looks away."""
        self.draining = False
        """No more connections are accepted, and each ends with its response."""
        self._report = report
        self._priority_levels = metrics.PRIORITY_LEVEL_REJECTIONS.recorder(cells)
        self._log = RateLimited(logging.getLogger("orca_sidecar.proxy"))

    # -- load reports --------------------------------------------------------------------------------------------

    def report_line(self, format_: Format) -> bytes:
        """The load report's header line for a response, or b"" while there is none to give."""
        line = self._report.line(format_, monotonic_ns())
        if line:
            self.cells[_REPORTS_ATTACHED + format_] += 1
        else:
            self.cells[metrics.LOAD_REPORT_REFUSALS.offset + OptInRefusal.UNAVAILABLE] += 1
        return line

    # -- trailers ------------------------------------------------------------------------------------------------

    def keep_request_trailer(self, line: bytes) -> bool:
        """Framing, Host, identity, opt-in and credentials never pass in trailers; others do (RFC 9110 §6.5.1)."""
        return not self.request_memo[line] and may_trail_request(field_name(line).lower())

    def keep_response_trailer(self, line: bytes) -> bool:
        """Framing and load reports never pass in trailers: Envoy reads a report there too."""
        kind = self.response_memo[line]
        if kind == ResponseField.LOAD_REPORT:
            self.cells[metrics.BACKEND_REPORTS_STRIPPED.slot(metrics.Where.TRAILER)] += 1
        return not kind and may_trail_response(field_name(line).lower())

    # -- counting ------------------------------------------------------------------------------------------------

    def count_priority_level(self, uid: bytes) -> None:
        """A 429 of API Priority and Fairness."""
        self._priority_levels.increment(uid)

    def count_identity_refusal(self, refusal: Refusal) -> None:
        """A 401 of the sidecar's own."""
        self.cells[metrics.IDENTITY_REFUSALS.slot(_IDENTITY_REFUSALS.index(refusal))] += 1

    def count_local_reply(self, reply: LocalReply, peer: bytes, message: str) -> None:
        """Count and log a response of the sidecar's own. The request itself is not logged: it may hold secrets."""
        self.cells[metrics.LOCAL_REPLIES.slot(reply.reason, reply.code)] += 1
        reason = reply.reason.name.lower()
        self._log.warning(reason, "local reply %d (%s) to %s: %s", reply.code, reason, peer.decode(), message)

    def count_handshake_failure(self, error: ssl.SSLError | None, *, timed_out: bool) -> None:
        """A caller's connection ended before it was open."""
        if timed_out:
            why = HandshakeFailure.TIMEOUT
        elif error is None or isinstance(error, ssl.SSLEOFError):
            why = HandshakeFailure.CLOSED
        elif isinstance(error, ssl.SSLCertVerificationError) or "CERT" in (error.reason or ""):
            why = HandshakeFailure.NO_CERTIFICATE_TRUST
        else:
            why = HandshakeFailure.PROTOCOL
        self.cells[metrics.HANDSHAKE_FAILURES.offset + why] += 1

    def log_upstream_fault(self, error: ResponseError) -> None:
        """kube-apiserver broke a rule of HTTP."""
        self._log.warning("malformed_response", "malformed response of kube-apiserver: %s", error)

    @staticmethod
    def in_flight_slot(info: RequestInfo) -> int:
        """Where a request counts while it is answered, as in kube-apiserver's two limits."""
        if info.long_running:
            return _IN_FLIGHT_LONG_RUNNING
        return _IN_FLIGHT_READ_ONLY if info.read_only else _IN_FLIGHT_MUTATING

    @staticmethod
    def requests_slot(info: RequestInfo, code: int) -> int:
        """Where a request counts when it ended; `code` 0: nothing was answered."""
        return _REQUESTS + info.verb_index * _PER_VERB + code * _PER_CODE + info.long_running


_REPORTS_ATTACHED = metrics.LOAD_REPORTS_ATTACHED.offset
_REQUESTS = metrics.REQUESTS.offset
_PER_VERB, _PER_CODE, _ = metrics.REQUESTS.strides
_IN_FLIGHT_LONG_RUNNING = metrics.REQUESTS_IN_FLIGHT.slot(metrics.InFlight.LONG_RUNNING)
_IN_FLIGHT_READ_ONLY = metrics.REQUESTS_IN_FLIGHT.slot(metrics.InFlight.READ_ONLY)
_IN_FLIGHT_MUTATING = metrics.REQUESTS_IN_FLIGHT.slot(metrics.InFlight.MUTATING)
