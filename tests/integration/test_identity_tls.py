"""Who a connection is, over its whole life: resumed sessions, expiry, replaced authorities, several workers, odd names.

Seen through the installed program, at an upstream that says on which pool and with which identity a request arrived.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.pki import Authority, Credential, Pki, elements, encode, resigned
from tests.support.recorder import Recorder
from tests.support.sidecar import Identities, Sidecar, free_port, running
from tests.support.subjects import CN, REFUSED, SUBJECTS, UTF8, certificate, said, written

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
DEADLINE = 20.0
CREDENTIAL_ID = b"X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id"
TOKEN = b"Authorization: Bearer joe-token\r\n"

PLAIN: list[bytes] = []


class Seen(NamedTuple):
    """How a request went: the identity lines that arrived, or None where it was refused with 401."""

    identity: list[bytes] | None
    resumed: bool
    session: ssl.SSLSession | None


@dataclass
class Lab:
    sidecar: Sidecar
    identities: Identities
    recorder: Recorder
    pki: Pki

    def context(self, credential: Credential | None = None, version: str = "1.3") -> ssl.SSLContext:
        context = self.identities.client_context(credential)
        context.minimum_version = context.maximum_version = VERSIONS[version]
        return context

    @contextmanager
    def connected(
        self, context: ssl.SSLContext, session: ssl.SSLSession | None = None, port: int = 0
    ) -> Iterator[ssl.SSLSocket]:
        with (
            socket.create_connection(("127.0.0.1", port or self.sidecar.port), DEADLINE) as raw,
            context.wrap_socket(raw, server_hostname="kubernetes", session=session) as sock,
        ):
            yield sock

    def ask(self, sock: ssl.SSLSocket, lines: bytes = b"") -> list[bytes] | None:
        """Send a request; what it arrived as."""
        self.recorder.clear()
        sock.sendall(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n%b\r\n" % lines)
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith((b"ok", b"}\n")):
            piece = sock.recv(65536)
            assert piece, f"the connection ended behind {answer!r}"
            answer += piece
        if answer.startswith(b"HTTP/1.1 401 "):
            assert self.recorder.arrivals == []
            return REFUSED
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        (arrival,) = self.recorder.arrivals
        said = [
            name + b": " + value for name, value in arrival.lines if name.lower().startswith(b"x-remote-")
        ]
        assert arrival.with_certificate == bool(said)
        return said

    def ask_once(
        self, context: ssl.SSLContext, session: ssl.SSLSession | None = None, lines: bytes = b""
    ) -> Seen:
        with self.connected(context, session) as sock:
            identity = self.ask(sock, lines)
            return Seen(identity, bool(sock.session_reused), sock.session)


def without_credential_id(identity: list[bytes] | None) -> list[bytes] | None:
    if identity is None:
        return None
    return [line for line in identity if not line.startswith(CREDENTIAL_ID)]


@contextmanager
def started(
    folder: Path, changes: Callable[[Identities], dict[str, Any]] = lambda identities: {}
) -> Iterator[Lab]:
    identities = Identities.make(folder / "pki")
    with Recorder(identities.server_context()) as recorder:
        settings = identities.configuration(recorder.port, **changes(identities))
        with running(settings, folder) as sidecar:
            asyncio.run(sidecar.ready())
            yield Lab(sidecar, identities, recorder, Pki(folder / "callers"))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with started(tmp_path_factory.mktemp("alone")) as lab:
        lab.pki.folder.mkdir()
        yield lab


# -- resumed sessions ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with started(tmp_path_factory.mktemp("crowd"), lambda identities: {"workers": 2}) as lab:
        yield lab


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_is_resumed_by_either_worker_as_whom_it_began(crowd: Lab, version: str) -> None:
    callers = {
        "jane": (crowd.context(crowd.identities.jane, version), b"", said("jane", "developers")),
        "balancer": (
            crowd.context(crowd.identities.balancer, version),
            b"X-Remote-User: sue\r\n",
            said("sue"),
        ),
        "reporter": (crowd.context(crowd.identities.reporter, version), b"X-Remote-User: sue\r\n", PLAIN),
        "nobody": (crowd.context(None, version), b"X-Remote-User: sue\r\n", PLAIN),
    }
    sessions: dict[str, ssl.SSLSession | None] = {}
    resumed = 0
    for _ in range(12):
        for name, (context, lines, wanted) in callers.items():
            seen = crowd.ask_once(context, sessions.get(name), lines)
            assert without_credential_id(seen.identity) == wanted, name
            sessions[name] = seen.session
            resumed += seen.resumed
    assert resumed == 11 * len(callers)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_session_is_its_first_certificates_and_no_other(lab: Lab, version: str) -> None:
    """A ticket is worth what the certificate was that began the session; whoever resumes it has the session's secret, as
    only that certificate's holder (or whom it was given to) can. What else the client holds by now counts for nothing.
    """
    mallory = lab.pki.leaf(lab.identities.ca, cn="mallory")
    context = lab.context(lab.identities.jane, version)
    jane = lab.ask_once(context)
    context.load_cert_chain(mallory.cert_file, mallory.key_file)
    resumed = lab.ask_once(context, jane.session)
    assert resumed.resumed
    assert resumed.identity == jane.identity
    assert without_credential_id(lab.ask_once(context).identity) == said("mallory")

    context = lab.context(None, version)
    nobody = lab.ask_once(context)
    context.load_cert_chain(lab.identities.balancer.cert_file, lab.identities.balancer.key_file)
    resumed = lab.ask_once(context, nobody.session, b"X-Remote-User: root\r\n")
    assert resumed.resumed
    assert resumed.identity == nobody.identity == PLAIN
    assert lab.ask_once(context, lines=b"X-Remote-User: root\r\n").identity == said("root")


def _s_client(lab: Lab, *arguments: str | Path, send: bytes = b"") -> str:
    command: list[str | Path] = [
        "openssl", "s_client", "-connect", f"127.0.0.1:{lab.sidecar.port}", "-servername", "kubernetes", "-CAfile",
        lab.identities.ca.cert_file, "-alpn", "http/1.1", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, input=send, capture_output=True, timeout=DEADLINE, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


REQUEST = b"GET /api HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stolen_ticket_is_worth_nothing_without_the_sessions_secret(
    lab: Lab, tmp_path: Path, version: str
) -> None:
    """A ticket is seen on the wire (TLS 1.2); the secret it stands for is not."""
    jane, flag = lab.identities.jane, "-tls1_2" if version == "1.2" else "-tls1_3"
    kept, stolen = tmp_path / "session.pem", tmp_path / "stolen.pem"
    lab.recorder.clear()
    with_key = ["-cert", jane.cert_file, "-key", jane.key_file]
    _s_client(lab, flag, *with_key, "-sess_out", kept, "-ign_eof", send=REQUEST)
    began = _s_client(lab, flag, "-sess_in", kept, "-ign_eof", send=REQUEST)
    assert "Reused, TLSv" in began
    assert [arrival.values(b"X-Remote-User") for arrival in lab.recorder.arrivals] == [[b"jane"], [b"jane"]]

    session = ssl.PEM_cert_to_DER_cert(
        kept.read_text().replace("SSL SESSION PARAMETERS", "CERTIFICATE").strip()
    )
    fields = elements(session)
    (place,) = [i for i, f in enumerate(fields) if i > 3 and f[0] == 0x04 and len(f) in (34, 50)][:1]
    secret = fields[place]
    fields[place] = secret[:2] + bytes(byte ^ 0xFF for byte in secret[2:])
    text = ssl.DER_cert_to_PEM_cert(encode(0x30, b"".join(fields)))
    stolen.write_text(text.replace("CERTIFICATE", "SSL SESSION PARAMETERS"))
    lab.recorder.clear()
    output = _s_client(lab, flag, "-sess_in", stolen, "-ign_eof", send=REQUEST)
    # The server's proof of the secret is not the thief's (1.2), the thief's not the server's (1.3): no session.
    assert re.search("bad record mac|alert decrypt error|alert illegal parameter", output), output
    assert lab.recorder.arrivals == []
    assert lab.ask_once(lab.context()).identity == PLAIN


def test_a_session_of_another_listener_is_not_resumed(tmp_path: Path) -> None:
    """Of the out-of-band listener of the same sidecar, and of another sidecar with the same certificates."""
    address = f"127.0.0.1:{free_port()}"
    out_of_band = {"outOfBand": {"enabled": True, "address": address}}
    with started(tmp_path, lambda identities: {"loadMetrics": out_of_band}) as lab:
        other = dict(lab.sidecar.settings)
        other["listener"] = {**other["listener"], "address": f"127.0.0.1:{free_port()}"}
        other["admin"] = {"address": f"127.0.0.1:{free_port()}"}
        other["loadMetrics"] = {"enabled": False}
        (tmp_path / "other").mkdir()
        with running(other, tmp_path / "other") as second:
            asyncio.run(second.ready())
            for port, protocol in ((int(address.rpartition(":")[2]), "h2"), (second.port, "http/1.1")):
                context = lab.context(lab.identities.balancer)
                context.set_alpn_protocols([protocol])
                with lab.connected(context, port=port) as sock:
                    if protocol == "h2":
                        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
                        sock.recv(65536)  # the ticket comes with the first bytes
                    else:
                        lab.ask(sock)
                    session = sock.session
                context.set_alpn_protocols(["http/1.1"])
                seen = lab.ask_once(context, session, b"X-Remote-User: sue\r\n")
                assert not seen.resumed
                assert seen.identity == said("sue")


def test_nothing_changes_within_a_connection(lab: Lab) -> None:
    """No renegotiation (TLS 1.2), by which another certificate could come."""
    jane = lab.identities.jane
    lab.recorder.clear()
    output = _s_client(lab, "-tls1_2", "-cert", jane.cert_file, "-key", jane.key_file, send=b"R\n" + REQUEST)
    assert "RENEGOTIATING" in output
    assert "no renegotiation" in output
    assert lab.recorder.arrivals == []


def test_no_certificate_is_taken_after_the_handshake(lab: Lab) -> None:
    """A client that could be asked (TLS 1.3 post-handshake authentication) is not, and what it is stays."""
    context = lab.context(lab.identities.jane)
    context.post_handshake_auth = True
    with lab.connected(context) as sock:
        for _ in range(3):
            assert without_credential_id(lab.ask(sock)) == said("jane", "developers")


# -- expiry and replaced authorities ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_that_expires_stops_counting_on_an_open_connection(lab: Lab, version: str) -> None:
    soon = datetime.now(UTC) - lab.pki.now + timedelta(seconds=3)
    user = lab.pki.leaf(lab.identities.ca, name=f"soon-{version}", cn="jane", not_after=soon)
    proxy = lab.pki.leaf(
        lab.identities.front_proxy_ca, name=f"soon-proxy-{version}", cn="balancer", not_after=soon
    )
    claim = b"X-Remote-User: sue\r\n"
    contexts = [lab.context(user, version), lab.context(proxy, version)]
    with lab.connected(contexts[0]) as of_user, lab.connected(contexts[1]) as of_proxy:
        assert without_credential_id(lab.ask(of_user)) == said("jane")
        assert lab.ask(of_proxy, claim) == said("sue")
        sessions = [of_user.session, of_proxy.session]

        async def expired() -> bool:
            return lab.ask(of_user) is REFUSED

        asyncio.run(_until(expired))
        for sock in (of_user, of_proxy):
            assert lab.ask(sock, claim) is REFUSED
            assert lab.ask(sock, claim + TOKEN) == PLAIN
    for context, session in zip(contexts, sessions, strict=True):
        seen = lab.ask_once(context, session, claim)
        assert seen.resumed
        assert seen.identity is REFUSED


async def _until(condition: Callable[[], Any], seconds: float = DEADLINE) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_replaced_authority_stops_counting_on_open_connections(tmp_path: Path, workers: int) -> None:
    """And the new ones of the same names count, also in a worker that takes a dead one's place."""
    client_file, proxy_file = tmp_path / "clients.crt", tmp_path / "proxies.crt"

    def put(certificate: Authority, path: Path) -> None:
        new = path.with_suffix(".new")
        shutil.copy(certificate.cert_file, new)
        new.replace(path)

    def files(identities: Identities) -> dict[str, Any]:
        put(identities.ca, client_file)
        put(identities.front_proxy_ca, proxy_file)
        return {
            "listener": {"clientCAFile": str(client_file)},
            "frontProxy": {"clientCAFile": str(proxy_file)},
            "workers": workers,
        }

    with started(tmp_path, files) as lab:
        identities, sidecar = lab.identities, lab.sidecar
        ca = lab.pki.ca("new-ca", cn="ca")
        front_proxy_ca = lab.pki.ca("new-front-proxy-ca", cn="front-proxy-ca")
        jane = lab.pki.leaf(ca, cn="jane", o=["new"])
        balancer = lab.pki.leaf(front_proxy_ca, cn="balancer")
        claim = b"X-Remote-User: sue\r\n"
        old_user, old_proxy = lab.context(identities.jane), lab.context(identities.balancer)
        new_user, new_proxy = lab.context(jane), lab.context(balancer)
        with lab.connected(old_user) as of_user, lab.connected(old_proxy) as of_proxy:
            assert without_credential_id(lab.ask(of_user)) == said("jane", "developers")
            assert lab.ask(of_proxy, claim) == said("sue")
            assert lab.ask_once(new_user).identity is REFUSED
            sessions = [of_user.session, of_proxy.session]
            put(ca, client_file)
            put(front_proxy_ca, proxy_file)
            reloads = "orca_sidecar_certificate_reloads_total"
            asyncio.run(sidecar.until(lambda: sidecar.metric(reloads, result="ok") >= workers))
            for sock in (of_user, of_proxy):
                assert lab.ask(sock, claim) is REFUSED
                assert lab.ask(sock, claim + TOKEN) == PLAIN

        def only_the_new_ones_count() -> None:
            for _ in range(4):
                for context, session in zip((old_user, old_proxy), sessions, strict=True):
                    assert lab.ask_once(context, session, claim).identity is REFUSED
                assert without_credential_id(lab.ask_once(new_user).identity) == said("jane", "new")
                assert lab.ask_once(new_proxy, lines=claim).identity == said("sue")

        only_the_new_ones_count()
        if workers > 1:
            _kill_children(sidecar)
            only_the_new_ones_count()


