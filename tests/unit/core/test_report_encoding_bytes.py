"""The header value's exact bytes; that other programs read them is tested in tests/conformance."""

import math

import pytest

from orca_sidecar.core.load_report import Format, LoadReport
from orca_sidecar.core.report_encoding import encode_bin, encode_json, encode_text, header_line, render

REPORT = LoadReport(0.4361, 0.3, 0.5123, 10.2, 0.0)


def test_text_is_exactly_what_envoy_reads() -> None:
    assert render(REPORT, [Format.TEXT])[Format.TEXT] == (
        b"endpoint-load-metrics: TEXT application_utilization=0.4361, cpu_utilization=0.3000, "
        b"mem_utilization=0.5123, rps_fractional=10.2000, eps=0.0000\r\n"
    )


def test_text_separator_for_older_envoys_and_configured_order() -> None:
    assert encode_text(REPORT, ":", ("rps_fractional", "cpu_utilization")) == (
        b"rps_fractional:10.2000, cpu_utilization:0.3000"
    )


def test_named_metrics_and_utilization_entries_follow_the_fields() -> None:
    report = LoadReport(named_metrics={"inflight_mutating": 3.0}, utilization={"disk": 0.25})
    assert encode_text(report, fields=("eps",)) == (
        b"eps=0.0000, named_metrics.inflight_mutating=3.0000, utilization.disk=0.2500"
    )
    assert encode_json(report, ("eps",)) == (
        b'{"eps": 0.0, "named_metrics": {"inflight_mutating": 3.0}, "utilization": {"disk": 0.25}}'
    )


def test_figures_below_the_smallest_are_written_as_the_smallest() -> None:
    report = LoadReport(cpu_utilization=1e-9, rps_fractional=1e-9)
    assert encode_text(report, fields=("cpu_utilization", "rps_fractional")) == (
        b"cpu_utilization=0.0001, rps_fractional=0.0001"
    )


def test_nothing_is_written_in_exponent_notation() -> None:
    report = LoadReport(rps_fractional=1e20, cpu_utilization=0.00012)
    assert b"e" not in encode_text(report, fields=("rps_fractional", "cpu_utilization")).replace(
        b"rps_fractional=", b""
    )


def test_bin_is_base64_of_the_proto() -> None:
    # field 6 (rps_fractional), wire type 1, 10.0
    assert (
        encode_bin(LoadReport(rps_fractional=10.0), ("rps_fractional",)) == b"\x31" + bytes(6) + b"\x24\x40"
    )
    assert header_line(Format.BIN, b"\x31") == b"endpoint-load-metrics: BIN MQ==\r\n"


def test_map_keys_longer_than_one_length_byte() -> None:
    name = "n" * 200
    encoded = encode_bin(LoadReport(named_metrics={name: 1.0}), ())
    # entry: 1 tag + 2 length + 200 key + 1 tag + 8 value = 212 = 0xd4 0x01
    assert encoded.startswith(b"\x42\xd4\x01\x0a\xc8\x01" + name.encode())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_an_unsound_report_has_no_encoding(bad: float) -> None:
    report = LoadReport(eps=bad)
    assert (encode_text(report), encode_json(report), encode_bin(report)) == (b"", b"", b"")
    assert encode_text(LoadReport(eps=1.0)) != b""
