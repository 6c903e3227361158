"""Versions that are in use stay; old ones go whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.errors import NotCommitted
from bundle.storage import catalog, retention, staging


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five versions of model `m`, as far as a sweep looks at them, and something that is none."""
    for version in range(1, 6):
        (tmp_path / "m" / str(version) / "tables").mkdir(parents=True)
        (tmp_path / "m" / str(version) / "manifest.json").write_text("{}")
    (tmp_path / "m" / "0").mkdir()
    (tmp_path / "m" / "7").mkdir()
    return tmp_path


def test_sweep_old_keeps_the_newest_and_the_spared(root: Path) -> None:
    assert retention.sweep_old(root, "m", 2, spare=1) == ([2, 3], [])
    assert sorted(os.listdir(root / "m")) == ["0", "1", "4", "5", "7"]


def test_sweep_old_keeps_a_held_version_until_it_is_released(root: Path) -> None:
    descriptor = retention.hold(root / "m" / "2")
    assert retention.sweep_old(root, "m", 1, spare=5) == ([1, 3, 4], [2])
    assert descriptor is not None
    os.close(descriptor)
    assert retention.sweep_old(root, "m", 1, spare=5) == ([2], [])


def test_sweep_old_removes_a_version_whose_holder_was_killed(root: Path) -> None:
    code = (
        "import sys, pathlib; from bundle.storage import retention; "
        "retention.hold(pathlib.Path(sys.argv[1])); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, root / "m" / "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert retention.sweep_old(root, "m", 1, spare=5) == ([1, 3, 4], [2])
        holder.send_signal(signal.SIGKILL)
    assert retention.sweep_old(root, "m", 1, spare=5) == ([2], [])


def test_sweep_old_finishes_what_a_killed_sweep_began(root: Path) -> None:
    (root / "m" / "2").rename(root / "m" / ".swept-2")
    assert catalog.committed_versions(root, "m") == [1, 3, 4, 5]
    retention.sweep_old(root, "m", 9, spare=5)
    assert sorted(os.listdir(root / "m")) == ["0", "1", "3", "4", "5", "7"]


def test_sweep_old_removes_the_link_to_a_version_and_not_what_it_leads_to(
    root: Path, tmp_path: Path
) -> None:
    checkout = tmp_path / "checkout"
    (root / "m" / "2").rename(checkout)
    (root / "m" / "2").symlink_to(checkout)
    assert retention.sweep_old(root, "m", 1, spare=5) == ([1, 2, 3, 4], [])
    (root / "m" / ".swept-9").symlink_to(checkout)  # of a sweep that was killed
    assert retention.sweep_old(root, "m", 1, spare=5) == ([], [])
    assert sorted(os.listdir(root / "m")) == ["0", "5", "7"]
    assert (checkout / "manifest.json").is_file()


def test_hold_of_a_removed_version_is_rejected(root: Path) -> None:
    with pytest.raises(NotCommitted, match="removed"):
        retention.hold(root / "m" / "9")


def test_clean_removes_what_no_run_writes_and_keeps_the_rest(tmp_path: Path) -> None:
    staging.Staging(tmp_path, "movies", 3).close()
    staging.Staging(tmp_path, "songs", 1).close()
    os.utime(tmp_path / "songs/.staging-1", (0, 0))
    with staging.Staging(tmp_path, "movies", 4) as busy:
        (tmp_path / "movies/1").mkdir()
        assert retention.clean(tmp_path, older_than_s=3600) == ([tmp_path / "songs/.staging-1"], [])
        assert retention.clean(tmp_path) == ([tmp_path / "movies/.staging-3"], [busy.directory])
    assert os.listdir(tmp_path / "songs") == []
    assert retention.clean(tmp_path) == ([busy.directory], [])
    staging.Staging(tmp_path, "movies", 1, adding=True).close()
    assert retention.clean(tmp_path) == ([tmp_path / "movies/.staging-1"], [])
    assert os.listdir(tmp_path / "movies") == ["1"]
