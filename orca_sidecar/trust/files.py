"""Noticing that certificate files were replaced: by rename, in place, or by a swapped `..data` link of a mounted volume."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from orca_sidecar.settings.schema import SidecarConfiguration

RELOAD_SECONDS = 5.0
"""How often the files are looked at."""


def certificate_files(configuration: SidecarConfiguration) -> list[Path]:
    """Every certificate, key and CA file that the data plane uses."""
    listener, upstream = configuration.listener, configuration.upstream
    files = [
        listener.tls.cert_file,
        listener.tls.key_file,
        listener.client_ca_file,
        configuration.front_proxy.client_ca_file,
        upstream.tls.ca_file,
        upstream.front_proxy_client.cert_file,
        upstream.front_proxy_client.key_file,
    ]
    return [path for path in files if path is not None]


class FileWatch:
    """Remembers what the files were when it was last asked."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether any file is another one, or has other content, than at the last call."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        """Through links, so that a swapped link counts; a file that is not there is None."""
        found: list[tuple[int, int, int, int] | None] = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
        return found
