"""Cores that a process may use, by affinity and cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cores import usable_cores

EVERYTHING = len(os.sched_getaffinity(0))


def cgroups(root: Path, **quotas: str) -> Path:
    """A file system of cgroups, with `cpu.max` by path: `_` stands for `/`."""
    for path, quota in quotas.items():
        directory = root / path.strip("_").replace("_", "/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpu.max").write_text(quota)
    return root


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("0::/a/b\n")
    return path


def test_no_cgroup_leaves_every_core(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "neither") == EVERYTHING


@pytest.mark.parametrize("quota", ["max 100000", "max", "", "0 0", "nonsense 1"])
def test_cgroup_without_a_quota_leaves_every_core(tmp_path: Path, own: Path, quota: str) -> None:
    assert usable_cores(cgroups(tmp_path, a_b=quota), own) == EVERYTHING


@pytest.mark.parametrize("where", ["a_b", "a", "_"])
def test_quota_of_a_cgroup_holds_for_all_below(tmp_path: Path, own: Path, where: str) -> None:
    root = cgroups(tmp_path, a_b="max 100000", a="max 100000", _="max 100000")
    assert usable_cores(cgroups(root, **{where: "50000 100000"}), own) == 1


def test_quota_of_another_cgroup_is_not_ours(tmp_path: Path, own: Path) -> None:
    assert usable_cores(cgroups(tmp_path, a_c="50000 100000"), own) == EVERYTHING


def test_part_of_a_core_counts_as_one(tmp_path: Path, own: Path) -> None:
    assert usable_cores(cgroups(tmp_path, a_b="110000 100000"), own) == min(2, EVERYTHING)


def test_container_that_sees_its_own_cgroup_as_the_root_is_cut_too(tmp_path: Path, own: Path) -> None:
    own.write_text("0::/../../elsewhere\n")
    assert usable_cores(cgroups(tmp_path, _="100000 100000"), own) == 1


def test_quota_of_cgroups_v1_is_kept_to(tmp_path: Path) -> None:
    directory = tmp_path / "cpu"
    directory.mkdir()
    (directory / "unit").mkdir()
    own = tmp_path / "own"
    own.write_text("4:memory:/elsewhere\n3:cpu,cpuacct:/unit\n")
    for place in (directory, directory / "unit"):
        (place / "cpu.cfs_period_us").write_text("100000")
        for quota, cores in (("-1", EVERYTHING), ("100000", 1), ("-1", EVERYTHING)):
            (place / "cpu.cfs_quota_us").write_text(quota)
            assert usable_cores(tmp_path, own) == cores
