"""deploy/ and config/: the files that belong together say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from orca_sidecar.settings.load import load_configuration

ROOT = Path(__file__).parents[2]
CONFIGURATION = load_configuration(ROOT / "deploy" / "config.yaml")
POD = yaml.safe_load((ROOT / "deploy" / "orca-sidecar.yaml").read_text())
(CONTAINER,) = POD["spec"]["containers"]
ENVOY = yaml.safe_load((ROOT / "config" / "envoy.yaml").read_text())
HAPROXY = (ROOT / "config" / "haproxy.cfg").read_text()


def test_the_pod_has_time_to_drain():
    shutdown = CONFIGURATION.shutdown
    assert POD["spec"]["terminationGracePeriodSeconds"] > shutdown.delay + shutdown.grace_period


def test_every_file_of_the_configuration_is_mounted_where_it_is_looked_for_and_nothing_else():
    volumes = {volume["name"]: volume["hostPath"] for volume in POD["spec"]["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]]["path"] for mount in CONTAINER["volumeMounts"]}
    listener, upstream = CONFIGURATION.listener, CONFIGURATION.upstream
    wanted = {
        listener.tls.cert_file,
        listener.tls.key_file,
        listener.client_ca_file,
        upstream.tls.ca_file,
        upstream.front_proxy_client.cert_file,
        upstream.front_proxy_client.key_file,
        CONFIGURATION.front_proxy.client_ca_file,
    }
    assert mounts == {
        **{str(path): str(path) for path in wanted},
        "/etc/orca-sidecar": "/etc/orca-sidecar",
        str(CONFIGURATION.load_metrics.sampler.cgroup_root): "/sys/fs/cgroup",
    }
    assert all(mount["readOnly"] for mount in CONTAINER["volumeMounts"])
    assert CONTAINER["command"][-1] == "/etc/orca-sidecar/config.yaml"


def test_the_probes_ask_the_admin_listener():
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    admin = CONFIGURATION.admin.address
    assert {(probe["host"], probe["port"]) for probe in probes} == {(admin.host, admin.port)}
    assert [probe["path"] for probe in probes] == ["/livez", "/livez", "/readyz"]


def test_it_is_a_static_pod_without_privileges():
    assert POD["spec"]["priorityClassName"] == "system-node-critical"
    assert POD["metadata"]["namespace"] == "kube-system"  # that class is reserved for it
    assert "serviceAccountName" not in POD["spec"]
    assert not POD["spec"]["automountServiceAccountToken"]
    assert all(set(volume) == {"name", "hostPath"} for volume in POD["spec"]["volumes"])
    context = CONTAINER["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert not context["privileged"]


def test_the_ports_agree():
    port = CONFIGURATION.listener.address.port
    (container_port,) = CONTAINER["ports"]
    assert container_port["containerPort"] == container_port["hostPort"] == port
    (cluster,) = ENVOY["static_resources"]["clusters"]
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert {endpoint["endpoint"]["address"]["socket_address"]["port_value"] for endpoint in endpoints} == {
        port
    }
    assert re.findall(r"^ *server \S+ \S+:(\d+)$", HAPROXY, re.MULTILINE) == [str(port)] * 3
    (agent_port,) = re.findall(r"agent-port (\d+)", HAPROXY)
    assert int(agent_port) == CONFIGURATION.load_metrics.agent_check.address.port


def test_envoy_keeps_within_the_listeners_limits():
    listener = CONFIGURATION.listener
    (cluster,) = ENVOY["static_resources"]["clusters"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    idle_timeout = options["common_http_protocol_options"]["idle_timeout"]
    assert float(idle_timeout.removesuffix("s")) < listener.idle_timeout
    (envoy_listener,) = ENVOY["static_resources"]["listeners"]
    manager = envoy_listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["max_request_headers_kb"] * 1024 == listener.header_bytes
    (thresholds,) = cluster["circuit_breakers"]["thresholds"]
    assert thresholds["max_requests"] == listener.max_connections


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.y*ml")), ids=lambda path: path.name)
def test_every_file_is_yaml(path):
    assert yaml.safe_load(path.read_text())
