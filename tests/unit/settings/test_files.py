"""The files that a configuration names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from orca_sidecar.settings.files import check_files
from orca_sidecar.settings.load import check_configuration
from orca_sidecar.settings.problems import ConfigurationError, Problem
from tests.pki import CLIENT, DAY, SERVER, Authority, Pki
from tests.unit.settings.configurations import load, with_keys

SECRET = "3f1c9a7e5d2b8046"
NOBODY = 65534


class Node:
    """A node's files, all sound, and a configuration that names them."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.pki = Pki(folder)
        self.users = self.pki.ca("ca")
        self.front_proxies = self.pki.ca("front-proxy-ca")
        server = self.pki.leaf(self.users, cn="kube-apiserver", eku=SERVER, san=["kubernetes"])
        client = self.pki.leaf(self.front_proxies, cn="front-proxy-client", eku=CLIENT)
        self.token_file = self.secret("token", "token-of-the-probe")
        self.secret_file = self.secret("secret", SECRET)
        self.keys: dict[str, object] = {
            "listener__tls__certFile": str(server.cert_file),
            "listener__tls__keyFile": str(server.key_file),
            "listener__clientCAFile": str(self.users.cert_file),
            "upstream__tls__caFile": str(self.users.cert_file),
            "upstream__frontProxyClient__certFile": str(client.cert_file),
            "upstream__frontProxyClient__keyFile": str(client.key_file),
            "upstream__probe__tokenFile": str(self.token_file),
            "frontProxy__clientCAFile": str(self.front_proxies.cert_file),
            "loadMetrics__enabled": True,
            "loadMetrics__optIn__gate": "sharedSecret",
            "loadMetrics__optIn__sharedSecretFile": str(self.secret_file),
            "loadMetrics__sampler__cgroupRoot": str(folder),
        }

    def secret(self, name: str, content: str) -> Path:
        self.pki.folder.mkdir(exist_ok=True)
        path = self.pki.folder / name
        path.write_text(content)
        path.chmod(0o600)
        return path

    def file(self, key: str) -> Path:
        return Path(str(self.keys[key.replace(".", "__")]))

    def problems(self, **keys: object) -> list[Problem]:
        return check_files(load(with_keys(**{**self.keys, **keys})))

    def only_problem(self, **keys: object) -> Problem:
        (problem,) = self.problems(**keys)
        return problem


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


FILE_KEYS = [
    "listener.tls.certFile",
    "listener.tls.keyFile",
    "listener.clientCAFile",
    "upstream.tls.caFile",
    "upstream.frontProxyClient.certFile",
    "upstream.frontProxyClient.keyFile",
    "upstream.probe.tokenFile",
    "frontProxy.clientCAFile",
    "loadMetrics.optIn.sharedSecretFile",
]


def test_sound_files_have_no_problem(node: Node) -> None:
    assert node.problems() == []


