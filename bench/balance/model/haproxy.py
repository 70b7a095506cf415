"""HAProxy at layer 4: it picks a server for every connection, and the connection keeps it.

roundrobin follows the weights smoothly and takes new ones in its stride; leastconn takes the server with the
fewest connections for its weight (HAProxy configuration manual, `balance`).
"""

from __future__ import annotations

import re

WEIGHT = 100
"""As configured: what the agent's percentages are of."""


class Server:
    def __init__(self) -> None:
        self.connections = 0
        self.weight = WEIGHT
        self.up = True
        self.drained = False
        self.position = 0.0

    @property
    def usable(self) -> bool:
        return self.up and not self.drained

    def hear(self, line: bytes) -> None:
        """What the agent says: `up ready NN%`, `up ready` or `drain`."""
        words = line.split()
        if b"drain" in words:
            self.drained = True
        elif b"ready" in words:
            self.drained = False
        percentage = re.search(rb"(\d+)%", line)
        if percentage is not None:
            self.weight = WEIGHT * int(percentage[1]) // 100


class HaproxyPolicy:
    """`pick` counts the connection; `close` takes it back."""

    def __init__(self, servers: int, algorithm: str) -> None:
        self.servers = [Server() for _ in range(servers)]
        self._least = {"leastconn": True, "roundrobin": False}[algorithm]
        self._turn = 0

    def pick(self) -> int | None:
        """None: no server is usable."""
        usable = [number for number, server in enumerate(self.servers) if server.usable and server.weight]
        if not usable:
            return None
        number = self._fewest(usable) if self._least else self._next(usable)
        self.servers[number].connections += 1
        return number

    def close(self, number: int) -> None:
        self.servers[number].connections -= 1

    def weights(self) -> tuple[float, ...]:
        return tuple(float(server.weight if server.usable else 0) for server in self.servers)

    def _next(self, usable: list[int]) -> int:
        # A server that was away does not get what it missed.
        servers = self.servers
        front = min(servers[number].position for number in usable)
        for number in set(range(len(servers))) - set(usable):
            servers[number].position = max(servers[number].position, front)
        number = min(usable, key=lambda number: servers[number].position + 1 / servers[number].weight)
        servers[number].position += 1 / servers[number].weight
        return number

    def _fewest(self, usable: list[int]) -> int:
        self._turn += 1  # equals in turn
        return min(
            usable,
            key=lambda number: (
                self.servers[number].connections / self.servers[number].weight,
                (number - self._turn) % len(self.servers),
            ),
        )
