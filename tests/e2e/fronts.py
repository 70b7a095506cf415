"""What stands in front of kube-apiserver: the installed orca-sidecar, and Envoy with the shipped configuration."""

from __future__ import annotations

import http.client
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from orca_sidecar.demo.envoy import bootstrap, envoy_binary
from tests.e2e.control_plane import TOKENS, Authorities, ControlPlane
from tests.e2e.processes import Program, Started, free_port
from tests.e2e.wire import Route
from tests.pki import SERVER


class Sidecar(Started):
    """The installed command in front of a control plane's kube-apiserver."""

    def __init__(self, control_plane: ControlPlane, name: str = "sidecar", **changes: Any) -> None:
        """`changes` replace whole top-level sections' keys: `front_proxy={"uidHeaders": []}`."""
        a, folder = control_plane.authorities, control_plane.folder
        port, admin_port = free_port(), free_port()
        pid_file = folder / "kube-apiserver.pid"
        pid_file.write_text(f"{control_plane.apiserver.process.pid}\n")
        configuration: dict[str, Any] = {
            "apiVersion": "orca-sidecar.dev/v1alpha1",
            "kind": "SidecarConfiguration",
            "listener": {
                "address": f"127.0.0.1:{port}",
                "tls": {"certFile": str(a.listener.cert_file), "keyFile": str(a.listener.key_file)},
                "clientCAFile": str(a.ca.cert_file),
            },
            "upstream": {
                "address": f"127.0.0.1:{control_plane.port}",
                "tls": {"caFile": str(a.ca.cert_file), "serverName": "kubernetes"},
                "frontProxyClient": {
                    "certFile": str(a.front_proxy_client.cert_file),
                    "keyFile": str(a.front_proxy_client.key_file),
                },
            },
            "frontProxy": {
                "clientCAFile": str(a.front_proxy_ca.cert_file),
                "allowedNames": ["front-proxy-client", "gateway"],
            },
            "loadMetrics": {
                "enabled": True,
                "optIn": {"gate": "frontProxy", "allowedNames": ["load-balancer"]},
                "sampler": {"target": {"processName": "", "pidFile": str(pid_file)}},
            },
            "admin": {"address": f"127.0.0.1:{admin_port}"},
            "shutdown": {"delay": "0s", "gracePeriod": "5s"},
            "logging": {"level": "info", "format": "text"},
        }
        for section, keys in changes.items():
            camel = section.split("_")[0] + "".join(part.title() for part in section.split("_")[1:])
            configuration.setdefault(camel, {}).update(keys)
        self.configuration_file = folder / f"{name}.yaml"
        self.configuration_file.write_text(yaml.safe_dump(configuration, sort_keys=False))
        self.route = Route(name, port, a.ca.cert_file)
        self.admin_port = admin_port
        command = Path(sys.executable).with_name("orca-sidecar")
        assert command.exists(), f"{command} is missing: install the package first (make venv)"
        self.program = Program(name, [command, "run", "--config", self.configuration_file], folder)

    def wait_ready(self) -> None:
        self.program.wait_ready(lambda: self.admin("/readyz")[0] == 200)

    def admin(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def gauge(self, name: str) -> float:
        """A metric without labels, as /metrics tells it."""
        found = re.search(rf"(?m)^{name} (\S+)$", self.admin("/metrics")[1])
        assert found, f"no metric {name}"
        return float(found[1])

    def stop(self) -> None:
        self.exit_code = self.program.stop()

    def assert_ended_well(self) -> None:
        """It obeyed SIGTERM, nothing broke inside it, and its log tells nobody's token."""
        log = self.program.log.read_text()
        assert self.exit_code == 0, f"exit code {self.exit_code}: {log[-3000:]}"
        assert "Traceback" not in log, log[-6000:]
        for token in TOKENS:
            assert token not in log


class Envoy(Started):
    """A real Envoy with config/envoy.yaml in front of one sidecar: it asks for load reports and speaks for nobody."""

    def __init__(self, sidecar: Sidecar, authorities: Authorities, folder: Path) -> None:
        port, admin_port = free_port(), free_port()
        # The shipped file names its own pair, beside ca.crt and load-balancer.crt.
        authorities.pki.leaf(
            authorities.ca,
            name="apiserver-lb",
            cn="kube-apiserver-lb",
            eku=SERVER,
            san=["kubernetes"],
            key_identifiers=True,
        )
        configuration = bootstrap(
            pki=authorities.pki.folder,
            listener=("127.0.0.1", port),
            admin=("127.0.0.1", admin_port),
            nodes=[("127.0.0.1", sidecar.route.port)],
        )
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(configuration))
        self.route = Route("envoy", port, authorities.ca.cert_file)
        # An own base id: several Envoys on one machine share memory by it.
        command: list[str | Path] = [
            envoy_binary(),
            "-c",
            file,
            "--concurrency",
            "1",
            "--use-dynamic-base-id",
            "--log-level",
            "warn",
        ]
        self.program = Program("envoy", command, folder)

    def wait_ready(self) -> None:
        # Through to kube-apiserver: Envoy serves nothing before its health check has passed.
        self.program.wait_ready(lambda: self.route.get("/readyz").status == 200)

    def stop(self) -> None:
        self.program.stop()
