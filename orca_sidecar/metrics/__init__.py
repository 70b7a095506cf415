"""Every metric of the sidecar, declared once.

On the hot path a metric is arithmetic on indices that are known beforehand:

    cells[REQUESTS.slot(info.verb_index, 200, info.long_running)] += 1
    cells[offset + info.verb_index * s0 + 200 * s1 + info.long_running] += 1  # the same, inlined

where `offset` is `REQUESTS.offset` and (s0, s1, 1) is `REQUESTS.strides`. Names follow Prometheus: base
units, and counters end in `_total`. docs/metrics.md describes each for those who read them.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from prometheus_client import Metric
from prometheus_client.registry import Collector as PrometheusCollector

from orca_sidecar.core import identity, opt_in
from orca_sidecar.core.errors import LocalReplyReason, Termination
from orca_sidecar.core.load_report import Format
from orca_sidecar.core.request_info import VERBS
from orca_sidecar.metrics.families import (
    CELL_BYTES,
    FAMILIES,
    KEYED_FAMILIES,
    Computed,
    Counter,
    Gauge,
    Histogram,
    KeyedCounter,
    layout,
)
from orca_sidecar.metrics.families import Cells as Cells
from orca_sidecar.metrics.families import KeyedRecorder as KeyedRecorder

_PAGE_CELLS: Final = mmap.PAGESIZE // CELL_BYTES
_BLOCK_CELLS: Final = 64
_ZEROS: Final = bytes(_BLOCK_CELLS * CELL_BYTES)


class InFlight(IntEnum):
    """What a request in flight counts as; kube-apiserver's two limits leave long-running ones out."""

    READ_ONLY = 0
    MUTATING = 1
    LONG_RUNNING = 2


class Where(IntEnum):
    """The part of a message."""

    HEADER = 0
    TRAILER = 1


class HandshakeFailure(IntEnum):
    """Why a TLS handshake did not complete."""

    NO_CERTIFICATE_TRUST = 0
    """The caller's certificate, or the sidecar's for the caller, was not accepted."""
    PROTOCOL = 1
    """No common version or cipher, or no TLS at all."""
    TIMEOUT = 2
    CLOSED = 3
    """The peer went away: TCP probes do."""
    OTHER = 4


class ConnectionState(IntEnum):
    """Of an upstream connection."""

    ACTIVE = 0
    IDLE = 1


class Result(IntEnum):
    """How an attempt ended."""

    OK = 0
    ERROR = 1


CODES: Final = tuple(str(code) for code in range(600))
"""Status codes by themselves; 0 where there was no response, or one with no valid code."""
BOOLEANS: Final = ("false", "true")

REQUESTS: Final = Counter(
    "requests_total",
    "Requests by kube verb and the status code sent to the caller (0: none was).",
    sparse=True,
    verb=VERBS,
    code=CODES,
    long_running=BOOLEANS,
)
REQUEST_DURATION: Final = Histogram(
    "request_duration_seconds",
    "Time from a request's head to the end of its response, long-running requests left out.",
    sparse=True,
    verb=VERBS,
)
REQUESTS_IN_FLIGHT: Final = Gauge(
    "requests_in_flight", "Requests being answered. Upgraded connections are not among them.", kind=InFlight
)
REQUESTS_BY_IDENTITY: Final = Counter(
    "requests_by_identity_total",
    "Requests by what the caller's connection proved.",
    identity=identity.CallerKind,
)
LOAD_BALANCED_REQUESTS: Final = Counter(
    "load_balanced_requests_total", "Requests that count in rps_fractional (rpsScope)."
)
LOAD_BALANCED_ERRORS: Final = Counter(
    "load_balanced_errors_total", "Those of them answered with 429 or 5xx: what eps counts."
)
LOAD_REPORTS_ATTACHED: Final = Counter(
    "load_reports_attached_total", "Responses that carried a load report.", format=Format
)
LOAD_REPORT_REFUSALS: Final = Counter(
    "load_report_refusals_total",
    "Requests that asked for a load report and got none.",
    reason=opt_in.Refusal,
)
BACKEND_REPORTS_STRIPPED: Final = Counter(
    "backend_reports_stripped_total", "Load reports of a backend removed from responses.", where=Where
)
FORGED_IDENTITY_HEADERS_STRIPPED: Final = Counter(
    "forged_identity_headers_stripped_total",
    "Identity headers removed from requests whose sender was not entitled to them.",
    kind=identity.CallerKind,
)
IDENTITY_REFUSALS: Final = Counter(
    "identity_refusals_total",
    "Requests answered with 401 because the identity could not be asserted.",
    reason=identity.Refusal,
)
TERMINATIONS: Final = Counter("terminations_total", "How exchanges ended.", reason=Termination)
LOCAL_REPLIES: Final = Counter(
    "local_replies_total",
    "Responses made by the sidecar itself.",
    sparse=True,
    reason=LocalReplyReason,
    code=CODES,
)
PRIORITY_LEVEL_REJECTIONS: Final = KeyedCounter(
    "priority_level_rejections_total",
    "429 responses of kube-apiserver by the UID of the priority level that was full.",
    "priority_level_uid",
)
DOWNSTREAM_CONNECTIONS: Final = Gauge("downstream_connections", "Open connections of callers.")
DOWNSTREAM_CONNECTIONS_TOTAL: Final = Counter(
    "downstream_connections_total", "Connections accepted from callers, failed handshakes included."
)
HANDSHAKE_FAILURES: Final = Counter(
    "handshake_failures_total", "TLS handshakes with callers that failed.", reason=HandshakeFailure
)
UPGRADES: Final = Gauge("upgrades", "Open upgraded connections: exec, attach, port-forward.")
UPSTREAM_CONNECTIONS: Final = Gauge(
    "upstream_connections",
    "Open connections to kube-apiserver.",
    pool=identity.Pool,
    state=ConnectionState,
)
UPSTREAM_CONNECTS: Final = Counter(
    "upstream_connects_total", "Attempts to connect to kube-apiserver.", pool=identity.Pool, result=Result
)
UPSTREAM_RETRIES: Final = Counter(
    "upstream_retries_total", "Requests sent again because an idle upstream connection had been closed."
)
CERTIFICATE_RELOADS: Final = Counter(
    "certificate_reloads_total",
    "Changed certificate files that were taken over (ok), or refused and the last good ones kept (error).",
    result=Result,
)

