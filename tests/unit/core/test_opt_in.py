"""Who is given a load report, by gate, value and number of lines."""

from __future__ import annotations

import pytest

from orca_sidecar.core.load_report import Format
from orca_sidecar.core.opt_in import Gate, OptIn, Refusal

ALL = (Format.TEXT, Format.JSON, Format.BIN)


def rules(
    gate: Gate, *, formats: tuple[Format, ...] = (Format.TEXT,), enabled: bool = True, **more: bool
) -> OptIn:
    return OptIn(enabled=enabled, gate=gate, formats=formats, secret=b"s3cret", **more)


@pytest.mark.parametrize("gate", list(Gate))
def test_switched_off_nobody_is(gate: Gate) -> None:
    off = rules(gate, enabled=False)
    assert off.judge([b"TEXT"], True) is Refusal.DISABLED
    assert off.judge([b"TEXT secret=s3cret"], True) is Refusal.DISABLED


@pytest.mark.parametrize("values", [[b"TEXT", b"TEXT"], [b"TEXT", b""], [b"TEXT"] * 3])
def test_more_than_one_line_is_refused(values: list[bytes]) -> None:
    assert rules(Gate.OPEN).judge(values, True) is Refusal.DUPLICATE
    assert rules(Gate.FRONT_PROXY).judge(values, True) is Refusal.DUPLICATE


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b"Text", b"TEXT ", b"TEXT,JSON", b"TEXT, BIN", b"XML", b"TEXTX", b"JSON", b"BIN", b"\xff"],
)
def test_any_value_that_is_not_configured_is_refused(value: bytes) -> None:
    assert rules(Gate.OPEN).judge([value], False) is Refusal.VALUE
    assert rules(Gate.FRONT_PROXY).judge([value], True) is Refusal.VALUE


@pytest.mark.parametrize("format_", ALL)
def test_a_configured_format_is_given(format_: Format) -> None:
    assert rules(Gate.OPEN, formats=ALL).judge([format_.name.encode()], False) is format_
    assert rules(Gate.OPEN, formats=(format_,)).judge([format_.name.encode()], False) is format_


def test_gate_front_proxy_needs_the_certificate() -> None:
    gate = rules(Gate.FRONT_PROXY)
    assert gate.judge([b"TEXT"], False) is Refusal.NOT_ALLOWED
    assert gate.judge([b"TEXT"], True) is Format.TEXT
    assert gate.judge([b"TEXT secret=s3cret"], False) is Refusal.NOT_ALLOWED
    assert gate.judge([b"TEXT secret=s3cret"], True) is Refusal.VALUE


class TestSharedSecret:
    def test_the_secret_alone_suffices(self) -> None:
        assert rules(Gate.SHARED_SECRET).judge([b"TEXT secret=s3cret"], False) is Format.TEXT

    @pytest.mark.parametrize(
        "value",
        [
            b"TEXT", b"TEXT secret=", b"TEXT secret=wrong", b"TEXT secret=s3cretx", b"TEXT secret=s3cre",
            b"secret=s3cret",
            b"TEXT Secret=s3cret", b"TEXT  secret=s3cret ", b"TEXT secret=s3cret secret=x", b"TEXTsecret=s3cret", b"",
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("may_ask", [False, True])
    def test_nothing_else_does(self, value: bytes, may_ask: bool) -> None:
        assert isinstance(rules(Gate.SHARED_SECRET).judge([value], may_ask), Refusal)

    def test_a_right_secret_with_a_wrong_format(self) -> None:
        assert rules(Gate.SHARED_SECRET).judge([b"JSON secret=s3cret"], False) is Refusal.VALUE


@pytest.mark.parametrize(
    ("gate", "asked", "may_ask", "counted"),
    [
        (Gate.FRONT_PROXY, None, True, True),
        (Gate.FRONT_PROXY, None, False, False),
        (Gate.FRONT_PROXY, Refusal.VALUE, True, True),
        (Gate.FRONT_PROXY, Format.TEXT, True, True),
        (Gate.OPEN, None, True, False),
        (Gate.OPEN, Format.TEXT, False, True),
        (Gate.OPEN, Refusal.VALUE, False, False),
        (Gate.SHARED_SECRET, Format.TEXT, False, True),
        (Gate.SHARED_SECRET, Refusal.SECRET, True, False),
        (Gate.SHARED_SECRET, None, True, False),
    ],
)
def test_what_counts_as_balanced(
    gate: Gate, asked: Format | Refusal | None, may_ask: bool, counted: bool
) -> None:
    assert rules(gate).counts(asked, may_ask) is counted
    assert rules(gate, count_all=True).counts(asked, may_ask)
