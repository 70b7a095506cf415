import json
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from orca_sidecar.demo.envoy import OPT_IN_KEY, EnvoyAdmin, HostStatus, bootstrap

SHIPPED = Path(__file__).parents[3] / "config" / "envoy.yaml"


def adapted(**changes) -> dict:
    parameters = {
        "pki": Path("/etc/envoy/pki"),
        "listener": ("0.0.0.0", 6443),
        "admin": ("127.0.0.1", 9901),
        "nodes": [("10.0.0.11", 6444), ("10.0.0.12", 6444), ("10.0.0.13", 6444)],
    }
    return bootstrap(**{**parameters, **changes})


def test_adapted_to_its_own_addresses_it_is_the_shipped_file():
    assert adapted() == yaml.safe_load(SHIPPED.read_text())


def test_addresses_and_certificates_are_replaced_everywhere():
    text = json.dumps(
        adapted(pki=Path("/x"), listener=("127.0.0.1", 1), admin=("127.0.0.1", 2), nodes=[("127.0.0.1", 3)])
    )
    for shipped in ("/etc/envoy", "10.0.0", "0.0.0.0", "9901", "6443", "6444"):
        assert shipped not in text


def test_the_opt_in_starts_off_where_asked():
    def numerators(config: dict) -> list[int]:
        (listener,) = config["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        routes = manager["route_config"]["virtual_hosts"][0]["routes"]
        return [
            route["match"]["runtime_fraction"]["default_value"]["numerator"]
            for route in routes
            if "runtime_fraction" in route["match"]
        ]

    assert numerators(adapted()) == [100]
    assert numerators(adapted(opt_in=False)) == [0]


def test_another_policy_takes_the_place_of_the_weighted_one():
    policy = {"policies": []}
    (cluster,) = adapted(load_balancing_policy=policy)["static_resources"]["clusters"]
    assert cluster["load_balancing_policy"] == policy


async def test_the_admin_port_is_read_and_switched(aiohttp_server):
    def host(port: int, **fields) -> dict:
        return {"address": {"socket_address": {"port_value": port}}, **fields}

    answer = {
        "cluster_statuses": [
            {"name": "another"},
            {
                "name": "kube-apiserver",
                "host_statuses": [
                    host(
                        1,
                        stats=[{"name": "rq_total", "value": "12"}, {"name": "cx_total", "value": "9"}],
                        health_status={"eds_health_status": "HEALTHY"},
                        weight=333,
                    ),
                    host(
                        2,
                        stats=[{"name": "rq_total"}],
                        health_status={"eds_health_status": "HEALTHY", "failed_active_health_check": True},
                    ),
                ],
            },
        ]
    }
    switched = []

    async def clusters(request: web.Request) -> web.Response:
        assert request.query_string == "format=json"
        return web.Response(text=json.dumps(answer))

    async def modify(request: web.Request) -> web.Response:
        switched.append(dict(request.query))
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/clusters", clusters), web.post("/runtime_modify", modify)])
    server = await aiohttp_server(app)
    async with aiohttp.ClientSession() as session:
        admin = EnvoyAdmin((server.host, server.port), session)
        assert await admin.hosts() == {
            1: HostStatus(weight=333, requests=12, healthy=True),
            2: HostStatus(weight=1, requests=0, healthy=False),
        }
        await admin.set_opt_in(True)
        await admin.set_opt_in(False)
    assert switched == [{OPT_IN_KEY: "100"}, {OPT_IN_KEY: "0"}]
