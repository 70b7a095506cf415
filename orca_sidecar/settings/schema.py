"""The configuration file: every section and key, with its default.

Durations are held in float seconds and sizes in int bytes; ``values`` says how each kind is written,
``rules`` what must hold between keys, ``load`` reads the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orca_sidecar.settings.addresses import Address
from orca_sidecar.settings.load_metrics import LoadMetricsSettings
from orca_sidecar.settings.section import Section
from orca_sidecar.settings.values import (
    Choice,
    DialAddress,
    Distinct,
    Duration,
    File,
    Filled,
    HeaderName,
    Integer,
    ListenAddress,
    Name,
    Number,
    OptionalFile,
    ServerName,
    Size,
    Switch,
    WorkerCount,
)

API_VERSION = "orca-sidecar.dev/v1alpha1"
KIND = "SidecarConfiguration"

_PKI = Path("/etc/kubernetes/pki")  # kubeadm's

_HOLDS_REQUIRED_KEYS: Any = {}
"""Default of a section with required keys: where it is left out, its keys are said to be missing."""


class ListenerTLSSettings(Section):
    """What the listener shows to callers; out of band shows the same."""

    cert_file: File
    """Serving certificate with its intermediates, PEM. Required."""

    key_file: File
    """Its key, PEM, not encrypted. Required."""

    min_version: Annotated[Literal["1.2", "1.3"], Choice()] = "1.2"
    """The oldest TLS version accepted."""


class HTTP2Settings(Section):
    """HTTP/2 towards the load balancer."""

    enabled: Switch = False
    """Offer h2 beside http/1.1. Not built yet: true is refused."""

    max_concurrent_streams: Annotated[int, Integer(1, 10_000)] = 250
    """Streams a connection may have open."""


class RotationSettings(Section):
    """Closing connections so that clients spread anew, as kube-apiserver's --goaway-chance does."""

    chance: Annotated[float, Number(0, 0.02)] = 0.0
    """Chance per request that it is its connection's last. Not built yet: other than 0 is refused."""

    max_age: Annotated[float, Duration("0s")] = 0.0
    """Age from which on a connection is closed; 0: no limit. Not built yet: other than 0 is refused."""


class ListenerSettings(Section):
    """Downstream: what the load balancer dials."""

    address: ListenAddress = Address("0.0.0.0", 6444)  # noqa: S104 - a balancer on another machine dials it
    """Where to listen; port 0 takes a free one."""

    tls: ListenerTLSSettings = Field(default=_HOLDS_REQUIRED_KEYS, validate_default=True)

    client_ca_file: OptionalFile = Field(default=_PKI / "ca.crt", alias="clientCAFile")
    """CAs whose client certificates are users, as kube-apiserver's --client-ca-file; empty: none are."""

    http2: HTTP2Settings = HTTP2Settings()

    max_connections: Annotated[int, Integer(1, 1_000_000)] = 20_000
    """Connections open at once, over all workers; beyond it the answer is 503."""

    header_bytes: Annotated[int, Size("1Ki", "16Mi")] = 1 << 20
    """Request line and headers together; beyond it the answer is 431."""

    header_timeout: Annotated[float, Duration("1ms", "1h")] = 32.0
    """For a request's line and headers to arrive, and for a new connection's first request."""

    idle_timeout: Annotated[float, Duration("1ms", "24h")] = 180.0
    """For a keep-alive connection between requests; never for a response in progress."""

    rotation: RotationSettings = RotationSettings()


class UpstreamTLSSettings(Section):
    """How kube-apiserver is verified."""

    ca_file: File
    """CAs that vouch for kube-apiserver's serving certificate, PEM. Required."""

    server_name: ServerName = "kubernetes"
    """Name its certificate must hold; kubeadm's holds neither 127.0.0.1 nor localhost."""


class FrontProxyClientSettings(Section):
    """The sidecar's own identity towards kube-apiserver, used only where it asserts another's."""

    cert_file: File = _PKI / "front-proxy-client.crt"
    """Client certificate with a CN of kube-apiserver's --requestheader-allowed-names, PEM."""

    key_file: File = _PKI / "front-proxy-client.key"
    """Its key, PEM, not encrypted."""


