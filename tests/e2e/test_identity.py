"""Who a caller is: kube-apiserver's own word through the sidecar, compared with a direct connection."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.e2e.callers import (
    ANONYMOUS,
    GROUP,
    NAMELESS,
    NO_USER,
    UNAUTHORIZED,
    UNSAYABLE,
    USER,
    USERS,
    Callers,
    Header,
    ask,
    identity,
    who,
)
from tests.e2e.control_plane import Authorities, ControlPlane
from tests.e2e.fronts import Sidecar
from tests.e2e.kubectl import Kubectl
from tests.e2e.processes import wait_until
from tests.e2e.wire import Route
from tests.pki import Credential

pytestmark = pytest.mark.usefixtures("rbac")

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"

# -- who a caller is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", USERS)
def test_x509_users_are_equal(direct: Route, through: Route, callers: Callers, name: str) -> None:
    credential = callers.of(USERS, name)
    directly, seen = who(direct, credential), who(through, credential)
    assert directly["extra"]["authentication.kubernetes.io/credential-id"][0].startswith("X509SHA256=")
    # kubeadm's kube-apiserver takes no UID from a front proxy.
    assert seen == {key: value for key, value in directly.items() if key != "uid"}


@pytest.mark.parametrize("name", USERS)
def test_x509_users_are_equal_with_a_uid_header(
    uid_control_plane: ControlPlane, uid_sidecar: Sidecar, callers: Callers, name: str
) -> None:
    credential = callers.of(USERS, name)
    directly = who(uid_control_plane.direct, credential)
    assert who(uid_sidecar.route, credential) == directly
    assert directly.get("uid") == ("uid-1" if name == "UID" else None)


def test_an_x509_user_by_an_intermediate_is_equal(direct: Route, through: Route, callers: Callers) -> None:
    credential = callers.by_intermediate()
    assert who(through, credential) == who(direct, credential)


def test_a_certificate_beats_a_token(direct: Route, through: Route, callers: Callers) -> None:
    for token in ("joe-token", "nonsense"):
        seen = who(through, callers.jane, token=token)
        assert seen == who(direct, callers.jane, token=token)
        assert seen["username"] == "jane"
        assert "uid" not in seen


def test_kubectl_with_a_certificate_is_equal(
    control_plane: ControlPlane, through: Route, callers: Callers
) -> None:
    for credential in (callers.jane, callers.of(USERS, "UTF-8")):
        said = [
            json.loads(control_plane.kubectl(route, credential=credential)("auth", "whoami", "-o", "json"))[
                "status"
            ]
            for route in (control_plane.direct, through)
        ]
        assert said[1] == said[0]


@pytest.mark.parametrize("token", ["jane-token", "joe-token", "admin-token", "nonsense", ""])
def test_static_tokens_and_anonymous_are_equal(
    direct: Route, through: Route, uid_sidecar: Sidecar, token: str
) -> None:
    directly = who(direct, token=token)
    assert who(through, token=token) == who(uid_sidecar.route, token=token) == directly
    assert directly == {"": ANONYMOUS, "nonsense": UNAUTHORIZED}.get(token, directly)


def test_a_service_account_token_is_equal(admin: Kubectl, direct: Route, through: Route) -> None:
    token = admin("create", "token", "robot").strip()
    directly = who(direct, token=token)
    assert directly["username"] == "system:serviceaccount:default:robot"
    assert directly["extra"]["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")
    assert who(through, token=token) == directly


@pytest.mark.parametrize(
    "authorization",
    ["Bearer", "Bearer ", "bearer jane-token", "Basic amFuZTpqYW5l", "Negotiate x", "x", "Bearer a b"],
)
def test_odd_authorization_lines_are_equal(direct: Route, through: Route, authorization: str) -> None:
    headers = [("Authorization", authorization)]
    assert who(through, headers=headers) == who(direct, headers=headers)


def test_two_authorization_lines_are_equal(direct: Route, through: Route) -> None:
    for first, second in itertools.permutations(["Bearer jane-token", "Bearer joe-token"]):
        headers = [("Authorization", first), ("Authorization", second)]
        assert who(through, headers=headers) == who(direct, headers=headers)


def test_a_websocket_token_is_the_tokens_user(direct: Route, through: Route) -> None:
    # {"metadata":{"name":"…"}} is not served: the refusal of an unauthorised exec names the user.
    protocol = "base64url.bearer.authorization.k8s.io.am9lLXRva2Vu"  # joe-token
    headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
        ("Sec-WebSocket-Protocol", protocol),
    ]
    answers = [
        route.request("GET", "/api/v1/namespaces/default/pods/none/exec?command=id&stdout=1", headers)
        for route in (direct, through)
    ]
    assert answers[0].status == 403
    assert b'User \\"joe\\"' in answers[0].body
    assert (answers[1].status, answers[1].body) == (answers[0].status, answers[0].body)


# -- certificates that are nobody --------------------------------------------------------------------------


def _strangers(callers: Callers) -> dict[str, Credential]:
    return {"unknown CA": callers.stranger(), **{name: callers.of(NO_USER, name) for name in NO_USER}}


@pytest.mark.parametrize("name", ["unknown CA", *NO_USER])
def test_case_4_an_unverifiable_certificate_is_401_or_its_tokens_user(
    direct: Route, through: Route, callers: Callers, name: str
) -> None:
    credential = _strangers(callers)[name]
    for route in (direct, through):
        assert who(route, credential) == UNAUTHORIZED, route
        assert who(route, credential, token="nonsense") == UNAUTHORIZED, route
    assert who(through, credential, token="joe-token") == who(direct, credential, token="joe-token")
    assert who(through, credential, token="joe-token")["username"] == "joe"


@pytest.mark.parametrize("name", NAMELESS)
def test_a_certificate_without_one_clear_name_is_401(
    direct: Route, through: Route, callers: Callers, name: str
) -> None:
    credential = callers.of(NAMELESS, name)
    assert who(direct, credential) == UNAUTHORIZED
    assert who(through, credential) == UNAUTHORIZED
    # A direct connection falls back to the token; the sidecar fails closed.
    assert who(direct, credential, token="joe-token")["username"] == "joe"
    assert who(through, credential, token="joe-token") == UNAUTHORIZED


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_headers_cannot_say_is_401(direct: Route, through: Route, callers: Callers, name: str) -> None:
    credential = callers.of(UNSAYABLE, name)
    assert who(direct, credential) != UNAUTHORIZED
    assert who(through, credential) == UNAUTHORIZED
    assert who(through, credential, token="joe-token") == UNAUTHORIZED


def test_a_certificate_that_expires_stops_counting_on_an_open_connection(
    direct: Route, through: Route, callers: Callers
) -> None:
    credential = callers.expiring(3)
    with direct.connect(credential) as one, through.connect(credential) as other:
        assert identity(ask(one)) == identity(ask(other))
        for connection in (one, other):
            # Also an anonymous caller may read the version: 401 says that the certificate is looked at.
            expired = lambda c=connection: c.request("GET", "/version").status == 401  # noqa: E731
            wait_until(expired, "401 once the certificate expired", within=10)
            assert identity(ask(connection, token="joe-token"))["username"] == "joe"


# -- impersonation and RBAC --------------------------------------------------------------------------------

IMPERSONATIONS: list[list[Header]] = [
    [("Impersonate-User", "bob")],
    [("Impersonate-User", "bob"), ("Impersonate-Group", "team-a"), ("Impersonate-Group", "team-b")],
    [("Impersonate-User", "bob"), ("Impersonate-Uid", "uid-bob"), ("Impersonate-Extra-scopes", "a,b")],
    [("impersonate-user", "bob"), ("IMPERSONATE-GROUP", "team-a")],
    [("Impersonate-User", "root")],
    [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")],
    [("Impersonate-Group", "team-a")],
]


@pytest.mark.parametrize("headers", IMPERSONATIONS)
@pytest.mark.parametrize("by", ["token", "certificate", "another user"])
def test_impersonation_is_equal(
    direct: Route, through: Route, callers: Callers, headers: list[Header], by: str
) -> None:
    credential = callers.namesake("impersonator") if by == "certificate" else None
    token = {"token": "impersonator-token", "another user": "joe-token"}.get(by, "")
    assert who(through, credential, headers, token) == who(direct, credential, headers, token)


@pytest.mark.parametrize("who_asks", ["jane", "developer's certificate", "impersonator", "anonymous"])
@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", CONFIG_MAPS),
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/namespaces/kube-public/configmaps/cluster-info"),
        ("DELETE", CONFIG_MAPS + "/kube-root-ca.crt"),
        ("POST", "/api/v1/namespaces/default/pods/none/exec?command=id"),
        ("GET", "/metrics"),
        ("GET", "/version"),
    ],
)
def test_what_rbac_says_is_equal(
    direct: Route, through: Route, callers: Callers, who_asks: str, method: str, target: str
) -> None:
    credential = callers.jane if who_asks == "developer's certificate" else None
    token = {"jane": "jane-token", "impersonator": "impersonator-token"}.get(who_asks, "")
    answers = [r.request(method, target, token=token, credential=credential) for r in (direct, through)]
    assert answers[1].status == answers[0].status
    if answers[0].status >= 400:
        assert answers[1].body == answers[0].body
    if "cluster-info" in target and who_asks == "anonymous":
        assert answers[1].status == 200


# -- audit -------------------------------------------------------------------------------------------------

SAME_CALLERS: dict[str, tuple[str, str, list[Header]]] = {
    "certificate": ("certificate", "", []),
    "token": ("", "jane-token", []),
    "anonymous": ("", "", []),
    "impersonation": ("", "impersonator-token", [("Impersonate-User", "bob")]),
    "front proxy": ("front proxy", "", [(USER, "jane"), (GROUP, "developers")]),
}


def _audited(plane: ControlPlane, audit_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def look() -> bool:
        lines = plane.audit_log.read_text().splitlines()
        found[:] = [event for event in map(json.loads, filter(None, lines)) if event["auditID"] == audit_id]
        return bool(found)

    wait_until(look, f"an audit line of {audit_id}")
    return found[0]


@pytest.mark.parametrize("name", SAME_CALLERS)
def test_audit_lines_are_equal_but_for_the_source(
    control_plane: ControlPlane,
    direct: Route,
    through: Route,
    callers: Callers,
    authorities: Authorities,
    name: str,
) -> None:
    kind, token, headers = SAME_CALLERS[name]
    credential = {"certificate": callers.jane, "front proxy": authorities.front_proxy_client}.get(kind)
    events = []
    for route in (direct, through):
        audit_id = f"{name}-{route}".replace(" ", "-")
        with route.connect(credential, source="127.0.0.2") as connection:
            connection.request(
                "GET", f"{CONFIG_MAPS}?limit=1", [*headers, ("Audit-ID", audit_id)], token=token
            )
        events.append(_audited(control_plane, audit_id))
    directly, seen = events
    assert directly.pop("sourceIPs") == ["127.0.0.2"]
    assert seen.pop("sourceIPs") == ["127.0.0.2", "127.0.0.1"]
    for event in events:
        for varying in ("auditID", "requestReceivedTimestamp", "stageTimestamp"):
            event.pop(varying)
    assert seen == directly


def test_source_addresses_are_one_merged_list_with_the_peer_last(
    control_plane: ControlPlane, direct: Route, through: Route
) -> None:
    headers = [
        ("X-Forwarded-For", "10.1.1.1, 10.2.2.2"),
        ("x-forwarded-for", "10.3.3.3"),
        ("Forwarded", "for=9.9.9.9"),
    ]
    sources = []
    for route in (direct, through):
        with route.connect(source="127.0.0.2") as connection:
            connection.request(
                "GET", "/version", [*headers, ("Audit-ID", f"sources-{route}")], token="joe-token"
            )
        sources.append(_audited(control_plane, f"sources-{route}")["sourceIPs"])
    assert sources[0] == ["10.1.1.1", "10.2.2.2", "127.0.0.2"]  # kube-apiserver reads the first line only
    assert sources[1] == ["10.1.1.1", "10.2.2.2", "10.3.3.3", "127.0.0.2", "127.0.0.1"]
