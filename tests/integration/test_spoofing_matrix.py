"""The spoofing matrix: some eight thousand ways to forge an identity, on every kind of connection; none may count.

Judged by what arrives at an upstream that asks for the front-proxy certificate: on which pool, with which identity, of the
forging request and of the innocent one behind it on the same connection. What should arrive is worked out in
`tests.support.spoofing` from the documented table.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes

from tests.pki import HOUR, Credential, Pki
from tests.support.recorder import Arrival, Recorder
from tests.support.sidecar import Identities, Sidecar, running
from tests.support.spoofing import (
    CALLERS,
    HEADERS,
    MALFORMED,
    NAMES,
    PATHS,
    SPELLINGS,
    STANDARD,
    VALUES,
    Case,
    cases,
)
from tests.support.spoofing_client import Connection, Outcome, escapes, play

ROUNDS = 3
CONNECTIONS = 4
"""Of each caller to each sidecar."""


class Lab:
    """Two sidecars, one with the standard names and one with others, on either event loop; a recorder behind each."""

    def __init__(self, identities: Identities, credentials: dict[str, Credential | None]) -> None:
        self.identities, self.credentials = identities, credentials
        self.sidecars: dict[str, Sidecar] = {}
        self.recorders: dict[str, Recorder] = {}
        self.callers = {
            name: replace(caller, credential_id=_credential_id(credentials[name]))
            for name, caller in CALLERS.items()
        }

    def context(self, caller: str) -> ssl.SSLContext:
        return self.identities.client_context(self.credentials[caller])


def _credential_id(credential: Credential | None) -> bytes:
    if credential is None:
        return b""
    return b"X509SHA256=" + credential.certificate.fingerprint(hashes.SHA256()).hex().encode()


def _credentials(identities: Identities, folder: Path) -> dict[str, Credential | None]:
    pki = Pki(folder)
    past = {"not_before": -timedelta(days=2), "not_after": -HOUR}
    ca, front_proxy_ca = identities.ca, identities.front_proxy_ca
    return {
        "none": None,
        "front proxy": identities.balancer,
        "report only": identities.reporter,
        "unlisted": pki.leaf(front_proxy_ca, cn="unlisted"),
        "user": identities.jane,
        "front proxy's name, client CA": pki.leaf(ca, name="namesake", cn="balancer"),
        "unknown CA, front proxy's name": pki.leaf(pki.ca("stranger"), name="stranger-leaf", cn="balancer"),
        "expired user": pki.leaf(ca, name="expired", cn="jane", **past),
        "expired front proxy": pki.leaf(front_proxy_ca, name="expired-proxy", cn="balancer", **past),
        "line break in the name": pki.leaf(
            ca, name="line-break", cn="jane\r\nX-Remote-Group: system:masters", o=["developers"]
        ),
    }


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("spoofing")
    identities = Identities.make(folder / "pki")
    lab = Lab(identities, _credentials(identities, folder / "callers"))
    with ExitStack() as stack:
        for name, names in NAMES.items():
            recorder = lab.recorders[name] = stack.enter_context(Recorder(identities.server_context()))
            loop = "uvloop" if name == "standard" else "asyncio"
            settings = identities.configuration(recorder.port, frontProxy=names.settings, eventLoop=loop)
            (folder / name).mkdir()
            lab.sidecars[name] = stack.enter_context(running(settings, folder / name))
        yield lab


async def _run(lab: Lab, what: list[Case]) -> list[Outcome]:
    """Play the cases, spread over connections of their callers."""

    async def on_one_connection(names: str, caller: str, share: list[Case]) -> list[Outcome]:
        connection = Connection(lab.sidecars[names].port, lab.context(caller))
        outcomes = []
        for case in share:
            try:
                outcomes.append(await play(case, connection))
            except (OSError, EOFError, TimeoutError, AssertionError) as error:
                raise AssertionError(f"{case}: {error!r}") from error
        connection.close()
        return outcomes

    shares: dict[tuple[str, str, int], list[Case]] = {}
    for case in what:
        shares.setdefault((case.names, case.caller, case.number % CONNECTIONS), []).append(case)
    played = await asyncio.gather(*(on_one_connection(n, c, share) for (n, c, _), share in shares.items()))
    return [outcome for outcomes in played for outcome in outcomes]


@pytest.mark.timeout(300)
async def test_no_combination_escapes(lab: Lab) -> None:
    for sidecar in lab.sidecars.values():
        await sidecar.ready()
    generated = list(cases(ROUNDS))
    started = time.monotonic()
    outcomes = await _run(lab, generated)
    seconds = time.monotonic() - started
    arrivals: dict[int, list[Arrival]] = {}
    for recorder in lab.recorders.values():
        assert recorder.faults == []
        for arrival in recorder.arrivals:
            number = re.fullmatch(rb"(?:https://other)?/api/(\d+)/\w+", arrival.target)
            assert number is not None, arrival.target
            arrivals.setdefault(int(number[1]), []).append(arrival)
    found: list[str] = []
    for outcome in outcomes:
        case = outcome.case
        seen = escapes(outcome, arrivals.get(case.number, ()), lab.callers[case.caller])
        found += (f"case {case.number}: {case}: {escape}" for escape in seen)
    on_one_connection = sum(outcome.after is not None for outcome in outcomes)
    arrived = sum(map(len, arrivals.values()))
    print(
        f"\n{len(outcomes)} combinations, {on_one_connection} with a request behind, {arrived} requests arrived, "
        f"{len(found)} escapes, {seconds:.0f} s"
    )
    assert not found, f"{len(found)} escapes, such as:\n" + "\n".join(found[:20])
    assert len(outcomes) == len(generated) >= 5000


def test_every_pair_that_matters_is_there() -> None:
    """The first four are combined in full; the others meet each of them."""
    generated = list(cases(ROUNDS))
    assert len({str(case) for case in generated}) > 0.95 * len(generated)
    pairs = Counter((case.caller, case.spelling) for case in generated)
    assert {(c, s) for c in CALLERS for s in (*SPELLINGS, *MALFORMED)} <= pairs.keys()
    pairs = Counter((case.path, case.spelling) for case in generated)
    assert {(p, s) for p in PATHS for s in SPELLINGS} <= pairs.keys()
    pairs = Counter((case.header, case.value) for case in generated)
    assert {(h, v) for h in HEADERS for v in VALUES} <= pairs.keys()


async def test_the_judge_sees_an_escape(lab: Lab) -> None:
    """What arrived of a front proxy's requests, judged as if a client without a certificate had sent them."""
    await lab.sidecars["standard"].ready()
    forging = [
        case
        for case in cases(1)
        if case.names == "standard" and case.caller == "front proxy" and case.path == "plain"
    ]
    assert forging
    recorder = lab.recorders["standard"]
    for case in forging:
        if case.malformed or case.value in ("empty", "blank", "anonymous"):
            continue
        recorder.clear()
        claims = replace(case, company="with a user", repetition="once")
        outcome = await play(
            claims, connection := Connection(lab.sidecars["standard"].port, lab.context("front proxy"))
        )
        connection.close()
        seen = escapes(outcome, recorder.arrivals, lab.callers["front proxy"])
        assert seen == []
        assert escapes(outcome, recorder.arrivals, lab.callers["none"]) != []
        assert STANDARD.user[0] in [name for arrival in recorder.arrivals for name, _ in arrival.lines]


async def test_what_is_stripped_is_counted(lab: Lab) -> None:
    sidecar = lab.sidecars["standard"]
    await sidecar.ready()
    counter = "orca_sidecar_forged_identity_headers_stripped_total"
    for caller, kind in (("none", "no_certificate"), ("user", "certificate"), ("report only", "report_only")):
        counted = sidecar.metric(counter, kind=kind)
        connection = Connection(sidecar.port, lab.context(caller))
        await connection.send(
            b"GET /api HTTP/1.1\r\nHost: k\r\nX-Remote-User: root\r\nx-remote-group: a\r\nX-REMOTE-GROUP: b\r\n"
            b"X_Remote_User: root\r\n\r\n"
        )
        await connection.answer()
        connection.close()
        assert sidecar.metric(counter, kind=kind) == counted + 3
