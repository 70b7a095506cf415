"""What front proxies may say, and what they are told: compared with a direct connection."""

from __future__ import annotations

import pytest

from tests.e2e.callers import (
    ANONYMOUS,
    GROUP,
    UNAUTHORIZED,
    USER,
    Callers,
    Header,
    ask,
    identity,
    who,
)
from tests.e2e.control_plane import Authorities, ControlPlane
from tests.e2e.fronts import Envoy, Sidecar
from tests.e2e.processes import wait_until
from tests.e2e.wire import Answer, Route

pytestmark = pytest.mark.usefixtures("rbac")

# -- front proxies -----------------------------------------------------------------------------------------


ASSERTED: dict[str, list[Header]] = {
    "user": [(USER, "jane")],
    "user and groups": [(USER, "jane"), (GROUP, "b"), (GROUP, "a"), (GROUP, "b")],
    "a comma does not split groups": [(USER, "jane"), (GROUP, "a,b"), (GROUP, "c, d")],
    "empty groups are skipped": [(USER, "jane"), (GROUP, ""), (GROUP, "a"), (GROUP, " ")],
    "the first user counts": [(USER, "jane"), (USER, "joe")],
    "blanks are trimmed": [(USER, "  jane \t"), (GROUP, " a ")],
    "UTF-8": [(USER, "Jürgen ☃".encode().decode("latin-1")), (GROUP, "grün".encode().decode("latin-1"))],
    "odd case": [("x-ReMoTe-uSeR", "jane"), ("X-REMOTE-GROUP", "a"), ("x-remote-group", "b")],
    "extra": [
        (USER, "jane"),
        ("X-Remote-Extra-Scopes", "a"),
        ("x-remote-extra-scopes", "b"),
        ("X-Remote-Extra-authentication.kubernetes.io%2Fcredential-id", "ID=1"),
        ("X-Remote-Extra-Acme.com%2fproject%25", "p,q"),
    ],
    "uid": [(USER, "jane"), ("X-Remote-Uid", "uid-1"), ("X-Remote-Uid", "uid-2")],
    "an underscore is another name": [(USER, "jane"), ("X_Remote_User", "root"), ("X_Remote_Group", "x")],
    "300 groups": [(USER, "jane"), *((GROUP, f"group-{n}") for n in range(300))],
    "nominated by Connection": [
        (USER, "jane"),
        (GROUP, "a"),
        ("Connection", ""),
        ("Connection", "X-Remote-User, X-Remote-Group, Authorization"),
    ],
    "between other lines": [("X-A", "1"), (GROUP, "b"), ("X-B", "2"), (USER, "jane"), (GROUP, "a")],
    "impersonation denied": [(USER, "jane"), ("Impersonate-User", "bob")],
    "impersonation": [
        (USER, "impersonator"),
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "team-a"),
        ("Impersonate-Group", "team-b"),
    ],
}

UNASSERTED: dict[str, list[Header]] = {
    "nothing": [],
    "empty user": [(USER, "")],
    "blank user": [(USER, "  ")],
    "an empty user line first": [(USER, ""), (USER, "root")],
    "groups alone": [(GROUP, "system:masters")],
    "extra alone": [("X-Remote-Extra-Scopes", "a")],
    "another name": [("X_Remote_User", "root"), ("X-Remote-User-", "root"), ("X-Remote", "root")],
}


@pytest.mark.parametrize("token", ["", "joe-token", "nonsense"])
@pytest.mark.parametrize("name", ASSERTED)
def test_what_a_front_proxy_asserts_is_equal(
    direct: Route, through: Route, authorities: Authorities, name: str, token: str
) -> None:
    proxy, headers = authorities.front_proxy_client, ASSERTED[name]
    seen = who(through, proxy, headers, token)
    assert seen == who(direct, proxy, headers, token)
    # The balancer's own name is in the sidecar's list alone.
    assert who(through, authorities.gateway, headers, token) == seen


@pytest.mark.parametrize("name", ASSERTED)
def test_what_a_front_proxy_asserts_is_equal_with_a_uid_header(
    uid_control_plane: ControlPlane, uid_sidecar: Sidecar, authorities: Authorities, name: str
) -> None:
    proxy, headers = authorities.front_proxy_client, ASSERTED[name]
    directly = who(uid_control_plane.direct, proxy, headers)
    assert who(uid_sidecar.route, proxy, headers) == directly
    if name == "uid":
        assert directly["uid"] == "uid-1"


@pytest.mark.parametrize("upgrade", ["websocket", "SPDY/3.1"])
@pytest.mark.parametrize(
    "groups", [[], [(GROUP, "qa"), (GROUP, "system:masters")]], ids=["denied", "allowed"]
)
def test_what_a_front_proxy_asserts_on_an_upgrade_is_equal(
    direct: Route, through: Route, authorities: Authorities, upgrade: str, groups: list[Header]
) -> None:
    method = "GET" if upgrade == "websocket" else "POST"
    target = "/api/v1/namespaces/default/pods/none/exec?command=id&command=-u&stdout=1"
    versions = [("X-Stream-Protocol-Version", f"v{n}.channel.k8s.io") for n in (5, 4, 3, 2)]
    headers = [
        (USER, "jane"),
        *groups,
        ("Connection", "keep-alive, Upgrade"),
        ("Upgrade", upgrade),
        *versions,
    ]
    answers = [
        route.request(method, target, headers, credential=authorities.front_proxy_client)
        for route in (direct, through)
    ]
    # Whoever may exec learns that there is no such pod.
    assert answers[0].status == (404 if groups else 403)
    assert (answers[1].status, answers[1].body) == (answers[0].status, answers[0].body)


