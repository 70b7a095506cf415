"""Configurations that cannot work: one clear message each, a distinct exit code, no crash loop."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.sidecar import PROGRAM, Identities

BAD_CONFIGURATION, FAILED_START = 3, 4


def run(settings: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return subprocess.run(
        [PROGRAM, "run", "--config", path], capture_output=True, text=True, timeout=60, check=False
    )


def test_case_31_a_port_in_use(identities: Identities, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(identities.configuration(1, listener={"address": address}), tmp_path)
    assert result.returncode == FAILED_START
    assert address in result.stderr
    assert "Address already in use" in result.stderr or "address already in use" in result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if "ERROR" in line or "error" in line]) == 1


def test_case_31_an_unreadable_key(identities: Identities, tmp_path: Path) -> None:
    """A folder in its place: what modes forbid, root reads all the same."""
    key = tmp_path / "secret.key"
    key.mkdir()
    settings = identities.configuration(1)
    settings["listener"]["tls"]["keyFile"] = str(key)
    result = run(settings, tmp_path)
    assert result.returncode in (BAD_CONFIGURATION, FAILED_START)
    assert str(key) in result.stderr
    assert "Traceback" not in result.stderr


def test_case_31_three_errors_are_told_at_once(identities: Identities, tmp_path: Path) -> None:
    settings = identities.configuration(1)
    settings["listener"]["idleTimeout"] = "soon"
    settings["upstream"]["adress"] = "127.0.0.1:6443"
    settings["loadMetrics"]["optIn"]["gate"] = "closed"
    result = run(settings, tmp_path)
    assert result.returncode == BAD_CONFIGURATION
    for path in ("listener.idleTimeout", "upstream.adress", "loadMetrics.optIn.gate"):
        assert path in result.stderr, result.stderr
    assert "frontProxy" in result.stderr  # an allowed value of the gate
    assert "Traceback" not in result.stderr
