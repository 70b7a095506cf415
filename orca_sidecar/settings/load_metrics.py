"""``loadMetrics``: what the node says about its load, how it is measured, and to whom it is said."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from orca_sidecar.core.load_report import FIELDS, NAMED_METRICS, Format
from orca_sidecar.settings.addresses import Address
from orca_sidecar.settings.section import Section
from orca_sidecar.settings.values import (
    CgroupGlob,
    Choice,
    Cidr,
    Distinct,
    Duration,
    File,
    Filled,
    Integer,
    ListenAddress,
    Name,
    Number,
    OptionalFile,
    OptionalWord,
    Switch,
)


class OptInSettings(Section):
    """Who may ask for load reports (``endpoint-load-metrics-request``)."""

    gate: Annotated[Literal["frontProxy", "sharedSecret", "open"], Choice()] = "frontProxy"
    """What a request must show: a front proxy's certificate, a shared secret in the header, or nothing."""

    allowed_names: Annotated[tuple[Name, ...], Distinct] = ()
    """CNs of frontProxy.clientCAFile that may ask for reports but speak for nobody."""

    shared_secret_file: OptionalFile = None
    """Holds the secret of gate sharedSecret; the header is then ``TEXT secret=<content>``."""

    open_acknowledged: Switch = False
    """Says that gate open on a listener others can reach is meant."""


class AverageAtLeastSettings(Section):
    """How far the smoothing grows at low rates."""

    requests: Annotated[float, Number(0, 10_000)] = 10.0
    """Requests to average over; 0 leaves the smoothing as it is."""

    at_most: Annotated[float, Duration()] = 10.0
    """The longest the smoothing grows to."""


class MemoryPressureSettings(Section):
    """How memory counts in application_utilization."""

    weight: Annotated[float, Number(0, 100)] = 0.3
    """Weight of the memory term; 0 leaves memory out."""

    from_: Annotated[float, Number(0, 0.99)] = Field(default=0.5, alias="from")
    """Share of the memory limit from which on memory counts."""


class ApplicationUtilizationSettings(Section):
    """application_utilization: h(u) + memory.weight * h(x), h(u) = u/(1-u), above 0.95 its tangent there."""

    memory: MemoryPressureSettings = MemoryPressureSettings()

    inflight_limit: Annotated[int, Integer(0, 1_000_000)] = 0
    """kube-apiserver's two in-flight limits together: u is the larger of CPU and the share in flight.
    0: u is CPU alone."""


class ReportSettings(Section):
    """What a load report holds, and how its figures are made."""

    fields: Annotated[tuple[Annotated[str, Choice(FIELDS)], ...], Distinct] = FIELDS
    """The fields reported, in this order."""

    named_metrics: Annotated[tuple[Annotated[str, Choice(NAMED_METRICS)], ...], Distinct] = ()
    """Further figures, reported as named_metrics.NAME."""

    rps_scope: Annotated[Literal["all", "loadBalanced"], Choice()] = "loadBalanced"
    """Which requests rps_fractional and eps count: all, or those that the load balancer spread."""

    rps_floor: Annotated[float, Number(0, 1_000)] = 2.0
    """The least requests per second reported, as √(rate² + floor²): a starved node keeps reporting."""

    average_at_least: AverageAtLeastSettings = AverageAtLeastSettings()

    application_utilization: ApplicationUtilizationSettings = ApplicationUtilizationSettings()

    text_separator: Annotated[Literal["=", ":"], Choice()] = "="
    """Between name and value in format TEXT; older Envoys read ":" only."""


class TargetSettings(Section):
    """Which process is measured; the first one set wins."""

    cgroup: CgroupGlob = ""
    """Path below the cgroup root; a glob takes its newest match."""

    pid_file: OptionalFile = None
    """File that holds the process id."""

    process_name: OptionalWord = "kube-apiserver"
    """Name of the process."""


class SamplerSettings(Section):
    """How the load is measured."""

    interval: Annotated[float, Duration("10ms", "1m")] = 0.1
    """Between two samples."""

    smoothing: Annotated[float, Duration("1ms", "1h")] = 1.0
    """Time constant of the one filter that rate and utilization pass."""

    stale_after: Annotated[float, Duration("10ms", "1h")] = 1.0
    """Age from which on a sample is not reported."""

    cgroup_root: File = Path("/sys/fs/cgroup")
    """Where cgroups are mounted: v2 if it has cgroup.controllers, else the v1 controllers below it."""

    target: TargetSettings = TargetSettings()

    node: Switch = True
    """CPU and memory are the larger of the target's and the node's."""


class OutOfBandSettings(Section):
    """The gRPC OpenRcaService, with the listener's certificate; callers show a front proxy's, whatever the
    gate."""

    enabled: Switch = False
    """Serve it."""

    address: ListenAddress = Address("0.0.0.0", 6445)  # noqa: S104 - a balancer on another machine dials it
    """Where it listens."""

    min_interval: Annotated[float, Duration("10ms", "1h")] = 0.1
    """The shortest report interval a caller gets."""


class AgentCheckSettings(Section):
    """The HAProxy agent-check, over plain TCP."""

    enabled: Switch = False
    """Serve it."""

    address: ListenAddress = Address("127.0.0.1", 6446)
    """Where it listens."""

    allowed_sources: Annotated[tuple[Cidr, ...], Filled, Distinct] = (ipaddress.IPv4Network("127.0.0.0/8"),)
    """Networks that get an answer; on anyone else the connection is closed."""


class LoadMetricsSettings(Section):
    """Load reports, off by default."""

    enabled: Switch = False
    """Off: nothing about load leaves the node, whatever else this section says."""

    opt_in: OptInSettings = OptInSettings()

    formats: Annotated[tuple[Annotated[str, Choice(tuple(Format.__members__))], ...], Filled, Distinct] = (
        "TEXT",
    )
    """Formats a request may ask for; TEXT is KEP-6315's."""

    report: ReportSettings = ReportSettings()

    sampler: SamplerSettings = SamplerSettings()

    out_of_band: OutOfBandSettings = OutOfBandSettings()

    agent_check: AgentCheckSettings = AgentCheckSettings()
