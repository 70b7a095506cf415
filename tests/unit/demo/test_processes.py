import socket
import sys

import pytest

from orca_sidecar.demo.processes import Child, StartupError, free_ports


async def never() -> bool:
    return False


async def test_a_child_that_ends_is_reported_with_the_end_of_its_log(tmp_path):
    program = "print('\\n'.join(f'line {n}' for n in range(50))); raise SystemExit(3)"
    child = await Child.start("parser", [sys.executable, "-c", program], tmp_path / "log")
    with pytest.raises(StartupError) as error:
        await child.ready_when(never, 30.0)
    await child.stop()
    message = str(error.value)
    assert message.startswith("parser ended with exit code 3:")
    assert message.endswith("line 49")
    assert "line 30\n" in message
    assert "line 29\n" not in message


async def test_a_child_that_is_never_ready_is_given_up(tmp_path):
    child = await Child.start("sleeper", [sys.executable, "-c", "input() or 1"], tmp_path / "log")
    try:
        with pytest.raises(StartupError, match="sleeper"):
            await child.ready_when(never, 0.2)
    finally:
        await child.stop()


async def test_a_child_deaf_to_sigterm_is_killed(tmp_path):
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    child = await Child.start("deaf", [sys.executable, "-c", program], tmp_path / "log")

    async def deaf() -> bool:
        return "deaf" in child.log.read_text()

    await child.ready_when(deaf, 30.0)
    await child.stop(grace=0.2)
    assert child.exit_code == -9


def test_free_ports_can_be_listened_on():
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
