"""The kinds of value that keys take.

Each is put on a schema field with ``Annotated``; it reads the YAML value, says what is wrong with it
(``InvalidValueError``), and writes it back in the notation it was read in. Nothing is coerced: a number is no
text, a text is no number.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, core_schema

from orca_sidecar.settings.addresses import Address, as_ip, is_dns_name, parse_address
from orca_sidecar.settings.problems import InvalidValueError
from orca_sidecar.settings.units import format_duration, format_size, parse_duration, parse_size

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SHOWN = 80
"""Characters of a wrong value that an error repeats."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 section 5.6.2


def shown(value: object) -> str:
    """The value as an error names it."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def nearest(text: str, allowed: tuple[str, ...]) -> str | None:
    """The allowed word that was probably meant; case and underscores count for nothing."""
    folded = {word.replace("_", "").lower(): word for word in allowed}
    found = get_close_matches(text.replace("_", "").lower(), folded, n=1, cutoff=0.7)
    return folded[found[0]] if found else None


def _schema(parse: Callable[[Any], Any], render: Callable[[Any], Any]) -> CoreSchema:
    return core_schema.no_info_plain_validator_function(
        parse, serialization=core_schema.plain_serializer_function_ser_schema(render)
    )


def _text(value: object, example: str) -> str:
    """``value`` if it is text; a number or boolean is what YAML makes of such text without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        raise InvalidValueError(f"is {shown(value)}, not text", f'write it in quotes, such as "{example}"')
    raise InvalidValueError(f"is {shown(value)}", f"write text, such as {example}")


# --- numbers, durations, sizes --------------------------------------------------------------------------


@dataclass(frozen=True)
class Integer:
    """A whole number between two bounds, both allowed."""

    at_least: int
    at_most: int

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return _schema(self.parse, int)

    def parse(self, value: object) -> int:
        allowed = f"write a whole number from {self.at_least} to {self.at_most}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValueError(f"is {shown(value)}", allowed)
        if not self.at_least <= value <= self.at_most:
            raise InvalidValueError(f"is {shown(value)}, out of range", allowed)
        return value


@dataclass(frozen=True)
class Number:
    """A finite number between two bounds, both allowed."""

    at_least: float
    at_most: float

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return _schema(self.parse, float)

    def parse(self, value: object) -> float:
        allowed = f"write a number from {self.at_least:g} to {self.at_most:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValueError(f"is {shown(value)}", allowed)
        if not self.at_least <= value <= self.at_most:  # false for NaN
            raise InvalidValueError(f"is {shown(value)}, out of range", allowed)
        return float(value)


@dataclass(frozen=True)
class Duration:
    """A Go duration in float seconds; the bounds, both allowed, are Go durations too."""

    at_least: str = "1ms"
    at_most: str = "720h"

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return _schema(self.parse, format_duration)

    def parse(self, value: object) -> float:
        allowed = f"write a duration from {self.at_least} to {self.at_most}, such as 100ms, 5s, 1m30s"
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf:
            raise InvalidValueError(
                f"is {shown(value)}, without a unit", f"write {value}s if seconds are meant"
            )
        zero = value == 0 and not isinstance(value, bool)
        text = value if isinstance(value, str) else ""
        try:
            seconds = parse_duration("0" if zero else text)
        except ValueError:
            raise InvalidValueError(f"is {shown(value)}, not a duration", allowed) from None
        if not parse_duration(self.at_least) <= seconds <= parse_duration(self.at_most):
            raise InvalidValueError(f"is {shown(value)}, out of range", allowed)
        return seconds


@dataclass(frozen=True)
class Size:
    """A Kubernetes quantity in int bytes; the bounds, both allowed, are quantities too."""

    at_least: str
    at_most: str

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return _schema(self.parse, format_size)

    def parse(self, value: object) -> int:
        allowed = (
            f"write a size from {self.at_least} to {self.at_most} in bytes, or with k, M, G (powers of 1000) "
            "or Ki, Mi, Gi (powers of 1024), such as 64Ki"
        )
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        try:
            size = parse_size(value if isinstance(value, str) else "")
        except ValueError:
            raise InvalidValueError(f"is {shown(value)}, not a size", allowed) from None
        if not parse_size(self.at_least) <= size <= parse_size(self.at_most):
            raise InvalidValueError(f"is {shown(value)}, out of range", allowed)
        return size


