"""Memory, cores and threads that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.resources import (
    compute_threads,
    free_bytes,
    memory_bytes,
    usable_cores,
)

V2 = ("memory.max", "memory.current", "inactive_file {}\nactive_file {}\nanon 12\n")
V1 = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file {}\ntotal_active_file {}\nrss 12\n",
)
ALL_CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/a/b\n")
    return path


def write_memory(
    directory: Path,
    names: tuple[str, str, str],
    limit: str,
    usage: str,
    files: tuple[int, int] = (0, 0),
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names[0]).write_text(limit + "\n")
    (directory / names[1]).write_text(usage + "\n")
    (directory / "memory.stat").write_text(names[2].format(*files))


def write_quota(directory: Path, quota: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpu.max").write_text(quota)


@pytest.mark.parametrize("names", [V2, V1])
@pytest.mark.parametrize("where", ["a/b", "a", ""])
def test_free_bytes_limit_of_a_cgroup_holds_for_all_below(
    tmp_path: Path, membership: Path, names: tuple[str, str, str], where: str
) -> None:
    root = tmp_path / "memory" if names is V1 else tmp_path
    write_memory(root / "a", names, "100000", "400")
    write_memory(root / where, names, "1000", "400")
    assert free_bytes(tmp_path, membership) == 600
    write_memory(root / where, names, "1000", "1400")
    assert free_bytes(tmp_path, membership) == 0
    write_memory(root / where, names, "1000", "990", (300, 400))  # pages of files count as free
    assert free_bytes(tmp_path, membership) == 710


def test_without_a_limit_the_memory_is_the_machines(tmp_path: Path, membership: Path) -> None:
    total = memory_bytes(tmp_path, membership)
    assert 1 << 20 < free_bytes(tmp_path / "none", tmp_path / "neither") < total
    for names in (V2, V1):
        directory = tmp_path / "memory" / "a" if names is V1 else tmp_path / "a"
        write_memory(directory / "b", names, "max", "400")
        assert memory_bytes(tmp_path, membership) == total
        assert 1 << 20 < free_bytes(tmp_path, membership) < total
        write_memory(directory, names, "100000", "400")
        assert memory_bytes(tmp_path, membership) == 100_000
        write_memory(directory, names, "max", "400")


@pytest.mark.parametrize("quota", ["max 100000", "max", "", "0 0", "nonsense 1"])
def test_usable_cores_without_a_quota_are_all(tmp_path: Path, membership: Path, quota: str) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "neither") == ALL_CORES
    write_quota(tmp_path / "a/b", quota)
    assert usable_cores(tmp_path, membership) == ALL_CORES


@pytest.mark.parametrize(
    ("where", "quota", "cores"), [("a/b", 50, 1), ("a", 100, 1), ("", 110, 2), ("a/c", 50, 99)]
)
def test_usable_cores_quota_of_a_cgroup_holds_for_all_below(
    tmp_path: Path, membership: Path, where: str, quota: int, cores: int
) -> None:
    write_quota(tmp_path / "a/b", "max 100000")
    write_quota(tmp_path / where, f"{quota * 1000} 100000")
    assert usable_cores(tmp_path, membership) == min(cores, ALL_CORES)


def test_usable_cores_quota_of_cgroups_v1_holds(tmp_path: Path, membership: Path) -> None:
    directory = tmp_path / "cpu" / "a"
    directory.mkdir(parents=True)
    (directory / "cpu.cfs_period_us").write_text("100000")
    for quota, cores in (("-1", ALL_CORES), ("100000", 1)):
        (directory / "cpu.cfs_quota_us").write_text(quota)
        assert usable_cores(tmp_path, membership) == cores


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "expected"),
    [(1, 0, 8, 8), (4, 0, 8, 2), (3, 0, 8, 2), (16, 0, 8, 1), (2, 5, 8, 5)],
)
def test_compute_threads_are_a_share_of_the_cores_unless_set(
    workers: int, threads: int, cores: int, expected: int
) -> None:
    assert compute_threads(workers, threads, {}, cores) == expected
