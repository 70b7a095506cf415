"""Cgroups in trees of plain files: v2 and v1, limits along the path, which match is the newest, and
removal."""

import os
from pathlib import Path

import pytest

from orca_sidecar.load.cgroup import CgroupTree, Limits, field

GIB = 1 << 30
MACHINE = Limits(cores=8, memory=16 * GIB)
SECOND = 1_000_000_000


def write(folder: Path, **files: object) -> Path:
    """Files of a cgroup folder; `__` in a name stands for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")
    return folder


def v2_group(folder: Path, usec: int = 2_500_000, memory: int = GIB, inactive: int = GIB // 4) -> Path:
    return write(
        folder,
        cpu__stat=f"usage_usec {usec}\nuser_usec 1\nsystem_usec 2\nnr_periods 0",
        memory__current=memory,
        memory__stat=f"anon 100\nfile 200\nactive_file 5\ninactive_file {inactive}\nslab 7",
    )


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    return write(tmp_path / "v2", cgroup__controllers="cpu memory")


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    root = tmp_path / "v1"
    for controllers in ("cpu,cpuacct", "memory", "pids"):
        (root / controllers).mkdir(parents=True)
    return root


def v1_group(root: Path, path: str, quota: int = -1, limit: int = 9223372036854771712) -> None:
    write(
        root / "cpu,cpuacct" / path,
        cpuacct__usage=2_500_000_000,
        cpu__cfs_quota_us=quota,
        cpu__cfs_period_us=100_000,
    )
    write(
        root / "memory" / path,
        memory__usage_in_bytes=GIB,
        memory__limit_in_bytes=limit,
        memory__stat=f"cache 1\ninactive_file 3\ntotal_cache 1\ntotal_inactive_file {GIB // 4}\ntotal_x 2",
    )


def test_v2_usage_is_the_working_set_and_cpu_seconds(v2: Path) -> None:
    v2_group(v2 / "pod" / "app")
    usage = CgroupTree(v2, MACHINE).open("/pod/app").read(0)
    assert usage == (2.5, 8, GIB - GIB // 4, 16 * GIB)


def test_v1_usage_is_the_working_set_and_cpu_seconds(v1: Path) -> None:
    v1_group(v1, "pod/app")
    usage = CgroupTree(v1, MACHINE).open("pod/app").read(0)
    assert usage == (2.5, 8, GIB - GIB // 4, 16 * GIB)


def test_v2_the_tightest_limit_on_the_path_binds(v2: Path) -> None:
    v2_group(v2 / "pod" / "app")
    write(v2 / "pod" / "app", cpu__max="300000 100000", memory__max="max")
    write(v2 / "pod", cpu__max="max 100000", memory__max=4 * GIB)
    cgroup = CgroupTree(v2, MACHINE).open("pod/app")
    assert cgroup.limits(0) == (3.0, 4 * GIB)
    write(v2 / "pod", cpu__max="50000 100000", memory__max=6 * GIB)
    write(v2 / "pod" / "app", memory__max=2 * GIB)
    assert CgroupTree(v2, MACHINE).open("pod/app").limits(0) == (0.5, 2 * GIB)


def test_v2_a_limit_at_the_root_of_a_namespace_binds(v2: Path) -> None:
    v2_group(v2 / "app")
    write(v2, memory__max=3 * GIB)
    assert CgroupTree(v2, MACHINE).open("app").limits(0) == (8, 3 * GIB)


def test_v1_the_tightest_limit_on_the_path_binds(v1: Path) -> None:
    v1_group(v1, "pod", quota=150_000, limit=4 * GIB)
    v1_group(v1, "pod/app", quota=-1, limit=5 * GIB)
    assert CgroupTree(v1, MACHINE).open("pod/app").limits(0) == (1.5, 4 * GIB)


def test_a_limit_above_the_machine_is_none(v2: Path) -> None:
    v2_group(v2 / "app")
    write(v2 / "app", cpu__max="6400000 100000", memory__max=64 * GIB)
    cgroup = CgroupTree(v2, MACHINE).open("app")
    assert cgroup.limits(0) == MACHINE
    assert not cgroup.is_limited(0)


def test_limits_changed_in_place_are_seen_after_a_second(v2: Path) -> None:
    v2_group(v2 / "app")
    cgroup = CgroupTree(v2, MACHINE).open("app")
    assert cgroup.limits(0) == MACHINE
    write(v2 / "app", memory__max=2 * GIB)
    assert cgroup.limits(SECOND - 1) == MACHINE
    assert cgroup.limits(SECOND) == (8, 2 * GIB)
    assert cgroup.is_limited(SECOND)


def test_counters_are_read_in_place(v2: Path) -> None:
    folder = v2_group(v2 / "app")
    cgroup = CgroupTree(v2, MACHINE).open("app")
    cgroup.read(0)
    (folder / "cpu.stat").write_text("usage_usec 9000000\n")
    assert cgroup.read(0).cpu_seconds == 9.0


def test_page_cache_beyond_current_is_no_negative_memory(v2: Path) -> None:
    v2_group(v2 / "app", memory=10, inactive=20)
    assert CgroupTree(v2, MACHINE).open("app").read(0).memory == 0


def test_a_cgroup_that_is_not_there_and_a_root_that_is_none(v2: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cpu\.stat"):
        CgroupTree(v2, MACHINE).open("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"neither cgroup.controllers .* nor a folder for 'memory'"):
        CgroupTree(tmp_path / "empty", MACHINE)


def test_a_glob_takes_its_newest_match(v2: Path) -> None:
    for age, name in enumerate(("cri-b.scope", "cri-c.scope", "cri-a.scope", "other.scope")):
        folder = v2_group(v2 / "kubepods" / "pod1" / name)
        os.utime(folder, (100 + age, 100 + age))
    tree = CgroupTree(v2, MACHINE)
    found = tree.newest("/kubepods/pod*/cri-*.scope")
    assert found is not None
    assert found[0] == "kubepods/pod1/cri-a.scope"
    assert tree.newest("kubepods/pod*/none-*") is None
    assert tree.newest("kubepods/pod1/cri-b.scope") is not None  # a plain path is its own only match


def test_v1_a_glob_is_matched_below_the_memory_controller(v1: Path) -> None:
    v1_group(v1, "kubepods/one")
    tree = CgroupTree(v1, MACHINE)
    found = tree.newest("kubepods/*")
    assert found is not None
    assert tree.open(found[0]).read(0).cpu_seconds == 2.5


def test_field_takes_whole_names_only() -> None:
    assert field(b"inactive_file 7\n", b"inactive_file") == 7
    assert field(b"total_inactive_file 9\ninactive_file 7\n", b"inactive_file") == 7
    with pytest.raises(ValueError, match="no 'file' line"):
        field(b"inactive_file 7\n", b"file")
