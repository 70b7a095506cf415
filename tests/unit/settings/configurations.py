"""Configuration files for these tests: the smallest one, and what is wrong with others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orca_sidecar.settings.load import load_configuration
from orca_sidecar.settings.problems import ConfigurationError, Problem
from orca_sidecar.settings.schema import SidecarConfiguration

MINIMAL: Mapping[str, Any] = {
    "apiVersion": "orca-sidecar.dev/v1alpha1",
    "kind": "SidecarConfiguration",
    "listener": {"tls": {"certFile": "/tls/server.crt", "keyFile": "/tls/server.key"}},
    "upstream": {"tls": {"caFile": "/tls/ca.crt"}},
}


def with_keys(**values: object) -> str:
    """The smallest configuration with further keys, whose dots are written as `__`."""
    content = json.loads(json.dumps(MINIMAL))
    for path, value in values.items():
        *sections, name = path.split("__")
        section = content
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return json.dumps(content, indent=1)  # JSON is YAML


def load(text: str) -> SidecarConfiguration:
    return _with_file(text, load_configuration)


def attempt(text: str) -> tuple[SidecarConfiguration | None, list[Problem]]:
    """The configuration, or None and everything that is wrong with it."""
    try:
        return load(text), []
    except ConfigurationError as error:
        return None, error.problems


def problems(text: str) -> list[Problem]:
    """Everything that is wrong with it; fails if nothing is."""
    configuration, found = attempt(text)
    assert configuration is None, "the configuration was accepted"
    return found


def only_problem(text: str) -> Problem:
    (problem,) = problems(text)
    return problem


def _with_file(text: str, read: Callable[[Path], SidecarConfiguration]) -> SidecarConfiguration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orca-sidecar.yaml"
        path.write_text(text, encoding="utf-8")
        return read(path)
