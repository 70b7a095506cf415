"""kubectl with a bearer token, and the answers of kube-apiserver line by line: through the sidecar as directly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.control_plane import ControlPlane
from tests.e2e.kubectl import Kubectl
from tests.e2e.processes import wait_until
from tests.e2e.wire import Answer, Route, chunked, head

NAMESPACE = "kubectl"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
LARGE = f"/api/v1/namespaces/{NAMESPACE}-large/configmaps"


@pytest.fixture(scope="module", autouse=True)
def namespaces(admin: Kubectl) -> None:
    admin("create", "namespace", NAMESPACE)
    # Pod Security in warn mode answers with several Warning lines.
    admin("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted")
    admin("create", "configmap", "stable", "-n", NAMESPACE, "--from-literal=key=value")


@pytest.fixture(scope="module")
def large_list(admin: Kubectl, direct: Route) -> str:
    """A target that lists 5 MB of ConfigMaps, pinned to one resource version."""
    admin("create", "namespace", f"{NAMESPACE}-large")
    with direct.connect() as connection:
        for number in range(56):
            # Varied enough that gzip, which kube-apiserver applies on demand, still sends many chunks.
            noise = "".join(f"{number * 7919 + i * i:x}" for i in range(14000))[:90_000]
            made = connection.request(
                "POST",
                LARGE,
                body={"metadata": {"name": f"large-{number:02}"}, "data": {"noise": noise}},
                token="admin-token",
            )
            assert made.status == 201, made.body
    version = direct.get(f"{LARGE}?limit=1", token="admin-token").json()["metadata"]["resourceVersion"]
    return f"{LARGE}?resourceVersion={version}&resourceVersionMatch=Exact"


@pytest.fixture(params=["direct", "through"])
def kubectl(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl(request.getfixturevalue(request.param), token="admin-token")


@pytest.fixture
def both(control_plane: ControlPlane, direct: Route, through: Route) -> tuple[Kubectl, Kubectl]:
    return (
        control_plane.kubectl(direct, token="admin-token"),
        control_plane.kubectl(through, token="admin-token"),
    )


def settled(output: str) -> str:
    """Output without what differs between two objects made one after the other."""
    output = re.sub(r'("?uid"?: )"?[0-9a-f-]{36}"?', r"\1UID", output)
    output = re.sub(r'("?resourceVersion"?: )"?\d+"?', r"\1VERSION", output)
    output = re.sub(r'"?\d{4}-\d\d-\d\dT[\d:.]+Z"?', "TIME", output)
    return re.sub(r"(?m)\b\d+m?s$", "AGE", output)


# -- kubectl -----------------------------------------------------------------------------------------------


def life_of_a_config_map(kubectl: Kubectl) -> Iterator[str]:
    where = ("-n", NAMESPACE)
    yield kubectl("create", "configmap", "one", *where, "--from-literal=a=1", "-o", "yaml")
    yield kubectl("get", "configmap", "one", *where, "-o", "json", "--show-managed-fields")
    yield kubectl("get", "configmap", *where)
    yield kubectl("patch", "configmap", "one", *where, "-p", '{"data":{"b":"2"}}', "-o", "yaml")
    patch = '[{"op":"remove","path":"/data/a"}]'
    yield kubectl("patch", "configmap", "one", *where, "--type=json", "-p", patch, "-o", "yaml")
    yield kubectl("label", "configmap", "one", *where, "tier=back")
    yield kubectl(
        "get", "configmap", *where, "-l", "tier=back,tier!=front,tier in (back, middle)", "-o", "name"
    )
    yield kubectl("get", "configmap", *where, "--field-selector", "metadata.name=one", "-o", "name")
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "one", "namespace": NAMESPACE},
        "data": {"b": "3", "umlaut": "grün ☃"},
    }
    applied = (
        "apply",
        "--server-side",
        "--field-manager=e2e",
        "-f",
        "-",
        "-o",
        "yaml",
        "--show-managed-fields",
    )
    conflict = kubectl.run(*applied, stdin=yaml.safe_dump(manifest))
    assert conflict.returncode == 1
    yield conflict.stderr.decode()
    yield kubectl(*applied, "--force-conflicts", stdin=yaml.safe_dump(manifest))
    yield kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(manifest))
    yield kubectl("delete", "configmap", "one", *where)
    missing = kubectl.run("get", "configmap", "one", *where)
    assert missing.returncode == 1
    yield missing.stderr.decode()


def test_the_life_of_an_object_prints_the_same(both: tuple[Kubectl, Kubectl]) -> None:
    outputs = [[settled(output) for output in life_of_a_config_map(kubectl)] for kubectl in both]
    assert outputs[1] == outputs[0]
    assert "grün ☃" in outputs[1][-4]


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "--raw", "/readyz"),
        ("get", "--raw", "/readyz?verbose&exclude=etcd"),
        ("get", "--raw", "/livez/ping"),
        ("version", "-o", "json"),
        ("api-resources", "--sort-by=name"),
        ("api-versions",),
        ("auth", "whoami", "-o", "yaml"),
        ("auth", "can-i", "--list"),
        ("explain", "configmap.data"),
        ("get", "namespaces", "-o", "wide", "--no-headers"),
        ("get", "clusterroles", "-o", "json", "--chunk-size=7"),
    ],
    ids=" ".join,
)
def test_reads_print_the_same(both: tuple[Kubectl, Kubectl], arguments: tuple[str, ...]) -> None:
    directly, through = (kubectl(*arguments) for kubectl in both)
    assert settled(through) == settled(directly)
    assert through


def test_watch_prints_each_change(kubectl: Kubectl, admin: Kubectl) -> None:
    with kubectl.started(
        "get", "configmap", "-n", NAMESPACE, "-w", "--output-watch-events", "--no-headers"
    ) as watch:
        assert watch.line().split()[:2] == [b"ADDED", b"stable"]
        admin("create", "configmap", "watched", "-n", NAMESPACE)
        admin("delete", "configmap", "watched", "-n", NAMESPACE)
        assert [watch.line().split()[:2] for _ in range(2)] == [
            [b"ADDED", b"watched"],
            [b"DELETED", b"watched"],
        ]


def test_a_five_megabyte_list_arrives_whole(both: tuple[Kubectl, Kubectl], large_list: str) -> None:
    directly, through = (kubectl("get", "--raw", large_list) for kubectl in both)
    assert len(directly) > 5_000_000
    assert through == directly


# -- answers line by line ----------------------------------------------------------------------------------

POD: dict[str, Any] = {
    "metadata": {"name": "warned"},
    "spec": {
        "containers": [
            {"name": "c", "image": "none", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}
        ]
    },
}
JSON = ("Content-Type", "application/json")
TABLE = ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
PROTOBUF = ("Accept", "application/vnd.kubernetes.protobuf")

READS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("GET", "/readyz", []),
    ("GET", "/version", []),
    ("GET", "/api", []),
    ("GET", "/apis", [("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")]),
    ("GET", "/openapi/v2", [("Accept-Encoding", "gzip")]),
    ("GET", "/openapi/v3", []),
    ("GET", "/", []),
    ("GET", f"{CONFIG_MAPS}/stable", []),
    ("GET", f"{CONFIG_MAPS}/stable", [PROTOBUF]),
    ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/view", [TABLE]),  # a table without ages
    ("GET", f"{CONFIG_MAPS}/stable?pretty=true", [("Accept", "application/yaml")]),
    ("GET", f"{CONFIG_MAPS}/stable", [("Accept", "text/html")]),
    ("HEAD", f"{CONFIG_MAPS}/stable", []),
    ("OPTIONS", f"{CONFIG_MAPS}/stable", []),
    ("TRACE", f"{CONFIG_MAPS}/stable", []),
    ("PROPFIND", f"{CONFIG_MAPS}/stable", []),
    ("GET", f"{CONFIG_MAPS}/missing", []),
    ("GET", "/api/v1/nothing", []),
    ("GET", "/nothing", []),
    ("GET", f"{CONFIG_MAPS}?labelSelector=a%3Db%2Cc%21%3Dd", []),
    ("GET", f"{CONFIG_MAPS}?labelSelector=%3D%3D", []),
    ("GET", f"{CONFIG_MAPS}?limit=nonsense", []),
    ("GET", f"{CONFIG_MAPS}?resourceVersion=1&resourceVersionMatch=Exact", []),
    ("GET", f"{CONFIG_MAPS}/stable?q=%", []),
    ("GET", f"{CONFIG_MAPS}/stable??y", []),
    ("GET", f"{CONFIG_MAPS}/sta%62le", []),
    ("GET", f"{CONFIG_MAPS}/stable%2Fx", []),
    ("GET", f"/api/v1//namespaces/{NAMESPACE}", []),
    ("GET", f"/api/v1/namespaces/../namespaces/{NAMESPACE}", []),
    ("GET", f"/api/v1/namespaces/%2e%2e/namespaces/{NAMESPACE}", []),
    ("GET", "//readyz", []),
    ("GET", "/readyz/", []),
    ("GET", "/readyz", [("Accept-Encoding", "gzip, br"), ("X-Thing", "a"), ("x-thing", "b")]),
    ("GET", "/readyz", [("Cookie", "a=b"), ("Cookie", "c=d"), ("Range", "bytes=0-0")]),
    ("GET", "/readyz", [("Connection", "keep-alive"), ("TE", "trailers")]),
    ("GET", "/readyz", [("Expect", "200-maybe")]),
]


VARYING = ("Date", "Audit-Id", "Last-Modified")
"""Last-Modified is the time of asking: /openapi/v3 has it."""


def unlike(answer: Answer) -> tuple[int, str, list[tuple[str, str]], list[str], bytes]:
    """An answer without what differs from request to request; Connection is each hop's own, wherever it stands."""
    lines = [line for line in answer.lines if line[0] not in (*VARYING, "Connection")]
    return answer.status, answer.reason, lines, answer.values("Connection"), answer.body


