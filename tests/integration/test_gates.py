"""Who is told this node's load: the three gates of the opt-in, at the installed program."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from orca_sidecar.settings.load import load_configuration
from orca_sidecar.supervisor import shared_secret
from tests.pki import HOUR, Credential, Pki
from tests.support.recorder import Recorder
from tests.support.sidecar import PROGRAM, Identities, Sidecar, running

OPT_IN = b"endpoint-load-metrics-request"
SECRET = "s3cr3t-of-the-balancers"
REASONS = ("disabled", "duplicate", "value", "not_allowed", "secret", "unavailable")
REFUSALS = "orca_sidecar_load_report_refusals_total"
ATTACHED = "orca_sidecar_load_reports_attached_total"
EXIT_CONFIGURATION = 3


class Lab:
    """One sidecar, with callers of every kind."""

    def __init__(
        self,
        sidecar: Sidecar,
        recorder: Recorder,
        identities: Identities,
        callers: dict[str, Credential | None],
    ) -> None:
        self.sidecar, self.recorder = sidecar, recorder
        self._contexts = {name: identities.client_context(callers[name]) for name in callers}

    @contextmanager
    def connected(self, caller: str) -> Iterator[ssl.SSLSocket]:
        with (
            socket.create_connection(("127.0.0.1", self.sidecar.port), 20) as raw,
            self._contexts[caller].wrap_socket(raw, server_hostname="kubernetes") as sock,
        ):
            yield sock

    def ask(
        self,
        *values: bytes,
        caller: str = "none",
        name: bytes = OPT_IN,
        lines: bytes = b"",
        code: bytes = b"200",
    ) -> list[bytes]:
        """Send a request with these opt-in lines; the reports in the answer. None of the lines may go upstream."""
        opt_in = b"".join(b"%b:%b\r\n" % (name, value) for value in values)
        self.recorder.clear()
        with self.connected(caller) as sock:
            sock.sendall(b"GET /api HTTP/1.1\r\nHost: kubernetes\r\n%b%b\r\n" % (opt_in, lines))
            answer = b""
            while not answer.endswith((b"\r\n\r\nok", b"}\n")):
                piece = sock.recv(65536)
                assert piece, answer
                answer += piece
        assert answer[9:12] == code, answer
        arrived = [name.lower() for arrival in self.recorder.arrivals for name, _ in arrival.lines]
        assert OPT_IN not in arrived
        head = answer.partition(b"\r\n\r\n")[0]
        return [line for line in head.split(b"\r\n") if line.lower().startswith(b"endpoint-load-metrics")]

    def refusals(self) -> dict[str, float]:
        return {reason: self.sidecar.metric(REFUSALS, reason=reason) for reason in REASONS}

    @contextmanager
    def counted(self, **expected: int) -> Iterator[None]:
        """The refusals, and reports `attached`, that are counted meanwhile are these."""
        before, attached = self.refusals(), self.sidecar.metric(ATTACHED)
        yield
        wanted = {reason: count + expected.get(reason, 0) for reason, count in before.items()}
        assert self.refusals() == wanted
        assert self.sidecar.metric(ATTACHED) == attached + expected.get("attached", 0)


GATES: dict[str, dict[str, Any]] = {
    "frontProxy": {"formats": ["TEXT", "JSON"]},
    "sharedSecret": {"optIn": {"gate": "sharedSecret"}, "formats": ["TEXT", "JSON"]},
    "open": {"optIn": {"gate": "open"}},
    "disabled": {"enabled": False},
}
CALLERS = (
    "none",
    "balancer",
    "reporter",
    "jane",
    "unlisted",
    "balancer of the client CA",
    "balancer of an unknown CA",
    "expired balancer",
)
TOKEN = b"Authorization: Bearer joe-token\r\n"


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Lab]]:
    folder = tmp_path_factory.mktemp("gates")
    identities = Identities.make(folder / "pki")
    pki = Pki(folder / "callers")
    front_proxy_ca = identities.front_proxy_ca
    made = [
        None,
        identities.balancer,
        identities.reporter,
        identities.jane,
        pki.leaf(front_proxy_ca, cn="unlisted"),
        pki.leaf(identities.ca, name="namesake", cn="balancer"),
        pki.leaf(pki.ca("stranger"), name="stranger-balancer", cn="balancer"),
        pki.leaf(
            front_proxy_ca, name="expired", cn="balancer", not_before=-timedelta(days=2), not_after=-HOUR
        ),
    ]
    callers = dict(zip(CALLERS, made, strict=True))
    secret_file = folder / "secret"
    secret_file.write_text(SECRET + "\n")
    with ExitStack() as stack:
        labs = {}
        recorder = stack.enter_context(Recorder(identities.server_context()))
        for gate, changes in GATES.items():
            settings = identities.configuration(
                recorder.port, loadMetrics=changes, logging={"level": "debug", "format": "json"}
            )
            if gate == "sharedSecret":
                settings["loadMetrics"]["optIn"]["sharedSecretFile"] = str(secret_file)
            (folder / gate).mkdir()
            sidecar = stack.enter_context(running(settings, folder / gate))
            labs[gate] = Lab(sidecar, recorder, identities, callers)
        for gate, lab in labs.items():
            asyncio.run(lab.sidecar.ready())
            if gate != "disabled":
                asyncio.run(lab.sidecar.until(_has_a_report(lab.sidecar)))
        yield labs


def _has_a_report(sidecar: Sidecar) -> Callable[[], bool]:
    return lambda: json.loads(sidecar.admin("/statusz")[1])["loadReport"] is not None


def _is_text(reports: list[bytes]) -> bool:
    (report,) = reports
    return report.startswith(b"endpoint-load-metrics: TEXT application_utilization=")


# -- gate frontProxy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
def test_front_proxy_only_listed_names_of_that_authority_are_told(labs: dict[str, Lab], caller: str) -> None:
    lab = labs["frontProxy"]
    if caller in ("balancer", "reporter"):
        with lab.counted(attached=1):
            assert _is_text(lab.ask(b" TEXT", caller=caller))
    else:
        with lab.counted(not_allowed=1):
            assert lab.ask(b" TEXT", caller=caller, lines=TOKEN) == []


def test_front_proxy_the_secret_is_of_no_use(labs: dict[str, Lab]) -> None:
    lab = labs["frontProxy"]
    with lab.counted(not_allowed=1, value=1):
        assert lab.ask(b" TEXT secret=" + SECRET.encode()) == []
        assert lab.ask(b" TEXT secret=" + SECRET.encode(), caller="balancer") == []


# -- gate sharedSecret -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
def test_shared_secret_the_secret_alone_suffices(labs: dict[str, Lab], caller: str) -> None:
    lab = labs["sharedSecret"]
    with lab.counted(attached=1, secret=1):
        assert _is_text(lab.ask(b" TEXT secret=" + SECRET.encode(), caller=caller, lines=TOKEN))
        assert lab.ask(b" TEXT", caller=caller, lines=TOKEN) == []


WRONG = (
    b" TEXT secret=",
    b" TEXT secret=wrong",
    b" TEXT secret=" + SECRET[:-1].encode(),
    b" TEXT secret=" + SECRET.encode() + b"x",
    b" TEXT secret=" + SECRET.upper().encode(),
    b" TEXT secret= " + SECRET.encode(),
    b' TEXT secret="' + SECRET.encode() + b'"',
    b" TEXT Secret=" + SECRET.encode(),
    b" TEXT\tsecret=" + SECRET.encode(),
    b" TEXT,secret=" + SECRET.encode(),
    b" TEXT secret=x secret=" + SECRET.encode(),
    b" TEXT secret=" + SECRET.encode() + b" secret=" + SECRET.encode(),
    b" TEXT secret=" + SECRET.encode() + b"\\n",
    b" secret=" + SECRET.encode(),
    b" " + SECRET.encode(),
    b" TEXT secret=" + SECRET.encode() * 500,
    b" TEXT secret=\xff\xfe",
)


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_shared_secret_nothing_but_the_secret(labs: dict[str, Lab], value: bytes) -> None:
    lab = labs["sharedSecret"]
    with lab.counted(secret=2):
        assert lab.ask(value) == []
        assert lab.ask(value, caller="balancer") == []


def test_shared_secret_formats(labs: dict[str, Lab]) -> None:
    """Blanks at the ends are not part of a field's value (RFC 9110 §5.5)."""
    lab, secret = labs["sharedSecret"], SECRET.encode()
    with lab.counted(attached=2, value=2):
        assert lab.ask(b" JSON secret=" + secret)[0].startswith(b"endpoint-load-metrics: JSON {")
        assert _is_text(lab.ask(b"\t TEXT secret=" + secret + b" \t"))
        assert lab.ask(b" BIN secret=" + secret) == []
        assert lab.ask(b" text secret=" + secret) == []


