"""Credentials from files that are replaced, also one at a time."""

import logging
import os
from pathlib import Path

import pytest

from orca_sidecar.publish.credentials import CredentialFiles
from tests.pki import SERVER, Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "made")


@pytest.fixture
def files(tmp_path: Path, pki: Pki) -> CredentialFiles:
    leaf = pki.leaf(pki.ca("ca"), cn="one", eku=SERVER)
    place(tmp_path, "tls.crt", leaf.cert_file)
    place(tmp_path, "tls.key", leaf.key_file)
    place(tmp_path, "client-ca.crt", pki.ca("front-proxy-ca").cert_file)
    return CredentialFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "client-ca.crt")


def place(folder: Path, name: str, source: Path) -> None:
    """Replace by rename, as certificate managers do."""
    (folder / "new").write_bytes(source.read_bytes())
    os.replace(folder / "new", folder / name)


def test_the_same_files_give_the_same_credentials(files: CredentialFiles) -> None:
    assert files() is files()


def test_a_new_pair_is_used_once_it_is_complete(
    files: CredentialFiles, pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = files()
    renewed = pki.leaf(pki.ca("ca"), name="two", cn="one", eku=SERVER)
    place(tmp_path, "tls.crt", renewed.cert_file)
    with caplog.at_level(logging.WARNING):
        assert files() == old
    assert f"{tmp_path / 'tls.key'} is not the key of {tmp_path / 'tls.crt'}" in caplog.text
    place(tmp_path, "tls.key", renewed.key_file)
    assert files().chain == renewed.cert_file.read_bytes()
    assert files().key == renewed.key_file.read_bytes()


def test_other_client_authorities_are_used(files: CredentialFiles, pki: Pki, tmp_path: Path) -> None:
    files()
    place(tmp_path, "client-ca.crt", pki.ca("another").cert_file)
    assert files().client_authorities == (pki.folder / "another.crt").read_bytes()


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "client-ca.crt"])
def test_a_file_that_cannot_be_used_leaves_the_last_good_ones(
    files: CredentialFiles, tmp_path: Path, name: str
) -> None:
    good = files()
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_text("no certificate and no key")
    assert files() is good
    (tmp_path / name).unlink()
    assert files() is good
    (tmp_path / name).write_bytes(content)
    assert files() == good


def test_at_the_start_it_is_an_error(files: CredentialFiles, tmp_path: Path) -> None:
    (tmp_path / "client-ca.crt").write_text("")
    with pytest.raises(ValueError):
        files()
    (tmp_path / "client-ca.crt").unlink()
    with pytest.raises(FileNotFoundError):
        files()