def equal(direct: Route, through: Route, request: bytes, method: str = "GET") -> Answer:
    """Send the same bytes both ways, compare the answers line by line, return the sidecar's.

    Up to three times: in between the cluster's own controllers may have written, and a list tells the revision.
    """
    for _ in range(3):
        answers = []
        for route in (direct, through):
            with route.connect() as connection:
                connection.send(request)
                answers.append(connection.answer(method))
        directly, answer = answers
        if unlike(answer) == unlike(directly):
            break
    assert unlike(answer) == unlike(directly)
    names = [[name for name, _ in each.lines if name != "Connection"] for each in answers]
    assert names[1] == names[0]
    return answer


@pytest.mark.parametrize(("method", "target", "headers"), READS)
def test_answers_are_equal(
    direct: Route, through: Route, method: str, target: str, headers: list[tuple[str, str]]
) -> None:
    equal(direct, through, head(method, target, headers, token="admin-token"), method)


def test_answers_are_equal_one_after_the_other_on_one_connection(direct: Route, through: Route) -> None:
    with through.connect() as connection:
        for method, target, headers in READS:
            for _ in range(3):  # as in `equal`
                answer = unlike(direct.request(method, target, headers, token="admin-token"))
                if answer[0] == 417:  # kube-apiserver closes after it
                    break
                asked = unlike(connection.request(method, target, headers, token="admin-token"))
                if asked == answer:
                    break
            else:
                assert asked == answer


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_five_megabyte_list_is_equal_byte_by_byte(
    direct: Route, through: Route, large_list: str, encoding: str
) -> None:
    answer = equal(
        direct, through, head("GET", large_list, [("Accept-Encoding", encoding)], token="admin-token")
    )
    assert answer.status == 200
    assert answer.values("Content-Encoding") == (["gzip"] if encoding == "gzip" else [])


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 403),
        ("Bearer admin-token", 200),
        ("Bearer nonsense", 401),
        ("Bearer", 403),
        ("Basic YWRtaW46YWRtaW4=", 403),
        ("Bearer impersonator-token", 403),
    ],
)
def test_refusals_are_equal(direct: Route, through: Route, authorization: str, status: int) -> None:
    headers = [("Authorization", authorization)] if authorization else []
    assert equal(direct, through, head("GET", CONFIG_MAPS + "/stable", headers)).status == status


