"""What the demo shows: the share, the utilization and the weight of every node, over a stretch of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """Counters of one node at one moment."""

    requests: int
    """Sent to it by Envoy since Envoy started."""
    cpu_seconds: float
    weight: int
    cores: int


@dataclass(frozen=True)
class Snapshot:
    """Counters of all nodes at one moment (seconds of a monotonic clock)."""

    at: float
    nodes: Mapping[str, Reading]


@dataclass(frozen=True)
class Summary:
    """A stretch of time: shares of the requests (sum 1), mean utilizations (1 is all cores), weights at its
    end.
    """

    share: Mapping[str, float]
    utilization: Mapping[str, float]
    weight: Mapping[str, int]

    @property
    def max_over_mean(self) -> float:
        """The busiest node's utilization over the mean of all: 1 is perfect balance."""
        mean = sum(self.utilization.values()) / len(self.utilization)
        return max(self.utilization.values()) / mean if mean else 1.0

    def to_json(self) -> dict[str, object]:
        return {
            "share": {name: round(share, 4) for name, share in self.share.items()},
            "utilization": {name: round(utilization, 4) for name, utilization in self.utilization.items()},
            "weight": dict(self.weight),
            "maxOverMean": round(self.max_over_mean, 3),
        }


def summarize(first: Snapshot, last: Snapshot) -> Summary:
    """What happened from `first` to the later `last`."""
    elapsed = last.at - first.at
    requests = {name: last.nodes[name].requests - first.nodes[name].requests for name in last.nodes}
    total = sum(requests.values())
    return Summary(
        share={name: count / total if total else 0.0 for name, count in requests.items()},
        utilization={
            name: (node.cpu_seconds - first.nodes[name].cpu_seconds) / (elapsed * node.cores)
            for name, node in last.nodes.items()
        },
        weight={name: node.weight for name, node in last.nodes.items()},
    )