@pytest.mark.parametrize("name", UNASSERTED)
def test_a_front_proxy_that_names_nobody_speaks_for_its_token_or_nobody(
    direct: Route, through: Route, authorities: Authorities, name: str
) -> None:
    proxy, headers = authorities.front_proxy_client, UNASSERTED[name]
    directly = who(direct, proxy, headers, "joe-token")
    assert directly["username"] == "joe"
    assert who(through, proxy, headers, "joe-token") == directly
    assert who(through, proxy, headers, "nonsense") == who(direct, proxy, headers, "nonsense") == UNAUTHORIZED
    # A direct connection answers 401; the sidecar serves it as anonymous, for health checks and cluster-info.
    assert who(direct, proxy, headers) == UNAUTHORIZED
    assert who(through, proxy, headers) == ANONYMOUS


def test_basic_credentials_through_a_front_proxy_are_nobody(
    direct: Route, through: Route, authorities: Authorities
) -> None:
    headers = [("Authorization", "Basic amFuZTpqYW5l")]
    assert who(direct, authorities.front_proxy_client, headers) == UNAUTHORIZED
    assert who(through, authorities.front_proxy_client, headers) == ANONYMOUS == who(direct, headers=headers)


@pytest.mark.parametrize("token", ["", "joe-token"])
def test_nobody_may_assert_the_anonymous_user(through: Route, authorities: Authorities, token: str) -> None:
    for groups in ([], [(GROUP, "system:masters")]):
        headers = [(USER, "system:anonymous"), *groups]
        assert who(through, authorities.front_proxy_client, headers, token) == UNAUTHORIZED


@pytest.mark.parametrize("kind", ["unlisted", "load_balancer"])
def test_case_5_a_name_that_may_not_assert_is_ignored(
    direct: Route, through: Route, authorities: Authorities, callers: Callers, kind: str
) -> None:
    credential = callers.unlisted() if kind == "unlisted" else authorities.load_balancer
    forged = [(USER, "root"), (GROUP, "system:masters")]
    assert who(direct, credential, forged) == UNAUTHORIZED
    assert who(through, credential, forged) == who(through, credential) == ANONYMOUS
    directly = who(direct, credential, forged, "joe-token")
    assert directly["username"] == "joe"
    assert who(through, credential, forged, "joe-token") == directly


@pytest.mark.parametrize("cn", ["front-proxy-client", "gateway", "load-balancer"])
def test_case_5_a_front_proxys_name_by_the_client_ca_is_a_plain_user(
    direct: Route, through: Route, callers: Callers, cn: str
) -> None:
    credential = callers.namesake(cn)
    forged = [(USER, "root"), (GROUP, "system:masters"), ("endpoint-load-metrics-request", "TEXT")]
    with through.connect(credential) as connection:
        answer = ask(connection, forged)
    assert identity(answer) == who(direct, credential, forged)
    assert identity(answer)["username"] == cn
    assert answer.values("endpoint-load-metrics") == []


@pytest.mark.parametrize(
    "headers",
    [
        [(USER, "root"), (GROUP, "system:masters")],
        [("x-remote-USER", "root"), ("x-remote-group", "system:masters")],
        [(GROUP, "system:masters")],
        [("Connection", "X-Remote-User"), (USER, "root")],
    ],
)
def test_an_identity_forged_at_envoy_stops_there(direct: Route, envoy: Envoy, headers: list[Header]) -> None:
    assert who(envoy.route, headers=headers, token="joe-token") == who(direct, token="joe-token")
    assert who(envoy.route, headers=headers) == ANONYMOUS


# -- who is told about load --------------------------------------------------------------------------------

ORCA = "endpoint-load-metrics-request"


def _reports(answer: Answer) -> list[str]:
    return [value for name, value in answer.lines if name.lower().startswith("endpoint-load-metrics")]


def test_front_proxies_that_ask_get_one_report(
    through: Route, authorities: Authorities, callers: Callers
) -> None:
    for credential in (authorities.gateway, authorities.front_proxy_client, authorities.load_balancer):
        with through.connect(credential) as connection:
            wait_until(lambda: _reports(connection.request("GET", "/version", [(ORCA, "TEXT")])), "a report")
            (report,) = _reports(connection.request("GET", "/version", [(ORCA.title(), "TEXT")]))
            assert report.startswith("TEXT ")
            figures = dict(pair.split("=") for pair in report.removeprefix("TEXT ").split(", "))
            assert {"application_utilization", "cpu_utilization", "rps_fractional"} <= set(figures)
            assert all(0 <= float(value) < float("inf") for value in figures.values())
            assert _reports(connection.request("GET", "/version")) == []
            assert _reports(connection.request("GET", "/version", [(ORCA, "TEXT"), (ORCA, "TEXT")])) == []
            assert _reports(connection.request("GET", "/version", [(ORCA, "text")])) == []
    for other in (None, callers.jane, callers.unlisted(), callers.stranger()):
        answer = through.request("GET", "/version", [(ORCA, "TEXT")], token="joe-token", credential=other)
        assert (answer.status, _reports(answer)) == (200, [])


def test_a_client_behind_envoy_sees_no_report(envoy: Envoy, through: Route, authorities: Authorities) -> None:
    def to_the_balancer() -> list[str]:
        answer = through.request("GET", "/version", [(ORCA, "TEXT")], credential=authorities.gateway)
        return _reports(answer)

    wait_until(to_the_balancer, "a report to the balancer")
    for headers in ([], [(ORCA, "TEXT")]):
        answer = envoy.route.request("GET", "/version", headers, token="joe-token")
        assert (answer.status, _reports(answer)) == (200, [])
