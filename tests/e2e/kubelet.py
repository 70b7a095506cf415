"""kwok as the kubelet of one node with one Running pod: commands run as local processes."""

from __future__ import annotations

import time
from typing import Any

import yaml

from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import Program, Started, free_port

NAMESPACE, NODE, POD, CONTAINER = "streams", "node-0", "pod-0", "main"
HTTP_PORT, RAW_PORT = 8080, 9090
"""The pod's ports; `forwards` says what stands behind them."""


class Kubelet(Started):
    """kwok, the node it keeps Ready and the pod it keeps Running."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        self.folder = control_plane.folder / "kubelet"
        self.work = self.folder / "work"
        self.work.mkdir(parents=True)
        self.log_file = self.folder / "container.log"
        self.log_file.touch()
        self.port, self.http_port, self.raw_port = free_port(), free_port(), free_port()
        file = self.folder / "kwok.yaml"
        file.write_text(yaml.safe_dump_all(self._configuration()))
        a = control_plane.authorities
        self.admin = control_plane.kubectl(control_plane.direct, credential=a.admin)
        self.program = Program(
            "kwok",
            [
                control_plane.programs["kwok"],
                f"--kubeconfig={self.admin.kubeconfig}",
                f"--config={file}",
                "--manage-all-nodes",
                "--node-ip=127.0.0.1",
                f"--node-port={self.port}",
                f"--server-address=127.0.0.1:{self.port}",
                f"--tls-cert-file={a.kubelet.cert_file}",
                f"--tls-private-key-file={a.kubelet.key_file}",
            ],
            self.folder,
            cwd=self.work,
        )

    def wait_ready(self) -> None:
        self.admin("apply", "-f", "-", stdin=yaml.safe_dump_all(_objects()))
        self.program.wait_ready(
            lambda: (
                self.admin("get", "pod", POD, "-n", NAMESPACE, "-o", "jsonpath={.status.phase}") == "Running"
            )
        )

    def stop(self) -> None:
        self.program.stop()

    def log(self, text: str) -> None:
        """Append one line to the container's log, in CRI form."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
        with self.log_file.open("a") as file:
            file.write(f"{stamp} stdout F {text}\n")

    def _configuration(self) -> list[dict[str, Any]]:
        return [
            {
                "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
                "kind": "KwokConfiguration",
                "options": {"enableCRDs": []},
            },
            _stage(
                "node-ready",
                "Node",
                f"""\
addresses: [{{type: InternalIP, address: 127.0.0.1}}]
daemonEndpoints: {{kubeletEndpoint: {{Port: {self.port}}}}}
conditions:
- {{type: Ready, status: "True", reason: KubeletReady, lastHeartbeatTime: {{{{ Now | Quote }}}}}}
phase: Running
""",
            ),
            _stage(
                "pod-running",
                "Pod",
                f"""\
phase: Running
startTime: {{{{ Now | Quote }}}}
conditions:
- {{type: Ready, status: "True", lastTransitionTime: {{{{ Now | Quote }}}}}}
containerStatuses:
- name: {CONTAINER}
  image: none
  imageID: ""
  ready: true
  restartCount: 0
  state: {{running: {{startedAt: {{{{ Now | Quote }}}}}}}}
""",
            ),
            _cluster("ClusterExec", {"execs": [{"local": {"workDir": str(self.work)}}]}),
            _cluster("ClusterLogs", {"logs": [{"logsFile": str(self.log_file), "follow": True}]}),
            _cluster("ClusterAttach", {"attaches": [{"logsFile": str(self.log_file)}]}),
            _cluster(
                "ClusterPortForward",
                {
                    "forwards": [
                        {"ports": [pod_port], "target": {"port": port, "address": "127.0.0.1"}}
                        for pod_port, port in ((HTTP_PORT, self.http_port), (RAW_PORT, self.raw_port))
                    ]
                },
            ),
        ]


def _stage(name: str, kind: str, status: str) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {
                "matchExpressions": [
                    {"key": ".status.phase", "operator": "NotIn", "values": ["Running"]},
                ]
            },
            "next": {"statusTemplate": status},
        },
    }


def _cluster(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": kind.lower()},
        "spec": spec,
    }


def _objects() -> list[dict[str, Any]]:
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "namespace": NAMESPACE, "labels": {"app": "e2e"}},
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": CONTAINER, "image": "none", "stdin": True, "tty": False}],
                "tolerations": [{"operator": "Exists"}],
            },
        },
    ]
