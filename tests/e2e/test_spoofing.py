"""A sample of the spoofing matrix against the real kube-apiserver: whom it takes the caller for, in its own word.

The cases are the matrix's own (tests/support/spoofing.py); the truth is what a direct connection is taken for.
"""

from __future__ import annotations

import json
import random
import time
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from tests.e2e.callers import REVIEW, REVIEW_BODY, UNAUTHORIZED, UNSAYABLE, Callers, identity, who
from tests.e2e.control_plane import Authorities
from tests.e2e.wire import Connection, Route
from tests.pki import HOUR, Credential, Pki
from tests.support.recorder import Line
from tests.support.spoofing import CALLERS, MASTERS, ROOT, STANDARD, TOKENS, TRAILERS, Case, cases, expected
from tests.support.spoofing_client import message, trimmed
from tests.support.subjects import REFUSED, SUBJECTS, certificate

pytestmark = pytest.mark.usefixtures("rbac")

PATHS = (
    "length",
    "chunked",
    "trailer",
    "absolute target",
    "nominated",
    "after a local reply",
    "pipelined",
    "in pieces",
)
"""Those on which kube-apiserver can be asked whom it sees."""
OF_EACH = 3
BODY = json.dumps(REVIEW_BODY).encode()
JSON: Line = (b"Content-Type", b" application/json")


def _sample() -> dict[str, list[Case]]:
    """By caller: on each path, the nastiest: those that claim a user or a group in a spelling that would count first."""
    deal = random.Random(4)
    generated = [case for case in cases(3) if case.names == "standard" and case.path in PATHS]
    deal.shuffle(generated)

    def harmless(case: Case) -> tuple[bool, bool, bool]:
        spelt = {name.lower() for name, _ in case.forged} <= {b"x-remote-user", b"x-remote-group"}
        claims = any(value.strip().startswith((ROOT, MASTERS)) for _, value in case.forged)
        return case.malformed, not spelt, not claims

    key = lambda case: (case.caller, case.path)  # noqa: E731
    sample: dict[str, list[Case]] = {}
    for (caller, _), of_one in groupby(sorted(generated, key=key), key):
        nastiest = sorted(of_one, key=harmless)
        sample.setdefault(caller, []).extend([*nastiest[: OF_EACH - 1], deal.choice(nastiest)])
    return sample


SAMPLE = _sample()


@pytest.fixture(scope="module")
def credentials(authorities: Authorities, callers: Callers) -> dict[str, Credential | None]:
    pki, past = authorities.pki, {"not_before": -timedelta(days=2), "not_after": -HOUR}
    return {
        "none": None,
        "front proxy": authorities.gateway,
        "report only": authorities.load_balancer,
        "unlisted": callers.unlisted(),
        "user": callers.jane,
        "front proxy's name, client CA": callers.namesake("gateway"),
        "unknown CA, front proxy's name": pki.leaf(authorities.stranger_ca, name="spoof-1", cn="gateway"),
        "expired user": pki.leaf(authorities.ca, name="spoof-2", cn="jane", **past),
        "expired front proxy": pki.leaf(authorities.front_proxy_ca, name="spoof-3", cn="gateway", **past),
        "line break in the name": callers.of(UNSAYABLE, "line feed in CN"),
    }


class Truth:
    """Whom kube-apiserver takes a request for on a direct connection, where the rules send it as that."""

    def __init__(
        self, direct: Route, credentials: dict[str, Credential | None], authorities: Authorities
    ) -> None:
        self._direct, self._credentials, self._authorities = direct, credentials, authorities
        self._known: dict[Any, Any] = {}

    def of(self, caller: str, lines: list[Line]) -> Any:
        wanted = expected(CALLERS[caller], STANDARD, lines)
        if wanted.refused:
            return UNAUTHORIZED
        own = [line for line in lines if line[0].lower().startswith((b"authorization", b"impersonate-"))]
        credential: Credential | None = None
        if CALLERS[caller].says:
            credential = self._credentials[caller]
        elif wanted.with_certificate:
            # kube-apiserver believes this one itself.
            credential = self._authorities.front_proxy_client
            own = [*own, *(line for line in lines if line[0].lower().startswith(b"x-remote-"))]
        key = (credential and credential.cert_file, tuple(own))
        if key not in self._known:
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in own]
            self._known[key] = who(self._direct, credential, headers)
        return self._known[key]


@pytest.fixture(scope="module")
def truth(direct: Route, credentials: dict[str, Credential | None], authorities: Authorities) -> Truth:
    return Truth(direct, credentials, authorities)