def _kill_children(sidecar: Sidecar) -> None:
    """End the workers and the control process of a sidecar, and wait until others serve in their place."""
    assert sidecar.process is not None
    parent = psutil.Process(sidecar.process.pid)
    dead = parent.children()
    for child in dead:
        os.kill(child.pid, signal.SIGKILL)

    async def replaced() -> bool:
        now = parent.children()
        return len(now) == len(dead) and not set(now) & set(dead)

    asyncio.run(_until(replaced))
    asyncio.run(sidecar.ready())
    asyncio.run(sidecar.until(lambda: sidecar.metric("orca_sidecar_workers") == 2))


# -- certificates out of the ordinary --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_is_said_as_it_was_certified_or_not_at_all(lab: Lab, name: str) -> None:
    attributes, wanted = SUBJECTS[name]
    context = lab.context(certificate(lab.pki, lab.identities.ca, attributes))
    assert without_credential_id(lab.ask_once(context, lines=b"X-Remote-User: root\r\n").identity) == wanted
    # What only kube-apiserver would not parse is nobody's certificate; what headers cannot say beats a token.
    with_token = without_credential_id(lab.ask_once(context, lines=TOKEN).identity)
    assert with_token in ([wanted] if wanted is not REFUSED else [REFUSED, PLAIN])


