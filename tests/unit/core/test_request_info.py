"""What is the sidecar's own about a classified request; kube's rules are in tests/conformance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orca_sidecar.core.request_info import VERBS, classify


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        (b"GET", b"/healthz", True),
        (b"HEAD", b"/livez", True),
        (b"GET", b"/readyz?verbose", True),
        (b"GET", b"/readyz/", True),
        (b"GET", b"/livez/ping", True),
        (b"GET", b"/%72eadyz/etcd", True),
        (b"GET", b"https://node:6443/healthz", True),
        (b"POST", b"/healthz", False),
        (b"GET", b"/healthzz", False),
        (b"GET", b"//healthz", False),
        (b"GET", b"/api/v1/healthz", False),
        (b"GET", b"/api/v1/nodes/healthz", False),
    ],
)
def test_health_probe(method: bytes, target: bytes, expected: bool) -> None:
    assert classify(method, target).health_probe is expected


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        (b"GET", b"/api/v1/pods", True),
        (b"GET", b"/api/v1/pods?watch=1", True),
        (b"HEAD", b"/api/v1/namespaces/n/pods/p", True),
        (b"GET", b"/version", True),
        (b"HEAD", b"/version", True),
        (b"WATCH", b"/version", True),
        (b"POST", b"/api/v1/namespaces/n/pods", False),
        (b"PUT", b"/api/v1/namespaces/n/pods/p", False),
        (b"PATCH", b"/api/v1/namespaces/n/pods/p", False),
        (b"DELETE", b"/api/v1/namespaces/n/pods", False),
        (b"GET", b"/api/v1/proxy/nodes/n", False),
        (b"OPTIONS", b"/version", False),
        (b"POST", b"/version", False),
    ],
)
def test_read_only(method: bytes, target: bytes, expected: bool) -> None:
    assert classify(method, target).read_only is expected


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        (b"GET", b"/api/v1/namespaces/n/pods/p", True),
        (b"HEAD", b"/healthz", True),
        (b"GET", b"/api/v1/watch/pods", True),
        (b"GET", b"/api/v1/namespaces/n/pods/p/log", True),
        (b"GET", b"/api/v1/namespaces/n/pods/p/exec", False),
        (b"GET", b"/api/v1/namespaces/n/pods/p/attach", False),
        (b"GET", b"/api/v1/namespaces/n/pods/p/portforward", False),
        (b"GET", b"/api/v1/namespaces/n/services/s/proxy/buy", False),
        (b"GET", b"/api/v1/proxy/nodes/n", False),
        (b"POST", b"/api/v1/namespaces/n/pods", False),
        (b"PUT", b"/api/v1/namespaces/n/pods/p", False),
        (b"get", b"/version", False),
    ],
)
def test_retry_safe(method: bytes, target: bytes, expected: bool) -> None:
    assert classify(method, target).retry_safe is expected


def test_verbs_are_distinct_label_values() -> None:
    assert len(set(VERBS)) == len(VERBS)
    assert all(verb == verb.lower() for verb in VERBS)


def test_long_targets_are_classified() -> None:
    target = b"/api/v1/pods?labelSelector=" + b"x" * 600 + b"&watch=1"
    assert classify(b"GET", target).verb == "watch"


def test_a_name_longer_than_what_is_read_does_not_hide_the_verb() -> None:
    info = classify(b"GET", b"/api/v1/namespaces/n/services/s/proxy/" + b"%41/" * 100_000)
    assert (info.verb, info.subresource, info.long_running) == ("get", "proxy", True)


def test_a_query_of_more_than_ten_thousand_parameters_is_not_read() -> None:
    assert classify(b"GET", b"/api/v1/pods?" + b"a&" * 9_999 + b"watch=1").verb == "watch"
    assert classify(b"GET", b"/api/v1/pods?" + b"a&" * 10_000 + b"watch=1").verb == "list"


@given(st.binary(max_size=12), st.binary(max_size=80))
def test_anything_at_all_is_classified(method: bytes, target: bytes) -> None:
    info = classify(method, target)
    assert VERBS[info.verb_index] == info.verb
    assert info.is_resource or not info.resource


@given(
    st.sampled_from([b"GET", b"POST", b"DELETE"]),
    st.lists(
        st.sampled_from(
            ["api", "apis", "v1", "apps", "namespaces", "n", "pods", "watch", "proxy", "status", "exec", ""]
        ),
        max_size=9,
    ),
)
def test_escaping_every_byte_of_a_path_changes_nothing(method: bytes, parts: list[str]) -> None:
    path = "/".join(parts)
    escaped = "".join(f"%{byte:02X}" for byte in path.encode())
    assert classify(method, b"/" + escaped.encode()) == classify(method, b"/" + path.encode())