def test_shared_secret_is_said_nowhere(labs: dict[str, Lab]) -> None:
    """Nor are attempts at it, which may be another system's secret."""
    lab = labs["sharedSecret"]
    attempt = b"another-systems-secret"
    lab.ask(b" TEXT secret=" + SECRET.encode())
    lab.ask(b" TEXT secret=" + attempt)
    lab.ask(b" TEXT secret=" + SECRET.encode(), caller="expired balancer", code=b"401")
    with lab.connected("none") as sock:
        sock.sendall(
            b"GET / HTTP/1.1\r\n%b: TEXT secret=%b\r\n%b : TEXT\r\n\r\n" % (OPT_IN, SECRET.encode(), OPT_IN)
        )
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")
    said = [lab.sidecar.log, *(lab.sidecar.admin(path)[1] for path in ("/metrics", "/statusz", "/readyz"))]
    for text in said:
        assert text
        assert SECRET not in text
        assert attempt.decode() not in text


@pytest.mark.parametrize("line_end", ["", "\n", "\r\n"], ids=["none", "LF", "CR LF"])
def test_shared_secret_a_line_end_is_not_part_of_it(tmp_path: Path, line_end: str) -> None:
    identities = Identities.make(tmp_path / "pki")
    secret_file = tmp_path / "secret"
    secret_file.write_bytes((SECRET + line_end).encode())
    opt_in = {"gate": "sharedSecret", "sharedSecretFile": str(secret_file)}
    with Recorder(identities.server_context()) as recorder:
        settings = identities.configuration(recorder.port, loadMetrics={"optIn": opt_in})
        with running(settings, tmp_path) as sidecar:
            asyncio.run(sidecar.ready())
            asyncio.run(sidecar.until(_has_a_report(sidecar)))
            lab = Lab(sidecar, recorder, identities, {"none": None})
            assert _is_text(lab.ask(b" TEXT secret=" + SECRET.encode()))
            assert lab.ask(b" TEXT secret=") == []


