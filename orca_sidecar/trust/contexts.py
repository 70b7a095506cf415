"""The TLS contexts, downstream and upstream, and what a handshake left behind."""

from __future__ import annotations

import _ssl
import ssl
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from orca_sidecar.settings.schema import SidecarConfiguration
from orca_sidecar.trust import openssl
from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.store import Bundles
from orca_sidecar.trust.verify import Authorities

HTTP_1_1 = "http/1.1"

# TLS 1.2: AES-128-GCM first, as Go has it, then everything that Python's `ssl` has by default, in its order.
_TLS_1_2_CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256"
    ":DEFAULT:!aNULL:!eNULL:!MD5:!3DES:!DES:!RC4:!IDEA:!SEED:!aDSS:!SRP:!PSK"
)
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(configuration: SidecarConfiguration, bundles: Bundles) -> tuple[ssl.SSLContext, bool]:
    """The listener's context, and whether it accepts any client certificate (see `trust.openssl`).

    If not, OpenSSL verifies in the handshake and aborts certificates of which it knows no issuer, or that are out of
    date; this is the fallback, and two authorities that share a subject DN are refused under it. What a certificate means
    is in both cases the trust store's to say. Raises `TrustError`, which names the file.
    """
    settings = configuration.listener.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.set_alpn_protocols([HTTP_1_1])
    # A renegotiation could bring another certificate than the one that was judged. Go's server has none either.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # One ticket a handshake, as Go's server; OpenSSL's two are for browsers, and cost every connection a signature's time.
    context.num_tickets = 1
    # Groups are left to OpenSSL (X25519, then the NIST curves): `set_ecdh_curve` would leave clients a single one.
    _load_pair(context, settings.cert_file, settings.key_file)
    context.set_ciphers(_TLS_1_2_CIPHERS)
    if openssl.available():
        openssl.accept_any_client_certificate(context)
        openssl.prefer_aes_128(context)
        return context, True
    bundles.check_names()
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for authorities in (bundles.client, bundles.front_proxy):
        if authorities is not None:
            context.load_verify_locations(cadata=authorities.der)
    return context, False


def upstream_contexts(configuration: SidecarConfiguration) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of the two pools, by `core.identity.Pool`: without a certificate, and with the front-proxy client's.

    In mode reporter nothing is proxied, and both are without one. Raises `TrustError`, which names the file.
    """
    plain = _upstream_context(configuration.upstream.tls.ca_file)
    if configuration.mode == "reporter":
        return plain, plain
    front_proxy = _upstream_context(configuration.upstream.tls.ca_file)
    client = configuration.upstream.front_proxy_client
    _load_pair(front_proxy, client.cert_file, client.key_file)
    return plain, front_proxy


class Loaded(NamedTuple):
    """What the certificate files that a configuration names come to."""

    bundles: Bundles
    server: ssl.SSLContext
    upstream: tuple[ssl.SSLContext, ssl.SSLContext]


def load(configuration: SidecarConfiguration) -> Loaded:
    """Load all of the files, or none: one that cannot be used raises `TrustError` or OSError before anything is replaced."""
    bundles = Bundles.load(configuration)
    server, _ = server_context(configuration, bundles)
    return Loaded(bundles, server, upstream_contexts(configuration))


def peer_certificates(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> tuple[bytes | None, tuple[bytes, ...]]:
    """What the peer presented, as DER: its leaf, or None, and what it sent beside it. A resumed session has no more
    than the leaf.
    """
    leaf = ssl_object.getpeercert(binary_form=True)
    if leaf is None:
        return None, ()
    return leaf, tuple(_chain(ssl_object)[1:])


def _chain(ssl_object: Any) -> list[bytes]:
    """The peer's certificates as sent, leaf first."""
    if sys.version_info >= (3, 13):
        return list(ssl_object.get_unverified_chain())
    # There since CPython 3.10, but without a public name until 3.13.
    sent = ssl_object._sslobj.get_unverified_chain()
    return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in sent or ()]


def certificate_expiries(configuration: SidecarConfiguration) -> list[tuple[str, float]]:
    """The certificate files in use that can be read now, each with its first `notAfter` in Unix seconds.

    A file that cannot be read is left out: this serves a metric, and who needs the file complains.
    """
    listener, upstream = configuration.listener, configuration.upstream
    files: list[Path | None] = [upstream.tls.ca_file]
    if configuration.mode == "proxy":
        files += [
            listener.tls.cert_file,
            listener.client_ca_file,
            configuration.front_proxy.client_ca_file,
            upstream.front_proxy_client.cert_file,
        ]
    expiries = {}
    for path in filter(None, files):
        with suppress(OSError, ValueError):
            certificates = x509.load_pem_x509_certificates(path.read_bytes())
            expiries[str(path)] = min(c.not_valid_after_utc.timestamp() for c in certificates)
    return list(expiries.items())


def _upstream_context(ca_file: Path) -> ssl.SSLContext:
    """Verifies kube-apiserver as client-go does: every certificate of the bundle is a trust anchor."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols([HTTP_1_1])
    context.load_verify_locations(cadata=Authorities.load(ca_file).der)
    context.set_ciphers(_TLS_1_2_CIPHERS)
    if openssl.available():
        openssl.prefer_aes_128(context)
    return context


def _load_pair(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Load a certificate chain and its key. Raises `TrustError`, where `ssl` names neither file nor reason."""

    def refuse() -> str:
        # Without this OpenSSL would ask for the passphrase at the terminal.
        raise TrustError(key_file, "holds an encrypted key")

    for path in (cert_file, key_file):
        try:
            path.open("rb").close()
        except OSError as error:
            raise TrustError(path, error.strerror or "cannot be read") from error
    try:
        context.load_cert_chain(cert_file, key_file, refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TrustError(key_file, f"is not the key of the certificate in {cert_file}") from error
        raise TrustError(
            cert_file, f"no certificate and key can be loaded from it and {key_file} ({error.reason})"
        ) from error
