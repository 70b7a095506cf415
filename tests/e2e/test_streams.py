"""exec, attach, cp, port-forward and logs, over WebSocket and over SPDY, by every route to kube-apiserver."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.backends import HttpBackend, RawBackend
from tests.e2e.control_plane import ControlPlane
from tests.e2e.fronts import Sidecar
from tests.e2e.kubectl import Kubectl
from tests.e2e.kubelet import CONTAINER, HTTP_PORT, NAMESPACE, POD, RAW_PORT, Kubelet
from tests.e2e.processes import wait_until
from tests.e2e.wire import Route

SIZE = 50_000_000
IN_POD = ("-n", NAMESPACE, POD)
ROUTES = ("direct", "through", "envoy")
# kubectl opens a stream by a GET for a WebSocket, by a POST for SPDY; kube-apiserver audits them as such.
VERBS = {"websocket": "get", "spdy": "create"}
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> Route:
    fixture = request.getfixturevalue(request.param)
    return fixture if isinstance(fixture, Route) else fixture.route


@pytest.fixture(params=VERBS)
def kubectl(
    request: pytest.FixtureRequest, route: Route, control_plane: ControlPlane, kubelet: Kubelet
) -> Iterator[Kubectl]:
    """kubectl by one route and one protocol; fails where it fell back from a WebSocket to SPDY."""
    start = control_plane.audit_log.stat().st_size
    kubectl = control_plane.kubectl(route, token="admin-token")
    yield kubectl.with_environment(**SPDY) if request.param == "spdy" else kubectl

    def streams() -> set[tuple[str, int]]:
        with control_plane.audit_log.open("rb") as log:
            log.seek(start)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        return {
            (event["verb"], event["responseStatus"]["code"])
            for event in events
            if event.get("objectRef", {}).get("subresource") in ("exec", "attach", "portforward")
        }

    wait_until(streams, "audit lines of the streams")
    assert streams() == {(VERBS[request.param], 101)}


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "large"
    path.write_bytes(os.urandom(SIZE))
    yield path
    path.unlink()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- exec --------------------------------------------------------------------------------------------------


def test_exec_prints_both_streams(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", *IN_POD, "--", "sh", "-c", "echo out; echo err >&2; echo -n ümlaut")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\nümlaut".encode(), b"err\n")


@pytest.mark.parametrize("command", ["exit 3", "exit 0", "kill -9 $$", "echo out; exit 1"])
def test_exec_ends_with_the_same_code_and_message(
    kubectl: Kubectl, control_plane: ControlPlane, direct: Route, command: str
) -> None:
    # kwok tells a failure by an internal error, a kubelet by an exit code: either way as directly.
    arguments = ("exec", *IN_POD, "--", "sh", "-c", command)
    expected = (
        control_plane.kubectl(direct, token="admin-token")
        .with_environment(**kubectl.environment)
        .run(*arguments)
    )
    done = kubectl.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )
    assert (done.returncode == 0) == (command == "exit 0")


def test_exec_with_repeated_and_odd_arguments(kubectl: Kubectl) -> None:
    arguments = ["a", "a", "", "b c", "ü", "%2F", "x=1&y=2", "+"]
    printed = kubectl("exec", *IN_POD, "--", "printf", "<%s>", *arguments)
    assert printed == "".join(f"<{argument}>" for argument in arguments)


def test_exec_reads_standard_input(kubectl: Kubectl, large_file: Path) -> None:
    # By length: kwok does not pass on that standard input ended.
    with large_file.open("rb") as file:
        data = file.read(5_000_000)
    printed = kubectl("exec", "-i", *IN_POD, "--", "sh", "-c", f"head -c {len(data)} | sha256sum", stdin=data)
    assert printed.split()[0] == hashlib.sha256(data).hexdigest()


def test_exec_is_a_dialogue(kubectl: Kubectl) -> None:
    loop = 'while read -r line; do [ "$line" = quit ] && break; echo "got $line"; done; echo left'
    with kubectl.started("exec", "-i", *IN_POD, "--", "sh", "-c", loop, stdin=subprocess.PIPE) as dialogue:
        for number in range(20):
            dialogue.write(b"%d\n" % number)
            assert dialogue.line() == b"got %d" % number
        dialogue.write(b"quit\n")
        assert dialogue.line() == b"left"
        assert dialogue.wait() == 0


class Terminal:
    """A pseudo-terminal with a program on its far end."""

    def __init__(self) -> None:
        self.near, self.far = pty.openpty()
        self.seen = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.near)
        os.close(self.far)

    def options(self) -> dict[str, Any]:
        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        return {"stdin": self.far, "stdout": self.far, "stderr": self.far, "preexec_fn": own_the_terminal}

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def write(self, text: bytes) -> None:
        os.write(self.near, text)

    def wait_for(self, text: bytes, within: float = 15.0) -> None:
        deadline = time.monotonic() + within
        while text not in self.seen:
            ready, _, _ = select.select([self.near], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} within {within} s; the terminal shows {self.seen!r}"
            self.seen += os.read(self.near, 65536)
        self.seen = self.seen.partition(text)[2]


def test_exec_with_a_terminal_that_is_resized(kubectl: Kubectl) -> None:
    # It waits for one more line before it leaves: kwok drops what a terminal still holds when its program ends.
    loop = """tty -s && echo is-a-tty
