"""Whether an authority vouches for a client certificate, decided by signatures, as kube-apiserver decides it.

Chains are built by `cryptography`'s verifier, which checks signatures, validity, path lengths, name
constraints and critical extensions. Three things are added to it:

* Extended key usage, nested down the chain as in Go's `crypto/x509` (`checkChainForKeyUsage`): a certificate
that lists
  usages must list clientAuth or any. The verifier's own rule is a web server's, and client certificates need
  no SAN.
* An authority whose keyUsage lacks keyCertSign does not sign (RFC 5280 §4.2.1.3; Go's `CheckSignatureFrom`).
* What the verifier does not look at, X.509 v1 and Ed25519 authorities, is checked by hand, and only where an
authority
  issued the leaf directly: intermediates are for v3 leaves under RSA and ECDSA authorities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from orca_sidecar.trust.errors import TrustError
from orca_sidecar.trust.subject import comparable_name

MAX_INTERMEDIATES = 8
"""Certificates beside the leaf that are looked at: bounds the work that a stranger can cause."""

_CLIENT_USAGES = frozenset((ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE))
_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_MIN_RSA_BITS = 2048
# Critical extensions that the check by hand understands, or that say nothing about a leaf its authority
# issued itself.
_UNDERSTOOD = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


class UnverifiedError(Exception):
    """No authority vouches for a certificate. The text says why."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain, leaf first, and when all of it is valid (Unix seconds, both ends included)."""

    certificates: tuple[x509.Certificate, ...]
    not_before: float
    not_after: float


class Authorities:
    """A bundle of certificate authorities: trust anchors, whether self-signed or not (as Go's root pools)."""

    def __init__(self, certificates: Sequence[x509.Certificate]) -> None:
        self.certificates = tuple(certificates)
        self.public_keys = frozenset(_public_key(certificate) for certificate in certificates)
        self.names = frozenset(map(comparable_name, certificates))
        self.der = b"".join(certificate.public_bytes(Encoding.DER) for certificate in certificates)
        self._store = Store(list(certificates))

    @classmethod
    def load(cls, path: Path) -> Authorities:
        """The certificates of a PEM bundle. Raises `TrustError`."""
        try:
            return cls(x509.load_pem_x509_certificates(path.read_bytes()))
        except OSError as error:
            raise TrustError(path, error.strerror or "cannot be read") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise TrustError(path, "holds no PEM certificates that can be read") from error

    def verify(
        self, leaf: x509.Certificate, intermediates: Sequence[x509.Certificate], now: datetime
    ) -> Chain:
        """A chain from `leaf` over any of `intermediates` to one of these authorities, for client
        authentication.

        Raises `UnverifiedError`.
        """
        try:
            chain = self._chain(leaf, intermediates, now)
            if not all(map(_allows_client_authentication, chain)):
                raise UnverifiedError("not for client authentication (extended key usage)")
            return Chain(
                chain,
                max(certificate.not_valid_before_utc.timestamp() for certificate in chain),
                min(certificate.not_valid_after_utc.timestamp() for certificate in chain),
            )
        except VerificationError as error:
            raise UnverifiedError(str(error)) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            # What the library raises for certificates that it cannot read.
            raise UnverifiedError(f"malformed: {error}") from error

    def _chain(
        self, leaf: x509.Certificate, intermediates: Sequence[x509.Certificate], now: datetime
    ) -> tuple[x509.Certificate, ...]:
        builder = PolicyBuilder().store(self._store).time(now)
        verifier = builder.extension_policies(ca_policy=_CA_POLICY, ee_policy=ExtensionPolicy.permit_all())
        try:
            return tuple(verifier.build_client_verifier().verify(leaf, list(intermediates)).chain)
        except VerificationError:
            for anchor in self.certificates:
                if _is_beyond_the_verifier(leaf, anchor) and _issued(anchor, leaf, now):
                    return leaf, anchor
            raise


def _signs(_: Policy, certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("the authority's key usage does not include signing certificates")


_CA_POLICY = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _signs)
)


def _is_beyond_the_verifier(leaf: x509.Certificate, anchor: x509.Certificate) -> bool:
    """Of a kind that the library refuses to look at, so that its refusal says nothing."""
    return (
        leaf.version is x509.Version.v1
        or anchor.version is x509.Version.v1
        or isinstance(anchor.public_key(), ed25519.Ed25519PublicKey)
    )


def _issued(anchor: x509.Certificate, leaf: x509.Certificate, now: datetime) -> bool:
    """Whether `anchor`, with its own key, issued `leaf`, and both are valid now."""
    key = anchor.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return False
    if not isinstance(key, ed25519.Ed25519PublicKey) and not isinstance(
        leaf.signature_hash_algorithm, _HASHES
    ):
        return False  # SHA-1 and MD5 (Go: InsecureAlgorithmError)
    if not all(c.not_valid_before_utc <= now <= c.not_valid_after_utc for c in (leaf, anchor)):
        return False
    if not (_may_issue(anchor) and _is_understood(anchor) and _is_understood(leaf)):
        return False
    try:
        leaf.verify_directly_issued_by(anchor)
    except InvalidSignature:
        return False
    return True


def _may_issue(anchor: x509.Certificate) -> bool:
    """RFC 5280 §4.2.1.9, §4.2.1.3. A v1 anchor cannot say so: it may because the operator put it there."""
    if anchor.version is x509.Version.v1:
        return True
    constraints = _extension(anchor, x509.BasicConstraints)
    usage = _extension(anchor, x509.KeyUsage)
    return bool(constraints and constraints.ca and (usage is None or usage.key_cert_sign))


def _is_understood(certificate: x509.Certificate) -> bool:
    return all(
        isinstance(extension.value, _UNDERSTOOD) for extension in certificate.extensions if extension.critical
    ) and not _extension(certificate, x509.NameConstraints)


def _allows_client_authentication(certificate: x509.Certificate) -> bool:
    usage = _extension(certificate, x509.ExtendedKeyUsage)
    return usage is None or not _CLIENT_USAGES.isdisjoint(usage)


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _public_key(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