@pytest.mark.parametrize(
    "name", ["balancer\0", "balancer\r\n", " balancer", "balancer ", "Balancer", "balancer\u200b"]
)
def test_no_other_name_is_the_front_proxys(lab: Lab, name: str) -> None:
    credential = certificate(lab.pki, lab.identities.front_proxy_ca, [(CN, UTF8, name.encode())])
    assert lab.ask_once(lab.context(credential), lines=b"X-Remote-User: root\r\n").identity == PLAIN


def test_the_front_proxys_name_counts_only_as_the_last_one(lab: Lab) -> None:
    claim = b"X-Remote-User: root\r\n"
    of = lambda *names: lab.context(  # noqa: E731
        certificate(lab.pki, lab.identities.front_proxy_ca, [(CN, UTF8, name) for name in names])
    )
    assert lab.ask_once(of(b"balancer", b"other"), lines=claim).identity == PLAIN
    assert lab.ask_once(of(b"other", b"balancer"), lines=claim).identity == said("root")


def test_large_identities(lab: Lab) -> None:
    """Two thousand groups and a name of 60 KB arrive; OpenSSL takes no certificates beyond 100 KiB in all."""
    groups = [f"group-{number}" for number in range(2000)]
    many = lab.pki.leaf(lab.identities.ca, name="many", cn="jane", o=groups)
    assert without_credential_id(lab.ask_once(lab.context(many)).identity) == said("jane", *groups)
    long = certificate(lab.pki, lab.identities.ca, [(CN, UTF8, b"j" * 60_000)])
    assert without_credential_id(lab.ask_once(lab.context(long)).identity) == said("j" * 60_000)
    huge = certificate(lab.pki, lab.identities.ca, [(CN, UTF8, b"j" * 104_000)])
    failures = "orca_sidecar_handshake_failures_total"
    counted = lab.sidecar.metric(failures)
    with pytest.raises(OSError, match=r"\w"):
        lab.ask_once(lab.context(huge))
    asyncio.run(lab.sidecar.until(lambda: lab.sidecar.metric(failures) == counted + 1))
    assert lab.ask_once(lab.context()).identity == PLAIN


def _with_version(lab: Lab, version: int) -> Credential:
    leaf = lab.pki.leaf(lab.identities.ca, cn="jane", name=f"version-{version}")
    fields = elements(leaf.certificate.tbs_certificate_bytes)
    fields[0] = encode(0xA0, encode(0x02, bytes([version])))
    tbs = encode(0x30, b"".join(fields))
    return written(leaf, resigned(leaf.certificate, tbs, lab.identities.ca.private_key))


MALFORMED: dict[str, Callable[[Lab], Credential]] = {
    "X.509 v2": lambda lab: _with_version(lab, 1),
    "X.509 v10": lambda lab: _with_version(lab, 9),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_certificate_is_nobodys(lab: Lab, name: str) -> None:
    context = lab.context(MALFORMED[name](lab))
    assert lab.ask_once(context, lines=b"X-Remote-User: root\r\n").identity is REFUSED
    assert lab.ask_once(context, lines=TOKEN).identity == PLAIN
    assert "Traceback" not in lab.sidecar.log