# -- gate open -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
def test_open_everybody_is_told_who_asks(labs: dict[str, Lab], caller: str) -> None:
    lab = labs["open"]
    with lab.counted(attached=1):
        assert _is_text(lab.ask(b" TEXT", caller=caller, lines=TOKEN))
        assert lab.ask(caller=caller, lines=TOKEN) == []


def test_open_is_warned_of_at_start_and_the_others_are_not(labs: dict[str, Lab]) -> None:
    for gate, lab in labs.items():
        warnings = [json.loads(line) for line in lab.sidecar.log.splitlines() if "gate is open" in line]
        assert [warning["level"] for warning in warnings] == (["warning"] if gate == "open" else [])


# -- disabled --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", CALLERS)
def test_disabled_nobody_is_told(labs: dict[str, Lab], caller: str) -> None:
    lab = labs["disabled"]
    with lab.counted(disabled=2):
        assert lab.ask(b" TEXT", caller=caller, lines=TOKEN) == []
        assert lab.ask(b" TEXT", b" TEXT", caller=caller, lines=TOKEN) == []


# -- in every gate ---------------------------------------------------------------------------------------------


def _passing(gate: str) -> tuple[bytes, str]:
    """What passes a gate, and whose it is."""
    secret = b" secret=" + SECRET.encode() if gate == "sharedSecret" else b""
    return secret, "reporter" if gate == "frontProxy" else "none"


