"""What kube-apiserver takes a request for, by its audit log: as the sidecar classifies it, and as it came directly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orca_sidecar.core.request_info import classify
from tests.conformance.test_request_info_cases import rows
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import wait_until
from tests.e2e.wire import Route

REQUESTS = [row[:2] for row in rows()]


def audited(plane: ControlPlane, route: Route) -> dict[tuple[str, str], dict[str, Any]]:
    """Send every request, by somebody who may do next to nothing; the audit event of each that was looked at."""
    expected: dict[str, tuple[str, str]] = {}
    for number, (method, target) in enumerate(REQUESTS):
        audit_id = f"request-info-{route}-{number}"
        # A connection each: some are refused by the HTTP server, which then closes.
        answer = route.request(method, target, [("Audit-ID", audit_id)], token="impersonator-token")
        # kube-apiserver names the event that a request became, where it came that far.
        if answer.values("Audit-Id") and answer.status != 500:
            expected[audit_id] = (method, target)
    events: dict[str, dict[str, Any]] = {}

    def all_are_there() -> bool:
        for line in plane.audit_log.read_text().splitlines():
            event = json.loads(line)
            events[event["auditID"]] = event
        return expected.keys() <= events.keys()

    wait_until(all_are_there, "the audit lines")
    return {request: events[audit_id] for audit_id, request in expected.items()}


@pytest.fixture(scope="module")
def directly(control_plane: ControlPlane, direct: Route) -> dict[tuple[str, str], dict[str, Any]]:
    return audited(control_plane, direct)


def test_requests_are_classified_as_by_kube_apiserver(
    directly: dict[tuple[str, str], dict[str, Any]],
) -> None:
    wrong = []
    for (method, target), event in directly.items():
        info = classify(method.encode(), target.encode())
        ours = (info.verb, info.api_group, info.resource, info.subresource, info.namespace, info.name)
        what = event.get("objectRef", {})
        theirs = tuple(
            what.get(key, "") for key in ("apiGroup", "resource", "subresource", "namespace", "name")
        )
        verb = event["verb"] if ours[0] != "other" else "other"
        if ours != (verb, *theirs) or info.is_resource != ("objectRef" in event):
            wrong.append((method, target, ours, (verb, *theirs)))
    assert not wrong
    assert len(directly) > 100


def test_requests_arrive_as_they_were_sent(
    control_plane: ControlPlane, through: Route, directly: dict[tuple[str, str], dict[str, Any]]
) -> None:
    seen, expected = (
        {
            request: (
                event["requestURI"],
                event["verb"],
                event.get("objectRef"),
                event["responseStatus"]["code"],
            )
            for request, event in events.items()
        }
        for events in (audited(control_plane, through), directly)
    )
    # Go's server also serves CONNECT, and targets that are neither a path nor an http URL: the sidecar refuses them.
    for method, target in expected.keys() - seen.keys():
        assert method == "CONNECT" or ":" in target.partition("/")[0]
        refused = through.request(method, target, token="impersonator-token")
        assert refused.status == (405 if method == "CONNECT" else 400)
        del expected[method, target]
    assert seen == expected
    assert len(seen) > 100
