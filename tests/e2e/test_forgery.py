"""Nothing that a caller forges reaches kube-apiserver, judged by its own word (SelfSubjectReview)."""

from __future__ import annotations

import json

import pytest

from tests.e2e.callers import (
    GROUP,
    REVIEW,
    REVIEW_BODY,
    USER,
    Callers,
    Header,
    ask,
    identity,
    who,
)
from tests.e2e.control_plane import Authorities
from tests.e2e.wire import Route, chunked, head
from tests.pki import Credential

pytestmark = pytest.mark.usefixtures("rbac")

# -- forged identity ---------------------------------------------------------------------------------------

FORGED: list[list[Header]] = [
    [(spelling(name), value)]
    for name, value in (
        ("X-Remote-User", "root"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Uid", "uid-0"),
        ("X-Remote-Extra-Scopes", "all"),
        ("X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id", "X509SHA256=0"),
    )
    for spelling in (str, str.lower, str.upper, str.swapcase)
] + [
    [(USER, "root"), (GROUP, "system:masters")],
    [(USER, ""), (USER, "root"), (GROUP, "system:masters"), (GROUP, "system:masters")],
    [("Connection", "X-Remote-User, Authorization"), (USER, "root"), (GROUP, "system:masters")],
    [("Connection", "keep-alive, X-Remote-Extra-Scopes"), ("X-Remote-Extra-Scopes", "a"), (USER, "root")],
    [("X_Remote_User", "root"), ("X-Remote_User", "root"), ("X_Remote_Group", "system:masters")],
    [("X-Forwarded-User", "root"), ("X-Remote-Groups", "system:masters"), ("Remote-User", "root")],
]


def _connection_kinds(callers: Callers, authorities: Authorities) -> dict[str, tuple[Credential | None, str]]:
    return {
        "anonymous": (None, ""),
        "token": (None, "joe-token"),
        "bad token": (None, "nonsense"),
        "certificate": (callers.jane, ""),
        "certificate and token": (callers.jane, "joe-token"),
        "report only": (authorities.load_balancer, "joe-token"),
        "report only, no token": (authorities.load_balancer, ""),
        "unlisted": (callers.unlisted(), "joe-token"),
        "unknown CA": (callers.stranger(), "joe-token"),
        "unknown CA, no token": (callers.stranger(), ""),
        "namesake": (callers.namesake("front-proxy-client"), ""),
    }


KINDS = [
    "anonymous",
    "token",
    "bad token",
    "certificate",
    "certificate and token",
    "report only",
    "report only, no token",
    "unlisted",
    "unknown CA",
    "unknown CA, no token",
    "namesake",
]


def _forging_requests(headers: list[Header], token: str) -> dict[str, bytes]:
    """The same forged lines with a length, chunked, and in the trailers of a chunked body."""

    own = [("Authorization", f"Bearer {token}")] if token else []
    body = json.dumps(REVIEW_BODY).encode()
    typed = [("Content-Type", "application/json")]
    return {
        "plain": head("POST", REVIEW, [*headers, *own, *typed], body),
        "last": head("POST", REVIEW, [*own, *typed, *headers], body),
        "chunked": chunked("POST", REVIEW, [*headers, *own, *typed], body, [("X-Sum", "1")]),
        "trailers": chunked("POST", REVIEW, [*own, *typed], body, headers),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_case_6_nothing_forged_reaches_kube_apiserver(
    through: Route, callers: Callers, authorities: Authorities, kind: str
) -> None:
    credential, token = _connection_kinds(callers, authorities)[kind]
    expected = who(through, credential, token=token)
    for headers in FORGED:
        for form, request in _forging_requests(headers, token).items():
            with through.connect(credential) as connection:
                connection.send(request)
                answer = connection.answer()
                assert identity(answer) == expected, (form, headers)
                # … nor does it cling to the connection, unless that ends with a refusal.
                if answer.values("Connection") != ["close"]:
                    assert identity(ask(connection, token=token)) == expected, ("after", form, headers)
                else:
                    assert answer.status == 401


@pytest.mark.parametrize("kind", ["anonymous", "token", "certificate", "report only", "unlisted"])
@pytest.mark.parametrize("upgrade", ["websocket", "SPDY/3.1"])
def test_case_6_nothing_forged_reaches_kube_apiserver_on_an_upgrade(
    direct: Route, through: Route, callers: Callers, authorities: Authorities, kind: str, upgrade: str
) -> None:
    credential, token = _connection_kinds(callers, authorities)[kind]
    target = "/api/v1/namespaces/default/pods/none/exec?command=id&stdout=1"
    upgrading = [("Connection", "keep-alive, Upgrade"), ("Upgrade", upgrade)]
    method = "GET" if upgrade == "websocket" else "POST"
    # Forged groups would turn the refusal into a 404; the refusal names the user.
    plain = through.request(method, target, upgrading, token=token, credential=credential)
    assert plain.status == 403
    for headers in FORGED:
        answer = through.request(method, target, [*headers, *upgrading], token=token, credential=credential)
        assert (answer.status, answer.body) == (403, plain.body), headers


LEAKS: list[list[Header]] = [
    [(GROUP, "system:masters")],
    [(USER, "root"), (GROUP, "system:masters")],
    [("Authorization", "Bearer admin-token")],
    [("Impersonate-User", "bob")],
    [("X-Remote-Extra-Scopes", "all")],
    [("Content-Length", "3")],
    [("Transfer-Encoding", "chunked")],
]


@pytest.mark.parametrize("trailers", LEAKS, ids=lambda trailers: "+".join(name for name, _ in trailers))
def test_case_32_trailers_do_not_reach_the_next_request(
    direct: Route, through: Route, callers: Callers, authorities: Authorities, trailers: list[Header]
) -> None:

    body = json.dumps(REVIEW_BODY).encode()
    typed: list[Header] = [("Content-Type", "application/json")]
    jane: list[Header] = [(USER, "jane"), (GROUP, "developers")]
    for credential, own, following in (
        (authorities.gateway, jane, [(USER, "joe")]),
        (authorities.gateway, jane, []),
        (authorities.gateway, [], [(USER, "joe"), (GROUP, "qa")]),
        (None, [("Authorization", "Bearer joe-token")], []),
        (callers.jane, [], []),
    ):
        expected = who(through, credential, following)
        with through.connect(credential) as connection:
            for _ in range(2):
                connection.send(chunked("POST", REVIEW, [*own, *typed], body, trailers))
                assert identity(connection.answer()) == who(through, credential, own)
                assert identity(ask(connection, following)) == expected


# -- what Go's server accepts ------------------------------------------------------------------------------

START = b"GET /version HTTP/1.1\r\nHost: kubernetes\r\n"
REFUSED = {
    "space before the colon": START + b"X-A : b\r\n\r\n",
    "no token as a name": START + b"X(A): b\r\n\r\n",
    "non-ASCII name": START + "X-Ä: b\r\n\r\n".encode(),
    "NUL in a value": START + b"X-A: a\0b\r\n\r\n",
    "two Hosts": START + b"Host: other\r\n\r\n",
    "no Host": b"GET /version HTTP/1.1\r\n\r\n",
    "leading fold": b"GET /version HTTP/1.1\r\n X-A: b\r\nHost: kubernetes\r\n\r\n",
}
AMBIGUOUS = {
    "obs-fold": START + b"X-A: a\r\n b\r\n\r\n",
    "bare line feeds": START.replace(b"\r\n", b"\n") + b"\n",
    "Content-Length and chunked": START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", [*REFUSED, *AMBIGUOUS])
def test_malformed_heads_are_refused_and_ambiguous_ones_more_strictly_than_by_go(
    direct: Route, through: Route, name: str
) -> None:
    with direct.connect() as connection:
        connection.send({**REFUSED, **AMBIGUOUS}[name])
        assert connection.answer().status == (400 if name in REFUSED else 200)
    with through.connect() as connection:
        connection.send({**REFUSED, **AMBIGUOUS}[name])
        assert connection.answer().status == 400
        assert connection.at_end()