@pytest.mark.parametrize("gate", ["frontProxy", "sharedSecret", "open"])
def test_more_than_one_line_is_none(labs: dict[str, Lab], gate: str) -> None:
    lab = labs[gate]
    secret, caller = _passing(gate)
    twice: list[tuple[bytes, ...]] = [
        (b" TEXT" + secret, b" TEXT" + secret),
        (b" TEXT" + secret, b" JSON" + secret),
        (b"", b" TEXT" + secret),
        (b" TEXT" + secret, b""),
        (b" TEXT" + secret, b" nonsense"),
        (b" TEXT" + secret,) * 50,
    ]
    with lab.counted(duplicate=len(twice)):
        for values in twice:
            assert lab.ask(*values, caller=caller) == []
    with lab.counted(duplicate=1):
        second = OPT_IN.title() + b": TEXT\r\n"
        assert lab.ask(b" TEXT" + secret, caller=caller, lines=second) == []


ODD = {
    "no value": b"",
    "blank": b" \t ",
    "lower case": b" text",
    "mixed case": b" Text",
    "a list": b" TEXT, TEXT",
    "two formats": b" TEXT JSON",
    "a parameter": b" TEXT;q=1",
    "quoted": b' "TEXT"',
    "a format that is not configured": b" BIN",
    "an unknown format": b" XML",
    "a number": b" 1",
    "obs-text": b" TEXT\xc2\xa0",
    "an inner tab": b" TE\tXT",
    "long": b" " + b"TEXT" * 5000,
}


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
@pytest.mark.parametrize("gate", ["frontProxy", "sharedSecret", "open"])
def test_odd_values_are_none(labs: dict[str, Lab], gate: str, value: bytes) -> None:
    lab = labs[gate]
    secret, caller = _passing(gate)
    # Nothing before the blank leaves the secret without its name.
    reason = "secret" if secret and not value.strip(b" \t") else "value"
    with lab.counted(**{reason: 1}):
        assert lab.ask(value + secret, caller=caller) == []


@pytest.mark.parametrize("gate", ["frontProxy", "sharedSecret", "open"])
def test_names_are_told_apart_as_in_http(labs: dict[str, Lab], gate: str) -> None:
    lab = labs[gate]
    secret, caller = _passing(gate)
    value = b" TEXT" + secret
    with lab.counted(attached=3):
        for name in (OPT_IN, OPT_IN.upper(), OPT_IN.title()):
            assert _is_text(lab.ask(value, caller=caller, name=name))
    with lab.counted():
        for name in (OPT_IN.replace(b"-", b"_"), OPT_IN + b"-", b"x-" + OPT_IN, b"endpoint-load-metrics"):
            assert lab.ask(value, caller=caller, name=name) == []


@pytest.mark.parametrize("gate", GATES)
def test_it_goes_upstream_on_no_path(labs: dict[str, Lab], gate: str) -> None:
    lab = labs[gate]
    secret, caller = _passing(gate)
    opt_in = b"%b: TEXT%b\r\n" % (OPT_IN, secret)
    start = b"HTTP/1.1\r\nHost: kubernetes\r\n"
    upgrade = b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    paths = (
        b"GET /a " + start + opt_in + b"Connection: " + OPT_IN + b"\r\n\r\n",
        b"POST /b " + start + opt_in + b"Content-Length: 2\r\n\r\nhi",
        b"POST /c " + start + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + opt_in + b"\r\n",
        b"GET /refused " + start + opt_in + upgrade + b"\r\n",
        b"GET /d HTTP/1.0\r\n" + opt_in + b"\r\n",
        b"GET /accepted " + start + opt_in + upgrade + b"\r\n",
    )
    for path in paths:
        lab.recorder.clear()
        with lab.connected(caller) as sock:
            sock.sendall(path)
            assert sock.recv(65536).startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
        (arrival,) = lab.recorder.arrivals
        for name, value in (*arrival.lines, *arrival.trailers):
            assert OPT_IN not in name.lower()
            assert SECRET.encode() not in value


