from pathlib import Path

from orca_sidecar.demo.cgroup import CgroupFiles, make_root


def read(folder: Path) -> dict[str, dict[str, int]]:
    """`{file: {key: value}}` as any reader of cgroup files parses them."""
    files = {}
    for name in ("cpu.stat", "memory.stat"):
        lines = (folder / name).read_text().splitlines()
        files[name] = {key: int(value) for key, value in (line.split() for line in lines)}
    files["memory.current"] = {"": int((folder / "memory.current").read_text())}
    return files


def test_a_root_is_recognised_as_version_2(tmp_path):
    make_root(tmp_path / "cgroup")
    make_root(tmp_path / "cgroup")  # several stand-ins share one
    assert {"cpu", "memory"} <= set((tmp_path / "cgroup/cgroup.controllers").read_text().split())


def test_limits_and_a_fresh_counter(tmp_path):
    CgroupFiles(tmp_path / "run-1", cores=2.5, memory_limit=4096)
    assert (tmp_path / "run-1/cpu.max").read_text() == "250000 100000\n"
    assert (tmp_path / "run-1/memory.max").read_text() == "4096\n"
    assert read(tmp_path / "run-1")["cpu.stat"]["usage_usec"] == 0


def test_every_write_replaces_the_one_before_whole(tmp_path):
    files = CgroupFiles(tmp_path / "run-1", cores=1, memory_limit=1 << 40)
    sizes = set()
    for seconds, memory in ((0.0, 1), (12345.678901, 1 << 39), (1e-6, 77)):
        files.write(cpu_seconds=seconds, memory=memory, inactive_file=1)
        shown = read(tmp_path / "run-1")
        assert shown["cpu.stat"]["usage_usec"] == round(seconds * 1e6)
        assert shown["memory.current"] == {"": memory}
        assert shown["memory.stat"] == {"anon": memory - 1, "inactive_file": 1}
        sizes.add((tmp_path / "run-1/cpu.stat").stat().st_size)
    assert len(sizes) == 1


def test_a_removed_container_leaves_nothing(tmp_path):
    files = CgroupFiles(tmp_path / "run-1", cores=1, memory_limit=4096)
    files.remove()
    assert list(tmp_path.iterdir()) == []