@pytest.mark.parametrize("key", FILE_KEYS)
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.with_name("none"), "No such file"),
        (lambda path: path.parent, "not a regular file"),
        (lambda path: Path("/dev/null"), "not a regular file"),
        (lambda path: write(path.with_name("empty"), ""), "is empty"),
        (lambda path: write(path.with_name("blank"), " \n\n"), "is empty"),
        (lambda path: write(path.with_name("junk"), "no PEM, more words"), ""),
        (lambda path: write(path.with_name("cut"), "-----BEGIN CERTIFICATE-----\nMIIB"), ""),
    ],
)
def test_a_file_that_cannot_serve(node: Node, key: str, spoil: Callable[[Path], Path], message: str) -> None:
    spoilt = spoil(node.file(key))
    problem = node.only_problem(**{key.replace(".", "__"): str(spoilt)})
    assert problem.key == key
    assert problem.severity == "error"
    assert message in problem.message
    assert str(spoilt) in problem.message


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("key", FILE_KEYS)
def test_case_31_a_file_that_may_not_be_read(key: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to others from above
        check_unreadable(Node(Path(folder)), key)


def check_unreadable(node: Node, key: str) -> None:
    copy = node.pki.folder / "copy"
    copy.write_bytes(node.file(key).read_bytes())
    copy.chmod(0o000)
    for path in node.pki.folder.iterdir():
        if path != copy:
            path.chmod(0o644)
    with unprivileged():
        found = node.problems(**{key.replace(".", "__"): str(copy)})
    errors = [problem for problem in found if problem.severity == "error"]
    assert [(problem.key, "Permission denied" in problem.message) for problem in errors] == [(key, True)]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run as nobody where the tests run as root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("section", ["listener.tls", "upstream.frontProxyClient"])
def test_a_key_of_another_certificate(node: Node, section: str) -> None:
    other = node.pki.leaf(node.users, cn="other")
    key = f"{section}.keyFile"
    problem = node.only_problem(**{key.replace(".", "__"): str(other.key_file)})
    assert (problem.key, problem.severity) == (key, "error")
    assert "is not the key of" in problem.message


@pytest.mark.parametrize("kind", ["ecdsa", "rsa", "ed25519"])
def test_pairs_of_every_kind_with_intermediates(node: Node, kind: str) -> None:
    intermediate = node.pki.ca("intermediate", issuer=node.users)
    leaf = node.pki.leaf(intermediate, cn="leaf", eku=SERVER, key=kind)
    assert (
        node.problems(listener__tls__certFile=str(leaf.cert_file), listener__tls__keyFile=str(leaf.key_file))
        == []
    )


def test_an_encrypted_key(node: Node) -> None:
    leaf = node.pki.leaf(node.users, cn="leaf")
    encrypted = leaf.private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )
    path = write(node.pki.folder / "encrypted.key", encrypted.decode())
    problem = node.only_problem(listener__tls__certFile=str(leaf.cert_file), listener__tls__keyFile=str(path))
    assert problem.key == "listener.tls.keyFile"
    assert "encrypted" in problem.message


def bundle_with(node: Node, authority: Authority) -> str:
    return str(node.pki.bundle("bundle", [node.pki.ca("another"), authority]))


def test_client_cas_that_share_a_certificate(node: Node) -> None:
    problem = node.only_problem(frontProxy__clientCAFile=bundle_with(node, node.users))
    assert (problem.key, problem.severity) == ("frontProxy.clientCAFile", "error")
    assert "shares a CA key with listener.clientCAFile" in problem.message


def test_client_cas_that_share_a_key_under_other_names(node: Node) -> None:
    reissued = node.pki.ca("reissued", cn="another name", private_key=node.users.private_key)
    problem = node.only_problem(frontProxy__clientCAFile=bundle_with(node, reissued))
    assert problem.key == "frontProxy.clientCAFile"


def test_client_cas_of_one_name_with_different_keys_are_different(node: Node) -> None:
    namesake = node.pki.ca("namesake", cn="ca")
    assert node.problems(frontProxy__clientCAFile=bundle_with(node, namesake)) == []


def test_without_user_certificates_nothing_overlaps(node: Node) -> None:
    assert node.problems(listener__clientCAFile="", frontProxy__clientCAFile=str(node.users.cert_file)) == []


@pytest.mark.parametrize(
    "key",
    [
        "listener.tls.keyFile",
        "upstream.frontProxyClient.keyFile",
        "upstream.probe.tokenFile",
        "loadMetrics.optIn.sharedSecretFile",
    ],
)
@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_secrets_open_to_everybody_are_warned_of(node: Node, key: str, mode: int) -> None:
    node.file(key).chmod(mode)
    problem = node.only_problem()
    assert (problem.key, problem.severity) == (key, "warning")
    assert "every user" in problem.message


def test_secrets_open_to_a_group_are_not(node: Node) -> None:
    node.file("listener.tls.keyFile").chmod(0o640)
    assert node.problems() == []


@pytest.mark.parametrize(
    "content",
    [
        "two words here in all",
        "tab\tseparated-secret-00",
        " blank-before-the-secret",
        "blank-after-the-secret \n",
        "line\nline-line-line-line",
        "pässwörd-pässwörd",
    ],
)
@pytest.mark.parametrize("key", ["loadMetrics.optIn.sharedSecretFile", "upstream.probe.tokenFile"])
def test_a_secret_that_no_header_can_carry(node: Node, key: str, content: str) -> None:
    path = write(node.pki.folder / "odd", content)
    problem = node.only_problem(**{key.replace(".", "__"): str(path)})
    assert (problem.key, problem.severity) == (key, "error")
    assert "header cannot carry" in problem.message
    assert content not in str(problem)


