"""Which reports are said, and how their figures are brought into the proto's ranges."""

import math

import pytest

from orca_sidecar.core.load_report import FIELDS, SMALLEST, LoadReport


def test_a_sound_report_is_unchanged() -> None:
    report = LoadReport(1.5, 1.2, 0.4, 10.0, 0.5, {"inflight_read_only": 0.0}, {"disk": 0.3})
    assert report.checked() == report


def test_utilizations_and_rate_are_never_zero() -> None:
    checked = LoadReport(eps=0.0).checked()
    assert checked is not None
    assert [getattr(checked, name) for name in FIELDS] == [SMALLEST, SMALLEST, SMALLEST, SMALLEST, 0.0]


def test_shares_of_memory_and_utilization_entries_end_at_one() -> None:
    checked = LoadReport(mem_utilization=1.7, cpu_utilization=1.7, utilization={"disk": 2.0}).checked()
    assert checked is not None
    assert (checked.mem_utilization, checked.cpu_utilization) == (1.0, 1.7)
    assert checked.utilization == {"disk": 1.0}


def test_negative_zero_is_written_as_zero() -> None:
    checked = LoadReport(eps=-0.0, named_metrics={"a": -0.0}).checked()
    assert checked is not None
    assert math.copysign(1.0, checked.eps) == 1.0
    assert math.copysign(1.0, checked.named_metrics["a"]) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.001])
@pytest.mark.parametrize("name", [*FIELDS, "named_metrics", "utilization"])
def test_one_unsound_figure_refuses_the_whole_report(name: str, bad: float) -> None:
    value: object = {"a": 0.5, "b": bad} if name in ("named_metrics", "utilization") else bad
    assert LoadReport(**{name: value}).checked() is None  # type: ignore[arg-type]
