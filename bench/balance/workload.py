"""The requests of a timeline, the same for every policy, for the model and for the real run."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from .scenarios import CLIENTS, CONNECTION_SECONDS, MEAN_WORK, SIGMA, Timeline


class Request(NamedTuple):
    """One request; `work` is in CPU seconds, `client` who sends it, `balancer` whom it is sent to.

    `lifetime`: how long, in seconds, the connection lives that is opened for it, if one is.
    """

    at: float
    is_list: bool
    work: float
    client: int
    balancer: int
    lifetime: float


def requests(timeline: Timeline, seed: int) -> list[Request]:
    """Poisson arrivals, log-normal work; the same list for the same seed."""
    random = Random(f"{timeline.name} {seed}")  # a string: hashed by its content, unlike a tuple
    ordinary = ((at, False) for at in _arrivals(random, timeline.rate, 0.0, timeline.seconds))
    lists = ((at, True) for at in _arrivals(random, timeline.storm_rate, *(timeline.storm or (0.0, 0.0))))
    factor = {is_list: _list_factor(timeline) if is_list else 1.0 for is_list in (False, True)}
    mu = math.log(MEAN_WORK) - SIGMA * SIGMA / 2
    return [
        Request(
            at=at,
            is_list=is_list,
            work=random.lognormvariate(mu, SIGMA) * factor[is_list],
            client=random.randrange(CLIENTS),
            balancer=random.randrange(timeline.balancers),
            lifetime=random.expovariate(1 / CONNECTION_SECONDS),
        )
        for at, is_list in heapq.merge(list(ordinary), list(lists))
    ]


def _arrivals(random: Random, rate: float, start: float, end: float) -> Iterator[float]:
    at = start
    while rate > 0:
        at += random.expovariate(rate)
        if at >= end:
            return
        yield at


def _list_factor(timeline: Timeline) -> float:
    """Work of a LIST in requests of the other kind; the same on every node."""
    return timeline.nodes[0].capacity.list_work
