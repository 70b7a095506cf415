"""Fixtures of the trust tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from orca_sidecar.trust import openssl
from tests.unit.trust.clusters import Cluster, make_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return make_cluster(tmp_path)


@pytest.fixture
def openssl_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback: as if this Python could not be made to accept any certificate."""
    monkeypatch.setattr(openssl, "available", lambda: False)
