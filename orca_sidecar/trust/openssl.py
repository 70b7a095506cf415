"""What kube-apiserver's TLS does and Python's `ssl` has no name for, set through ctypes on the context's `SSL_CTX *`.

**Any client certificate through the handshake.** kube-apiserver only *asks* for a certificate in the handshake and
verifies it later, so that an expired certificate gets a 401, or a good token beside it counts. `ssl` knows no such mode:
CERT_OPTIONAL aborts the handshake. OpenSSL has one, a verify callback of one's own that answers 1. OpenSSL still checks
that the peer holds the certificate's key; whether anybody vouches for the certificate is left to `trust.store`.

**AES-128-GCM first.** As Go's server has it where the processor does AES; OpenSSL puts AES-256 first, which costs a third
more a byte. Which suites there are is not changed.

CPython gives no access to the pointer; it is read from where it has stood in every release, first after the object's head.
That is an assumption about memory, so it is tested before it is used: `available()` runs this file as a process of its
own, where a wrong guess can crash nothing that serves. It reads known values back out of a context through the
pointer, and shakes hands with a client whose certificate nobody knows. Where that fails, CERT_OPTIONAL and OpenSSL's order
remain.
"""

from __future__ import annotations

import _ssl
import contextlib
import ctypes
import functools
import logging
import os
import ssl
import subprocess
import sys

log = logging.getLogger(__name__)

_TEST_SECONDS = 60.0
_CIPHERSUITES = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
_OPTIONS_MASK = 0xFFFFFFFF

_VerifyCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
# Kept for good: OpenSSL keeps its address.
_accept = _VerifyCallback(lambda store, argument: 1)


class UnavailableError(Exception):
    """This Python cannot be made to accept any client certificate. The text says why."""


def accept_any_client_certificate(context: ssl.SSLContext) -> None:
    """Ask clients for a certificate, and complete the handshake whatever they show, or if they show none.

    Only where `available()`. Raises `UnavailableError` if `context` is not what the test found.
    """
    libssl = _libssl()
    pointer = _pointer(context, libssl)
    context.verify_mode = ssl.CERT_OPTIONAL
    libssl.SSL_CTX_set_cert_verify_callback(pointer, _accept, None)


def prefer_aes_128(context: ssl.SSLContext) -> None:
    """Offer, or choose, AES-128-GCM first with TLS 1.3. Only where `available()`; changes nothing else of the context.

    Raises `UnavailableError` if `context` is not what the test found.
    """
    libssl = _libssl()
    pointer = _pointer_to(context)
    if libssl.SSL_CTX_get_options(pointer) & _OPTIONS_MASK != context.options & _OPTIONS_MASK:
        raise UnavailableError("the pointer does not lead to the context")
    if libssl.SSL_CTX_set_ciphersuites(pointer, _CIPHERSUITES) != 1:
        raise UnavailableError("this OpenSSL does not have the usual ciphersuites")


@functools.cache
def available() -> bool:
    """Whether `accept_any_client_certificate` works here. Tested once a process (about 0.2 s), in another process."""
    try:
        # -I: neither the environment nor the working folder decides what is imported.
        test = subprocess.run(
            [sys.executable, "-I", __file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TEST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        if test.returncode == 0:
            return True
        lines = test.stderr.decode(errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line), f"exit code {test.returncode}")
    log.warning("client certificates are left to OpenSSL, which aborts those it does not know: %s", reason)
    return False


def _libssl() -> ctypes.CDLL:
    """The libssl that the `ssl` module itself uses, whether linked dynamically or into the extension."""
    libssl = ctypes.CDLL(getattr(_ssl, "__file__", None))
    try:
        libssl.SSL_CTX_get_verify_mode.argtypes = [ctypes.c_void_p]
        libssl.SSL_CTX_set_cert_verify_callback.argtypes = [ctypes.c_void_p, _VerifyCallback, ctypes.c_void_p]
        libssl.SSL_CTX_set_cert_verify_callback.restype = None
        libssl.SSL_CTX_get_options.argtypes = [ctypes.c_void_p]
        libssl.SSL_CTX_get_options.restype = ctypes.c_ulong
        libssl.SSL_CTX_set_ciphersuites.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    except AttributeError as error:
        raise UnavailableError("libssl's functions cannot be reached") from error
    return libssl


def _pointer_to(context: ssl.SSLContext) -> int:
    """What stands where the context's `SSL_CTX *` should."""
    offset = object.__basicsize__
    if _ssl._SSLContext.__basicsize__ < offset + ctypes.sizeof(ctypes.c_void_p):
        raise UnavailableError("the context object is too small to hold a pointer")
    pointer = ctypes.c_void_p.from_address(id(context) + offset).value
    if not pointer or pointer % ctypes.alignment(ctypes.c_void_p):
        raise UnavailableError("no pointer where the context's should be")
    return pointer


def _pointer(context: ssl.SSLContext, libssl: ctypes.CDLL) -> int:
    """A server context's `SSL_CTX *`, once what is read through it agrees with what Python says about the context."""
    pointer = _pointer_to(context)
    for mode in (ssl.CERT_NONE, ssl.CERT_REQUIRED, ssl.CERT_OPTIONAL):
        context.verify_mode = mode
        expected = {ssl.CERT_NONE: 0, ssl.CERT_OPTIONAL: 1, ssl.CERT_REQUIRED: 3}[mode]
        if libssl.SSL_CTX_get_verify_mode(pointer) != expected:
            raise UnavailableError("the pointer does not lead to the context")
    return pointer


def _test() -> None:
    """Both TLS versions, with a certificate that has expired and that nobody signed. Raises on any disagreement."""
    certificate, certificate_file = _stranger()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate_file)
        server.maximum_version = version
        accept_any_client_certificate(server)
        prefer_aes_128(server)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        client.verify_mode = ssl.CERT_NONE
        client.load_cert_chain(certificate_file)
        prefer_aes_128(client)
        if _shake_hands(server, client) != certificate:
            raise UnavailableError("the certificate that arrived is not the one that was shown")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes | None:
    """A handshake in memory; returns the client's certificate as the server sees it, DER."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server)
    for _ in range(4):
        for side in (client_side, server_side):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    try:
        server_side.read()
    except ssl.SSLWantReadError:
        return server_side.getpeercert(binary_form=True)
    raise UnavailableError("data where there is none")


def _stranger() -> tuple[bytes, str]:
    """A certificate that expired long ago and whose signature is not its issuer's: its DER, and a file that holds it, its
    key and that issuer. The file is in memory: there may be no folder to write to.
    """
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, other_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name, issuer = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
        for text in ("nobody knows me", "impostor")
    )
    certificate, impostor = (
        x509.CertificateBuilder(issuer, subject, of.public_key(), 1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2000, 1, 2, tzinfo=UTC))
        .sign(key, hashes.SHA256())
        for subject, of in ((name, key), (issuer, other_key))
    )
    descriptor = os.memfd_create("certificate")
    for pem in (
        certificate.public_bytes(Encoding.PEM),
        impostor.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    ):
        os.write(descriptor, pem)
    return certificate.public_bytes(Encoding.DER), f"/proc/self/fd/{descriptor}"


if __name__ == "__main__":
    _test()