WRITES = {
    "created": (201, head("POST", CONFIG_MAPS + "?dryRun=All", body={"metadata": {"name": "dry"}})),
    "conflict": (409, head("POST", CONFIG_MAPS, body={"metadata": {"name": "stable"}})),
    "invalid": (422, head("POST", CONFIG_MAPS, body={"metadata": {"name": "Not/Valid"}})),
    "nonsense": (400, head("POST", CONFIG_MAPS, body=b"{", headers=[JSON])),
    "media type": (415, head("PATCH", CONFIG_MAPS + "/stable", [("Content-Type", "text/plain")], body=b"x")),
    "over 3 MiB": (413, head("POST", CONFIG_MAPS, [JSON], body=b" " * (3 * 1024 * 1024 + 1))),
    "warnings": (201, head("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", body=POD)),
    "delete with a body": (
        200,
        head(
            "DELETE",
            CONFIG_MAPS + "/stable",
            body={"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]},
        ),
    ),
    "get with a body": (200, head("GET", CONFIG_MAPS + "/stable", body=b"unread")),
    "chunked": (
        201,
        chunked(
            "POST", CONFIG_MAPS + "?dryRun=All", [JSON], b'{"metadata":{"name":"dry"}}', [("X-Sum", "1")]
        ),
    ),
    "chunked in small pieces": (
        201,
        head("POST", CONFIG_MAPS + "?dryRun=All", [JSON, ("Transfer-Encoding", "chunked")])
        + b"".join(b"1;ext=1\r\n%c\r\n" % byte for byte in b'{"metadata":{"name":"dry"}}')
        + b"0\r\n\r\n",
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_answers_to_writes_are_equal(direct: Route, through: Route, name: str) -> None:
    status, request = WRITES[name]
    request = request.replace(b"\r\n", b"\r\nAuthorization: Bearer admin-token\r\n", 1)
    answers = []
    for route in (direct, through):
        with route.connect() as connection:
            connection.send(request)
            answers.append(connection.answer())
    directly, answer = answers
    assert answer.status == directly.status == status
    varying = (*VARYING, "Content-Length")
    assert [line for line in answer.lines if line[0] not in varying] == [
        line for line in directly.lines if line[0] not in varying
    ]
    assert settled_json(answer.body) == settled_json(directly.body)
    if name == "warnings":
        assert len(answer.values("Warning")) >= 2


def settled_json(body: bytes) -> str:
    try:
        return settled(json.dumps(json.loads(body)))
    except ValueError:
        return body.decode()


def test_expect_100_continue_is_the_upstreams_to_answer(direct: Route, through: Route) -> None:
    body = b'{"metadata":{"name":"dry"}}'
    request = head(
        "POST", CONFIG_MAPS + "?dryRun=All", [JSON, ("Expect", "100-continue")], token="admin-token"
    )
    request = request.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(body))
    for route in (direct, through):
        with route.connect() as connection:
            connection.send(request)
            assert connection.answer_head() == (100, "Continue", []), route
            connection.send(body)
            assert connection.answer("POST").status == 201, route


def test_an_audit_id_is_the_clients_and_comes_back_once(direct: Route, through: Route) -> None:
    answers = [
        r.request("GET", "/version", [("Audit-ID", "e2e-1")], token="admin-token") for r in (direct, through)
    ]
    assert [answer.values("Audit-Id") for answer in answers] == [["e2e-1"], ["e2e-1"]]
    assert answers[1].lines[0] == answers[0].lines[0]


def test_not_modified_has_no_body(direct: Route, through: Route) -> None:
    etag = direct.get("/openapi/v2", token="admin-token").values("Etag")[0]
    answer = equal(
        direct, through, head("GET", "/openapi/v2", [("If-None-Match", etag)], token="admin-token")
    )
    assert (answer.status, answer.body) == (304, b"")


def test_a_large_head_passes_and_a_larger_one_is_431(direct: Route, through: Route) -> None:
    for route in (direct, through):
        passes = route.request(
            "GET", "/version?" + "q" * 16_000, [("X-Large", "v" * 900_000)], token="admin-token"
        )
        assert passes.status == 200, route
        with route.connect() as connection:
            connection.send(head("GET", "/version", [("X-Large", "v" * 1_100_000)], token="admin-token"))
            assert connection.answer().status == 431, route


def test_a_watch_is_equal_event_by_event_and_ends_cleanly(
    admin: Kubectl, direct: Route, through: Route
) -> None:
    start = direct.get(f"{CONFIG_MAPS}?limit=1", token="admin-token").json()["metadata"]["resourceVersion"]
    admin("create", "configmap", "event", "-n", NAMESPACE)
    admin("delete", "configmap", "event", "-n", NAMESPACE)
    target = f"{CONFIG_MAPS}?watch=1&resourceVersion={start}&timeoutSeconds=1"
    answer = equal(direct, through, head("GET", target, token="admin-token"))
    assert [json.loads(line)["type"] for line in answer.body.splitlines()] == ["ADDED", "DELETED"]


def test_watch_events_come_at_once(admin: Kubectl, through: Route) -> None:
    with through.connect(timeout=10) as connection:
        connection.send(
            head("GET", f"{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Dprompt", token="admin-token")
        )
        status, _, lines = connection.answer_head()  # the head, before there is any event
        assert status == 200
        events = connection.events(lines)
        for verb, kind in (("create", "ADDED"), ("delete", "DELETED")):
            admin(verb, "configmap", "prompt", "-n", NAMESPACE)
            assert next(events)["type"] == kind


def test_a_vanished_clients_watch_ends_at_kube_apiserver(direct: Route, through: Route) -> None:
    def watches() -> int:
        metrics = direct.get("/metrics", token="admin-token").body.decode()
        found = re.findall(
            r'apiserver_longrunning_requests\{[^}]*resource="secrets"[^}]*verb="WATCH"[^}]*\} (\d+)', metrics
        )
        return sum(map(int, found))

    before = watches()
    connections = [through.connect() for _ in range(5)]
    target = f"/api/v1/namespaces/{NAMESPACE}/secrets?watch=1"
    for connection in connections:
        connection.send(head("GET", target, token="admin-token"))
        assert connection.answer_head()[0] == 200
    assert watches() == before + 5
    for connection in connections:
        connection.close()
    wait_until(lambda: watches() == before, "kube-apiserver saw the watches end")
