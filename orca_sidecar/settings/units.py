"""Durations and sizes in Kubernetes notation.

A duration is written as Go's ``time.ParseDuration`` reads it (``1m30s``, ``100ms``, ``1.5h``; 0 needs no
unit) and held in float seconds; a size is a Kubernetes quantity (``1Mi``, ``64Ki``, ``2M``, ``4096``) and
held in int bytes.
"""

from __future__ import annotations

import re
from fractions import Fraction

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, and below U+03BC: Go takes both
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 - 1
"""Nanoseconds: Go's int64."""

_BYTES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|k|M|G|Ki|Mi|Gi)")
_LONGEST_TEXT = 64
"""Characters: no duration or size needs more, and it bounds the arithmetic."""


def parse_duration(text: str) -> float:
    """Seconds of a Go duration; parts of a nanosecond are cut off. ValueError if it is none, or negative."""
    if text == "0":
        return 0.0
    parts = _DURATION_PART.findall(text)
    if not parts or len(text) > _LONGEST_TEXT or "".join(map("".join, parts)) != text:
        raise ValueError(f"not a duration: {text!r}")
    total = sum(int(Fraction(number.rstrip(".")) * _NANOSECONDS[unit]) for number, unit in parts)
    if total > _LONGEST:
        raise ValueError(f"longer than 292 years: {text!r}")
    return total / 1e9


def format_duration(seconds: float) -> str:
    """The duration as Go would print it, without parts that are 0: ``90.0`` is ``1m30s``."""
    nanoseconds = round(seconds * 1e9)
    if nanoseconds < 1_000_000_000:
        for unit in ("ms", "us", "ns"):
            if nanoseconds % _NANOSECONDS[unit] == 0:
                return f"{nanoseconds // _NANOSECONDS[unit]}{unit}" if nanoseconds else "0s"
    hours, rest = divmod(nanoseconds, _NANOSECONDS["h"])
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    whole, fraction = divmod(rest, _NANOSECONDS["s"])
    text = f"{hours}h" * bool(hours) + f"{minutes}m" * bool(minutes)
    if rest:
        text += f"{whole}.{fraction:09}".rstrip("0").rstrip(".") + "s"
    return text


def parse_size(text: str) -> int:
    """Bytes of a Kubernetes quantity. ValueError if it is none, or not a whole number of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > _LONGEST_TEXT:
        raise ValueError(f"not a size: {text!r}")
    size = Fraction(match[1]) * _BYTES[match[2]]
    if size.denominator != 1:
        raise ValueError(f"not a whole number of bytes: {text!r}")
    return int(size)


def format_size(size: int) -> str:
    """The size in the largest binary unit of which it is a whole multiple: ``1048576`` is ``1Mi``."""
    for unit in ("Gi", "Mi", "Ki"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)
