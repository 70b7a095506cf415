"""The test at start that decides whether any client certificate is let through the handshake, and the setting itself."""

from __future__ import annotations

import contextlib
import logging
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orca_sidecar.trust import openssl
from orca_sidecar.trust.contexts import server_context, upstream_contexts
from orca_sidecar.trust.openssl import UnavailableError, accept_any_client_certificate, available
from tests.pki import Pki
from tests.unit.trust.clusters import Cluster


@pytest.fixture(autouse=True)
def untested() -> Iterator[None]:
    available.cache_clear()
    yield
    available.cache_clear()


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_available_here() -> None:
    """CPython 3.11 and later with its own `_ssl`. Were it not so, the fallback would be in force unnoticed."""
    assert available()


def test_it_needs_no_folder_to_write_to(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TEMP", "TMP", "HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    assert available()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "echo Traceback >&2; echo 'UnavailableError: no pointer' >&2; exit 1",
            "UnavailableError: no pointer",
        ),
        ("kill -SEGV $$", "exit code -11"),
        ("exit 3", "exit code 3"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a_test_that_fails_or_crashes_means_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    monkeypatch.setattr(sys, "executable", program(tmp_path, text))
    monkeypatch.setattr(openssl, "_TEST_SECONDS", 0.5 if "sleep" in text else 20.0)
    with caplog.at_level(logging.WARNING):
        assert not available()
    assert reason in caplog.text


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_no_interpreter_to_test_with_means_the_fallback(
    monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert not available()


class WrongPlace:
    """Stands for a pointer that leads somewhere else: what is read through it does not follow the context."""

    def __init__(self, answer: int) -> None:
        self.answer = answer

    def SSL_CTX_get_verify_mode(self, pointer: int) -> int:
        return self.answer


@pytest.mark.parametrize("answer", [0, 1, 3, -1])
def test_a_pointer_is_not_used_unless_what_it_leads_to_follows_the_context(answer: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(UnavailableError, match="does not lead to the context"):
        openssl._pointer(context, WrongPlace(answer))  # type: ignore[arg-type]


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, *, replace: tuple[bytes, bytes] = (b"", b"")
) -> bytes | None:
    """A handshake in memory; `replace` changes what the client says on its way. Returns the client's certificate."""
    to_server, to_client, said = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, said)
    for _ in range(6):
        for side in (client_side, server_side):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
            flight = said.read()
            to_server.write(flight.replace(*replace) if replace[0] else flight)
    return server_side.getpeercert(binary_form=True)


def client_context(credential_files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if credential_files:
        context.load_cert_chain(*credential_files)
    return context


@pytest.fixture
def server(cluster: Cluster) -> ssl.SSLContext:
    tls = cluster.configuration().listener.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.cert_file, tls.key_file)
    accept_any_client_certificate(context)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_any_certificate_and_none(cluster: Cluster, server: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    server.maximum_version = version
    stranger = Pki(cluster.pki.folder / "elsewhere").ca("stranger")
    assert shake_hands(server, client_context()) is None
    assert shake_hands(server, client_context((stranger.cert_file, stranger.key_file))) == stranger.der


def test_a_certificate_without_its_key_is_still_refused(cluster: Cluster, server: ssl.SSLContext) -> None:
    """Accepting any certificate is not believing it: the handshake proves possession of the key (RFC 5246 §7.4.8)."""
    server.maximum_version = ssl.TLSVersion.TLSv1_2  # there certificates travel in the clear
    mine = cluster.pki.leaf(cluster.ca, cn="mallory")
    victims = (cluster.pki.leaf(cluster.ca, cn="masters", name=f"masters-{number}") for number in range(100))
    victim = next(leaf for leaf in victims if len(leaf.der) == len(mine.der))
    client = client_context((mine.cert_file, mine.key_file))
    assert shake_hands(server, client) == mine.der
    with pytest.raises(ssl.SSLError, match=r"(?i)signature"):
        shake_hands(server, client, replace=(mine.der, victim.der))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_aes_128_is_chosen_as_go_chooses_it(cluster: Cluster, version: ssl.TLSVersion) -> None:
    """On both sides: by the listener's own preference, and because it is offered to kube-apiserver first."""
    configuration = cluster.configuration()
    server, _ = server_context(configuration, cluster.trust().bundles)
    plain_client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain_client.check_hostname = False
    plain_client.verify_mode = ssl.CERT_NONE
    plain_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain_server.load_cert_chain(configuration.listener.tls.cert_file, configuration.listener.tls.key_file)
    plain_server.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    for listening, calling in (
        (server, plain_client),
        *((plain_server, c) for c in upstream_contexts(configuration)),
    ):
        calling.check_hostname = False
        calling.verify_mode = ssl.CERT_NONE
        calling.maximum_version = version
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = (
            calling.wrap_bio(to_client, to_server),
            listening.wrap_bio(to_server, to_client, server_side=True),
        )
        for _ in range(4):
            for side in sides:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        cipher = sides[0].cipher()
        assert cipher is not None
        assert (
            cipher[0]
            .replace("_", "-")
            .endswith("AES128-GCM-SHA256" if version.name == "TLSv1_2" else "AES-128-GCM-SHA256")
        )
