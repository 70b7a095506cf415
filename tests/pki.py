"""A throw-away public key infrastructure for tests: authorities, leaves and the files that hold them.

    pki = Pki(tmp_path)
    ca = pki.ca("ca")
    server = pki.leaf(ca, cn="kube-apiserver", eku=SERVER, san=["kubernetes", "127.0.0.1"])
    jane = pki.leaf(ca, cn="jane", o=["developers"])
    context.load_cert_chain(jane.cert_file, jane.key_file)

Certificates are ECDSA P-256 unless `key` says otherwise, valid from an hour ago for a day. A leaf's
`cert_file` holds the leaf and then every intermediate up to, and without, the root, as a TLS peer sends
them. Key files have mode 0600. Only keys, serial numbers and dates differ from run to run.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey

CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
SERVER = (ExtendedKeyUsageOID.SERVER_AUTH,)
ANY = (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,)
NO_EKU: tuple[x509.ObjectIdentifier, ...] = ()

UID_OID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")
"""The subject attribute that kube-apiserver (1.33 and later) reads a user's UID from."""

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def trusting(ca_file: Path) -> ssl.SSLContext:
    """A client's context that asks of a chain what Go asks: since Python 3.13 the default context asks for more, key
    identifiers for one, which not every authority writes."""
    context = ssl.create_default_context(cafile=str(ca_file))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@dataclass(frozen=True)
class Credential:
    """A certificate with its key, in memory and on disk."""

    certificate: x509.Certificate
    private_key: PrivateKey
    cert_file: Path
    key_file: Path
    issuer: Authority | None = None

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def intermediates(self) -> tuple[Authority, ...]:
        """The issuing authorities from the nearest upwards, without the root."""
        found: list[Authority] = []
        authority = self.issuer
        while authority is not None and authority.issuer is not None:
            found.append(authority)
            authority = authority.issuer
        return tuple(found)

    @property
    def chain_der(self) -> tuple[bytes, ...]:
        """What a TLS client sends beside its leaf."""
        return tuple(authority.der for authority in self.intermediates)


@dataclass(frozen=True)
class Authority(Credential):
    """A credential that signs others."""


@dataclass
class Pki:
    """Makes certificates below `folder`; a name used twice overwrites its files, as a rotation does."""

    folder: Path
    now: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    def ca(
        self,
        name: str,
        *,
        cn: str | None = None,
        issuer: Authority | None = None,
        key: str = "ecdsa",
        private_key: PrivateKey | None = None,
        not_before: timedelta = -HOUR,
        not_after: timedelta = DAY,
        path_length: int | None = None,
        is_ca: bool = True,
        signs: bool = True,
        key_identifiers: bool = True,
        extensions: Iterable[tuple[x509.ExtensionType, bool]] = (),
    ) -> Authority:
        """An authority `name` with subject CN `cn` (default: `name`): a root, or an intermediate of `issuer`.

        `private_key` re-issues an authority with a key it already has. `is_ca=False` and `signs=False` make ones that
        may not sign, by their basic constraints and by their key usage.
        """
        private_key = private_key or new_key(key)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn or name)])
        builder = self._builder(subject, private_key, issuer, not_before, not_after)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=is_ca, path_length=path_length if is_ca else None), critical=True
        )
        builder = builder.add_extension(_key_usage(signs), critical=True)
        if key_identifiers:
            builder = _with_key_identifiers(builder, private_key, issuer)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = _sign(builder, issuer.private_key if issuer else private_key)
        cert_file, key_file = self._write(name, [certificate], private_key)
        return Authority(certificate, private_key, cert_file, key_file, issuer)

    def leaf(
        self,
        ca: Authority,
        *,
        name: str | None = None,
        cn: str | Sequence[str] = "",
        o: Sequence[str] = (),
        uid: str | Sequence[str] = (),
        subject: x509.Name | None = None,
        eku: Sequence[x509.ObjectIdentifier] = CLIENT,
        san: Sequence[str] = (),
        key: str = "ecdsa",
        private_key: PrivateKey | None = None,
        not_before: timedelta = -HOUR,
        not_after: timedelta = DAY,
        serial: int | None = None,
        version: x509.Version = x509.Version.v3,
        key_identifiers: bool = False,
        extensions: Iterable[tuple[x509.ExtensionType, bool]] = (),
    ) -> Credential:
        """A leaf signed by `ca`. Files are called `name` (default: the first CN, then "leaf").

        Subject: every O, then every CN, then every UID, or `subject` as given. `san` holds DNS names and IP
        addresses. `eku=NO_EKU` leaves the extension out. `Version.v1` has no extensions at all, as what
        `openssl x509 -req` writes without an extension file.
        """
        names = [cn] if isinstance(cn, str) else list(cn)
        uids = [uid] if isinstance(uid, str) else list(uid)
        subject = subject or x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, value) for value in o),
                *(x509.NameAttribute(NameOID.COMMON_NAME, value) for value in names if value),
                *(x509.NameAttribute(UID_OID, value) for value in uids),
            ]
        )
        private_key = private_key or new_key(key)
        builder = self._builder(subject, private_key, ca, not_before, not_after, serial)
        if san:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(s) for s in san]), False
            )
        if eku:
            builder = builder.add_extension(x509.ExtendedKeyUsage(eku), critical=False)
        if key_identifiers:
            builder = _with_key_identifiers(builder, private_key, ca)
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        certificate = _sign(builder, ca.private_key)
        if version is x509.Version.v1:
            certificate = as_version_1(certificate, ca.private_key)
        leaf = Credential(certificate, private_key, Path(), Path(), ca)
        stem = name or (names[0] if names else "") or "leaf"
        cert_file, key_file = self._write(
            stem, [certificate, *_certificates(leaf.intermediates)], private_key
        )
        return Credential(certificate, private_key, cert_file, key_file, ca)

    def bundle(self, name: str, credentials: Iterable[Credential]) -> Path:
        """A PEM file of several certificates, such as a CA bundle."""
        path = self.folder / f"{name}.pem"
        path.write_bytes(b"".join(credential.pem for credential in credentials))
        return path

    def _builder(
        self,
        subject: x509.Name,
        private_key: PrivateKey,
        issuer: Authority | None,
        not_before: timedelta,
        not_after: timedelta,
        serial: int | None = None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(private_key.public_key())
            .serial_number(x509.random_serial_number() if serial is None else serial)
            .not_valid_before(self.now + not_before)
            .not_valid_after(self.now + not_after)
        )

    def _write(
        self, name: str, certificates: Sequence[x509.Certificate], private_key: PrivateKey
    ) -> tuple[Path, Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = name.replace("/", "_").replace(":", "_")
        cert_file, key_file = self.folder / f"{stem}.crt", self.folder / f"{stem}.key"
        cert_file.write_bytes(
            b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)
        )
        descriptor = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(
                private_key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                )
            )
        return cert_file, key_file