while read -r line; do [ "$line" = quit ] && break; stty size; done
echo left; read -r line; exit 0"""
    with Terminal() as terminal:
        terminal.resize(40, 100)
        with kubectl.started("exec", "-it", *IN_POD, "--", "sh", "-c", loop, **terminal.options()) as shell:
            terminal.wait_for(b"is-a-tty")
            for rows, columns in ((40, 100), (51, 121), (24, 80)):
                terminal.resize(rows, columns)
                # The new size travels beside the input, so ask until it has arrived.
                for _ in range(100):
                    terminal.write(b"size\r")
                    terminal.wait_for(b"size\r\n")
                    with contextlib.suppress(AssertionError):
                        terminal.wait_for(b"%d %d\r\n" % (rows, columns), within=0.1)
                        break
                else:
                    pytest.fail(f"the size {rows} x {columns} did not arrive")
            terminal.write(b"quit\r")
            terminal.wait_for(b"left")
            terminal.write(b"\r")
            assert shell.wait() == 0


# -- attach, logs ------------------------------------------------------------------------------------------


def test_attach_shows_what_the_container_prints(kubectl: Kubectl, kubelet: Kubelet) -> None:
    with kubectl.started("attach", *IN_POD, "-c", CONTAINER, stderr=subprocess.DEVNULL) as attached:
        # kwok shows what is printed from now on, so print until it is seen that "now" has come.
        def attached_by_now() -> bool:
            kubelet.log("are you there?")
            with contextlib.suppress(AssertionError):
                return attached.line(within=0.2) == b"are you there?"
            return False

        wait_until(attached_by_now, "the first line")
        for number in range(5):
            kubelet.log(f"line {number}")
            while (line := attached.line()) == b"are you there?":
                pass
            assert line == b"line %d" % number


def test_logs_are_equal_and_followed(
    route: Route, direct: Route, control_plane: ControlPlane, kubelet: Kubelet
) -> None:
    kubectl = control_plane.kubectl(route, token="admin-token")
    kubelet.log("before")
    assert kubectl("logs", *IN_POD) == control_plane.kubectl(direct, token="admin-token")("logs", *IN_POD)
    with kubectl.started("logs", "-f", "--tail=1", *IN_POD) as logs:
        assert logs.line() == b"before"
        for number in range(5):
            kubelet.log(f"line {number}")
            assert logs.line() == b"line %d" % number


# -- cp ----------------------------------------------------------------------------------------------------


def test_cp_of_50_megabytes_both_ways(
    kubectl: Kubectl, kubelet: Kubelet, large_file: Path, tmp_path: Path
) -> None:
    there, back = kubelet.work / "copied", tmp_path / "back"
    kubectl("cp", "--retries=0", large_file, f"{NAMESPACE}/{POD}:{there}")
    assert digest(there) == digest(large_file)
    kubectl("cp", "--retries=0", f"{NAMESPACE}/{POD}:{there}", back)
    assert digest(back) == digest(large_file)
    there.unlink()
    back.unlink()


# -- port-forward ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def forwarded(kubectl: Kubectl, port: int) -> Iterator[int]:
    """A local port that leads to the pod's `port`."""
    with kubectl.started(
        "port-forward", "-n", NAMESPACE, f"pod/{POD}", f":{port}", "--address=127.0.0.1"
    ) as forward:
        line = forward.line().decode()
        found = re.match(rf"Forwarding from 127\.0\.0\.1:(\d+) -> {port}$", line)
        assert found, line
        yield int(found[1])


def test_port_forward_of_http(kubectl: Kubectl, kubelet: Kubelet) -> None:
    def exchange(port: int, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for turn in range(3):
            connection.request("GET", f"/{number}/{turn}")
            assert connection.getresponse().read() == f"/{number}/{turn}".encode()
            body = bytes([number]) * 100_000
            connection.request("POST", "/", body)
            assert connection.getresponse().read() == body
        connection.close()

    with (
        HttpBackend(kubelet.http_port),
        forwarded(kubectl, HTTP_PORT) as port,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        for done in [pool.submit(exchange, port, number) for number in range(8)]:
            done.result()


def test_port_forward_of_50_raw_megabytes_both_ways(
    kubectl: Kubectl, kubelet: Kubelet, large_file: Path
) -> None:
    expected = hashlib.sha256(large_file.read_bytes()).hexdigest().encode()
    with RawBackend(kubelet.raw_port, SIZE), forwarded(kubectl, RAW_PORT) as port:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            with large_file.open("rb") as file:
                client.sendfile(file)
            reader = client.makefile("rb")
            assert reader.read(64) == expected
            received, left = hashlib.sha256(), SIZE
            while left:
                piece = reader.read1(min(left, 1 << 18))
                assert piece, f"the stream ended {left} bytes early"
                received.update(piece)
                left -= len(piece)
        assert received.hexdigest().encode() == expected


def test_no_tunnel_outlives_its_stream(kubectl: Kubectl, sidecar: Sidecar) -> None:
    wait_until(lambda: sidecar.gauge("orca_sidecar_upgrades") == 0, "the last tunnel's end")
    loop = "echo ready; read -r line"
    with kubectl.started("exec", "-i", *IN_POD, "--", "sh", "-c", loop, stdin=subprocess.PIPE) as stream:
        assert stream.line() == b"ready"
        expected = 0 if "direct" in str(kubectl.kubeconfig) else 1
        assert sidecar.gauge("orca_sidecar_upgrades") == expected
    # kubectl is gone without a word.
    wait_until(lambda: sidecar.gauge("orca_sidecar_upgrades") == 0, "the tunnel's end")
