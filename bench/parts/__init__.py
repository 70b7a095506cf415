"""What is measured: each part makes scenarios, in a full and in a quick edition."""

from collections.abc import Callable

from bench.harness.trial import Scenario
from bench.parts import connections, kube, requests, watches

PARTS: dict[str, Callable[[bool], list[Scenario]]] = {
    "get": requests.small_get,
    "bodies": requests.bodies,
    "events": watches.events,
    "latency": requests.latency,
    "connections": connections.connections,
    "idle": watches.idle,
    "held": watches.held,
    "workers": requests.workers,
    "kube": kube.kube,
}