# --- words ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """One of some words: those given, or those of the field's Literal."""

    words: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, _handler: Any) -> CoreSchema:
        words = self.words or get_args(source)
        return _schema(lambda value: self.parse(value, words), str)

    @staticmethod
    def parse(value: object, words: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in words:
            return value
        if not isinstance(value, str) and str(value) in words:
            raise InvalidValueError(f"is {shown(value)}, not text", f'write it in quotes: "{value}"')
        near = nearest(value, words) if isinstance(value, str) and len(words) > 1 else None
        advice = f"write {' or '.join(words) if len(words) < 3 else 'one of ' + ', '.join(words)}"
        raise InvalidValueError(f"is {shown(value)}", f"did you mean {near}? {advice}" if near else advice)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("on", "off", "yes", "no", "y", "n"):
        meant = "true" if value.lower() in ("on", "yes", "y") else "false"
        raise InvalidValueError(
            f"is the text {shown(value)}: only YAML 1.1 took it for a boolean", f"write {meant}"
        )
    raise InvalidValueError(f"is {shown(value)}", "write true or false")


def _workers(value: object) -> int:
    count = Integer(1, 256)
    if value == "auto":
        return min(len(os.sched_getaffinity(0)), count.at_most)  # the cores this process may use
    try:
        return count.parse(value)
    except InvalidValueError as error:
        raise InvalidValueError(error.message, f"{error.advice}, or auto for one per core") from None


def _name(value: object) -> str:
    text = _text(value, "load-balancer")
    if not text or text != text.strip() or not text.isprintable():
        raise InvalidValueError(
            f"is {shown(text)}", "write a name without blanks around it or control characters"
        )
    return text


def _header_name(value: object) -> str:
    text = _text(value, "X-Remote-User")
    if not _TOKEN.fullmatch(text):
        raise InvalidValueError(
            f"is {shown(text)}, not an HTTP field name",
            "use letters, digits and !#$%&'*+-.^_`|~ only (RFC 9110 section 5.6.2)",
        )
    return text


def _server_name(value: object) -> str:
    text = _text(value, "kubernetes")
    if as_ip(text) is None and not is_dns_name(text):
        raise InvalidValueError(
            f"is {shown(text)}", "write a DNS name or an IP address that kube-apiserver's certificate holds"
        )
    return text


def _optional_word(value: object) -> str:
    return "" if value == "" else _name(value)


# --- files, addresses, networks -------------------------------------------------------------------------


def _file(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        # What stands here is not repeated: it may be a secret where the name of its file belongs.
        raise InvalidValueError("is not an absolute path", "name a file, such as /etc/kubernetes/pki/ca.crt")
    return Path(value)


def _optional_file(value: object) -> Path | None:
    return None if value is None or value == "" else _file(value)


def _cgroup(value: object) -> str:
    text = _text(value, "kubepods.slice/*kube-apiserver*").lstrip(
        "/"
    )  # /proc/PID/cgroup writes a leading slash
    if ".." in text.split("/") or "\0" in text:
        raise InvalidValueError(f"is {shown(text)}", "write a path below the cgroup root, without ..")
    return text


def _listen_address(value: object) -> Address:
    address = _address(value, "0.0.0.0:6444 or [::]:6444")
    if as_ip(address.host) is None:
        raise InvalidValueError(
            f"is {shown(value)}, whose host is a name",
            "write the IP address to listen on, or 0.0.0.0 or [::] for all",
        )
    return address


def _dial_address(value: object) -> Address:
    address = _address(value, "127.0.0.1:6443 or [::1]:6443")
    if address.port == 0 or address.is_wildcard:
        raise InvalidValueError(
            f"is {shown(value)}, which cannot be dialled", "write kube-apiserver's host and port"
        )
    return address


def _address(value: object, examples: str) -> Address:
    if isinstance(value, Address):
        return value
    try:
        return parse_address(_text(value, examples.split()[0]))
    except InvalidValueError:
        raise
    except ValueError as error:
        raise InvalidValueError(
            f"is {shown(value)}: it {error}", f"write host:port, such as {examples}"
        ) from None


def _network(value: object) -> Network:
    if isinstance(value, Network):
        return value
    text = _text(value, "127.0.0.0/8")
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise InvalidValueError(
            f"is {shown(text)}, not a network", "write a CIDR, such as 10.0.0.0/8 or fd00::/8"
        ) from None
    if "/" not in text:
        raise InvalidValueError(
            f"is {shown(text)}, an address without a length", f"write {network} for this one alone"
        )
    if ipaddress.ip_interface(text).ip != network.network_address:
        raise InvalidValueError(
            f"is {shown(text)}, with bits beyond its length", f"write {network}, the network it is in"
        )
    return network


# --- lists ----------------------------------------------------------------------------------------------


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise InvalidValueError(f"holds {value} twice", "leave one out")
        seen.add(value)
    return values


def _filled(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise InvalidValueError("is empty", "name at least one")
    return values


def _path_text(path: Path | None) -> str:
    return "" if path is None else str(path)


Switch = Annotated[bool, PlainValidator(_switch)]
WorkerCount = Annotated[int, PlainValidator(_workers)]
Name = Annotated[str, PlainValidator(_name)]
OptionalWord = Annotated[str, PlainValidator(_optional_word)]
HeaderName = Annotated[str, PlainValidator(_header_name)]
ServerName = Annotated[str, PlainValidator(_server_name)]
CgroupGlob = Annotated[str, PlainValidator(_cgroup)]
File = Annotated[Path, PlainValidator(_file), PlainSerializer(_path_text)]
OptionalFile = Annotated[Path | None, PlainValidator(_optional_file), PlainSerializer(_path_text)]
ListenAddress = Annotated[Address, PlainValidator(_listen_address), PlainSerializer(str)]
DialAddress = Annotated[Address, PlainValidator(_dial_address), PlainSerializer(str)]
Cidr = Annotated[Network, PlainValidator(_network), PlainSerializer(str)]
Distinct = AfterValidator(_distinct)
Filled = AfterValidator(_filled)
