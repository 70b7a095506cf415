"""Addresses: their notation, and which of them meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.settings.addresses import Address, is_dns_name, overlap, parse_address, reaches


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:6444", Address("0.0.0.0", 6444)),
        ("[::]:6444", Address("::", 6444)),
        ("[2001:db8::1]:0", Address("2001:db8::1", 0)),
        ("[fe80::1%eth0]:1", Address("fe80::1%eth0", 1)),
        ("kube-1.example.org:65535", Address("kube-1.example.org", 65535)),
        ("localhost:06443", Address("localhost", 6443)),
    ],
)
def test_reads_host_and_port(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "port"),
        ("0.0.0.0", "port"),
        ("0.0.0.0:", "port"),
        ("0.0.0.0:x", "port"),
        ("0.0.0.0:-1", "port"),
        ("0.0.0.0:٣", "port"),
        ("0.0.0.0:65536", "65535"),
        (":6444", "no host"),
        ("::1:6444", "brackets"),
        ("[127.0.0.1]:1", "brackets"),
        ("[]:1", "brackets"),
        ("[::1:1", "brackets"),
        ("256.0.0.1:1", "neither"),
        ("a_b:1", "neither"),
        ("a..b:1", "neither"),
        ("-a:1", "neither"),
        ("https://a:1", "brackets"),
        ("a b:1", "neither"),
    ],
)
def test_says_what_is_wrong_with_others(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse_address(text)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_reads_back_equal(ip: object, port: int) -> None:
    address = Address(str(ip), port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("::ffff:127.0.0.1", True, False),
        ("localhost", True, False),
        ("localhost.example.org", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.1", False, False),
    ],
)
def test_who_can_reach_an_address(host: str, loopback: bool, wildcard: bool) -> None:
    assert (Address(host, 1).is_loopback, Address(host, 1).is_wildcard) == (loopback, wildcard)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("[::]:1", "10.0.0.1:1", True),
        ("10.0.0.1:1", "10.0.0.1:1", True),
        ("[::ffff:10.0.0.1]:1", "10.0.0.1:1", True),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("0.0.0.0:1", "0.0.0.0:2", False),
        ("0.0.0.0:0", "0.0.0.0:0", False),
    ],
)
def test_overlapping_listeners(one: str, other: str, expected: bool) -> None:
    assert overlap(parse_address(one), parse_address(other)) is expected
    assert overlap(parse_address(other), parse_address(one)) is expected


@pytest.mark.parametrize(
    ("dialled", "listener", "expected"),
    [
        ("127.0.0.1:1", "0.0.0.0:1", True),
        ("localhost:1", "[::]:1", True),
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("10.0.0.1:1", "0.0.0.0:1", False),  # may be another machine
        ("127.0.0.1:1", "127.0.0.1:2", False),
        ("127.0.0.1:1", "10.0.0.1:1", False),
    ],
)
def test_dialling_oneself(dialled: str, listener: str, expected: bool) -> None:
    assert reaches(parse_address(dialled), parse_address(listener)) is expected


def test_dns_names_have_a_length() -> None:
    assert is_dns_name("a" * 63)
    assert not is_dns_name("a" * 64)
    assert is_dns_name(".".join(["a" * 49] * 5))
    assert not is_dns_name(".".join(["a" * 50] * 5))
