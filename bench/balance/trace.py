"""What a run leaves behind, real or modelled: enough for every measure and plot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

OK, TOO_MANY, BAD_GATEWAY = 200, 429, 502


class Outcome(NamedTuple):
    """What became of a request: `at` seconds after the start it was sent; `node` -1: none answered."""

    at: float
    is_list: bool
    node: int
    status: int
    latency: float


class Sample(NamedTuple):
    """Of every node at a time: CPU seconds used so far, memory in shares of its limit, the balancer's weight."""

    at: float
    cpu_seconds: tuple[float, ...]
    memory: tuple[float, ...]
    weights: tuple[float, ...]


class Kill(NamedTuple):
    """An out-of-memory kill."""

    at: float
    node: int


class Hop(NamedTuple):
    """What the way through real programs took at a time."""

    at: float
    seconds: float


@dataclass
class Trace:
    outcomes: list[Outcome] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    """About four a second, the first at the start, the last at the end."""
    kills: list[Kill] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    """Measured all through the run; empty in the model."""
    lateness: float = 0.0
    """99th percentile of how late, in seconds, requests were sent: how busy the machine was with others."""


SAMPLE_EVERY = 0.25
DISTURBED = 0.02
"""A real run whose requests were sent later than this, in seconds at the 99th percentile, tells more about what
else the machine had to do."""
