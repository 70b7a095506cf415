"""Real handshakes over loopback, on both event loops: whom the listener's context and the trust store make of a client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop
from cryptography import x509

from orca_sidecar.core.identity import CallerKind
from orca_sidecar.trust.contexts import peer_certificates, server_context, upstream_contexts
from orca_sidecar.trust.store import Bundles, TrustStore
from tests.pki import HOUR, SERVER, Credential, elements, encode, resigned
from tests.unit.trust.clusters import RULES, Cluster, make_cluster

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]

DEADLINE = 20.0
MINUTE = timedelta(minutes=1)
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(asyncio.wait_for(main, DEADLINE))

    return run_in_loop


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    return VERSIONS[request.param]


class Seen(NamedTuple):
    """What the server saw of one connection, and the client's session to resume."""

    kind: CallerKind
    name: str
    chain: int
    reused: bool
    version: str
    session: ssl.SSLSession | None


class Server:
    """Answers every connection with what it takes the client for."""

    def __init__(self, cluster: Cluster, trust: TrustStore | None = None) -> None:
        self.trust = trust or cluster.trust()
        self.context, self.accepts_any = server_context(cluster.configuration(), self.trust.bundles)
        self.seen: list[tuple[Any, ...]] = []
        self.port = 0

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ssl_object = writer.get_extra_info("ssl_object")
        leaf, chain = peer_certificates(ssl_object)
        caller = self.trust.judge(leaf, chain)
        self.seen.append(
            (caller.kind, caller.common_name, len(chain), ssl_object.session_reused, ssl_object.version())
        )
        writer.write(b"seen\n")
        await reader.read()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def connect(self, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Seen:
        """Connect once. Raises OSError if the server aborts."""
        session = await asyncio.to_thread(self._connect, client, session)
        return Seen(*self.seen.pop(), session)

    def _connect(self, client: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE) as raw,
            client.wrap_socket(raw, server_hostname="kubernetes", session=session) as sock,
        ):
            assert sock.selected_alpn_protocol() == "http/1.1"
            if sock.recv(5) != b"seen\n":
                raise ConnectionAbortedError("closed without an answer")
            return sock.session


def client_context(
    cluster: Cluster, credential: Credential | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cluster.ca.cert_file)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    if credential is not None:
        context.load_cert_chain(credential.cert_file, credential.key_file)
    return context


