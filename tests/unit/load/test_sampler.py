"""One step of the sampler at a time: what it publishes, when it withdraws, and what is averaged together."""

import asyncio
import contextlib
import math
from typing import Any

import pytest
from xds.data.orca.v3.orca_load_report_pb2 import OrcaLoadReport

from orca_sidecar.core.load_report import Format
from orca_sidecar.load.sampler import Sampler, Totals
from orca_sidecar.load.sources import Load, TargetMissing
from orca_sidecar.report_cell import ReportCell
from orca_sidecar.settings.load_metrics import LoadMetricsSettings

STEP = 100_000_000  # ns


class Machine:
    """A target, the counters and the readiness that a test sets; `step` lets 100 ms of them pass."""

    def __init__(self, **settings: Any) -> None:
        self.load: Load | None = Load(0.5, 0.4)
        self.missing = ""
        self.ready = True
        self.totals: Totals | None = Totals(0, 0, 0, 0, 0)
        self.now = 0
        self.cell = ReportCell()
        self.sampler = Sampler(
            LoadMetricsSettings.model_validate(settings),
            self,
            self.counters,
            self.cell,
            lambda: "" if self.ready else "kube-apiserver is not ready",
        )

    def measure(self, now_ns: int) -> Load | None:
        if self.missing:
            raise TargetMissing(self.missing)
        return self.load

    def counters(self, now_ns: int) -> Totals | None:
        return self.totals

    def step(self, requests: int = 0, errors: int = 0, steps: int = 1) -> None:
        for _ in range(steps):
            self.now += STEP
            if self.totals is not None:
                self.totals = self.totals._replace(
                    taken_ns=self.now,
                    requests=self.totals.requests + requests,
                    errors=self.totals.errors + errors,
                )
            self.sampler.sample(self.now)

    def text(self) -> str:
        return self.cell.line(Format.TEXT, self.now).decode()


def test_a_steady_load_is_reported_as_it_is() -> None:
    machine = Machine()
    machine.step(requests=10, errors=1, steps=50)
    report = machine.sampler.latest
    assert report is not None
    assert report.rps_fractional == pytest.approx(100.02)  # with rpsFloor
    assert report.eps == pytest.approx(10.0)
    assert report.cpu_utilization == pytest.approx(0.5)
    assert report.mem_utilization == pytest.approx(0.4)
    assert report.application_utilization == pytest.approx(1.0)
    assert machine.sampler.detail == ""
    assert machine.text() == (
        "endpoint-load-metrics: TEXT application_utilization=1.0000, cpu_utilization=0.5000, "
        "mem_utilization=0.4000, rps_fractional=100.0200, eps=10.0000\r\n"
    )


def test_case_25_an_idle_node_reports_a_rate_and_utilizations_above_zero() -> None:
    machine = Machine()
    machine.load = Load(0.0, 0.0)
    machine.step(steps=100)
    assert machine.text() == (
        "endpoint-load-metrics: TEXT application_utilization=0.0001, cpu_utilization=0.0001, "
        "mem_utilization=0.0001, rps_fractional=2.0000, eps=0.0000\r\n"
    )


def test_case_25_nothing_is_reported_before_there_is_a_rate() -> None:
    machine = Machine()
    machine.step()
    assert machine.text() == ""
    assert machine.sampler.detail == "no request rate"
    machine.step()
    assert machine.text() != ""


def test_case_25_a_sampler_that_stopped_leaves_no_report_behind() -> None:
    machine = Machine()
    machine.step(steps=5)
    sampler, late = machine.sampler, machine.now + 1_100_000_000
    assert sampler.current(machine.now) is not None
    assert sampler.encoded(machine.now) != b""
    assert machine.cell.line(Format.TEXT, late) == b""
    assert sampler.current(late) is None
    assert sampler.encoded(late) == b""


