"""deploy/orca-sidecar.yaml is a pod that a real kube-apiserver takes as it is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.kubectl import Kubectl

MANIFEST = Path(__file__).parents[2] / "deploy" / "orca-sidecar.yaml"


def test_the_static_pod_passes_a_server_side_dry_run_with_strict_validation(admin: Kubectl) -> None:
    answer = admin("create", "-f", MANIFEST, "--dry-run=server", "--validate=strict", "-o", "json")
    pod = json.loads(answer)["spec"]
    # What admission and defaulting make of it is what the file says.
    assert pod["priority"] == 2000001000
    assert pod["preemptionPolicy"] == "PreemptLowerPriority"
    assert pod["terminationGracePeriodSeconds"] == 75
    assert all("hostPath" in volume for volume in pod["volumes"])
