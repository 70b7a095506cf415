"""`orca-sidecar demo`, shortened: real sidecars, a real Envoy, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from orca_sidecar.demo.processes import StartupError
from orca_sidecar.demo.run import BACKGROUND, HOT
from orca_sidecar.demo.topology import Topology

COMMAND = [str(Path(sys.executable).with_name("orca-sidecar")), "demo"]


async def demo(*options: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*COMMAND, *options, stdout=pipe, stderr=pipe)


async def test_load_moves_away_from_the_busy_node():
    process = await demo("--seconds", "7.5")
    async with asyncio.timeout(90):
        stdout, stderr = (stream.decode() for stream in await process.communicate())
    assert process.returncode == 0, stdout + stderr
    lines = stdout.splitlines()
    result = json.loads(lines[-1])
    assert set(result) == {"before", "after"}
    before, after = result["before"], result["after"]
    for phase in (before, after):
        assert set(phase) == {"share", "utilization", "weight", "maxOverMean"}
        for figures in (phase["share"], phase["utilization"], phase["weight"]):
            assert set(figures) == set(BACKGROUND)
        assert sum(phase["share"].values()) == pytest.approx(1.0, abs=0.01)
    # Round robin is blind; afterwards little more than a trickle reaches the busy node, by Envoy's own weights.
    assert before["share"] == pytest.approx(dict.fromkeys(BACKGROUND, 1 / 3), abs=0.02)
    assert set(before["weight"].values()) == {1}
    assert after["share"][HOT] < 0.2
    assert all(after["weight"][HOT] * 3 < weight for name, weight in after["weight"].items() if name != HOT)
    assert after["maxOverMean"] < before["maxOverMean"]
    assert "report seen by Envoy:  TEXT application_utilization=" in stdout
    assert "report seen by client: none" in stdout
    assert "\x1b" not in stdout  # not a terminal
    assert ", 0 failed," in stdout


async def test_an_interrupted_demo_says_so_and_leaves_nothing_running():
    process = await demo("--keep-running")
    assert process.stdout is not None
    async with asyncio.timeout(90):
        while b"round robin" not in await process.stdout.readline():
            pass
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    assert process.returncode == 130
    assert stderr.decode() == "orca-sidecar demo: interrupted\n"
    assert len(children) >= 4  # three sidecars and Envoy
    assert [child for child in children if child.is_running()] == []


async def test_a_part_that_does_not_come_up_is_named_with_its_log(tmp_path):
    program = [sys.executable, "-c", "raise SystemExit('no such certificate')"]
    with pytest.raises(StartupError, match=r"(?s)sidecar cp-1 ended with exit code 1:.*no such certificate"):
        async with Topology(tmp_path, BACKGROUND, sidecar_command=program):
            pass
    assert psutil.Process().children() == []


@pytest.mark.parametrize("options", [["--seconds", "0"], ["--rate", "x"], ["--colour"]])
async def test_wrong_options_are_a_usage_error(options):
    process = await demo(*options)
    async with asyncio.timeout(60):
        _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"usage: orca-sidecar demo" in stderr