class ProbeSettings(Section):
    """Whether kube-apiserver is ready: GET /readyz; 401 and 403 count as ready."""

    interval: Annotated[float, Duration("10ms", "1h")] = 1.0
    """Between two probes."""

    timeout: Annotated[float, Duration("10ms", "1h")] = 1.0
    """For one probe."""

    token_file: OptionalFile = None
    """Holds a bearer token for probes, and in mode reporter for /metrics; empty: no credentials."""


class UpstreamSettings(Section):
    """The local kube-apiserver, over TLS."""

    address: DialAddress = Address("127.0.0.1", 6443)
    """Where it listens."""

    tls: UpstreamTLSSettings = Field(default=_HOLDS_REQUIRED_KEYS, validate_default=True)

    front_proxy_client: FrontProxyClientSettings = FrontProxyClientSettings()

    connect_timeout: Annotated[float, Duration("1ms", "1h")] = 5.0
    """For TCP connect and TLS handshake together."""

    min_idle_connections: Annotated[int, Integer(0, 10_000)] = 4
    """Connections kept warm per pool and worker."""

    max_idle_connections: Annotated[int, Integer(0, 10_000)] = 64
    """Idle connections kept per pool and worker."""

    idle_timeout: Annotated[float, Duration("1ms", "24h")] = 60.0
    """An idle connection older than this is not used again (25s for one that never sent a request)."""

    probe: ProbeSettings = ProbeSettings()


class FrontProxySettings(Section):
    """Who may speak for others, and in which headers."""

    client_ca_file: File = Field(default=_PKI / "front-proxy-ca.crt", alias="clientCAFile")
    """CAs of front proxies' client certificates, as --requestheader-client-ca-file."""

    allowed_names: Annotated[tuple[Name, ...], Distinct] = ()
    """CNs that may assert any identity; empty: nobody may."""

    username_headers: Annotated[tuple[HeaderName, ...], Filled] = ("X-Remote-User",)
    """Headers that hold the user's name, as --requestheader-username-headers."""

    group_headers: Annotated[tuple[HeaderName, ...], Filled] = ("X-Remote-Group",)
    """Headers that hold the groups, as --requestheader-group-headers."""

    uid_headers: tuple[HeaderName, ...] = ("X-Remote-Uid",)
    """Headers that hold the UID, as --requestheader-uid-headers; empty: no UID is asserted."""

    extra_headers_prefix: Annotated[tuple[HeaderName, ...], Filled] = ("X-Remote-Extra-",)
    """Prefixes of headers that hold extras, as --requestheader-extra-headers-prefix."""


class AdminSettings(Section):
    """Plain HTTP: /metrics, /livez, /readyz, /statusz."""

    address: ListenAddress = Address("127.0.0.1", 9446)
    """Where it listens; whoever reaches it may read it."""


class ShutdownSettings(Section):
    """What follows SIGTERM."""

    delay: Annotated[float, Duration("0s", "1h")] = 5.0
    """Not ready but still serving, while the load balancer looks away."""

    grace_period: Annotated[float, Duration("0s", "24h")] = 60.0
    """For what is in flight, counted after the delay."""


class LoggingSettings(Section):
    """The log, on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Choice()] = "info"
    """The least severe lines written."""

    format: Annotated[Literal["json", "text"], Choice()] = "json"
    """One JSON object a line, or text for people."""


class SidecarConfiguration(Section):
    """The whole file."""

    api_version: Annotated[Literal["orca-sidecar.dev/v1alpha1"], Choice()]
    """Version of this format. Required."""

    kind: Annotated[Literal["SidecarConfiguration"], Choice()]
    """What the file is. Required."""

    mode: Annotated[Literal["proxy", "reporter"], Choice()] = "proxy"
    """proxy, or reporter: no listener, only out of band and agent-check."""

    listener: ListenerSettings = Field(default=_HOLDS_REQUIRED_KEYS, validate_default=True)

    upstream: UpstreamSettings = Field(default=_HOLDS_REQUIRED_KEYS, validate_default=True)

    front_proxy: FrontProxySettings = FrontProxySettings()

    load_metrics: LoadMetricsSettings = LoadMetricsSettings()

    admin: AdminSettings = AdminSettings()

    workers: WorkerCount = 1
    """Processes that share the listener; auto: one per core this process may use."""

    event_loop: Annotated[Literal["uvloop", "asyncio"], Choice()] = "uvloop"
    """uvloop, or Python's own asyncio, which costs several times the memory per TLS connection."""

    shutdown: ShutdownSettings = ShutdownSettings()

    logging: LoggingSettings = LoggingSettings()
