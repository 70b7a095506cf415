"""A throw-away PKI with kubeadm's names, plus the load balancer's two certificates. Its keys live in one
folder.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOAD_BALANCER_NAME = "load-balancer"
"""Common name of the certificate that the load balancer presents to the sidecars."""


def write_pki(folder: Path) -> None:
    """Write authorities and leaves as PEM files `NAME.crt` and `NAME.key` (mode 0600) into `folder`.

    `ca` signs `apiserver` (DNS name kubernetes and, as with kubeadm, no 127.0.0.1) and `apiserver-lb` (what
    clients meet: localhost, 127.0.0.1); `front-proxy-ca` signs `front-proxy-client` and `load-balancer`.
    Valid for a day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cluster, front_proxy = _Authority(folder, "ca"), _Authority(folder, "front-proxy-ca")
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    cluster.issue("apiserver", "kube-apiserver", server, ["kubernetes", "kubernetes.default.svc"])
    cluster.issue("apiserver-lb", "kube-apiserver", server, ["localhost", "127.0.0.1"])
    front_proxy.issue("front-proxy-client", "front-proxy-client", client)
    front_proxy.issue("load-balancer", LOAD_BALANCER_NAME, client)


class _Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.KeyUsage(True, False, True, False, False, True, False, False, False), critical=True
            )
        )
        self._write(name, builder, self._key)

    def issue(
        self, file_name: str, common_name: str, usage: x509.ObjectIdentifier, sans: list[str] | None = None
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = self._builder(subject, key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if sans:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(san) for san in sans]), False
            )
        self._write(file_name, builder, key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    def _write(self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> None:
        certificate = builder.sign(self._key, hashes.SHA256())
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file = self._folder / f"{name}.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


def _general_name(san: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(san))
    except ValueError:
        return x509.DNSName(san)