def test_the_sidecars_own_answers_carry_none(labs: dict[str, Lab]) -> None:
    """Only what kube-apiserver answers says anything about its load."""
    assert (
        labs["frontProxy"].ask(
            b" TEXT", caller="balancer", lines=b"X-Remote-User: system:anonymous\r\n", code=b"401"
        )
        == []
    )
    assert labs["open"].ask(b" TEXT", caller="expired balancer", code=b"401") == []


# -- refused at start ------------------------------------------------------------------------------------------


def _start(tmp_path: Path, command: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    identities = Identities.make(tmp_path / "pki")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(identities.configuration(1, **changes)))
    return subprocess.run([PROGRAM, command, "--config", file], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\r\n", b"\n\n", b" \n", b"two words\n", b"two\nlines\n", b"\xc3\xa9\n", None]
)
def test_a_secret_that_cannot_be_one_is_refused_at_start(tmp_path: Path, content: bytes | None) -> None:
    secret_file = tmp_path / "secret"
    if content is not None:
        secret_file.write_bytes(content)
    opt_in = {"gate": "sharedSecret", "sharedSecretFile": str(secret_file)}
    done = _start(tmp_path, "run", loadMetrics={"optIn": opt_in})
    assert done.returncode == EXIT_CONFIGURATION, done.stderr
    assert "loadMetrics.optIn.sharedSecretFile" in done.stderr
    assert "two" not in done.stderr.replace("two halves", "")


def test_no_secret_file_is_refused_at_start(tmp_path: Path) -> None:
    done = _start(tmp_path, "run", loadMetrics={"optIn": {"gate": "sharedSecret"}})
    assert done.returncode == EXIT_CONFIGURATION
    assert "loadMetrics.optIn.sharedSecretFile" in done.stderr


def test_front_proxy_that_nobody_passes_is_refused_at_start(tmp_path: Path) -> None:
    done = _start(
        tmp_path, "run", frontProxy={"allowedNames": []}, loadMetrics={"optIn": {"allowedNames": []}}
    )
    assert done.returncode == EXIT_CONFIGURATION
    assert "nobody could ask for a report" in done.stderr


@pytest.mark.parametrize("names", [[""], ["balancer", ""], [" "], ["*"]])
@pytest.mark.parametrize("key", ["frontProxy", "loadMetrics"])
def test_a_name_that_a_certificate_without_one_has_is_refused_at_start(
    tmp_path: Path, key: str, names: list[str]
) -> None:
    """A certificate without a CN must not match an empty entry; `*` is a name like others, and no pattern."""
    changes: dict[str, Any] = {"allowedNames": names}
    done = _start(tmp_path, "check-config", **{key: changes if key == "frontProxy" else {"optIn": changes}})
    if names == ["*"]:
        assert done.returncode == 0
    else:
        assert done.returncode == EXIT_CONFIGURATION
        assert "allowedNames" in done.stderr


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "[::]", "10.0.0.1", "[fd00::1]", "128.0.0.1", "[::ffff:10.0.0.1]"]
)
def test_open_to_others_is_refused_at_start_unless_acknowledged(tmp_path: Path, host: str) -> None:
    address = {"address": f"{host}:6444"}
    refused = _start(tmp_path, "run", listener=address, loadMetrics={"optIn": {"gate": "open"}})
    assert refused.returncode == EXIT_CONFIGURATION
    assert "openAcknowledged" in refused.stderr
    meant = {"gate": "open", "openAcknowledged": True}
    assert _start(tmp_path, "check-config", listener=address, loadMetrics={"optIn": meant}).returncode == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "[::1]"])
def test_open_on_loopback_needs_no_acknowledgement(tmp_path: Path, host: str) -> None:
    address = {"address": f"{host}:6444"}
    done = _start(tmp_path, "check-config", listener=address, loadMetrics={"optIn": {"gate": "open"}})
    assert done.returncode == 0, done.stderr


def test_a_secret_that_is_emptied_after_the_check_opens_nothing(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET)
    opt_in = {"gate": "sharedSecret", "sharedSecretFile": str(secret_file)}
    identities = Identities.make(tmp_path / "pki")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(identities.configuration(1, loadMetrics={"optIn": opt_in})))
    configuration = load_configuration(file)
    assert shared_secret(configuration) == SECRET.encode()
    secret_file.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        shared_secret(configuration)
