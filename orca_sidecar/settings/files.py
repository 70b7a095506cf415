"""The files that a configuration names: there, readable, and fit for what they are named for."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from orca_sidecar.settings.problems import Problem
from orca_sidecar.settings.schema import SidecarConfiguration

_SHORT_SECRET = 16
"""Bytes: a shorter secret can be guessed at the rate a proxy answers."""


def check_files(configuration: SidecarConfiguration) -> list[Problem]:
    """Look at every file that this configuration will use; problems carry key paths, not lines.

    Errors: a file that is missing, unreadable, empty or not what it should be; a key that does not belong
    to its certificate; client CAs and front-proxy CAs that share a key. Warnings: a secret file open to every
    user of the machine, a short shared secret, a certificate outside its validity.
    """
    return list(_check(configuration))


def _check(configuration: SidecarConfiguration) -> Iterator[Problem]:
    listener, upstream = configuration.listener, configuration.upstream
    front_proxy, metrics = configuration.front_proxy, configuration.load_metrics
    proxies = configuration.mode == "proxy"
    if proxies or metrics.out_of_band.enabled:
        yield from _pair("listener.tls", listener.tls.cert_file, listener.tls.key_file)
        front_proxies = yield from _authorities("frontProxy.clientCAFile", front_proxy.client_ca_file)
        if proxies and listener.client_ca_file is not None:
            users = yield from _authorities("listener.clientCAFile", listener.client_ca_file)
            yield from _overlap(users, front_proxies)
    yield from _authorities("upstream.tls.caFile", upstream.tls.ca_file)
    if proxies:
        client = upstream.front_proxy_client
        yield from _pair("upstream.frontProxyClient", client.cert_file, client.key_file)
    if upstream.probe.token_file is not None:
        yield from _credential("upstream.probe.tokenFile", upstream.probe.token_file)
    secret_file = metrics.opt_in.shared_secret_file
    if proxies and metrics.opt_in.gate == "sharedSecret" and secret_file is not None:
        secret = yield from _credential("loadMetrics.optIn.sharedSecretFile", secret_file)
        if secret and len(secret) < _SHORT_SECRET:
            yield Problem(
                "loadMetrics.optIn.sharedSecretFile",
                f"{secret_file} holds {len(secret)} characters, few enough to be guessed",
                f"use {_SHORT_SECRET} or more at random, such as from openssl rand -hex 32",
                "warning",
            )
    if metrics.enabled and not os.path.isdir(metrics.sampler.cgroup_root):
        yield Problem(
            "loadMetrics.sampler.cgroupRoot",
            f"{metrics.sampler.cgroup_root} is no directory",
            "name the cgroup mount, /sys/fs/cgroup unless a container mounts the node's elsewhere",
        )


def _content(key: str, path: Path, *, secret: bool = False) -> Generator[Problem, None, bytes]:
    """The file's content; b"" if there is none, which is said."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            yield Problem(key, f"{path} is not a regular file", "name a file")
            return b""
        content = path.read_bytes()
    except OSError as error:
        yield Problem(key, f"{path} cannot be read: {error.strerror}", "name a file this process may read")
        return b""
    if not content.strip():
        yield Problem(key, f"{path} is empty", "fill it or name another")
        return b""
    if secret and mode & (stat.S_IROTH | stat.S_IWOTH):
        yield Problem(key, f"{path} is open to every user of the machine", f"chmod o= {path}", "warning")
    return content


def _certificates(key: str, path: Path) -> Generator[Problem, None, list[x509.Certificate]]:
    content = yield from _content(key, path)
    if not content:
        return []
    try:
        certificates = x509.load_pem_x509_certificates(content)
        for certificate in certificates:
            certificate.public_key()
        return certificates
    except (ValueError, UnsupportedAlgorithm):
        yield Problem(
            key, f"{path} holds no PEM certificates that can be read", "name a file of PEM certificates"
        )
        return []


def _authorities(key: str, path: Path) -> Generator[Problem, None, set[bytes]]:
    """The public keys of the file's certificates."""
    certificates = yield from _certificates(key, path)
    return {_public_bytes(certificate.public_key()) for certificate in certificates}


def _pair(section: str, cert_file: Path, key_file: Path) -> Iterator[Problem]:
    certificates = yield from _certificates(f"{section}.certFile", cert_file)
    private_key = yield from _private_key(f"{section}.keyFile", key_file)
    if not certificates:
        return
    leaf = certificates[0]
    if private_key and _public_bytes(leaf.public_key()) != private_key:
        yield Problem(
            f"{section}.keyFile",
            f"{key_file} is not the key of the first certificate in {cert_file}",
            "name the two halves of one pair",
        )
    now = datetime.now(UTC)
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        yield Problem(
            f"{section}.certFile",
            f"{cert_file} is valid from {leaf.not_valid_before_utc:%F %T} to "
            f"{leaf.not_valid_after_utc:%F %T} UTC, which is not now",
            "renew it, or set the clock",
            "warning",
        )


def _private_key(key: str, path: Path) -> Generator[Problem, None, bytes]:
    """The public half of the key in the file; b"" if there is none."""
    content = yield from _content(key, path, secret=True)
    if not content:
        return b""
    try:
        return _public_bytes(load_pem_private_key(content, password=None).public_key())
    except TypeError:
        yield Problem(key, f"{path} holds an encrypted key", "name a key without a passphrase")
    except (ValueError, UnsupportedAlgorithm):
        yield Problem(key, f"{path} holds no readable PEM private key", "name a PEM private key")
    return b""


def _credential(key: str, path: Path) -> Generator[Problem, None, bytes]:
    """The token or secret in the file, without the newline at its end; never part of a problem."""
    content = yield from _content(key, path, secret=True)
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not all(0x21 <= byte <= 0x7E for byte in content):
        yield Problem(
            key,
            f"{path} holds blanks, several lines or bytes beyond ASCII, which a header cannot carry",
            "keep one word of printable ASCII in it",
        )
    return content


def _overlap(users: set[bytes], front_proxies: set[bytes]) -> Iterator[Problem]:
    # By public key: a certificate issued anew for the same key verifies the same signatures.
    if users & front_proxies:
        yield Problem(
            "frontProxy.clientCAFile",
            "shares a CA key with listener.clientCAFile: users of that CA could pass for front proxies",
            "give front proxies a CA of their own",
        )


def _public_bytes(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