def test_rate_and_utilization_follow_a_change_of_load_together() -> None:
    machine = Machine(report={"rpsFloor": 0})
    machine.load = Load(0.1, 0.0)
    machine.step(requests=5, steps=100)
    machine.load = Load(0.6, 0.0)
    for _ in range(30):
        machine.step(requests=30)
        report = machine.sampler.latest
        assert report is not None
        assert report.rps_fractional / report.cpu_utilization == pytest.approx(500)


def test_the_report_is_withdrawn_while_kube_apiserver_is_not_ready() -> None:
    machine = Machine()
    machine.step(requests=10, steps=20)
    machine.ready = False
    machine.step(requests=10, steps=20)
    assert machine.text() == ""
    assert machine.sampler.latest is None
    assert machine.sampler.encoded(machine.now) == b""
    assert machine.sampler.detail == "kube-apiserver is not ready"
    machine.ready = True
    machine.step(requests=10)
    report = machine.sampler.latest
    assert report is not None
    assert report.rps_fractional == pytest.approx(100.02)  # the filter ran on


def test_a_missing_target_withdraws_the_report_and_its_successor_starts_from_nothing() -> None:
    machine = Machine()
    machine.load = Load(0.9, 0.4)
    machine.step(requests=10, steps=20)
    machine.missing = "a process named 'kube-apiserver': not found"
    machine.step(requests=10)
    assert machine.text() == ""
    assert machine.sampler.detail == machine.missing
    machine.missing, machine.load = "", None
    machine.step(requests=10)
    assert machine.sampler.detail == "the target's first reading"
    machine.load = Load(0.1, 0.4)
    machine.step(requests=10, steps=2)
    report = machine.sampler.latest
    assert report is not None
    assert report.cpu_utilization == pytest.approx(0.1)


def test_the_log_tells_each_change_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    with caplog.at_level("INFO"):
        machine.step(steps=10)
        machine.ready = False
        machine.step(steps=10)
        machine.ready = True
        machine.step(steps=10)
    assert caplog.messages == [
        "load reports withheld: no request rate",
        "load is reported",
        "load reports withheld: kube-apiserver is not ready",
        "load is reported",
    ]


@pytest.mark.parametrize("name", Load._fields)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5])
def test_a_figure_that_is_none_withdraws_the_report(bad: float, name: str) -> None:
    machine = Machine()
    machine.step(steps=20)
    machine.load = Load(0.5, 0.4)._replace(**{name: bad})
    machine.step()
    assert machine.text() == ""
    assert machine.sampler.detail == "a figure is negative or not finite"
    machine.load = Load(0.5, 0.4)
    machine.step()
    assert machine.text() != ""


def test_counters_that_fall_count_as_nothing_new() -> None:
    machine = Machine()
    machine.step(requests=10, steps=20)
    machine.step(requests=-200)
    report = machine.sampler.latest
    assert report is not None
    assert 80 < report.rps_fractional < 100


def test_totals_that_come_seldom_make_one_step_with_the_cpu_of_the_same_time() -> None:
    machine = Machine(report={"rpsFloor": 0}, sampler={"smoothing": "1ms", "interval": "100ms"})
    machine.totals = None
    machine.step(steps=3)
    assert machine.sampler.detail == "no request rate"

    def scraped(requests: int, steps: int, cpu: float) -> None:
        for index in range(steps):
            machine.load = Load(cpu if index % 2 else 0.0, 0.3)
            machine.now += STEP
            if index == steps - 1:
                machine.totals = Totals(machine.now, requests, 0, 0, 0)
            machine.sampler.sample(machine.now)

    scraped(1000, 50, 0.8)
    scraped(1500, 50, 0.8)
    report = machine.sampler.latest
    assert report is not None
    assert report.rps_fractional == pytest.approx(100, rel=0.05)
    assert report.cpu_utilization == pytest.approx(0.4, rel=0.05)


