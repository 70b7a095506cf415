"""Whether an authority vouches for a client certificate, decided by signatures, as kube-apiserver decides it.

Chains are built by `cryptography`'s verifier, which checks signatures, validity, path lengths, name constraints and
critical extensions. Three things are added to it:

* Extended key usage, nested down the chain as in Go's `crypto/x509` (`checkChainForKeyUsage`): a certificate that lists
  usages must list clientAuth or any. The verifier's own rule is for web servers.
* An authority whose key usage lacks keyCertSign does not sign (RFC 5280 §4.2.1.3; Go's `CheckSignatureFrom`).
* What the verifier does not look at, X.509 v1 and authorities with Ed25519 keys, is checked by hand: by Go's rules, but
  authorities with name constraints are refused there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
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
"""Certificates beside the leaf that are looked at."""

_CLIENT_USAGES = frozenset((ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE))
_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_MIN_RSA_BITS = 2048
# Critical extensions that the check by hand understands.
_UNDERSTOOD = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName)
# What the library raises for certificates that it cannot read, beside its verdicts.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension)

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
        self.public_keys = frozenset(map(_public_key, certificates))
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
        except _UNREADABLE as error:
            raise TrustError(path, "holds no PEM certificates that can be read") from error

    def verify(
        self, leaf: x509.Certificate, intermediates: Sequence[x509.Certificate], now: datetime
    ) -> Chain:
        """A chain from `leaf` over any of `intermediates` to one of these authorities, for client authentication.

        Raises `UnverifiedError`.
        """
        try:
            chain = tuple(self._chain(leaf, intermediates, now))
            if not all(map(_allows_client_authentication, chain)):
                raise UnverifiedError("not for client authentication (extended key usage)")
            return Chain(
                chain,
                max(certificate.not_valid_before_utc.timestamp() for certificate in chain),
                min(certificate.not_valid_after_utc.timestamp() for certificate in chain),
            )
        except VerificationError as error:
            raise UnverifiedError(str(error)) from error
        except _UNREADABLE as error:
            raise UnverifiedError(f"malformed: {error}") from error

    def _chain(
        self, leaf: x509.Certificate, intermediates: Sequence[x509.Certificate], now: datetime
    ) -> Iterable[x509.Certificate]:
        builder = PolicyBuilder().store(self._store).time(now)
        verifier = builder.extension_policies(ca_policy=_CA_POLICY, ee_policy=ExtensionPolicy.permit_all())
        try:
            return verifier.build_client_verifier().verify(leaf, list(intermediates)).chain
        except (VerificationError, *_UNREADABLE):
            chain: tuple[x509.Certificate, ...] = ()
            if any(map(_is_beyond_the_verifier, (leaf, *intermediates, *self.certificates))):
                chain = self._chain_by_hand((leaf,), intermediates, now)
            if not chain:
                raise
            return chain

    def _chain_by_hand(
        self, chain: tuple[x509.Certificate, ...], intermediates: Sequence[x509.Certificate], now: datetime
    ) -> tuple[x509.Certificate, ...]:
        """The first way from the last of `chain` to an anchor, depth first as Go's `buildChains`; () if there is none."""
        for anchor in self.certificates:
            if _issued(anchor, chain, now):
                return (*chain, anchor)
        for issuer in intermediates:
            if issuer.version is x509.Version.v3 and issuer not in chain and _issued(issuer, chain, now):
                longer = self._chain_by_hand((*chain, issuer), intermediates, now)
                if longer:
                    return longer
        return ()


def usable_intermediates(chain_der: Iterable[bytes]) -> list[x509.Certificate]:
    """Of what a client sent beside its leaf, the certificates that can lead to an anchor.

    Left out: what cannot be parsed, all but the first of one subject and key, and those beyond the first few. So there is
    one way to go from each certificate, and a stranger cannot make the verifier try out many.
    """
    usable: dict[tuple[bytes, bytes], x509.Certificate] = {}
    for der in islice(chain_der, MAX_INTERMEDIATES):
        try:
            certificate = x509.load_der_x509_certificate(der)
            usable.setdefault((certificate.subject.public_bytes(), _public_key(certificate)), certificate)
        except _UNREADABLE:
            continue
    return list(usable.values())


def _signs(_: Policy, certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("the authority's key usage does not include signing certificates")


_CA_POLICY = (
    ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _signs)
)


def _is_beyond_the_verifier(certificate: x509.Certificate) -> bool:
    """Of a kind that the library refuses to look at, so that its refusal says nothing."""
    if certificate.version is x509.Version.v1:
        return True
    return isinstance(certificate.public_key(), ed25519.Ed25519PublicKey)


def _issued(issuer: x509.Certificate, chain: Sequence[x509.Certificate], now: datetime) -> bool:
    """Whether `issuer` signed the last certificate of `chain`, was entitled to, and both are valid now."""
    try:
        chain[-1].verify_directly_issued_by(issuer)
        return (
            _has_safe_signature(chain[-1], issuer.public_key())
            and _may_issue(issuer, intermediates=len(chain) - 1)
            and all(_is_valid(certificate, now) for certificate in (chain[-1], issuer))
        )
    except (InvalidSignature, *_UNREADABLE):
        return False  # among others: another name, another kind of key


def _has_safe_signature(certificate: x509.Certificate, key: CertificatePublicKeyTypes) -> bool:
    """No SHA-1 and MD5 (Go: InsecureAlgorithmError), no short RSA keys (as the library has it)."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return True
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        return False
    return isinstance(certificate.signature_hash_algorithm, _HASHES)


def _may_issue(issuer: x509.Certificate, intermediates: int) -> bool:
    """RFC 5280 §4.2.1.9 and §4.2.1.3. A v1 anchor cannot say so: it may because the operator put it there."""
    if issuer.version is x509.Version.v1:
        return True
    constraints = _extension(issuer, x509.BasicConstraints)
    usage = _extension(issuer, x509.KeyUsage)
    if constraints is None or not constraints.ca or (usage is not None and not usage.key_cert_sign):
        return False
    return constraints.path_length is None or intermediates <= constraints.path_length


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    """In time, and with nothing in it that the check by hand does not understand (RFC 5280 §4.2)."""
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return False
    return not any(
        isinstance(extension.value, x509.NameConstraints)
        or (extension.critical and not isinstance(extension.value, _UNDERSTOOD))
        for extension in certificate.extensions
    )


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
