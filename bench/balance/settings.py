"""What the shipped configurations set, read from them where they say it, so that the model follows them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from orca_sidecar.settings.load_metrics import LoadMetricsSettings

OUT_OF_BAND_PERIOD = 0.25
"""Seconds between two reports out of band: Envoy's default, 10 s, would be slower than any of this."""
HEALTH_CHECK_PERIOD = 1.0
AGENT_PERIOD = 1.0


@dataclass(frozen=True)
class WeightedSettings:
    """Envoy's client_side_weighted_round_robin; seconds."""

    update_period: float
    blackout: float
    expiration: float
    error_penalty: float


@cache
def weighted_settings() -> WeightedSettings:
    """Those of the shipped config/envoy.yaml."""
    policy = weighted_policy(shipped_envoy())
    return WeightedSettings(
        update_period=_seconds(policy["weight_update_period"]),
        blackout=_seconds(policy["blackout_period"]),
        expiration=_seconds(policy["weight_expiration_period"]),
        error_penalty=float(policy["error_utilization_penalty"]),
    )


def shipped_envoy() -> dict[str, Any]:
    """config/envoy.yaml as the package carries it."""
    config = yaml.safe_load(files("orca_sidecar.demo").joinpath("envoy.yaml").read_text())
    assert isinstance(config, dict)
    return config


def weighted_policy(config: dict[str, Any]) -> dict[str, Any]:
    """The typed configuration of the weighted policy within an Envoy configuration; to be read or changed."""
    (cluster,) = config["static_resources"]["clusters"]
    (policy,) = cluster["load_balancing_policy"]["policies"]
    typed: dict[str, Any] = policy["typed_extension_config"]["typed_config"]
    return typed


def sidecar_load_metrics(*, rps_scope_all: bool) -> dict[str, Any]:
    """The section `loadMetrics` that the bench's sidecars differ in from the defaults.

    Behind HAProxy no connection is a front proxy's, so that the rate, by which the filter judges how long
    to average, has to be taken from all requests.
    """
    section: dict[str, Any] = {"enabled": True, "optIn": {"allowedNames": ["load-balancer"]}}
    if rps_scope_all:
        section["report"] = {"rpsScope": "all"}
    return section


def model_load_metrics() -> LoadMetricsSettings:
    """The same, as the sampler takes it; in the model every request counts, since all come by the balancer."""
    return LoadMetricsSettings.model_validate(sidecar_load_metrics(rps_scope_all=False))


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))
