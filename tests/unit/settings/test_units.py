"""Durations and sizes: the notations of Go and Kubernetes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.settings.units import format_duration, format_size, parse_duration, parse_size

NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("100ms", 0.1),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("2us", 2e-6),
        ("2µs", 2e-6),
        ("2μs", 2e-6),
        ("1h0m0.25s", 3600.25),
        ("30s1m", 90.0),
        ("1.9ns", 1e-9),
    ],
)
def test_reads_what_go_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "60",
        "s",
        ".s",
        "-1s",
        "+1s",
        "1 s",
        "1s ",
        "1d",
        "1S",
        "1M",
        "1s1",
        "１s",
        "1e3s",
        "1s\n",
        "1..5s",
    ],
)
def test_refuses_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


def test_refuses_what_int64_nanoseconds_cannot_hold() -> None:
    assert parse_duration("2562047h") == 2562047 * 3600
    with pytest.raises(ValueError):
        parse_duration("2562048h")
    with pytest.raises(ValueError):
        parse_duration("9" * 10_000 + "s")


@given(
    st.lists(
        st.tuples(st.integers(0, 999), st.integers(0, 999), st.sampled_from(sorted(NANOSECONDS))),
        min_size=1,
        max_size=4,
    )
)
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, int, str]]) -> None:
    text = "".join(f"{whole}.{fraction:03}{unit}" for whole, fraction, unit in parts)
    exact = sum(
        int((whole + Fraction(fraction, 1000)) * NANOSECONDS[unit]) for whole, fraction, unit in parts
    )
    assert parse_duration(text) == exact / 1e9


@given(st.integers(0, 30 * 24 * 3600 * 10**9))
def test_a_formatted_duration_reads_back_equal(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds / 1e9)) == nanoseconds / 1e9


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.1, "100ms"),
        (1e-6, "1us"),
        (1.5, "1.5s"),
        (90.0, "1m30s"),
        (3600.0, "1h"),
        (1e-9, "1ns"),
        (60.0, "1m"),
    ],
)
def test_formats_as_go_does_without_zero_parts(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64Ki", 65536),
        ("1Mi", 1 << 20),
        ("1Gi", 1 << 30),
        ("2k", 2000),
        ("1M", 10**6),
        ("0.5Ki", 512),
        ("1G", 10**9),
    ],
)
def test_reads_kubernetes_quantities(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1MB",
        "1mi",
        "64K",
        "1KiB",
        "-1",
        "1 Ki",
        "1.5",
        "0.3Ki",
        "Ki",
        "1e3",
        "1m",
        "٣Ki",
        "1Ki\n",
        "9" * 10_000,
    ],
)
def test_refuses_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


@given(st.integers(0, 1 << 40))
def test_a_formatted_size_reads_back_equal(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 1023), st.sampled_from(["", "Ki", "Mi", "Gi"]))
def test_a_size_keeps_its_unit(number: int, unit: str) -> None:
    assert format_size(parse_size(f"{number}{unit}")) == f"{number}{unit}"
