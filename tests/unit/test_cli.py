"""The command line, run as users run it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orca_sidecar import __version__
from orca_sidecar.settings.load import load_configuration
from tests.pki import Pki

COMMANDS = ([sys.executable, "-m", "orca_sidecar"], [str(Path(sys.executable).with_name("orca-sidecar"))])

BAD = """\
apiVersion: orca-sidecar.dev/v1alpha1
kind: SidecarConfiguration
listener:
  tls:
    certFile: /nonexistent/server.crt
    keyFile: /nonexistent/server.key
    minVersion: 1.2
upstream:
  tls: {caFile: /nonexistent/ca.crt}
  idelTimeout: 60s
workers: 0
"""


def run(*arguments: str | Path, command: list[str] = COMMANDS[0]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A configuration whose files are all there."""
    pki = Pki(tmp_path)
    ca, front_proxy_ca = pki.ca("ca"), pki.ca("front-proxy-ca")
    server, client = pki.leaf(ca, cn="server"), pki.leaf(front_proxy_ca, cn="front-proxy-client")
    path = tmp_path / "orca-sidecar.yaml"
    path.write_text(f"""\
apiVersion: orca-sidecar.dev/v1alpha1
kind: SidecarConfiguration
listener:
  address: 127.0.0.1:0
  maxConnections: 100
  tls: {{certFile: {server.cert_file}, keyFile: {server.key_file}}}
  clientCAFile: {ca.cert_file}
upstream:
  tls: {{caFile: {ca.cert_file}}}
  frontProxyClient: {{certFile: {client.cert_file}, keyFile: {client.key_file}}}
frontProxy:
  clientCAFile: {front_proxy_ca.cert_file}
""")
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=["module", "script"])
def test_version(command: list[str]) -> None:
    result = run("version", command=command)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"orca-sidecar {__version__} ")
    assert re.search(r" \(CPython 3\.[0-9.]+, OpenSSL 3\.[0-9.]+\)\n$", result.stdout)


def test_help_names_every_command_and_exit_code() -> None:
    result = run("--help")
    assert result.returncode == 0
    for word in (
        "run",
        "check-config",
        "print-config",
        "demo",
        "version",
        "2 usage",
        "3 configuration",
        "4 start",
    ):
        assert word in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["run"],
        ["check-config"],
        ["print-config", "--conf", "x"],
        ["check-config", "--config", "x", "--strict"],
        ["version", "extra"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("usage: ")


def test_check_config_accepts(good: Path) -> None:
    result = run("check-config", "--config", good)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{good}: valid\n", "")


def test_check_config_warns(good: Path) -> None:
    key_file = load_configuration(good).listener.tls.key_file
    key_file.chmod(0o644)
    result = run("check-config", "--config", good)
    assert (result.returncode, result.stdout) == (0, f"{good}: valid\n")
    assert result.stderr.startswith(
        f"{good}:6: warning: listener.tls.keyFile: {key_file} is open to every user"
    )


@pytest.mark.parametrize("command", ["run", "check-config", "print-config"])
def test_case_31_all_errors_at_once_without_a_traceback(tmp_path: Path, command: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    result = run(command, "--config", path)
    assert (result.returncode, result.stdout) == (3, "")
    lines = result.stderr.splitlines()
    for number, key in [(7, "listener.tls.minVersion"), (10, "upstream.idelTimeout"), (11, "workers")]:
        assert sum(line.startswith(f"{path}:{number}: {key}: ") for line in lines) == 1
    names_files = any("/nonexistent/server.key cannot be read" in line for line in lines)
    assert names_files is (command != "print-config")
    assert lines[-1].startswith(f"orca-sidecar: {path} refused: ")
    assert lines[-1].endswith(f" {len(lines) - 1} errors")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["run", "check-config", "print-config"])
def test_a_configuration_that_is_not_there(tmp_path: Path, command: str) -> None:
    path = tmp_path / "none.yaml"
    result = run(command, "--config", path)
    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        f"{path}: cannot be read: No such file or directory; name a readable file",
        f"orca-sidecar: {path} refused: 1 error",
    ]


def test_print_config_loads_back_equal(good: Path, tmp_path: Path) -> None:
    result = run("print-config", "--config", good)
    assert (result.returncode, result.stderr) == (0, "")
    printed = tmp_path / "printed.yaml"
    printed.write_text(result.stdout)
    assert load_configuration(printed) == load_configuration(good)
    assert run("print-config", "--config", printed).stdout == result.stdout


def test_case_31_a_port_in_use_is_a_failed_start(good: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        good.write_text(good.read_text().replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        result = run("run", "--config", good)
    assert result.returncode == 4
    (line,) = result.stderr.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line


def test_the_demo_gets_its_own_arguments() -> None:
    result = run("demo", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: orca-sidecar demo")
    assert run("demo", "--nonsense").returncode == 2
