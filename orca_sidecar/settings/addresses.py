"""Addresses as ``host:port`` and ``[::]:port``, and which of them meet."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_PORT = re.compile(r"[0-9]{1,5}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_DNS_NAME = 253


class Address(NamedTuple):
    """A TCP address; ``host`` is an IP address without brackets, or a DNS name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; a name other than localhost is taken for reachable."""
        ip = as_ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of the machine (0.0.0.0, ::)."""
        ip = as_ip(self.host)
        return ip is not None and ip.is_unspecified


def as_ip(host: str) -> IPAddress | None:
    """The IP address that ``host`` spells (an IPv4-mapped one as IPv4), None for a name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip


def is_dns_name(text: str) -> bool:
    """Whether ``text`` is a host name (RFC 1123 section 2.1), whose last label is not all digits."""
    last = text.rpartition(".")[2]
    return len(text) <= _LONGEST_DNS_NAME and _DNS_NAME.fullmatch(text) is not None and not last.isdigit()


def parse_address(text: str) -> Address:
    """Split ``host:port`` or ``[IPv6]:port``. ValueError, whose text says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port):
        raise ValueError("has no port")
    if int(port) > 65535:
        raise ValueError("has a port above 65535")
    if not host:
        raise ValueError("has no host")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or as_ip(host) is None:
            raise ValueError("has no IPv6 address between the brackets")
    elif ":" in host:
        raise ValueError("has an IPv6 address without brackets")
    elif as_ip(host) is None and not is_dns_name(host):
        raise ValueError("has a host that is neither an IP address nor a DNS name")
    return Address(host, int(port))


def overlap(one: Address, other: Address) -> bool:
    """Whether listeners on both may be in each other's way; a wildcard is, with every address of its port."""
    return _same_port(one, other) and (one.is_wildcard or other.is_wildcard or _same_host(one, other))


def reaches(dialled: Address, listener: Address) -> bool:
    """Whether dialling ``dialled`` ends at this machine's own ``listener``, as far as the spelling tells."""
    return _same_port(dialled, listener) and (
        _same_host(dialled, listener) or (dialled.is_loopback and listener.is_wildcard)
    )


def _same_port(one: Address, other: Address) -> bool:
    return one.port == other.port != 0  # listeners on port 0 get different ports


def _same_host(one: Address, other: Address) -> bool:
    return (as_ip(one.host) or one.host.lower()) == (as_ip(other.host) or other.host.lower())
