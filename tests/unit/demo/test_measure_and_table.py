import io

import pytest

from orca_sidecar.demo.measure import Reading, Snapshot, summarize
from orca_sidecar.demo.table import LiveTable, plain_line, render


def reading(requests: int, cpu_seconds: float, weight: int = 1) -> Reading:
    return Reading(requests=requests, cpu_seconds=cpu_seconds, weight=weight, cores=2)


FIRST = Snapshot(100.0, {"a": reading(1000, 50.0), "b": reading(0, 7.0)})
LAST = Snapshot(110.0, {"a": reading(1030, 66.0, 3), "b": reading(90, 11.0, 270)})


def test_a_summary_is_of_the_time_between_two_snapshots():
    summary = summarize(FIRST, LAST)
    assert summary.share == {"a": 0.25, "b": 0.75}
    assert summary.utilization == pytest.approx({"a": 0.8, "b": 0.2})
    assert summary.weight == {"a": 3, "b": 270}
    assert summary.max_over_mean == pytest.approx(1.6)


def test_a_quiet_stretch_divides_nothing_by_nothing():
    summary = summarize(FIRST, Snapshot(101.0, FIRST.nodes))
    assert summary.share == {"a": 0.0, "b": 0.0}
    assert summary.max_over_mean == 1.0


def test_the_json_of_a_summary():
    assert summarize(FIRST, LAST).to_json() == {
        "share": {"a": 0.25, "b": 0.75},
        "utilization": {"a": 0.8, "b": 0.2},
        "weight": {"a": 3, "b": 270},
        "maxOverMean": 1.6,
    }


def test_the_table_has_a_line_a_node():
    lines = render(summarize(FIRST, LAST), "title")
    assert lines[0] == "title"
    assert lines[2].split() == ["a", "25.0%", "█" * 24 + "·" * 6, "80.0%", "3"]
    assert lines[3].split() == ["b", "75.0%", "█" * 6 + "·" * 24, "20.0%", "270"]
    assert lines[4].strip() == "busiest node over the mean: 1.60"


def test_utilization_above_one_does_not_outgrow_its_bar():
    overloaded = Snapshot(101.0, {"a": reading(1001, 52.4), "b": reading(1, 9.0)})
    assert "█" * 30 + " 120.0%" in render(summarize(FIRST, overloaded), "t")[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_redrawn_in_place():
    out = Terminal()
    table = LiveTable(out)
    table.show(summarize(FIRST, LAST), "one")
    table.show(summarize(FIRST, LAST), "two")
    first, second = out.getvalue().split("\x1b[5A")
    assert first.count("\n") == second.count("\n") == 5


def test_without_a_terminal_there_are_plain_lines_and_no_escapes():
    out = io.StringIO()
    table = LiveTable(out)
    for title in ("one", "two", "three", "four"):
        table.show(summarize(FIRST, LAST), title)
    assert out.getvalue().splitlines() == [
        plain_line(summarize(FIRST, LAST), "two"),
        plain_line(summarize(FIRST, LAST), "four"),
    ]
    assert "\x1b" not in out.getvalue()
