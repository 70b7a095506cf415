"""The rest of what clients of kube-apiserver lean on: proxies, aggregation, bookmarks, waits, evictions."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.backends import API, GROUP, VERSION, ExtensionServer
from tests.e2e.control_plane import Authorities, ControlPlane
from tests.e2e.kubectl import Kubectl
from tests.e2e.kubelet import NAMESPACE as STREAMS
from tests.e2e.kubelet import NODE, POD, Kubelet
from tests.e2e.processes import wait_until
from tests.e2e.wire import Answer, Lines, Route, head

NAMESPACE = "machinery"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module", autouse=True)
def namespace(admin: Kubectl) -> None:
    admin("create", "namespace", NAMESPACE)


@pytest.fixture(params=["direct", "through"])
def route(request: pytest.FixtureRequest) -> Route:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def without_ids(answer: Answer) -> tuple[int, Lines, bytes]:
    """An answer without what differs from request to request; Go writes the Trailer line in any order."""
    lines = [
        (name, ", ".join(sorted(value.split(", "))) if name == "Trailer" else value)
        for name, value in answer.lines
        if name not in ("Date", "Audit-Id")
    ]
    return answer.status, lines, answer.body


# -- proxies -----------------------------------------------------------------------------------------------


def test_kubectl_proxy(control_plane: ControlPlane, direct: Route, through: Route) -> None:
    kubectl = control_plane.kubectl(through, token="admin-token")
    expected = direct.get("/api/v1/namespaces/default", token="admin-token").body
    with kubectl.started("proxy", "--port=0") as proxy:
        found = re.match(rb"Starting to serve on 127\.0\.0\.1:(\d+)", proxy.line())
        assert found
        client = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
        client.request("GET", "/api/v1/namespaces/default")
        assert client.getresponse().read() == expected
        client.request("GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dnone")
        assert client.getresponse().read() == b""
        for method, path, body, status in (
            ("POST", CONFIG_MAPS, json.dumps({"metadata": {"name": "proxied"}}), 201),
            ("DELETE", f"{CONFIG_MAPS}/proxied", None, 200),
            ("GET", f"{CONFIG_MAPS}/proxied", None, 404),
        ):
            client.request(method, path, body, {"Content-Type": "application/json"})
            response = client.getresponse()
            response.read()
            assert response.status == status
        client.close()


@pytest.mark.parametrize(
    "target",
    [
        f"/api/v1/nodes/{NODE}:10250/proxy/healthz",
        f"/api/v1/nodes/{NODE}/proxy/pods",
        f"/api/v1/namespaces/{STREAMS}/pods/{POD}:8080/proxy/a/../b?q=%",
        f"/api/v1/namespaces/{STREAMS}/services/none:80/proxy/",
        f"/api/v1/namespaces/{STREAMS}/services/https:refused:443/proxy/x",
        f"/api/v1/namespaces/{STREAMS}/services/refused/proxy",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refused_proxy_requests_are_equal(
    admin: Kubectl, direct: Route, through: Route, kubelet: Kubelet, method: str, target: str
) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "refused", "namespace": STREAMS},
        "spec": {"ports": [{"port": 80}, {"port": 443, "name": "https"}][:1]},
    }
    admin("apply", "-f", "-", stdin=yaml.safe_dump(service))
    answers = [route.request(method, target, token="admin-token") for route in (direct, through)]
    assert without_ids(answers[1]) == without_ids(answers[0])
    assert answers[1].status >= 300


# -- an aggregated API -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aggregated(authorities: Authorities, admin: Kubectl, direct: Route) -> Iterator[str]:
    """The path of an aggregated API, whose server tells a load of its own in every answer."""
    with ExtensionServer(authorities.kubelet) as server:
        admin(
            "apply",
            "-f",
            "-",
            stdin=yaml.safe_dump_all(
                [
                    {
                        "apiVersion": "v1",
                        "kind": "Service",
                        "metadata": {"name": "extension", "namespace": NAMESPACE},
                        "spec": {"type": "ExternalName", "externalName": "localhost"},
                    },
                    {
                        "apiVersion": "apiregistration.k8s.io/v1",
                        "kind": "APIService",
                        "metadata": {"name": f"{VERSION}.{GROUP}"},
                        "spec": {
                            "group": GROUP,
                            "version": VERSION,
                            "groupPriorityMinimum": 1000,
                            "versionPriority": 10,
                            "insecureSkipTLSVerify": True,
                            "service": {"name": "extension", "namespace": NAMESPACE, "port": server.port},
                        },
                    },
                ]
            ),
        )
        wait_until(lambda: direct.get(API, token="admin-token").status == 200, "the aggregated API")
        yield API
        admin("delete", "apiservice", f"{VERSION}.{GROUP}")


def tells_load(lines: Lines) -> Lines:
    return [line for line in lines if line[0].lower().startswith("endpoint-load-metrics")]


@pytest.mark.parametrize("target", ["", "/echoes/headers", "/echoes/none", "/echoes?watch=1"])
def test_an_aggregated_apis_load_reports_are_stripped_and_nothing_else(
    aggregated: str, direct: Route, through: Route, target: str
) -> None:
    directly, answer = (route.get(aggregated + target, token="admin-token") for route in (direct, through))
    assert len(tells_load(directly.lines)) == 4
    assert tells_load(answer.lines) == []
    directly.lines[:] = [line for line in directly.lines if line not in tells_load(directly.lines)]
    assert without_ids(answer) == without_ids(directly)
    if "watch" in target:  # whose trailers kube-apiserver passes on
        assert len(tells_load(directly.trailers)) > 2
        assert answer.trailers == [
            line for line in directly.trailers if line not in tells_load(directly.trailers)
        ]
        assert answer.trailers == [("X-Sum", "11")]


def test_an_aggregated_api_sees_the_same_caller(
    aggregated: str, direct: Route, through: Route, authorities: Authorities
) -> None:
    forged = [("X-Remote-User", "root"), ("X-Remote-Group", "forged")]
    for token, credential in (("admin-token", None), ("", authorities.admin)):
        answers = [
            route.request("GET", f"{aggregated}/echoes/headers", forged, token=token, credential=credential)
            for route in (direct, through)
        ]
        assert sorted(answers[1].json()) == sorted(answers[0].json())
        assert b"system:masters" in answers[1].body
        assert b"forged" not in answers[1].body


# -- watches -----------------------------------------------------------------------------------------------


def test_a_watch_is_resumed_from_a_bookmark(admin: Kubectl, route: Route) -> None:
    admin("create", "configmap", "before", "-n", NAMESPACE)
    query = "?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    version, names = "", set()
    with route.connect() as connection:
        connection.send(head("GET", CONFIG_MAPS + query, token="admin-token"))
        status, _, lines = connection.answer_head()
        assert status == 200
        for event in connection.events(lines):
            if event["type"] == "BOOKMARK":
                assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                version = event["object"]["metadata"]["resourceVersion"]
                break
            names.add(event["object"]["metadata"]["name"])
    assert "before" in names
    # What happens while nobody watches …
    admin("create", "configmap", "while-away", "-n", NAMESPACE)
    admin("delete", "configmap", "before", "while-away", "-n", NAMESPACE)
    # … is told to whoever resumes, and no event twice.
    target = f"{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=1"
    events = [json.loads(line) for line in route.get(target, token="admin-token").body.splitlines()]
    seen = [(e["type"], e["object"]["metadata"].get("name")) for e in events if e["type"] != "BOOKMARK"]
    assert seen == [("ADDED", "while-away"), ("DELETED", "before"), ("DELETED", "while-away")]


def test_a_watch_from_too_long_ago_is_gone(direct: Route, through: Route) -> None:
    target = f"{CONFIG_MAPS}?watch=1&resourceVersion=1&timeoutSeconds=1"
    answers = [route.get(target, token="admin-token") for route in (direct, through)]
    assert without_ids(answers[1]) == without_ids(answers[0])


def test_kubectl_wait(admin: Kubectl, route: Route, control_plane: ControlPlane, kubelet: Kubelet) -> None:
    kubectl = control_plane.kubectl(route, token="admin-token")
    kubectl("wait", "--for=condition=Ready", f"pod/{POD}", "-n", STREAMS, "--timeout=10s")
    admin("create", "configmap", "waited", "-n", NAMESPACE, "--from-literal=state=new")
    where = ("configmap/waited", "-n", NAMESPACE, "--timeout=20s")
    with kubectl.started("wait", "--for=jsonpath={.data.state}=done", *where) as wait:
        admin("patch", "configmap", "waited", "-n", NAMESPACE, "-p", '{"data":{"state":"done"}}')
        assert wait.wait(20) == 0
    with kubectl.started("wait", "--for=delete", *where) as wait:
        admin("delete", "configmap", "waited", "-n", NAMESPACE)
        assert wait.wait(20) == 0
    timed_out = kubectl.run("wait", "--for=condition=Never", f"pod/{POD}", "-n", STREAMS, "--timeout=1s")
    assert timed_out.returncode == 1
    assert b"timed out waiting for the condition" in timed_out.stderr


# -- evictions ---------------------------------------------------------------------------------------------


@pytest.fixture
def guarded_pods(admin: Kubectl) -> Iterator[None]:
    """Two pods behind a disruption budget that no controller has looked at yet."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE, "labels": {"app": "guarded"}},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "c", "image": "none"}],
            "terminationGracePeriodSeconds": 0,
        },
    }
    objects = [{**pod, "metadata": {**pod["metadata"], "name": f"guarded-{n}"}} for n in range(2)]
    objects.append(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "guard", "namespace": NAMESPACE},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        }
    )
    admin("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    admin("wait", "--for=condition=Ready", "pod", "-l", "app=guarded", "-n", NAMESPACE, "--timeout=20s")
    yield
    admin("delete", "pdb,pod", "--all", "-n", NAMESPACE, "--force", "--ignore-not-found")


def set_budget(admin: Kubectl, allowed: int) -> None:
    generation = admin("get", "pdb", "guard", "-n", NAMESPACE, "-o", "jsonpath={.metadata.generation}")
    status = {
        "observedGeneration": int(generation),
        "disruptionsAllowed": allowed,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
    }
    admin(
        "patch",
        "pdb",
        "guard",
        "-n",
        NAMESPACE,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )


def test_evictions_are_refused_with_429_and_granted_as_directly(
    admin: Kubectl,
    direct: Route,
    through: Route,
    control_plane: ControlPlane,
    kubelet: Kubelet,
    guarded_pods: None,
) -> None:
    def evict(route: Route, name: str) -> Answer:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": NAMESPACE},
        }
        return route.request("POST", f"{PODS}/{name}/eviction", body=body, token="admin-token")

    # Nobody has observed the budget: try again later.
    directly, answer = (evict(route, "guarded-0") for route in (direct, through))
    assert without_ids(answer) == without_ids(directly)
    assert (answer.status, answer.values("Retry-After")) == (429, ["10"])
    # It is observed and used up.
    set_budget(admin, 0)
    directly, answer = (evict(route, "guarded-0") for route in (direct, through))
    assert without_ids(answer) == without_ids(directly)
    assert answer.status == 429
    # It has room for both.
    set_budget(admin, 2)
    directly, answer = evict(direct, "guarded-0"), evict(through, "guarded-1")
    assert without_ids(answer) == without_ids(directly)
    assert answer.status == 201


def test_kubectl_drain_evicts_within_the_budget(
    admin: Kubectl, through: Route, control_plane: ControlPlane, kubelet: Kubelet, guarded_pods: None
) -> None:
    kubectl = control_plane.kubectl(through, token="admin-token")
    set_budget(admin, 2)
    selector = ("--pod-selector=app=guarded", "--force", "--timeout=30s")
    printed = kubectl("drain", NODE, *selector)
    assert f"node/{NODE} drained" in printed
    kubectl("uncordon", NODE)
