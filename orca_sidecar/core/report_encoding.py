"""The three encodings of a load report and the response header that carries them.

``endpoint-load-metrics: TEXT a=1, b=2``, ``JSON {…}`` or ``BIN <base64 of the serialized proto>`` (gRFC
A51, Envoy's ``source/common/orca/orca_parser.cc``, KEP-6315). The serialized proto is written here, field
by field, rather than by a protobuf runtime: it is nine fields, it keeps ``core`` free of third parties, and
the sampler's process never imports protobuf for it. A conformance test decodes every encoding with the
generated classes.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence

from orca_sidecar.core.load_report import FIELDS, Format, LoadReport

HEADER_NAME = b"endpoint-load-metrics"

# Field numbers of xds/data/orca/v3/orca_load_report.proto.
_NUMBERS: Mapping[str, int] = {
    "cpu_utilization": 1,
    "mem_utilization": 2,
    "utilization": 5,
    "rps_fractional": 6,
    "eps": 7,
    "named_metrics": 8,
    "application_utilization": 9,
}
_I64, _LEN = 1, 2  # protobuf wire types


def encode_text(report: LoadReport, separator: str = "=", fields: Sequence[str] = FIELDS) -> bytes:
    """``cpu_utilization=0.3000, rps_fractional=10.2000``: four decimals, the fields in the order given.

    ``separator`` is ``=``, or ``:`` for Envoys that know no other. b"" if the report may not be sent.
    """
    checked = report.checked()
    return b"" if checked is None else _text(checked, separator, fields)


def encode_json(report: LoadReport, fields: Sequence[str] = FIELDS) -> bytes:
    """The proto's JSON form with the proto's own field names; b"" if the report may not be sent."""
    checked = report.checked()
    return b"" if checked is None else _json(checked, fields)


def encode_bin(report: LoadReport, fields: Sequence[str] = FIELDS) -> bytes:
    """The serialized proto, also what the out-of-band service sends; b"" if the report may not be sent."""
    checked = report.checked()
    return b"" if checked is None else _bin(checked, fields)


def header_line(format_: Format, value: bytes) -> bytes:
    """The whole header line with its CRLF; ``value`` is what the encoder of that format returned."""
    if format_ is Format.BIN:
        value = b64encode(value)
    return b"%b: %b %b\r\n" % (HEADER_NAME, format_.name.encode(), value)


def render(
    checked: LoadReport, formats: Iterable[Format], separator: str = "=", fields: Sequence[str] = FIELDS
) -> dict[Format, bytes]:
    """The header line of every format. The report is one that ``LoadReport.checked`` returned."""
    lines: dict[Format, bytes] = {}
    for format_ in formats:
        if format_ is Format.TEXT:
            value = _text(checked, separator, fields)
        elif format_ is Format.JSON:
            value = _json(checked, fields)
        else:
            value = _bin(checked, fields)
        lines[format_] = header_line(format_, value)
    return lines


def _text(report: LoadReport, separator: str, fields: Sequence[str]) -> bytes:
    pairs = [(name, getattr(report, name)) for name in fields]
    pairs += [(name, value) for name, value in report.figures() if name not in FIELDS]
    return ", ".join(f"{name}{separator}{value:.4f}" for name, value in pairs).encode()


def _json(report: LoadReport, fields: Sequence[str]) -> bytes:
    value: dict[str, float | dict[str, float]] = {name: round(getattr(report, name), 4) for name in fields}
    for name in ("named_metrics", "utilization"):
        figures: Mapping[str, float] = getattr(report, name)
        if figures:
            value[name] = {key: round(figure, 4) for key, figure in figures.items()}
    return json.dumps(value, allow_nan=False).encode()


def _bin(report: LoadReport, fields: Sequence[str]) -> bytes:
    parts = [_double(_NUMBERS[name], getattr(report, name)) for name in fields]
    for name in ("utilization", "named_metrics"):
        figures: Mapping[str, float] = getattr(report, name)
        for key, figure in figures.items():
            # A map entry is a message {1: key, 2: value}; unlike a scalar's, its 0 is written.
            raw = key.encode()
            entry = _tag(1, _LEN) + _varint(len(raw)) + raw + _tag(2, _I64) + struct.pack("<d", figure)
            parts.append(_tag(_NUMBERS[name], _LEN) + _varint(len(entry)) + entry)
    return b"".join(parts)


def _double(number: int, value: float) -> bytes:
    return _tag(number, _I64) + struct.pack("<d", value) if value else b""


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