def new_key(kind: str = "ecdsa") -> PrivateKey:
    """A fresh key: ecdsa (P-256), rsa (2048 bits) or ed25519."""
    if kind == "ecdsa":
        return ec.generate_private_key(ec.SECP256R1())
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if kind == "ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    raise ValueError(f"no such key kind: {kind!r}")


def as_version_1(certificate: x509.Certificate, signer: PrivateKey) -> x509.Certificate:
    """The same certificate as X.509 v1, without version and extensions fields, signed again by `signer`."""
    fields = elements(certificate.tbs_certificate_bytes)
    kept = b"".join(field for field in fields if field[0] not in (0xA0, 0xA3))
    return x509.load_der_x509_certificate(resigned(certificate, encode(0x30, kept), signer))


def resigned(certificate: x509.Certificate, tbs: bytes, signer: PrivateKey) -> bytes:
    """The DER of a certificate of the to-be-signed bytes `tbs`, of `certificate`'s algorithm, signed by `signer`."""
    algorithm = elements(certificate.public_bytes(serialization.Encoding.DER))[1]
    return encode(0x30, tbs + algorithm + encode(0x03, b"\0" + _raw_signature(signer, tbs)))


def encode(tag: int, content: bytes) -> bytes:
    """One DER element."""
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    length = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def elements(sequence: bytes) -> list[bytes]:
    """The DER elements, each with its tag and length, inside one constructed element."""
    start = _content_start(sequence, 0)
    found = []
    while start < len(sequence):
        content = _content_start(sequence, start)
        end = content + _length(sequence, start)
        found.append(sequence[start:end])
        start = end
    return found


def _length(data: bytes, at: int) -> int:
    first = data[at + 1]
    return first if first < 0x80 else int.from_bytes(data[at + 2 : at + 2 + (first & 0x7F)], "big")


def _content_start(data: bytes, at: int) -> int:
    first = data[at + 1]
    return at + 2 + (first & 0x7F if first >= 0x80 else 0)


def _raw_signature(signer: PrivateKey, data: bytes) -> bytes:
    if isinstance(signer, ec.EllipticCurvePrivateKey):
        return signer.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(signer, rsa.RSAPrivateKey):
        return signer.sign(data, padding.PKCS1v15(), hashes.SHA256())
    return signer.sign(data)


def _sign(builder: x509.CertificateBuilder, signer: PrivateKey) -> x509.Certificate:
    return builder.sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def _with_key_identifiers(
    builder: x509.CertificateBuilder, private_key: PrivateKey, issuer: Authority | None
) -> x509.CertificateBuilder:
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(private_key.public_key()), critical=False
    )
    signer = issuer.private_key if issuer else private_key
    return builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )


def _certificates(credentials: Iterable[Credential]) -> list[x509.Certificate]:
    return [credential.certificate for credential in credentials]


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
