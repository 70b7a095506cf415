"""The certificates of a bench: a cluster CA, a front-proxy CA, and the leaves of every leg, as kubeadm lays them out."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

KeyKind = Literal["p256", "rsa2048"]
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

SERVER_NAME = "kubernetes"


@dataclass(frozen=True)
class Pair:
    """A leaf: certificate, key, and both in one file (as HAProxy and mitmproxy want them)."""

    cert: Path
    key: Path
    both: Path


@dataclass(frozen=True)
class Pki:
    ca: Path
    """Signs the serving certificate of every server."""
    front_proxy_ca: Path
    """Signs the client certificates of the load balancer and of the proxies."""
    both_cas: Path
    serving: Pair
    load_balancer: Pair
    """What the load generator presents."""
    front_proxy_client: Pair
    """What every proxy presents to the upstream."""


def make_pki(folder: Path, kind: KeyKind) -> Pki:
    """Writes a fresh set of certificates, every key of one kind, into `folder`; valid for two days."""
    folder.mkdir(parents=True)
    ca, ca_key = _authority("kubernetes-ca", kind)
    front, front_key = _authority("front-proxy-ca", kind)
    authorities = {"ca": _pem(ca), "front-proxy-ca": _pem(front), "both-cas": _pem(ca) + _pem(front)}
    for name, pem in authorities.items():
        (folder / f"{name}.crt").write_bytes(pem)
    return Pki(
        ca=folder / "ca.crt",
        front_proxy_ca=folder / "front-proxy-ca.crt",
        both_cas=folder / "both-cas.crt",
        serving=_leaf(folder, "apiserver", kind, ca, ca_key, server=True),
        load_balancer=_leaf(folder, "load-balancer", kind, front, front_key),
        front_proxy_client=_leaf(folder, "front-proxy-client", kind, front, front_key),
    )


def _new_key(kind: KeyKind) -> PrivateKey:
    if kind == "rsa2048":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(common_name: str, key: PrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _authority(common_name: str, kind: KeyKind) -> tuple[x509.Certificate, PrivateKey]:
    key = _new_key(kind)
    certificate = (
        _builder(common_name, key)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(True, False, True, False, False, True, True, False, False), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _leaf(
    folder: Path,
    name: str,
    kind: KeyKind,
    issuer: x509.Certificate,
    issuer_key: PrivateKey,
    server: bool = False,
) -> Pair:
    key = _new_key(kind)
    usage = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = (
        _builder(name, key)
        .issuer_name(issuer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if server:
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = [x509.DNSName(SERVER_NAME), x509.DNSName("localhost"), loopback]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = _pem(builder.sign(issuer_key, hashes.SHA256()))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.pem")
    for path, content in ((pair.cert, certificate), (pair.key, private), (pair.both, certificate + private)):
        path.touch(mode=0o600)
        path.write_bytes(content)
    return pair
