from random import Random
from statistics import fmean

import pytest

from orca_sidecar.demo.capacity import BACKGROUND_WORK, Memory, VirtualCores, service_time


def test_work_runs_at_once_while_a_core_is_free_and_then_queues():
    cores = VirtualCores(2)
    assert cores.submit(0.0, 1.0) == 1.0
    assert cores.submit(0.0, 2.0) == 2.0
    assert cores.submit(0.5, 1.0) == 2.0  # waits for the first core until 1.0
    assert cores.submit(5.0, 1.0) == 6.0  # both have been idle since 2.0


def test_used_counts_what_was_done_and_not_what_was_assigned():
    cores = VirtualCores(2)
    cores.submit(0.0, 4.0)
    cores.submit(0.0, 1.0)
    assert [cores.used(now) for now in (0.0, 1.0, 2.0, 4.0, 9.0)] == [0.0, 2.0, 3.0, 5.0, 5.0]


def test_no_more_is_used_than_the_cores_have():
    cores = VirtualCores(3)
    for _ in range(100):
        cores.submit(0.0, 1.0)
    assert cores.used(10.0) == pytest.approx(30.0)


def test_background_takes_its_share_from_when_it_is_set():
    cores = VirtualCores(2, background=0.6)
    first = cores.used(10.0)
    cores.set_background(10.0, 0.1)
    second = cores.used(20.0)
    cores.set_background(20.0, 0.0)
    third = cores.used(30.0)
    assert first == pytest.approx(12.0, abs=2 * BACKGROUND_WORK)
    assert second - first == pytest.approx(2.0, abs=4 * BACKGROUND_WORK)
    assert third - second == pytest.approx(0.0, abs=2 * BACKGROUND_WORK)


def test_random_background_takes_the_same_share_and_delays_more():
    even, random = VirtualCores(1, background=0.8), VirtualCores(1, background=0.8, random=Random(1))
    waits = {
        cores: fmean(cores.submit(at, 0.001) - at for at in (number * 0.1 for number in range(2000)))
        for cores in (even, random)
    }
    assert random.used(200.0) == pytest.approx(even.used(200.0), rel=0.03)
    assert waits[random] > 3 * waits[even]


def test_background_delays_requests():
    idle, busy = VirtualCores(1), VirtualCores(1, background=0.9)
    work = [(number * 0.1, 0.008) for number in range(200)]
    waits_idle = [idle.submit(at, amount) - at - amount for at, amount in work]
    waits_busy = [busy.submit(at, amount) - at - amount for at, amount in work]
    assert fmean(waits_idle) == pytest.approx(0.0)
    assert fmean(waits_busy) > 0.001


def test_a_slow_node_needs_longer_and_is_busier_for_the_same_work():
    slow = VirtualCores(1, speed=0.5)
    assert slow.submit(0.0, 1.0) == 2.0
    assert slow.used(5.0) == 2.0
    slow.set_speed(5.0, 1.0)
    assert slow.submit(5.0, 1.0) == 6.0


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_background_share_that_cannot_be(share):
    with pytest.raises(ValueError, match="background share"):
        VirtualCores(2, background=share)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_cannot_be(speed):
    with pytest.raises(ValueError, match="speed"):
        VirtualCores(2, speed=speed)


def test_memory_is_held_until_its_time():
    memory = Memory(limit=100, base=10)
    memory.hold(20, until=2.0)
    memory.hold(50, until=1.0)
    assert [memory.used(now) for now in (0.0, 1.0, 1.5, 2.0)] == [80, 30, 30, 10]


def test_a_base_at_the_limit_is_refused():
    with pytest.raises(ValueError, match="not below the limit"):
        Memory(limit=10, base=10)


@pytest.mark.parametrize("text", ["fixed:0.008", "exponential:0.008", "lognormal:0.008:0.5"])
def test_service_times_have_the_mean_they_name(text):
    draw, random = service_time(text), Random(1)
    assert fmean(draw(random) for _ in range(20_000)) == pytest.approx(0.008, rel=0.03)


@pytest.mark.parametrize(
    "text", ["", "fixed", "fixed:0", "fixed:x", "exponential:1:2", "pareto:1", "fixed:nan"]
)
def test_what_is_not_a_service_time(text):
    with pytest.raises(ValueError):
        service_time(text)
