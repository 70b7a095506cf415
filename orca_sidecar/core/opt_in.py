"""Who is given a load report: KEP-6315's opt-in header behind one of three gates."""

from __future__ import annotations

import hmac
from enum import Enum, IntEnum

from orca_sidecar.core.load_report import Format


class Gate(Enum):
    """What a caller must show besides the opt-in header."""

    FRONT_PROXY = "frontProxy"
    """A client certificate of the front-proxy CA with a listed common name."""
    SHARED_SECRET = "sharedSecret"  # noqa: S105 - the gate's name in the configuration
    """The secret, in the header's value: `TEXT secret=<content>`."""
    OPEN = "open"
    """Nothing."""


class Refusal(IntEnum):
    """Why a request that carries the opt-in header gets no report. Never an error for the caller."""

    DISABLED = 0
    DUPLICATE = 1
    """More than one opt-in line."""
    VALUE = 2
    """A format that is unknown or not configured."""
    NOT_ALLOWED = 3
    """Gate frontProxy: the connection did not prove to be a listed front proxy."""
    SECRET = 4
    """Gate sharedSecret: no secret, or another one."""
    UNAVAILABLE = 5
    """There is no report: the upstream is not ready, or the last sample is too old."""


class OptIn:
    """The decision, for one configuration.

    `secret` is the shared secret's content, needed with that gate alone. `count_all`: `rpsScope: all`.
    """

    __slots__ = ("_count_all", "_enabled", "_formats", "_gate", "_secret")

    def __init__(
        self,
        *,
        enabled: bool,
        gate: Gate,
        formats: tuple[Format, ...],
        secret: bytes = b"",
        count_all: bool = False,
    ) -> None:
        self._enabled = enabled
        self._gate = gate
        self._formats = {fmt.name.encode(): fmt for fmt in formats}
        self._secret = secret
        self._count_all = count_all

    def judge(self, values: list[bytes], may_ask: bool) -> Format | Refusal:
        """The format to report in, or why there is none. `values`: the opt-in lines' trimmed values, at least one."""
        if not self._enabled:
            return Refusal.DISABLED
        if len(values) != 1:
            return Refusal.DUPLICATE
        value = values[0]
        if self._gate is Gate.FRONT_PROXY:
            if not may_ask:
                return Refusal.NOT_ALLOWED
        elif self._gate is Gate.SHARED_SECRET:
            value, _, given = value.partition(b" secret=")
            if not hmac.compare_digest(given, self._secret):
                return Refusal.SECRET
        return self._formats.get(value, Refusal.VALUE)

    def counts(self, asked: Format | Refusal | None, may_ask: bool) -> bool:
        """Whether a request counts in `rps_fractional` and `eps` (`rpsScope`; health probes are the caller's to leave out).

        With gate frontProxy every request of a balancer's connection counts, with or without the header, so that
        out-of-band reporting needs no header; with the other gates the header is what tells a balanced request.
        """
        if self._count_all:
            return True
        if self._gate is Gate.FRONT_PROXY:
            return may_ask
        return isinstance(asked, Format)
