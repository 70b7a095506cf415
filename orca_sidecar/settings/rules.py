"""What must hold between keys.

A rule names the keys it reads. One whose keys could not all be read is left out: what it would say depends
on a value that is not known yet, and the other rules can still be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import combinations
from typing import NamedTuple

from orca_sidecar.settings.addresses import Address, overlap, reaches
from orca_sidecar.settings.problems import Problem, related
from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.settings.units import format_duration

_Check = Callable[[SidecarConfiguration], Iterator[Problem]]


class _Rule(NamedTuple):
    reads: tuple[str, ...]
    check: _Check


_RULES: list[_Rule] = []


def _rule(*reads: str) -> Callable[[_Check], _Check]:
    def add(check: _Check) -> _Check:
        _RULES.append(_Rule(reads, check))
        return check

    return add


def violations(configuration: SidecarConfiguration, unread: Collection[str] = ()) -> list[Problem]:
    """Every rule that does not hold. ``unread``: key paths whose values were wrong, and are defaults here."""
    return [
        problem
        for rule in _RULES
        if not any(related(key, other) for key in rule.reads for other in unread)
        for problem in rule.check(configuration)
    ]


# --- not built yet ---------------------------------------------------------------------------------------


@_rule("listener.http2.enabled")
def _http2_is_not_built(configuration: SidecarConfiguration) -> Iterator[Problem]:
    if configuration.listener.http2.enabled:
        yield Problem("listener.http2.enabled", "is true, but HTTP/2 is not built yet", "write false")


@_rule("listener.rotation.chance")
def _rotation_by_chance_is_not_built(configuration: SidecarConfiguration) -> Iterator[Problem]:
    if configuration.listener.rotation.chance:
        yield Problem("listener.rotation.chance", "is set, but rotation is not built yet", "write 0")


@_rule("listener.rotation.maxAge")
def _rotation_by_age_is_not_built(configuration: SidecarConfiguration) -> Iterator[Problem]:
    if configuration.listener.rotation.max_age:
        yield Problem("listener.rotation.maxAge", "is set, but rotation is not built yet", "write 0s")


# --- listeners -------------------------------------------------------------------------------------------


@_rule(
    "mode",
    "listener.address",
    "admin.address",
    "loadMetrics.outOfBand.enabled",
    "loadMetrics.outOfBand.address",
    "loadMetrics.agentCheck.enabled",
    "loadMetrics.agentCheck.address",
)
def _listeners_do_not_overlap(configuration: SidecarConfiguration) -> Iterator[Problem]:
    for (one, address), (other, taken) in combinations(reversed(_listeners(configuration)), 2):
        if overlap(address, taken):
            yield Problem(one, f"is {address}, which {other} takes with {taken}", "use another port")


@_rule("mode", "listener.address", "upstream.address")
def _upstream_is_not_the_sidecar(configuration: SidecarConfiguration) -> Iterator[Problem]:
    dialled, listener = configuration.upstream.address, configuration.listener.address
    if configuration.mode == "proxy" and reaches(dialled, listener):
        yield Problem(
            "upstream.address",
            f"is {dialled}, the sidecar's own listener.address",
            "name kube-apiserver's port, and another one for the listener",
        )


def _listeners(configuration: SidecarConfiguration) -> list[tuple[str, Address]]:
    metrics = configuration.load_metrics
    found = [("admin.address", configuration.admin.address)]
    if configuration.mode == "proxy":
        found.insert(0, ("listener.address", configuration.listener.address))
    if metrics.out_of_band.enabled:
        found.append(("loadMetrics.outOfBand.address", metrics.out_of_band.address))
    if metrics.agent_check.enabled:
        found.append(("loadMetrics.agentCheck.address", metrics.agent_check.address))
    return found


# --- upstream --------------------------------------------------------------------------------------------

_KUBE_APISERVER_IDLE_TIMEOUT = 90.0


@_rule("upstream.idleTimeout")
def _upstream_connections_end_before_kube_apiserver_ends_them(
    configuration: SidecarConfiguration,
) -> Iterator[Problem]:
    timeout = configuration.upstream.idle_timeout
    if timeout >= _KUBE_APISERVER_IDLE_TIMEOUT:
        yield Problem(
            "upstream.idleTimeout",
            f"is {format_duration(timeout)}, but kube-apiserver closes an idle connection after 90s, and a "
            "request sent at that moment is lost",
            "write less than 90s",
        )


@_rule("upstream.minIdleConnections", "upstream.maxIdleConnections")
def _warm_connections_may_be_kept(configuration: SidecarConfiguration) -> Iterator[Problem]:
    least, most = configuration.upstream.min_idle_connections, configuration.upstream.max_idle_connections
    if least > most:
        yield Problem(
            "upstream.minIdleConnections",
            f"is {least}, more than upstream.maxIdleConnections, {most}",
            "lower it or raise the other",
        )


# --- identity --------------------------------------------------------------------------------------------

_HEADER_LISTS = {
    "usernameHeaders": "username_headers",
    "groupHeaders": "group_headers",
    "uidHeaders": "uid_headers",
    "extraHeadersPrefix": "extra_headers_prefix",
}

_RESERVED_HEADERS = {
    "frames or routes the message": (
        "content-length",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
    ),
    "belongs to one connection (RFC 9110 section 7.6.1)": (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "upgrade",
    ),
    "holds credentials": ("authorization", "cookie", "proxy-authorization", "sec-websocket-protocol"),
    "has a meaning of its own to kube-apiserver or the sidecar": (
        "endpoint-load-metrics",
        "endpoint-load-metrics-bin",
        "endpoint-load-metrics-json",
        "endpoint-load-metrics-request",
        "impersonate-extra-",
        "impersonate-group",
        "impersonate-uid",
        "impersonate-user",
        "x-forwarded-for",
        "x-real-ip",
        "x-stream-protocol-version",
    ),
}


@_rule(*(f"frontProxy.{name}" for name in _HEADER_LISTS))
def _identity_headers_are_told_apart(configuration: SidecarConfiguration) -> Iterator[Problem]:
    seen: list[tuple[str, str, bool]] = []
    for name, attribute in _HEADER_LISTS.items():
        is_prefix = name == "extraHeadersPrefix"
        for index, header in enumerate(getattr(configuration.front_proxy, attribute)):
            key = f"frontProxy.{name}[{index}]"
            yield from _reserved(key, header, is_prefix)
            for other_key, other, other_is_prefix in seen:
                if _matches(header, is_prefix, other, other_is_prefix):
                    yield Problem(
                        key,
                        f"is {header}, which cannot be told from {other_key}, {other}",
                        "give every header one meaning; case does not count",
                    )
            seen.append((key, header, is_prefix))


def _reserved(key: str, header: str, is_prefix: bool) -> Iterator[Problem]:
    for reason, names in _RESERVED_HEADERS.items():
        for name in names:
            if _matches(header, is_prefix, name, name.endswith("-")):
                held = f"begins {name}, which" if is_prefix else f"is {header}, which"
                yield Problem(key, f"{held} {reason}", "use a name made for identities, such as X-Remote-…")
                return


def _matches(one: str, one_is_prefix: bool, other: str, other_is_prefix: bool) -> bool:
    one, other = one.lower(), other.lower()
    return (
        one == other
        or (one_is_prefix and other.startswith(one))
        or (other_is_prefix and one.startswith(other))
    )


@_rule("frontProxy.allowedNames", "loadMetrics.optIn.allowedNames")
def _who_only_asks_does_not_speak_for_others(configuration: SidecarConfiguration) -> Iterator[Problem]:
    for index, name in enumerate(configuration.load_metrics.opt_in.allowed_names):
        if name in configuration.front_proxy.allowed_names:
            yield Problem(
                f"loadMetrics.optIn.allowedNames[{index}]",
                f"is {name}, which frontProxy.allowedNames holds too and lets assert any identity",
                "keep it in one of the two: names here ask for reports but speak for nobody",
            )


# --- load metrics ----------------------------------------------------------------------------------------


@_rule(
    "mode",
    "frontProxy.allowedNames",
    "loadMetrics.enabled",
    "loadMetrics.optIn.gate",
    "loadMetrics.optIn.allowedNames",
)
def _gate_front_proxy_lets_somebody_pass(configuration: SidecarConfiguration) -> Iterator[Problem]:
    metrics = configuration.load_metrics
    gated = configuration.mode == "proxy" and metrics.opt_in.gate == "frontProxy"
    if metrics.enabled and gated and not _anybody_may_ask(configuration):
        yield Problem(
            "loadMetrics.optIn.gate",
            "is frontProxy, but frontProxy.allowedNames and loadMetrics.optIn.allowedNames are both empty: "
            "nobody could ask for a report",
            "add the load balancer's CN to loadMetrics.optIn.allowedNames, or to frontProxy.allowedNames if "
            "it asserts identities",
        )


@_rule("frontProxy.allowedNames", "loadMetrics.optIn.allowedNames", "loadMetrics.outOfBand.enabled")
def _out_of_band_has_a_caller(configuration: SidecarConfiguration) -> Iterator[Problem]:
    if configuration.load_metrics.out_of_band.enabled and not _anybody_may_ask(configuration):
        yield Problem(
            "loadMetrics.outOfBand.enabled",
            "is true, but frontProxy.allowedNames and loadMetrics.optIn.allowedNames are both empty: nobody "
            "could call",
            "add the load balancer's CN to loadMetrics.optIn.allowedNames",
        )


def _anybody_may_ask(configuration: SidecarConfiguration) -> bool:
    return bool(configuration.front_proxy.allowed_names or configuration.load_metrics.opt_in.allowed_names)


@_rule("loadMetrics.optIn.gate", "loadMetrics.optIn.sharedSecretFile")
def _gate_shared_secret_has_a_secret(configuration: SidecarConfiguration) -> Iterator[Problem]:
    opt_in = configuration.load_metrics.opt_in
    if opt_in.gate == "sharedSecret" and opt_in.shared_secret_file is None:
        yield Problem(
            "loadMetrics.optIn.sharedSecretFile",
            "is empty, but the gate is sharedSecret",
            "name the file that holds the secret",
        )


@_rule("mode", "listener.address", "loadMetrics.optIn.gate", "loadMetrics.optIn.openAcknowledged")
def _gate_open_is_meant(configuration: SidecarConfiguration) -> Iterator[Problem]:
    opt_in, address = configuration.load_metrics.opt_in, configuration.listener.address
    exposed = configuration.mode == "proxy" and opt_in.gate == "open" and not address.is_loopback
    if exposed and not opt_in.open_acknowledged:
        yield Problem(
            "loadMetrics.optIn.gate",
            f"is open on {address}: every client could read the node's load",
            "use frontProxy or sharedSecret, or say loadMetrics.optIn.openAcknowledged: true",
        )


@_rule("mode", "loadMetrics.enabled", "loadMetrics.outOfBand.enabled", "loadMetrics.agentCheck.enabled")
def _reporter_reports(configuration: SidecarConfiguration) -> Iterator[Problem]:
    metrics = configuration.load_metrics
    published = metrics.enabled and (metrics.out_of_band.enabled or metrics.agent_check.enabled)
    if configuration.mode == "reporter" and not published:
        yield Problem(
            "mode",
            "is reporter, but nothing is published",
            "set loadMetrics.enabled, and outOfBand.enabled or agentCheck.enabled in it, to true",
        )


@_rule("loadMetrics.report.fields", "loadMetrics.report.namedMetrics")
def _report_holds_something(configuration: SidecarConfiguration) -> Iterator[Problem]:
    report = configuration.load_metrics.report
    if not report.fields and not report.named_metrics:
        yield Problem(
            "loadMetrics.report.fields", "is empty, and so is namedMetrics", "name at least one of either"
        )


@_rule("loadMetrics.sampler.smoothing", "loadMetrics.report.averageAtLeast")
def _smoothing_only_grows(configuration: SidecarConfiguration) -> Iterator[Problem]:
    average = configuration.load_metrics.report.average_at_least
    smoothing = configuration.load_metrics.sampler.smoothing
    if average.requests and average.at_most < smoothing:
        yield Problem(
            "loadMetrics.report.averageAtLeast.atMost",
            f"is {format_duration(average.at_most)}, less than loadMetrics.sampler.smoothing, "
            f"{format_duration(smoothing)}, from which it grows",
            "raise it, or write averageAtLeast.requests: 0",
        )


@_rule("loadMetrics.sampler.interval", "loadMetrics.sampler.staleAfter")
def _samples_outlive_their_interval(configuration: SidecarConfiguration) -> Iterator[Problem]:
    sampler = configuration.load_metrics.sampler
    if sampler.stale_after <= sampler.interval:
        yield Problem(
            "loadMetrics.sampler.staleAfter",
            f"is {format_duration(sampler.stale_after)}, no more than loadMetrics.sampler.interval, "
            f"{format_duration(sampler.interval)}: every sample would be stale before the next",
            "write several times the interval",
        )


@_rule("loadMetrics.sampler.target", "loadMetrics.sampler.node")
def _something_is_measured(configuration: SidecarConfiguration) -> Iterator[Problem]:
    sampler = configuration.load_metrics.sampler
    target = sampler.target
    if not (sampler.node or target.cgroup or target.pid_file or target.process_name):
        yield Problem(
            "loadMetrics.sampler.target", "is empty, and node is false", "set cgroup, pidFile or processName"
        )
