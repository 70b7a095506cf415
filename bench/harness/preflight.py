"""Before anything is timed: does this proxy do the job? One request is looked at from both ends."""

import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from bench.harness.pki import SERVER_NAME, Pair, Pki
from bench.harness.process import BenchError, Program
from bench.harness.traffic import ECHO, REPORT, REPORT_BINARY, UPSTREAM_REPORT, USER, head
from bench.peers.job import Peer

_START_DEADLINE = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: "Message[str, str]"
    body: bytes


def ask(port: int, ca: Path, pair: Pair | None, request: str) -> Answer:
    """One request on one TLS connection; OSError (ssl.SSLError too) where that fails."""
    context = ssl.create_default_context(cafile=str(ca))
    if pair is not None:
        context.load_cert_chain(pair.both)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname=SERVER_NAME) as connection,
    ):
        connection.sendall(request.replace("\n", "\r\n").encode() + b"\r\n")
        response = HTTPResponse(connection)
        try:
            response.begin()
            return Answer(response.status, response.headers, response.read())
        except HTTPException as error:
            raise ConnectionError(f"no well-formed answer: {error!r}") from error


def await_service(program: Program, port: int, pki: Pki, target: str, groups: Sequence[str]) -> None:
    """Returns when the proxy answers `target` with 200 and a report of its own."""
    deadline = time.monotonic() + _START_DEADLINE
    problem = "no answer"
    while time.monotonic() < deadline:
        program.pids()  # raises where it ended
        try:
            answer = ask(port, pki.ca, pki.load_balancer, head(target, groups))
        except OSError as error:
            problem = str(error)
        else:
            reports = answer.headers.get_all(REPORT, [])
            if answer.status == 200 and len(reports) == 1:
                return
            problem = f"status {answer.status}, {len(reports)} reports"
        time.sleep(0.05)
    raise BenchError(
        f"{program.name} is not in service after {_START_DEADLINE:g} s: {problem}; {program.tail()}"
    )


def check_job(peer: Peer, port: int, pki: Pki) -> None:
    """Raises BenchError where the proxy in front of the nginx upstream does not do all of the job."""
    problems = []
    answer = ask(port, pki.ca, pki.load_balancer, head(ECHO))
    opt_in, user, subject = answer.body.decode().split("|")[:3]
    if opt_in:
        problems.append("the opt-in header reached the upstream")
    if user != USER:
        problems.append(f"X-Remote-User arrived as {user!r}")
    if subject != "CN=front-proxy-client":
        problems.append(f"the upstream saw the client certificate {subject!r}")
    reports = answer.headers.get_all(REPORT, [])
    if len(reports) != 1 or "cpu_utilization" not in reports[0] or reports[0] == UPSTREAM_REPORT:
        problems.append(f"the response's reports are {reports}")
    if REPORT_BINARY in answer.headers:
        problems.append(f"the upstream's {REPORT_BINARY} came through")
    if (stranger := _stranger(peer, port, pki)) is not None:
        problems.append(stranger)
    if problems:
        raise BenchError(f"{peer.title} does not do the job: {'; '.join(problems)}")


def _stranger(peer: Peer, port: int, pki: Pki) -> str | None:
    """What is wrong with the treatment of a caller without a client certificate."""
    try:
        answer = ask(port, pki.ca, None, head(ECHO))
    except OSError:
        return None
    if peer.refuses_strangers and answer.status == 200:
        return "a caller without a client certificate is served"
    if peer.name == "sidecar" and (answer.headers.get_all(REPORT) or USER.encode() in answer.body):
        return "a caller without a client certificate gets a report, or its X-Remote-User through"
    return None