def test_totals_that_are_no_longer_recent_withdraw_the_report() -> None:
    machine = Machine()
    machine.step(requests=10, steps=20)
    totals, machine.totals = machine.totals, None
    machine.step()
    assert machine.text() == ""
    assert machine.sampler.detail == "no request rate"
    machine.totals = totals
    machine.step(requests=10)
    assert machine.text() == ""
    machine.step(requests=10)
    assert machine.text() != ""


def test_fields_formats_separator_and_named_metrics_are_as_configured() -> None:
    machine = Machine(
        formats=["TEXT", "JSON"],
        report={
            "fields": ["rps_fractional", "cpu_utilization"],
            "namedMetrics": ["inflight_read_only", "inflight_mutating", "inflight_share", "node_cpu"],
            "textSeparator": ":",
            "applicationUtilization": {"inflightLimit": 100},
        },
    )
    machine.load = Load(0.2, 0.1, 0.3, 0.2)
    machine.totals = Totals(0, 0, 0, 30, 10)
    machine.step(requests=10, steps=20)
    assert machine.text() == (
        "endpoint-load-metrics: TEXT rps_fractional:100.0200, cpu_utilization:0.3000, "
        "named_metrics.inflight_read_only:30.0000, named_metrics.inflight_mutating:10.0000, "
        "named_metrics.inflight_share:0.4000, named_metrics.node_cpu:0.3000\r\n"
    )
    assert b"JSON {" in machine.cell.line(Format.JSON, machine.now)
    assert machine.cell.line(Format.BIN, machine.now) == b""
    assert machine.sampler.latest is not None
    assert machine.sampler.latest.application_utilization == pytest.approx(0.4 / 0.6)


def test_out_of_band_says_what_the_header_says() -> None:
    machine = Machine(report={"namedMetrics": ["target_memory"]})
    machine.step(requests=7, steps=20)
    message = OrcaLoadReport.FromString(machine.sampler.encoded(machine.now))
    said = dict(pair.split("=") for pair in machine.text().strip().split("TEXT ")[1].split(", "))
    for name in ("application_utilization", "cpu_utilization", "mem_utilization", "rps_fractional", "eps"):
        assert f"{getattr(message, name):.4f}" == said[name]
    assert f"{message.named_metrics['target_memory']:.4f}" == said["named_metrics.target_memory"]


async def test_run_samples_until_it_is_cancelled() -> None:
    machine = Machine(sampler={"interval": "10ms"})
    samples = asyncio.Event()
    seen = []

    def counters(now_ns: int) -> Totals:
        seen.append(now_ns)
        if len(seen) == 3:
            samples.set()
        return Totals(now_ns, len(seen), 0, 0, 0)

    machine.sampler._counters = counters
    task = asyncio.create_task(machine.sampler.run())
    await asyncio.wait_for(samples.wait(), 10)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert seen == sorted(seen)
    assert machine.sampler.latest is not None


def test_a_step_too_short_to_measure_over_changes_nothing() -> None:
    machine = Machine()
    machine.step(requests=10, steps=20)
    before = machine.text()
    assert before
    machine.load = None  # what sources say of a step below a millisecond
    machine.sampler.sample(machine.now + 500_000)
    assert machine.text() == before
    assert machine.sampler.sampled_at_ns == machine.now


async def test_a_late_step_is_followed_by_a_whole_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    taken: list[float] = []
    slept: list[float] = []
    loop = asyncio.get_running_loop()
    clock = [100.0]

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError
        clock[0] += seconds + (0.35 if len(slept) == 2 else 0.0)  # the loop was busy after the second step

    monkeypatch.setattr(loop, "time", lambda: clock[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(machine.sampler, "sample", lambda now_ns: taken.append(clock[0]))
    with contextlib.suppress(asyncio.CancelledError):
        await machine.sampler.run()
    assert slept == pytest.approx([0.1, 0.1, 0.1, 0.1])
    assert taken == pytest.approx([100.0, 100.1, 100.55, 100.65])
