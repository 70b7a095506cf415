import asyncio
import ssl
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from orca_sidecar.demo.capacity import service_time
from orca_sidecar.demo.pki import write_pki
from orca_sidecar.demo.processes import Child, free_ports
from orca_sidecar.demo.standin import MIB, Capacity, StandIn, control_app, server_context

QUICK = Capacity(service=service_time("fixed:0.001"), restart_seconds=0.05, cold_seconds=0.2)
GET, LIST = "/api/v1/namespaces/default/configmaps/settings", "/api/v1/configmaps"


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pki")
    write_pki(folder)
    return folder


@asynccontextmanager
async def running(pki, tmp_path, capacity: Capacity = QUICK, **options):
    stand_in = StandIn(
        "cp-1", capacity, server_context(pki / "apiserver.crt", pki / "apiserver.key"), tmp_path, **options
    )
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    await stand_in.start()
    url = f"https://127.0.0.1:{stand_in.address[1]}"
    connector = aiohttp.TCPConnector(
        ssl=context, force_close=True
    )  # it would repeat a GET on a kept connection
    try:
        async with aiohttp.ClientSession(url, connector=connector) as session:

            async def get(path: str) -> tuple[int, aiohttp.typedefs.LooseHeaders]:
                async with session.get(path, server_hostname="kubernetes") as response:
                    await response.read()
                    return response.status, response.headers

            yield stand_in, get
    finally:
        await stand_in.stop()


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 (seen from outside: a file, an answer)
            await asyncio.sleep(0.02)


async def test_requests_are_served_by_the_virtual_cores(pki, tmp_path):
    async with running(pki, tmp_path) as (stand_in, get):
        for _ in range(10):
            status, headers = await get(GET)
            assert status == 200
            assert headers["X-Stand-In"] == "cp-1"
        assert stand_in.cpu_seconds() == pytest.approx(0.010)
        assert stand_in.totals.served == 10
        await get(LIST)
        assert stand_in.cpu_seconds() == pytest.approx(0.010 + 0.001 * QUICK.list_work)


async def test_health_probes_cost_nothing_and_are_not_counted(pki, tmp_path):
    async with running(pki, tmp_path) as (stand_in, get):
        assert (await get("/readyz"))[0] == 200
        stand_in.set(ready=False)
        assert (await get("/readyz"))[0] == 503
        assert (await get("/livez"))[0] == 200
        assert stand_in.cpu_seconds() == 0.0
        assert stand_in.totals.served == 0


async def test_the_cgroup_files_follow(pki, tmp_path):
    async with running(pki, tmp_path) as (stand_in, get):
        await get(LIST)
        folder = tmp_path / "cp-1/run-1"

        async def written() -> bool:
            usage = int((folder / "cpu.stat").read_text().split()[1])
            current = int((folder / "memory.current").read_text())
            return (usage, current) == (5000, QUICK.memory_base + QUICK.list_memory + QUICK.page_cache)

        await until(written)
        assert (folder / "cpu.max").read_text() == "200000 100000\n"
        assert stand_in.state()["memory"] == QUICK.memory_base + QUICK.list_memory


async def test_above_the_in_flight_limit_it_refuses_as_kube_apiserver_does(pki, tmp_path):
    capacity = replace(QUICK, cores=1, service=service_time("fixed:0.3"), inflight_limit=2)
    async with running(pki, tmp_path, capacity) as (stand_in, get):
        answers = await asyncio.gather(*(get(GET) for _ in range(5)))
        refused = [headers for status, headers in answers if status == 429]
        assert len(refused) == stand_in.totals.rejected == 3
        assert refused[0]["Retry-After"] == "1"
        assert "X-Kubernetes-PF-PriorityLevel-UID" in refused[0]
        assert stand_in.state()["inflight"] == 0
        assert (await get(GET))[0] == 200


async def test_lists_beyond_the_memory_limit_kill_it_and_it_comes_back_cold(pki, tmp_path):
    capacity = replace(QUICK, memory_base=10 * MIB, memory_limit=25 * MIB, list_memory=8 * MIB)
    async with running(pki, tmp_path, capacity) as (stand_in, get):
        assert (await get(LIST))[0] == 200
        with pytest.raises(aiohttp.ClientError):  # the first LIST's memory is still held
            await get(LIST)
        assert stand_in.totals.oom_kills == 1
        used = stand_in.cpu_seconds()

        async def answers() -> bool:
            try:
                return (await get("/livez"))[0] == 200
            except aiohttp.ClientError:
                return False

        await until(answers)
        assert (await get("/readyz"))[0] == 503
        assert [folder.name for folder in (tmp_path / "cp-1").iterdir()] == ["run-2"]
        assert stand_in.state()["memory"] == capacity.memory_base

        async def ready() -> bool:
            return stand_in.ready

        await until(ready)
        assert (await get("/readyz"))[0] == 200
        assert stand_in.cpu_seconds() == used  # never back to zero


async def test_it_is_changed_through_the_control_listener(pki, tmp_path, aiohttp_client):
    async with running(pki, tmp_path, background=0.1) as (stand_in, _):
        control = await aiohttp_client(control_app(stand_in))
        response = await control.post("/set", json={"background": 0.6, "speed": 0.5, "ready": False})
        state = await response.json()
        assert (state["background"], state["speed"], state["ready"]) == (0.6, 0.5, False)
        for wrong in ({"background": 2, "speed": 1}, {"cores": 7}, []):
            response = await control.post("/set", json=wrong)
            assert response.status == 400
        assert (await (await control.get("/state")).json())["background"] == 0.6
        assert stand_in.state()["speed"] == 0.5
        await control.post("/restart")

        async def restarted() -> bool:
            return (tmp_path / "cp-1/run-2").exists()

        await until(restarted)
        assert stand_in.state()["background"] == 0.6


async def test_as_a_program_it_has_the_capacity_it_was_told(pki, tmp_path):
    port, control = free_ports(2)
    options = {
        "name": "cp-1",
        "listen": f"127.0.0.1:{port}",
        "control": f"127.0.0.1:{control}",
        "cert-file": pki / "apiserver.crt",
        "key-file": pki / "apiserver.key",
        "cgroup-root": tmp_path / "cgroup",
        "cores": 4,
        "background": 0.25,
        "memory-limit": 1024 * MIB,
        "service": "lognormal:0.01:0.5",
    }
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "orca_sidecar.demo.standin", *arguments]
    child = await Child.start("stand-in", command, tmp_path / "log")
    async with aiohttp.ClientSession(f"http://127.0.0.1:{control}") as session:

        async def ready() -> bool:
            try:
                async with session.get("/state") as response:
                    state = await response.json()
            except aiohttp.ClientError:
                return False
            assert (state["cores"], state["background"], state["memoryLimit"]) == (4, 0.25, 1024 * MIB)
            return state["ready"]

        await child.ready_when(ready, 30.0)
    assert (tmp_path / "cgroup/cp-1/run-1/cpu.max").read_text() == "400000 100000\n"
    await child.stop()
    assert child.exit_code == 0, child.tail()
