"""Memory that a process may still take, by cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from service.memory import free_bytes, resident_bytes

V2 = ("memory.max", "memory.current", "inactive_file {}\nactive_file {}\nanon 12\n")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file {}\ntotal_active_file {}\nrss 12\n")


def write(directory: Path, names: tuple[str, str, str], limit: str, used: str, files: tuple[int, int] = (0, 0)) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names[0]).write_text(limit + "\n")
    (directory / names[1]).write_text(used + "\n")
    (directory / "memory.stat").write_text(names[2].format(*files))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    path.write_text("4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/a/b\n")
    return path


@pytest.mark.parametrize("names", [V2, V1])
@pytest.mark.parametrize("where", ["a/b", "a", ""])
def test_limit_of_a_cgroup_holds_for_all_below(
    tmp_path: Path, own: Path, names: tuple[str, str, str], where: str
) -> None:
    root = tmp_path / "memory" if names is V1 else tmp_path
    write(root / "a", names, "100000", "400")
    write(root / where, names, "1000", "400")
    assert free_bytes(tmp_path, own) == 600
    write(root / where, names, "1000", "1400")
    assert free_bytes(tmp_path, own) == 0


@pytest.mark.parametrize("names", [V2, V1])
def test_pages_of_files_count_as_free(tmp_path: Path, own: Path, names: tuple[str, str, str]) -> None:
    root = tmp_path / "memory" if names is V1 else tmp_path
    write(root / "a/b", names, "1000", "990", (300, 400))
    assert free_bytes(tmp_path, own) == 710


def test_memory_without_a_limit_is_the_machines(tmp_path: Path, own: Path) -> None:
    (total,) = (
        int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line
    )
    assert 1 << 20 < free_bytes(tmp_path / "none", tmp_path / "neither") < total
    write(tmp_path / "a/b", V2, "max", "400")
    write(tmp_path / "a", V2, str(1 << 60), "400")
    assert 1 << 20 < free_bytes(tmp_path, own) < total


def test_resident_memory_grows_with_what_is_written() -> None:
    before = resident_bytes()
    written = np.ones(32 << 20, np.uint8)
    assert written.nbytes - (8 << 20) < resident_bytes() - before
    assert resident_bytes() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
