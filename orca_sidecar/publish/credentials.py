"""The out-of-band server's certificate, key and client authorities, read again when their files change.

gRPC asks for them at every handshake. A pair that does not match, as between the two renames of a rotation,
or a file that cannot be read leaves the last good ones in use; the next handshake looks again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

log = logging.getLogger(__name__)


class ServerCredentials(NamedTuple):
    """All PEM: the serving key and chain, and the authorities of callers' certificates."""

    key: bytes
    chain: bytes
    client_authorities: bytes


class CredentialFiles:
    """Call it for the current credentials. The first call raises OSError or ValueError if they are
    unusable."""

    def __init__(self, cert_file: Path, key_file: Path, client_ca_file: Path) -> None:
        self._paths = (key_file, cert_file, client_ca_file)
        self._seen: object = None
        self._current: ServerCredentials | None = None

    def __call__(self) -> ServerCredentials:
        try:
            # Through symlinks, so that a swapped ``..data`` of a mounted volume is seen too.
            seen = [
                (status.st_ino, status.st_mtime_ns, status.st_size) for status in map(os.stat, self._paths)
            ]
            if self._current is None or seen != self._seen:
                self._current, self._seen = self._read(), seen
        except (OSError, ValueError) as error:
            if self._current is None:
                raise
            log.warning("out of band keeps its last certificate: %s", error)
        return self._current

    def _read(self) -> ServerCredentials:
        credentials = ServerCredentials(*(path.read_bytes() for path in self._paths))
        leaf = x509.load_pem_x509_certificates(credentials.chain)[0]
        key = serialization.load_pem_private_key(credentials.key, password=None)
        form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if leaf.public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
            raise ValueError(f"{self._paths[0]} is not the key of {self._paths[1]}")
        x509.load_pem_x509_certificates(credentials.client_authorities)
        return credentials
