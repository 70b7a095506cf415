"""One modelled run: nodes, their reports, the balancers and the clients put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from bench.balance.policies import Balancer, Policy, Report
from bench.balance.scenarios import Timeline
from bench.balance.settings import (
    AGENT_PERIOD,
    HEALTH_CHECK_PERIOD,
    OUT_OF_BAND_PERIOD,
    model_load_metrics,
    weighted_settings,
)
from bench.balance.trace import BAD_GATEWAY, OK, SAMPLE_EVERY, Kill, Outcome, Sample, Trace
from bench.balance.workload import Request, requests
from orca_sidecar.settings.load_metrics import LoadMetricsSettings

from .agentgateway import AgentgatewayPolicy
from .engine import Engine
from .envoy import ClientSideWeighted, EnvoyPolicy, LeastRequest, RandomPick, RoundRobin
from .haproxy import HaproxyPolicy
from .node import ModelNode
from .reports import Ours, Prototype, Reporter, Silent

_DRAIN = 2.0
"""Seconds after the last request in which answers still come."""


class Front(Protocol):
    """A balancer with its clients: sends a request on, and tells who answered what."""

    def send(self, request: Request, answered: Callable[[int, int], None]) -> None:
        """`answered` is called with the node's number and the status."""

    def weights(self) -> tuple[float, ...]: ...


class Simulation:
    """`run` it once."""

    def __init__(
        self, timeline: Timeline, policy: Policy, seed: int, load_metrics: LoadMetricsSettings | None = None
    ) -> None:
        self._timeline = timeline
        self._policy = policy
        self._seed = seed
        self._random = Random(f"{timeline.name} {policy.name} {seed}")
        self._load_metrics = load_metrics or model_load_metrics()
        self._engine = Engine()
        self._trace = Trace()
        self._nodes = [
            ModelNode(self._engine, node, self._random, partial(self._killed, number))
            for number, node in enumerate(timeline.nodes)
        ]
        self._reporters = [self._reporter(node) for node in self._nodes]
        self._fronts = [self._front() for _ in range(timeline.balancers)]

    def run(self) -> Trace:
        engine, timeline = self._engine, self._timeline
        for request in requests(timeline, self._seed):
            engine.at(request.at, partial(self._send, request))
        for change in timeline.changes:
            engine.at(change.at, partial(self._nodes[change.node].change, change))
        engine.every(SAMPLE_EVERY, self._sample, first=0.0)
        engine.run(timeline.seconds + _DRAIN)
        self._trace.outcomes.sort()
        return self._trace

    def _send(self, request: Request) -> None:
        def answered(node: int, status: int) -> None:
            latency = self._engine.now - request.at
            self._trace.outcomes.append(Outcome(request.at, request.is_list, node, status, latency))

        self._fronts[request.balancer].send(request, answered)

    def _sample(self) -> None:
        if self._engine.now > self._timeline.seconds + SAMPLE_EVERY / 2:
            return
        self._trace.samples.append(
            Sample(
                self._engine.now,
                tuple(node.cpu_seconds() for node in self._nodes),
                tuple(node.memory_share() for node in self._nodes),
                self._fronts[0].weights(),
            )
        )

    def _killed(self, number: int) -> None:
        self._trace.kills.append(Kill(self._engine.now, number))

    def _reporter(self, node: ModelNode) -> Reporter:
        match self._policy.report:
            case Report.NONE:
                return Silent()
            case Report.PROTOTYPE:
                return Prototype(self._engine, node, self._random)
            case Report.OURS:
                return Ours(self._engine, node, self._load_metrics, self._random)

    def _front(self) -> Front:
        match self._policy.balancer:
            case Balancer.ENVOY:
                return EnvoyFront(self._engine, self._nodes, self._reporters, self._policy, self._random)
            case Balancer.HAPROXY:
                return HaproxyFront(self._engine, self._nodes, self._reporters, self._policy, self._random)
            case Balancer.AGENTGATEWAY:
                return AgentgatewayFront(self._engine, self._nodes, self._random)


class EnvoyFront:
    """Envoy balances requests, so that clients' connections do not matter."""

    def __init__(
        self,
        engine: Engine,
        nodes: list[ModelNode],
        reporters: list[Reporter],
        policy: Policy,
        random: Random,
    ) -> None:
        self._nodes = nodes
        self._reporters = reporters
        self._in_band = policy.report is not Report.NONE and not policy.out_of_band
        self._weighted: ClientSideWeighted | None = None
        self._envoy = self._policy(policy, random, engine)
        weighted = self._weighted
        if weighted is not None:
            period = weighted_settings().update_period
            engine.every(period, weighted.update, first=random.random() * period)
        for number, node in enumerate(nodes):
            health = _Health(node, partial(self._envoy.set_healthy, number), fall=1)
            engine.every(HEALTH_CHECK_PERIOD, health.check, first=random.random() * HEALTH_CHECK_PERIOD)
            if policy.out_of_band:
                first = random.random() * OUT_OF_BAND_PERIOD
                engine.every(OUT_OF_BAND_PERIOD, partial(self._hear, number), first=first)

    def _policy(self, policy: Policy, random: Random, engine: Engine) -> EnvoyPolicy:
        hosts = len(self._nodes)
        match policy.algorithm:
            case "random":
                return RandomPick(hosts, random)
            case "least_request":
                return LeastRequest(hosts, random)
            case "round_robin":
                return RoundRobin(hosts, random)
        settings = weighted_settings()
        self._weighted = ClientSideWeighted(
            hosts,
            random,
            lambda: engine.now,
            blackout=settings.blackout,
            expiration=settings.expiration,
            error_penalty=settings.error_penalty,
        )
        return self._weighted

    def send(self, request: Request, answered: Callable[[int, int], None]) -> None:
        number = self._envoy.pick()
        self._envoy.started(number)

        def done(status: int) -> None:
            self._envoy.finished(number)
            if self._in_band and status != BAD_GATEWAY:  # the sidecar's own answers carry no report
                self._hear(number)
            answered(number, status)

        self._nodes[number].submit(request, done)

    def weights(self) -> tuple[float, ...]:
        return self._envoy.weights()

    def _hear(self, number: int) -> None:
        figures = self._reporters[number].figures()
        if figures is not None and self._weighted is not None:
            self._weighted.report(number, figures)


