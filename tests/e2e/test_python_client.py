"""A second real client: the Python package kubernetes-asyncio, through the sidecar."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from kubernetes_asyncio import client, watch
from kubernetes_asyncio.stream import WsApiClient

from tests.e2e.kubectl import Kubectl
from tests.e2e.kubelet import NAMESPACE, POD, Kubelet
from tests.e2e.wire import Route


def configuration(route: Route) -> client.Configuration:
    configuration = client.Configuration(
        host=f"https://127.0.0.1:{route.port}",
        ssl_ca_cert=str(route.ca_file),
        api_key={"BearerToken": "Bearer admin-token"},
    )
    configuration.tls_server_name = route.server_name
    return configuration


@pytest.fixture
async def core(through: Route) -> AsyncIterator[client.CoreV1Api]:
    async with client.ApiClient(configuration(through)) as api:
        yield client.CoreV1Api(api)


async def test_list_equals_a_direct_one(core: client.CoreV1Api, direct: Route) -> None:
    async with client.ApiClient(configuration(direct)) as api:
        expected = await client.CoreV1Api(api).list_namespace()
    listed = await core.list_namespace()
    assert [item.to_dict() for item in listed.items] == [item.to_dict() for item in expected.items]
    assert "default" in [item.metadata.name for item in listed.items]


async def test_list_then_watch_misses_nothing(core: client.CoreV1Api) -> None:
    listed = await core.list_namespaced_config_map("default")
    seen = []
    async with watch.Watch() as events:
        stream = events.stream(
            core.list_namespaced_config_map,
            "default",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=30,
        )
        for name in ("python-0", "python-1"):
            body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data={"size": "x" * 300_000})
            await core.create_namespaced_config_map("default", body)
            await core.delete_namespaced_config_map(name, "default")
        async for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 4:
                break
    assert seen == [(kind, name) for name in ("python-0", "python-1") for kind in ("ADDED", "DELETED")]


async def test_exec(through: Route, kubelet: Kubelet, admin: Kubectl) -> None:
    # The package dials a WebSocket by address, without a server name: the listener's certificate has it.
    async with WsApiClient(configuration(through)) as api:
        printed = await client.CoreV1Api(api).connect_get_namespaced_pod_exec(
            POD,
            NAMESPACE,
            command=["sh", "-c", "echo out; echo err >&2; seq 1 20000"],
            stdout=True,
            stderr=True,
        )
    expected = "".join(f"{number}\n" for number in range(1, 20001))
    assert printed.replace("out\n", "", 1).replace("err\n", "", 1) == expected
