import pytest

from orca_sidecar.demo.measure import Summary
from orca_sidecar.demo.run import HOT, Result, least_possible


def summary(hot_share: float, *utilization: float) -> Summary:
    names = ("cp-1", "cp-2", "cp-3")
    others = (1 - hot_share) / 2
    return Summary(
        share=dict(zip(names, (hot_share, others, others), strict=True)),
        utilization=dict(zip(names, utilization or (0.6, 0.4, 0.4), strict=True)),
        weight=dict.fromkeys(names, 1),
    )


def result(**changes) -> Result:
    shown = {
        "before": summary(1 / 3),
        "after": summary(0.01),
        "report_to_client": None,
        "report_to_envoy": "TEXT cpu_utilization=0.6, rps_fractional=1.0",
    }
    return Result(**{**shown, **changes})


def test_what_should_be_seen_is_no_problem():
    assert result().problems() == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"after": summary(1 / 3)}, f"the share of {HOT}"),
        ({"report_to_client": "TEXT cpu_utilization=0.6"}, "reached a client"),
        ({"report_to_envoy": None}, "carried no load report"),
    ],
)
def test_what_was_not_seen_is_said(changes, problem):
    (found,) = result(**changes).problems()
    assert problem in found


def test_the_least_possible_is_set_by_the_background_or_is_balance():
    assert least_possible(summary(0.0, 0.6, 0.4, 0.4)) == pytest.approx(0.6 / (1.4 / 3))
    assert least_possible(summary(0.3, 0.9, 0.9, 0.9)) == 1.0
    assert least_possible(summary(0.3, 0.0, 0.0, 0.0)) == 1.0