def connect(
    run: Run[Seen],
    cluster: Cluster,
    credential: Credential | None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Seen:
    async def main() -> Seen:
        async with Server(cluster) as server:
            return await server.connect(client_context(cluster, credential, version))

    return run(main())


# -- kinds of certificates -------------------------------------------------------------------------------------


def jane(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane")


def unknown_authority(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.pki.ca("stranger"), cn="jane")


def unknown_authority_of_the_same_name(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.pki.ca("stranger", cn="ca"), cn="jane")


def an_impostor_for_its_issuer(cluster: Cluster) -> Credential:
    """Beside it comes an authority of its issuer's name and another key: verified by OpenSSL, it would leave an entry in
    the thread's error queue, which Python reads as a failure of the next connection.
    """
    leaf = cluster.pki.leaf(cluster.pki.ca("stranger"), cn="jane")
    impostor = cluster.pki.ca("impostor", cn="stranger")
    leaf.cert_file.write_bytes(leaf.pem + impostor.pem)
    return leaf


def self_signed(cluster: Cluster) -> Credential:
    return cluster.pki.ca("myself")


def expired(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", not_before=-2 * HOUR, not_after=-MINUTE)


def not_yet_valid(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", not_before=MINUTE)


def for_servers_only(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", eku=SERVER)


def version_1(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", version=x509.Version.v1)


def two_intermediates(cluster: Cluster) -> Credential:
    first = cluster.pki.ca("first", issuer=cluster.ca)
    return cluster.pki.leaf(cluster.pki.ca("second", issuer=first), cn="jane")


def balancer(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.front_proxy_ca, cn="balancer")


def balancer_of_the_client_authority(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="balancer")


def reporter(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.front_proxy_ca, cn="reporter")


def unlisted(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.front_proxy_ca, cn="other")


def ed25519(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", key="ed25519")


def rsa(cluster: Cluster) -> Credential:
    return cluster.pki.leaf(cluster.ca, cn="jane", key="rsa")


EXPECTED: dict[Callable[[Cluster], Credential], tuple[CallerKind, str]] = {
    jane: (CallerKind.CERTIFICATE, "jane"),
    unknown_authority: (CallerKind.UNVERIFIED, ""),
    unknown_authority_of_the_same_name: (CallerKind.UNVERIFIED, ""),
    an_impostor_for_its_issuer: (CallerKind.UNVERIFIED, ""),
    self_signed: (CallerKind.UNVERIFIED, ""),
    expired: (CallerKind.UNVERIFIED, ""),
    not_yet_valid: (CallerKind.UNVERIFIED, ""),
    for_servers_only: (CallerKind.UNVERIFIED, ""),
    version_1: (CallerKind.CERTIFICATE, "jane"),
    two_intermediates: (CallerKind.CERTIFICATE, "jane"),
    balancer: (CallerKind.FRONT_PROXY, "balancer"),
    balancer_of_the_client_authority: (CallerKind.CERTIFICATE, "balancer"),
    reporter: (CallerKind.REPORT_ONLY, "reporter"),
    unlisted: (CallerKind.UNLISTED, "other"),
    ed25519: (CallerKind.CERTIFICATE, "jane"),
    rsa: (CallerKind.CERTIFICATE, "jane"),
}
UNVERIFIED = [make for make, (kind, _) in EXPECTED.items() if kind is CallerKind.UNVERIFIED]


@pytest.mark.parametrize("make", EXPECTED, ids=lambda make: make.__name__)
def test_case_4_every_handshake_completes(
    run: Run[Seen], version: ssl.TLSVersion, cluster: Cluster, make: Callable[[Cluster], Credential]
) -> None:
    credential = make(cluster)
    seen = connect(run, cluster, credential, version)
    assert (seen.kind, seen.name) == EXPECTED[make]
    assert seen.version == ("TLSv1.2" if version is ssl.TLSVersion.TLSv1_2 else "TLSv1.3")
    assert seen.chain >= len(credential.intermediates), "OpenSSL sends a root that it knows, too"


def test_no_certificate(run: Run[Seen], version: ssl.TLSVersion, cluster: Cluster) -> None:
    assert connect(run, cluster, None, version).kind is CallerKind.NO_CERTIFICATE


@pytest.mark.parametrize("identified", [True, False], ids=["key identifiers", "no key identifiers"])
@pytest.mark.parametrize("v", [x509.Version.v1, x509.Version.v3])
def test_authorities_that_share_a_subject(
    run: Run[Seen], tmp_path: Path, v: x509.Version, identified: bool
) -> None:
    cluster = make_cluster(tmp_path, front_proxy_cn="ca", key_identifiers=identified)
    for ca, kind in ((cluster.ca, CallerKind.CERTIFICATE), (cluster.front_proxy_ca, CallerKind.FRONT_PROXY)):
        leaf = cluster.pki.leaf(ca, cn="balancer", version=v, key_identifiers=identified)
        assert connect(run, cluster, leaf).kind is kind


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=DEADLINE)


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_certificate_made_by_openssl_x509_req(run: Run[Seen], cluster: Cluster, key: str) -> None:
    """The usual way to make a user by hand; without an extension file OpenSSL before 3.4 writes X.509 v1."""
    folder = cluster.pki.folder
    files = [folder / f"john.{suffix}" for suffix in ("key", "csr", "crt")]
    new_key = ["rsa:2048"] if key == "rsa" else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    openssl(
        "req",
        "-new",
        "-newkey",
        *new_key,
        "-nodes",
        "-keyout",
        files[0],
        "-out",
        files[1],
        "-subj",
        "/O=dev/CN=john",
    )
    openssl(
        "x509", "-req", "-in", files[1], "-CA", cluster.ca.cert_file, "-CAkey", cluster.ca.key_file,
        "-CAcreateserial", "-days", "1", "-out", files[2],
    )  # fmt: skip
    certificate = x509.load_pem_x509_certificate(files[2].read_bytes())
    made = Credential(certificate, cluster.ca.private_key, files[2], files[0])
    seen = connect(run, cluster, made)
    assert (seen.kind, seen.name) == (CallerKind.CERTIFICATE, "john")


@pytest.mark.parametrize(
    ("tag", "value"), [(0x0C, b"\xff\xfe"), (0x04, b"x"), (0x1E, b"\xd8\0"), (0x14, b"\xe9"), (0x0C, b"")]
)
def test_subjects_out_of_the_ordinary_harm_nobody(
    run: Run[Any], cluster: Cluster, tag: int, value: bytes
) -> None:
    """Whatever the event loop makes of such a certificate, the handshake ends in a verdict or in an `OSError`."""
    leaf = cluster.pki.leaf(cluster.ca, cn="placeholder", name="odd")
    fields = elements(leaf.certificate.tbs_certificate_bytes)
    attribute = encode(0x30, encode(0x06, bytes.fromhex("550403")) + encode(tag, value))
    fields[5] = encode(0x30, encode(0x31, attribute))
    odd = resigned(leaf.certificate, encode(0x30, b"".join(fields)), cluster.ca.private_key)
    leaf.cert_file.write_text(ssl.DER_cert_to_PEM_cert(odd))

    async def main() -> tuple[CallerKind | None, CallerKind]:
        async with Server(cluster) as server:
            try:
                kind: CallerKind | None = (await server.connect(client_context(cluster, leaf))).kind
            except OSError:
                kind = None
            return kind, (await server.connect(client_context(cluster))).kind

    odd_kind, next_kind = run(main())
    assert odd_kind in (None, CallerKind.UNVERIFIED, CallerKind.CERTIFICATE)
    assert next_kind is CallerKind.NO_CERTIFICATE


# -- resumption ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [jane, balancer, unknown_authority, expired, version_1, two_intermediates],
    ids=lambda make: make.__name__,
)
def test_a_resumed_session_is_judged_again(
    run: Run[Any], version: ssl.TLSVersion, cluster: Cluster, make: Callable[[Cluster], Credential]
) -> None:
    async def main() -> list[Seen]:
        async with Server(cluster) as server:
            client = client_context(cluster, make(cluster), version)
            first = await server.connect(client)
            second = await server.connect(client, first.session)
            # Other authorities of the same names: the client's certificate counts no longer.
            cluster.ca = cluster.pki.ca("anew", cn="ca")
            cluster.front_proxy_ca = cluster.pki.ca("anew-proxy", cn="front-proxy-ca")
            server.trust.replace(Bundles.load(cluster.configuration()))
            third = await server.connect(client, second.session)
            return [first, second, third]

    first, second, third = run(main())
    assert [seen.reused for seen in (first, second, third)] == [False, True, True]
    assert (first.kind, first.name) == (second.kind, second.name) == EXPECTED[make]
    assert third.kind is CallerKind.UNVERIFIED


def test_a_certificate_that_expired_since_its_session_began(run: Run[Any], cluster: Cluster) -> None:
    now = [cluster.pki.now.timestamp()]
    trust = TrustStore(Bundles.load(cluster.configuration()), RULES, clock=lambda: now[0])
    leaf = cluster.pki.leaf(cluster.ca, cn="jane", not_after=HOUR)

    async def main() -> list[CallerKind]:
        async with Server(cluster, trust) as server:
            client = client_context(cluster, leaf)
            first = await server.connect(client)
            now[0] += 3601
            return [first.kind, (await server.connect(client, first.session)).kind]

    assert run(main()) == [CallerKind.CERTIFICATE, CallerKind.UNVERIFIED]


# -- the fallback ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("openssl_verifies")
@pytest.mark.parametrize("make", EXPECTED, ids=lambda make: make.__name__)
def test_the_fallback_aborts_what_nobody_vouches_for(
    run: Run[Any], version: ssl.TLSVersion, cluster: Cluster, make: Callable[[Cluster], Credential]
) -> None:
    credential = make(cluster)
    if make in UNVERIFIED:
        with pytest.raises(OSError, match=r"\w"):
            connect(run, cluster, credential, version)
    else:
        seen = connect(run, cluster, credential, version)
        assert (seen.kind, seen.name) == EXPECTED[make]


@pytest.mark.usefixtures("openssl_verifies")
def test_the_fallback_takes_clients_without_a_certificate(run: Run[Seen], cluster: Cluster) -> None:
    assert connect(run, cluster, None).kind is CallerKind.NO_CERTIFICATE


# -- upstream --------------------------------------------------------------------------------------------------


def test_the_pools_present_what_they_should(run: Run[Any], cluster: Cluster) -> None:
    """The sidecar's own contexts against its own listener: no certificate, and the front-proxy client's."""

    async def main() -> list[Seen]:
        async with Server(cluster) as server:
            return [await server.connect(context) for context in upstream_contexts(cluster.configuration())]

    plain, front_proxy = run(main())
    assert plain.kind is CallerKind.NO_CERTIFICATE
    assert (front_proxy.kind, front_proxy.name) == (CallerKind.UNLISTED, "front-proxy-client")


@pytest.mark.parametrize("fault", ["another authority", "another name"])
def test_the_pools_verify_kube_apiserver(run: Run[Any], cluster: Cluster, fault: str) -> None:
    ca = cluster.pki.ca("stranger", cn="ca") if fault == "another authority" else cluster.ca
    name = "kubernetes" if fault == "another authority" else "localhost"
    cluster.pki.leaf(ca, name="apiserver", cn="kube-apiserver", eku=SERVER, san=[name])

    async def main() -> None:
        async with Server(cluster) as server:
            for context in upstream_contexts(cluster.configuration()):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await server.connect(context)

    run(main())