def test_a_short_secret_is_warned_of_but_not_said(node: Node) -> None:
    path = write(node.pki.folder / "short", SECRET[:15] + "\n")
    problem = node.only_problem(loadMetrics__optIn__sharedSecretFile=str(path))
    assert problem.severity == "warning"
    assert "15 characters" in problem.message
    assert SECRET[:15] not in str(problem)


def test_a_secret_may_end_in_a_newline(node: Node) -> None:
    for end in ("\n", "\r\n"):
        path = write(node.pki.folder / "line", f"{SECRET}{end}")
        assert node.problems(loadMetrics__optIn__sharedSecretFile=str(path)) == []


def test_a_secret_that_no_gate_asks_for_is_not_read(node: Node) -> None:
    keys = {"loadMetrics__optIn__gate": "frontProxy", "loadMetrics__optIn__allowedNames": ["lb"]}
    assert node.problems(loadMetrics__optIn__sharedSecretFile="/nonexistent", **keys) == []


@pytest.mark.parametrize(("begin", "end"), [(-2 * DAY, -DAY), (DAY, 2 * DAY)])
def test_a_certificate_outside_its_validity_is_warned_of(
    node: Node, begin: timedelta, end: timedelta
) -> None:
    leaf = node.pki.leaf(node.users, cn="leaf", eku=SERVER, not_before=begin, not_after=end)
    problem = node.only_problem(
        listener__tls__certFile=str(leaf.cert_file), listener__tls__keyFile=str(leaf.key_file)
    )
    assert (problem.key, problem.severity) == ("listener.tls.certFile", "warning")
    assert "which is not now" in problem.message


def test_the_cgroup_root_is_a_directory_if_load_is_measured(node: Node) -> None:
    missing = {"loadMetrics__sampler__cgroupRoot": str(node.secret_file)}
    assert node.only_problem(**missing).key == "loadMetrics.sampler.cgroupRoot"
    assert node.problems(loadMetrics__enabled=False, **missing) == []


REPORTER = {
    "mode": "reporter",
    "upstream__frontProxyClient__certFile": "/nonexistent",
    "upstream__frontProxyClient__keyFile": "/nonexistent",
    "listener__clientCAFile": "/nonexistent",
    "loadMetrics__optIn__allowedNames": ["lb"],
}


def test_a_reporter_needs_no_file_of_the_proxy(node: Node) -> None:
    keys = {
        "listener__tls__certFile": "/nonexistent",
        "listener__tls__keyFile": "/nonexistent",
        "frontProxy__clientCAFile": "/nonexistent",
        "loadMetrics__agentCheck__enabled": True,
    }
    assert node.problems(**REPORTER, **keys) == []


def test_a_reporter_that_serves_out_of_band_needs_the_listeners_pair(node: Node) -> None:
    assert node.problems(**REPORTER, loadMetrics__outOfBand__enabled=True) == []
    problem = node.only_problem(
        **REPORTER, loadMetrics__outOfBand__enabled=True, listener__tls__certFile="/nonexistent"
    )
    assert problem.key == "listener.tls.certFile"


def test_problems_of_files_get_their_line(node: Node) -> None:
    node.secret_file.unlink()
    node.token_file.chmod(0o644)
    path = node.pki.folder / "orca-sidecar.yaml"
    path.write_text(with_keys(**node.keys))
    with pytest.raises(ConfigurationError) as caught:
        check_configuration(path)
    lines = path.read_text().splitlines()
    assert [problem.severity for problem in caught.value.problems] == ["warning", "error"]
    for problem in caught.value.problems:
        assert problem.line is not None
        assert problem.key.rpartition(".")[2] in lines[problem.line - 1]


def test_warnings_alone_do_not_refuse(node: Node) -> None:
    node.token_file.chmod(0o644)
    path = node.pki.folder / "orca-sidecar.yaml"
    path.write_text(with_keys(**node.keys))
    configuration, warnings = check_configuration(path)
    assert configuration == load(with_keys(**node.keys))
    assert [warning.key for warning in warnings] == ["upstream.probe.tokenFile"]
    assert ": warning: upstream.probe.tokenFile: " in str(warnings[0])