class HaproxyFront:
    """A client uses a connection that is idle, or else opens one; each lives as long as the workload says."""

    def __init__(
        self,
        engine: Engine,
        nodes: list[ModelNode],
        reporters: list[Reporter],
        policy: Policy,
        random: Random,
    ) -> None:
        self._engine = engine
        self._nodes = nodes
        self._haproxy = HaproxyPolicy(len(nodes), policy.algorithm)
        self._connections: defaultdict[int, list[_Connection]] = defaultdict(list)
        for number, (node, reporter, server) in enumerate(
            zip(nodes, reporters, self._haproxy.servers, strict=True)
        ):
            health = _Health(node, partial(self._set_up, number), fall=2)
            engine.every(HEALTH_CHECK_PERIOD, health.check, first=random.random() * HEALTH_CHECK_PERIOD)
            if policy.report is not Report.NONE:
                hear = partial(self._ask_agent, server.hear, reporter)
                engine.every(AGENT_PERIOD, hear, first=random.random() * AGENT_PERIOD)

    def send(self, request: Request, answered: Callable[[int, int], None]) -> None:
        connection = self._connection(request)
        if connection is None:
            answered(-1, BAD_GATEWAY)
            return
        connection.busy = True

        def done(status: int) -> None:
            connection.busy = False
            answered(connection.server, status)

        self._nodes[connection.server].submit(request, done)

    def weights(self) -> tuple[float, ...]:
        return self._haproxy.weights()

    def _connection(self, request: Request) -> _Connection | None:
        connections = self._connections[request.client]
        for connection in [one for one in connections if not one.busy and one.ends <= self._engine.now]:
            self._haproxy.close(connection.server)
            connections.remove(connection)
        for connection in connections:
            if not connection.busy:
                return connection
        server = self._haproxy.pick()
        if server is None:
            return None
        connections.append(_Connection(server, self._engine.now + request.lifetime))
        return connections[-1]

    def _set_up(self, number: int, up: bool) -> None:
        self._haproxy.servers[number].up = up

    @staticmethod
    def _ask_agent(hear: Callable[[bytes], None], reporter: Reporter) -> None:
        hear(reporter.agent_line())


class _Connection:
    def __init__(self, server: int, ends: float) -> None:
        self.server = server
        self.ends = ends
        self.busy = False


class AgentgatewayFront:
    def __init__(self, engine: Engine, nodes: list[ModelNode], random: Random) -> None:
        self._engine = engine
        self._nodes = nodes
        self._gateway = AgentgatewayPolicy(len(nodes), random)

    def send(self, request: Request, answered: Callable[[int, int], None]) -> None:
        number = self._gateway.pick()
        self._gateway.started(number)
        started = self._engine.now

        def done(status: int) -> None:
            self._gateway.finished(number, status == OK, self._engine.now - started)
            answered(number, status)

        self._nodes[number].submit(request, done)

    def weights(self) -> tuple[float, ...]:
        return self._gateway.weights()


class _Health:
    """An active check of /readyz: out after `fall` failures, in again after two successes."""

    RISE = 2

    def __init__(self, node: ModelNode, tell: Callable[[bool], None], *, fall: int) -> None:
        """Envoy takes a host out at once for an answer other than 200, which the sidecar gives for a dead
        API server; HAProxy waits for `fall`."""
        self._node = node
        self._tell = tell
        self._fall = fall
        self._healthy = True
        self._against = 0

    def check(self) -> None:
        if self._node.ready == self._healthy:
            self._against = 0
            return
        self._against += 1
        if self._against >= (self._fall if self._healthy else self.RISE):
            self._healthy = not self._healthy
            self._against = 0
            self._tell(self._healthy)


def simulate(
    timeline: Timeline, policy: Policy, seed: int, load_metrics: LoadMetricsSettings | None = None
) -> Trace:
    """Run `policy` through `timeline`; the same seed gives the same trace. `load_metrics` is the sidecars'
    configuration, by default the bench's."""
    return Simulation(timeline, policy, seed, load_metrics).run()
