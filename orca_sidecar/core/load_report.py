"""The load report, named as the proto ``xds.data.orca.v3.OrcaLoadReport`` (CNCF xDS; Envoy's ORCA).

One rule for all encodings: a report is said whole or not at all. Envoy 1.40 drops a report in which a
single figure is NaN, infinite, empty or negative, and one whose rate or utilization is 0 gives no weight; so
``checked`` refuses the former and lifts the latter to the smallest figure that four decimals can say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

SMALLEST = 0.0001
"""The smallest utilization or rate that is reported; 0 would mean "no report" to Envoy."""

FIELDS: tuple[str, ...] = (
    "application_utilization",
    "cpu_utilization",
    "mem_utilization",
    "rps_fractional",
    "eps",
)
"""The proto's scalar fields, in the order in which they are reported unless configured otherwise."""

NAMED_METRICS: tuple[str, ...] = (
    "inflight_read_only",
    "inflight_mutating",
    "inflight_share",
    "target_cpu",
    "target_memory",
    "node_cpu",
    "node_memory",
)
"""Names that may be configured as ``named_metrics.NAME``: requests in flight (smoothed counts;
``inflight_share`` of ``inflightLimit``), and the parts of which cpu_utilization and mem_utilization are the
larger."""


class Format(IntEnum):
    """How a report is written into the ``endpoint-load-metrics`` header; names as on the wire."""

    TEXT = 0
    JSON = 1
    BIN = 2


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One report. Utilizations are shares (1.0 = all of it), rates are per second.

    ``cpu_utilization`` and ``application_utilization`` may exceed 1; ``mem_utilization`` and the values of
    ``utilization`` may not (the proto's ranges).
    """

    application_utilization: float = 0.0
    cpu_utilization: float = 0.0
    mem_utilization: float = 0.0
    rps_fractional: float = 0.0
    eps: float = 0.0
    named_metrics: Mapping[str, float] = field(default_factory=dict)
    utilization: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> Iterator[tuple[str, float]]:
        """Every figure with its name in format TEXT: the scalars, then ``named_metrics.*`` and
        ``utilization.*``."""
        for name in FIELDS:
            yield name, getattr(self, name)
        for name, value in self.named_metrics.items():
            yield f"named_metrics.{name}", value
        for name, value in self.utilization.items():
            yield f"utilization.{name}", value

    def checked(self) -> LoadReport | None:
        """The report with every figure in its proto range, or None if one is NaN, infinite or negative."""
        if not all(0 <= value < math.inf for _, value in self.figures()):
            return None
        return LoadReport(
            application_utilization=max(self.application_utilization, SMALLEST),
            cpu_utilization=max(self.cpu_utilization, SMALLEST),
            mem_utilization=min(max(self.mem_utilization, SMALLEST), 1.0),
            rps_fractional=max(self.rps_fractional, SMALLEST),
            eps=self.eps + 0.0,  # -0.0 would be written "-0.0000"
            named_metrics={name: value + 0.0 for name, value in self.named_metrics.items()},
            utilization={name: min(max(v, SMALLEST), 1.0) for name, v in self.utilization.items()},
        )
