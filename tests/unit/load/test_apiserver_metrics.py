"""Sums over kube-apiserver's exposition text, in whatever pieces it comes."""

import pytest

from orca_sidecar.load.apiserver_metrics import MetricsText

TEXT = b"""\
# HELP apiserver_current_inflight_requests [STABLE] Maximal number of currently used inflight request limit
# TYPE apiserver_current_inflight_requests gauge
apiserver_current_inflight_requests{request_kind="mutating"} 2
apiserver_current_inflight_requests{request_kind="readOnly"} 17
# HELP apiserver_request_total [STABLE] Counter of apiserver requests broken out for each verb.
# TYPE apiserver_request_total counter
apiserver_request_total{code="0",component="apiserver",resource="pods",subresource="exec",verb="CONNECT"} 5
apiserver_request_total{code="200",component="apiserver",resource="",subresource="/readyz",verb="GET"} 900
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="",verb="WATCH"} 40
apiserver_request_total{code="200",component="apiserver",resource="pods",subresource="",verb="LIST"} 1.5e+06
apiserver_request_total{code="429",component="apiserver",resource="pods",subresource="",verb="GET"} 8
apiserver_request_total{code="500",component="apiserver",resource="a{b}",subresource="status",verb="PATCH"} 3
apiserver_request_terminations_total{code="500",component="apiserver",verb="GET"} 77
apiserver_response_sizes_bucket{verb="GET",le="1000"} 12345
"""


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000, len(TEXT)])
def test_the_sums_do_not_depend_on_the_pieces(size: int) -> None:
    text = MetricsText()
    for start in range(0, len(TEXT), size):
        text.feed(TEXT[start : start + size])
    assert (text.requests, text.errors) == (1_500_011, 11)
    assert (text.read_only, text.mutating) == (17, 2)
    assert text.found


def test_other_text_is_searched_and_not_held() -> None:
    text = MetricsText()
    text.feed(b'some_other_metric{verb="GET"} 1\n' * 1000)
    assert not text.found
    assert text._rest == b""


def test_a_line_without_an_end_is_refused() -> None:
    text = MetricsText()
    with pytest.raises(ValueError, match="has no end"):
        text.feed(b"apiserver_request_total{" + b"x" * 70_000)