BUILD_INFO: Final = Computed("build_info", "Always 1; versions in the labels.", "version", "python")
WORKERS: Final = Computed("workers", "Worker processes running.")
UPSTREAM_READY: Final = Computed("upstream_ready", "1 while kube-apiserver answers the probe of /readyz.")
SAMPLER_AGE: Final = Computed("sampler_age_seconds", "Age of the latest load sample.")
LOAD_REPORT: Final = Computed("load_report", "The load report's latest values, by field.", "field")
CERTIFICATE_NOT_AFTER: Final = Computed(
    "certificate_not_after_seconds", "End of a certificate's validity, Unix time, by file.", "file"
)

CELLS: Final = layout.cells
"""Cells of one process."""


def new_cells(processes: int) -> list[Cells]:
    """Zeroed segments for `processes` processes, in memory that stays shared over a fork."""
    length = -(-CELLS // _PAGE_CELLS) * _PAGE_CELLS  # whole pages: no two writers in one cache line
    shared = memoryview(mmap.mmap(-1, processes * length * CELL_BYTES)).cast("q")
    return [shared[number * length : (number + 1) * length] for number in range(processes)]


def reset_gauges(cells: Cells) -> None:
    """Zero the gauges of a process that died, before its segment is used again. Its counters stay."""
    for family in FAMILIES:
        if isinstance(family, Gauge):
            for slot in range(family.offset, family.offset + family.size):
                cells[slot] = 0


class Collector(PrometheusCollector):
    """All metrics, for prometheus_client. `callbacks` are called at each scrape for the `Computed` ones."""

    def __init__(
        self, all_cells: Sequence[Cells], callbacks: Iterable[Callable[[], Iterable[Metric]]] = ()
    ) -> None:
        self._all_cells = all_cells
        self._callbacks = tuple(callbacks)

    def collect(self) -> Iterator[Metric]:
        """Every family once."""
        totals = _totals(self._all_cells)
        for family in FAMILIES:
            yield family.collect(totals)
        for keyed in KEYED_FAMILIES:
            yield keyed.collect(self._all_cells)
        for callback in self._callbacks:
            yield from callback()


def _totals(all_cells: Iterable[Cells]) -> dict[int, int]:
    """Every cell that is not zero, summed. Nearly all are: blocks of zeros are passed over without a look."""
    totals: dict[int, int] = {}
    for cells in all_cells:
        raw = cells.tobytes()
        for start in range(0, CELLS, _BLOCK_CELLS):
            end = start + _BLOCK_CELLS
            if raw[start * CELL_BYTES : end * CELL_BYTES] != _ZEROS:
                for slot, value in enumerate(cells[start:end], start):
                    if value:
                        totals[slot] = totals.get(slot, 0) + value
    return totals
