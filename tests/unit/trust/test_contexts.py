"""The TLS contexts: what they offer, and how a file that cannot be used is named."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from orca_sidecar.core.identity import Pool
from orca_sidecar.trust.contexts import certificate_expiries, server_context, upstream_contexts
from orca_sidecar.trust.errors import TrustError
from tests.pki import HOUR
from tests.unit.trust.clusters import Cluster, make_cluster


def server(cluster: Cluster) -> tuple[ssl.SSLContext, bool]:
    return server_context(cluster.configuration(), cluster.trust().bundles)


def test_server_context(cluster: Cluster) -> None:
    context, accepts_any = server(cluster)
    assert accepts_any
    assert context.verify_mode is ssl.CERT_OPTIONAL
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert not context.options & ssl.OP_NO_TICKET
    assert context.get_ca_certs() == [], "OpenSSL verifies nothing, so that it takes no time either"


def test_server_context_with_a_newer_minimum(cluster: Cluster) -> None:
    context, _ = server_context(cluster.configuration(min_version="1.3"), cluster.trust().bundles)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.usefixtures("openssl_verifies")
def test_server_context_of_the_fallback(cluster: Cluster) -> None:
    context, accepts_any = server(cluster)
    assert not accepts_any
    assert context.verify_mode is ssl.CERT_OPTIONAL
    subjects = {ca["subject"] for ca in context.get_ca_certs()}
    assert subjects == {((("commonName", "ca"),),), ((("commonName", "front-proxy-ca"),),)}


@pytest.mark.usefixtures("openssl_verifies")
@pytest.mark.parametrize("name", ["ca", "CA", " Ca "])
def test_the_fallback_refuses_authorities_that_share_a_subject(tmp_path: Path, name: str) -> None:
    with pytest.raises(TrustError, match="same subject name"):
        server(make_cluster(tmp_path, front_proxy_cn=name))


def test_authorities_that_share_a_subject_are_fine_otherwise(tmp_path: Path) -> None:
    assert server(make_cluster(tmp_path, front_proxy_cn="ca"))[1]


def test_upstream_contexts(cluster: Cluster) -> None:
    contexts = upstream_contexts(cluster.configuration())
    assert len(contexts) == len(Pool)
    for context in contexts:
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert [dict(pair[0] for pair in ca["subject"]) for ca in context.get_ca_certs()] == [
            {"commonName": "ca"}
        ]
    assert contexts[Pool.PLAIN] is not contexts[Pool.FRONT_PROXY]


def test_mode_reporter_needs_no_front_proxy_client(cluster: Cluster) -> None:
    configuration = cluster.configuration().model_copy(update={"mode": "reporter"})
    configuration.upstream.front_proxy_client.key_file.unlink()
    plain, front_proxy = upstream_contexts(configuration)
    assert plain is front_proxy


# -- files that cannot be used ---------------------------------------------------------------------------------


def encrypt(path: Path) -> None:
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "No such file"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "directory"),
    "empty": (lambda path: path.write_bytes(b""), r"\w"),
    "half a file": (lambda path: path.write_bytes(path.read_bytes()[:100]), r"\w"),
    "no PEM": (lambda path: path.write_bytes(os.urandom(100)), r"\w"),
}
LOADS: dict[str, Callable[[Cluster], object]] = {
    "apiserver.crt": server,
    "apiserver.key": server,
    "ca.crt": lambda cluster: upstream_contexts(cluster.configuration()),
    "front-proxy-client.crt": lambda cluster: upstream_contexts(cluster.configuration()),
    "front-proxy-client.key": lambda cluster: upstream_contexts(cluster.configuration()),
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", LOADS)
def test_a_file_that_cannot_be_used_is_named(cluster: Cluster, name: str, how: str) -> None:
    damage, message = BROKEN[how]
    damage(cluster.pki.folder / name)
    with pytest.raises(TrustError, match=message) as raised:
        LOADS[name](cluster)
    assert str(cluster.pki.folder / name) in str(raised.value)
    assert "BEGIN" not in str(raised.value)


@pytest.mark.parametrize("name", ["apiserver", "front-proxy-client"])
def test_a_key_of_another_certificate(cluster: Cluster, name: str) -> None:
    cluster.pki.leaf(cluster.ca, name="other", cn="other")
    (cluster.pki.folder / "other.key").rename(cluster.pki.folder / f"{name}.key")
    with pytest.raises(TrustError, match=f"{name}.key: is not the key of the certificate in .*{name}.crt"):
        LOADS[f"{name}.crt"](cluster)


@pytest.mark.parametrize("name", ["apiserver", "front-proxy-client"])
def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase(cluster: Cluster, name: str) -> None:
    encrypt(cluster.pki.folder / f"{name}.key")
    with pytest.raises(TrustError, match=f"{name}.key: holds an encrypted key"):
        LOADS[f"{name}.key"](cluster)


# -- expiry ----------------------------------------------------------------------------------------------------


def test_certificate_expiries(cluster: Cluster) -> None:
    pki, day = cluster.pki, timedelta(days=1)
    soon = pki.ca("soon", not_after=HOUR)
    cluster.ca.cert_file.write_bytes(cluster.ca.pem + soon.pem)
    (pki.folder / "front-proxy-client.crt").write_bytes(b"half a fi")
    found = dict(certificate_expiries(cluster.configuration()))
    assert found == {
        str(pki.folder / "ca.crt"): (pki.now + HOUR).timestamp(),
        str(pki.folder / "front-proxy-ca.crt"): (pki.now + day).timestamp(),
        str(pki.folder / "apiserver.crt"): (pki.now + day).timestamp(),
    }


def test_certificate_expiries_of_mode_reporter(cluster: Cluster) -> None:
    configuration = cluster.configuration().model_copy(update={"mode": "reporter"})
    assert [path for path, _ in certificate_expiries(configuration)] == [str(cluster.ca.cert_file)]