def _review(lines: list[Line], target: bytes = REVIEW.encode()) -> bytes:
    return message(b"POST", target, [*lines, JSON, (b"Content-Length", b" %d" % len(BODY))]) + BODY


def _forging(case: Case, lines: list[Line]) -> bytes:
    if case.path in ("chunked", "trailer"):
        section = [*case.forged, *TRAILERS] if case.path == "trailer" else []
        end = b"".join(b"%b:%b\r\n" % line for line in section)
        head = message(b"POST", REVIEW.encode(), [*lines, JSON, (b"Transfer-Encoding", b" chunked")])
        return head + b"%x;a=b\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, end)
    if case.path == "absolute target":
        return _review(lines, b"https://other" + REVIEW.encode())
    if case.path == "nominated":
        nominees = b", ".join(name for name, _ in (*case.before, *STANDARD_LINES))
        return _review([(b"Connection", b""), (b"Connection", b" " + nominees), *lines])
    return _review(lines)


STANDARD_LINES: list[Line] = [
    (b"X-Remote-User", b""),
    (b"X-Remote-Group", b""),
    (b"X-Remote-Extra-Scopes", b""),
]
ANONYMOUS: list[Line] = [(b"X-Remote-User", b" system:anonymous")]


def _play(case: Case, connection: Connection, truth: Truth) -> None:
    """The forging request is its true caller's, and so is the innocent one behind it."""
    forged, before = list(case.forged), list(case.before)
    lines = (
        before if case.path == "trailer" else ([*forged, *before] if case.number % 2 else [*before, *forged])
    )
    innocent: list[Line] = [(b"X-Remote-User", b" victim")] if CALLERS[case.caller].speaks else []
    if CALLERS[case.caller].needs_token:
        innocent = TOKENS["token"]
    after = _review(innocent)
    if case.path == "after a local reply":
        connection.send(_review(ANONYMOUS))
        assert identity(connection.answer()) == UNAUTHORIZED
    whole = _forging(case, lines)
    if case.path == "pipelined":
        connection.send(whole + after)
    elif case.path == "in pieces":
        cuts = sorted(random.Random(case.number).sample(range(1, len(whole)), 4))
        for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            connection.send(whole[start:end])
            time.sleep(0.002)
    else:
        connection.send(whole)
    answer = connection.answer()
    if case.malformed:
        assert answer.status == 400
        assert connection.at_end()
        return
    assert identity(answer) == truth.of(case.caller, trimmed(lines))
    if answer.values("Connection") == ["close"]:
        assert answer.status == 401
        return
    if case.path != "pipelined":
        connection.send(after)
    assert identity(connection.answer()) == truth.of(case.caller, trimmed(innocent))


def test_there_are_some_two_hundred_and_most_would_count() -> None:
    sampled = [case for of_caller in SAMPLE.values() for case in of_caller]
    assert len(sampled) >= 200
    assert {case.caller for case in sampled} == CALLERS.keys()
    assert {case.path for case in sampled} == set(PATHS)
    claims = [case for case in sampled if case.header in ("user", "group") and not case.malformed]
    assert len(claims) > len(sampled) / 2


@pytest.mark.parametrize("caller", SAMPLE)
def test_kube_apiserver_is_not_deceived(
    through: Route, credentials: dict[str, Credential | None], truth: Truth, caller: str
) -> None:
    for case in SAMPLE[caller]:
        try:
            with through.connect(credentials[caller]) as connection:
                _play(case, connection, truth)
        except (AssertionError, EOFError, OSError) as error:
            raise AssertionError(f"{case}: {error}") from error


def test_a_front_proxys_word_is_taken_where_it_counts(truth: Truth) -> None:
    """So that the sample's front proxies do compare something."""
    assert truth.of("front proxy", [(b"X-Remote-User", b"root"), (b"X-Remote-Group", b"system:masters")]) == {
        "username": "root",
        "groups": ["system:masters", "system:authenticated"],
    }


@pytest.mark.parametrize("name", SUBJECTS)
def test_odd_subjects_are_who_they_are_directly_or_nobody(
    direct: Route, through: Route, authorities: Authorities, name: str
) -> None:
    attributes, wanted = SUBJECTS[name]
    pki = Pki(authorities.pki.folder / "odd")
    pki.folder.mkdir(exist_ok=True)
    credential = certificate(pki, authorities.ca, attributes)
    headers = [("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")]
    seen = who(through, credential, headers)
    if wanted is REFUSED:
        assert seen == UNAUTHORIZED
    else:
        assert seen == who(direct, credential)
        assert seen["username"].encode() == wanted[0].removeprefix(b"X-Remote-User: ")
