"""The report cell within one process, across a fork, and with a writer that dies half-way."""

import mmap
import os
import struct

import pytest

from orca_sidecar import report_cell
from orca_sidecar.core.load_report import Format
from orca_sidecar.report_cell import ReportCell

SECOND = 1_000_000_000
TEXT = b"endpoint-load-metrics: TEXT a=1\r\n"
JSON = b"endpoint-load-metrics: JSON {}\r\n"


def test_nothing_before_the_first_publication() -> None:
    cell = ReportCell()
    assert cell.line(Format.TEXT, 0) == b""


def test_each_format_has_its_line_and_those_not_rendered_have_none() -> None:
    cell = ReportCell()
    cell.publish({Format.TEXT: TEXT, Format.JSON: JSON}, 5)
    assert [cell.line(format_, 5) for format_ in Format] == [TEXT, JSON, b""]


def test_a_stale_report_is_not_handed_out_and_a_fresh_one_is_again() -> None:
    cell = ReportCell(stale_after=1.0)
    cell.publish({Format.TEXT: TEXT}, 0)
    assert cell.line(Format.TEXT, SECOND) == TEXT
    assert cell.line(Format.TEXT, SECOND + 1) == b""
    cell.publish({Format.TEXT: TEXT}, SECOND)
    assert cell.line(Format.TEXT, SECOND + 1) == TEXT


def test_withdraw_takes_the_report_away_until_the_next_one() -> None:
    cell = ReportCell()
    cell.publish({Format.TEXT: TEXT}, 0)
    cell.withdraw()
    assert cell.line(Format.TEXT, 0) == b""
    cell.publish({Format.TEXT: TEXT}, 0)
    assert cell.line(Format.TEXT, 0) == TEXT


def test_a_report_that_does_not_fit_is_refused_and_the_last_one_stays() -> None:
    cell = ReportCell()
    cell.publish({Format.TEXT: TEXT}, 0)
    with pytest.raises(ValueError, match="does not fit"):
        cell.publish({Format.TEXT: b"x" * 20_000}, 1)
    assert cell.line(Format.TEXT, 0) == TEXT


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> list[mmap.mmap]:
    """The shared mappings that cells are made on, to write into behind their backs."""
    made: list[mmap.mmap] = []

    class Recorded(mmap.mmap):
        def __init__(self, *_: object) -> None:
            made.append(self)

    monkeypatch.setattr(report_cell.mmap, "mmap", Recorded)
    return made


def sequence(mapping: mmap.mmap) -> int:
    (value,) = struct.unpack_from("q", mapping, 0)
    assert isinstance(value, int)
    return value


def test_a_writer_that_died_half_way_leaves_the_last_report_until_stale(mapping: list[mmap.mmap]) -> None:
    cell = ReportCell()
    cell.publish({Format.TEXT: TEXT}, 0)
    assert cell.line(Format.TEXT, 0) == TEXT
    struct.pack_into("q", mapping[0], 0, sequence(mapping[0]) + 1)
    assert cell.line(Format.TEXT, 0) == TEXT
    assert cell.line(Format.TEXT, 2 * SECOND) == b""
    cell.publish({Format.TEXT: TEXT}, 2 * SECOND)  # its successor
    assert sequence(mapping[0]) % 2 == 0
    assert cell.line(Format.TEXT, 2 * SECOND) == TEXT


def test_a_torn_copy_is_not_handed_out(mapping: list[mmap.mmap]) -> None:
    cell = ReportCell()
    cell.publish({Format.TEXT: TEXT}, 0)
    position = mapping[0].find(b"TEXT")
    mapping[0][position : position + 4] = b"TExT"
    assert cell.line(Format.TEXT, 0) == b""
    mapping[0][position : position + 4] = b"TEXT"
    assert cell.line(Format.TEXT, 0) == TEXT


def test_readers_in_another_process_see_whole_reports_only() -> None:
    """A forked child publishes lines of changing length as fast as it can; no torn line is ever read."""
    cell = ReportCell()
    cell.publish({Format.TEXT: b"0:" + b"0" * 10}, 0)
    child = os.fork()
    if child == 0:
        try:
            for number in range(1, 20_000):
                digit = b"%d" % (number % 10)
                length = number % 700
                cell.publish({Format.TEXT: digit + b":" + digit * length, Format.BIN: digit * 3}, 0)
            cell.publish({Format.TEXT: b"end"}, 0)
        finally:
            os._exit(0)
    seen = set()
    done = False
    while not done:
        done = os.waitpid(child, os.WNOHANG)[0] == child
        line = cell.line(Format.TEXT, 0)
        seen.add(line)
        if line != b"end":
            digit, _, rest = line.partition(b":")
            assert rest == digit * len(rest)
    assert cell.line(Format.TEXT, 0) == b"end"
    assert len(seen) > 1
