from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import DestinationExists, DigestMismatch, FormatError, VersionBusy
from bundle.format import paths
from bundle.format.manifest import Manifest
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from bundle.storage.staging import Staging
from bundle.tables.reader import SegmentWriter

KEY = "key"


def finished(root: Path, *steps: str, key: str = KEY) -> list[bool]:
    """Says which steps of version 1 a further run finds finished."""
    with Staging(root, "movies", 1) as resumed:
        return [resumed.finished(step, key) is not None for step in steps]


def visible(root: Path) -> list[str]:
    model = root / "movies"
    return (
        sorted(name for name in os.listdir(model) if not name.startswith("."))
        if model.is_dir()
        else []
    )


def copied(stage: Staging, bundle: Path) -> Manifest:
    """Fills a staging directory with a committed bundle's files; returns a manifest of the staged
    version.
    """
    manifest = read_manifest(bundle)
    for path in [file.path for file in manifest.files] + [
        s.file for t in manifest.tables.values() for s, _ in t.extents()
    ]:
        target = stage.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((bundle / path).read_bytes())
    return manifest.model_copy(
        update={"version": int(stage.directory.name.removeprefix(".staging-"))}
    )


def test_staged_files_that_are_in_other_versions_too_are_removed_unless_the_journal_lists_them(
    tmp_path: Path,
) -> None:
    published = tmp_path / "published"
    published.write_bytes(b"of another version")
    with Staging(tmp_path, "movies", 1) as stage:
        for name in ("listed", "towers/unlisted", "own"):
            (stage.directory / name).parent.mkdir(exist_ok=True)
        for name in ("listed", "towers/unlisted"):
            (stage.directory / name).hardlink_to(published)
        (stage.directory / "own").write_bytes(b"of a run")
        stage.finish("listed", KEY)
    with Staging(tmp_path, "movies", 1) as resumed:
        staged = [path.name for path in resumed.directory.rglob("*") if path.is_file()]
        assert sorted(staged) == ["listed", "own"]
        assert resumed.finished("listed", KEY) is not None
    assert published.read_bytes() == b"of another version"


def test_commit_leaves_the_bundle_and_nothing_else(committed_bundle: Path, tmp_path: Path) -> None:
    stage = Staging(tmp_path, "movies", 2)
    manifest = copied(stage, committed_bundle)
    stray = stage.directory / "tables" / "old" / "rows-00000-of-00009.bin"
    stray.parent.mkdir()
    stray.write_bytes(b"half")
    assert visible(tmp_path) == []
    assert stage.commit(manifest) == tmp_path / "movies" / "2"
    assert sorted(os.listdir(tmp_path / "movies")) == ["2"]
    assert read_manifest(tmp_path / "movies" / "2") == manifest
    check_files(tmp_path / "movies" / "2", manifest, "full")
    assert not (tmp_path / "movies" / "2" / "tables" / "old").exists()


def test_commit_without_a_file_of_the_manifest_or_of_another_version_publishes_nothing(
    committed_bundle: Path, tmp_path: Path
) -> None:
    stage = Staging(tmp_path, "movies", 2)
    manifest = copied(stage, committed_bundle)
    with pytest.raises(FormatError, match="version 1"):
        stage.commit(manifest.model_copy(update={"version": 1}))
    (stage.directory / manifest.files[0].path).unlink()
    with pytest.raises(DigestMismatch, match=manifest.files[0].path):
        stage.commit(manifest)
    assert visible(tmp_path) == []


def test_staging_of_a_committed_version_is_rejected(sample_bundle: Path) -> None:
    with pytest.raises(DestinationExists, match="never overwritten"):
        Staging(sample_bundle.parents[1], "movies", 1)
    assert sorted(os.listdir(sample_bundle.parent)) == ["1"]


def test_commit_of_a_version_that_appeared_meanwhile_keeps_the_other(
    committed_bundle: Path, tmp_path: Path
) -> None:
    stage = Staging(tmp_path, "movies", 2)
    manifest = copied(stage, committed_bundle)
    (tmp_path / "movies" / "2").mkdir()
    with pytest.raises(DestinationExists):
        stage.commit(manifest)
    assert os.listdir(tmp_path / "movies" / "2") == []


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("broken", ["write_bytes", "rename"])
def test_commit_on_a_full_disk_leaves_nothing_visible_and_can_be_resumed(
    committed_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    with Staging(tmp_path, "movies", 2) as stage:
        manifest = copied(stage, committed_bundle)
        with monkeypatch.context() as patch:
            patch.setattr(Path, broken, full)
            with pytest.raises(OSError, match="No space"):
                stage.commit(manifest)
        assert visible(tmp_path) == []
        assert not (stage.directory / paths.MANIFEST).exists()
    with Staging(tmp_path, "movies", 2) as resumed:
        resumed.commit(manifest)
    assert visible(tmp_path) == ["2"]


def test_step_that_failed_or_was_forgotten_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        stage.finish("before", KEY)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(OSError, match="No space"):
                stage.finish("during", KEY)
        stage.finish("after", KEY)
        stage.finish("wrong", KEY)
        for step in ("wrong", "never done"):
            stage.forget(step)
        assert stage.finished("wrong", KEY) is None
    assert finished(tmp_path, "before", "during", "after", "wrong") == [True, False, True, False]


def test_staging_of_a_killed_run_is_unlocked_and_resumed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from bundle.storage.staging import Staging\n"
        "stage = Staging(pathlib.Path(sys.argv[1]), 'movies', 1)\n"
        "(stage.directory / 'whole').write_bytes(b'whole')\n"
        "stage.finish('whole', 'key', {'rows': 5})\n"
        "(stage.directory / 'half').write_bytes(b'ha')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[4], check=False
    )
    assert killed.returncode == -9
    with Staging(tmp_path, "movies", 1) as stage:
        whole = stage.finished("whole", KEY)
        assert whole is not None
        assert whole.payload == {"rows": 5}
        assert [(file.path, file.bytes) for file in whole.files] == [("whole", 5)]
        assert stage.finished("half", KEY) is None


@pytest.mark.parametrize("damage", [b"", b"whola", b"whole and more"])
def test_step_whose_file_was_damaged_is_not_finished(tmp_path: Path, damage: bytes) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        (stage.directory / "whole").write_bytes(b"whole")
        stage.finish("whole", KEY)
        assert stage.finished("whole", KEY) is not None
    (tmp_path / "movies" / ".staging-1" / "whole").write_bytes(damage)
    with Staging(tmp_path, "movies", 1) as resumed:
        assert resumed.finished("whole", KEY) is None
        resumed.finish("whole", KEY)
        assert resumed.finished("whole", KEY) is not None


def test_step_with_a_directory_covers_its_files(tmp_path: Path) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        (stage.directory / "towers" / "q").mkdir(parents=True)
        (stage.directory / "towers" / "q" / "b").write_bytes(b"b")
        (stage.directory / "towers" / "a").write_bytes(b"a")
        stage.finish("towers", KEY)
        assert [file.path for file in stage.digests("towers")] == ["towers/a", "towers/q/b"]
        assert stage.digests("none") == stage.digests("../..") == ()
    (tmp_path / "movies" / ".staging-1" / "towers" / "q" / "b").unlink()
    assert finished(tmp_path, "towers") == [False]


def test_step_with_another_key_is_not_finished(tmp_path: Path) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        (stage.directory / "old").write_bytes(b"old")
        stage.finish("old", "inputs of before")
        stage.finish("kept", KEY)
    with Staging(tmp_path, "movies", 1) as resumed:
        assert resumed.finished("old", "inputs of now") is None
        assert resumed.files("old") == ()
        assert resumed.finished("kept", KEY) is not None
        (resumed.directory / "old").write_bytes(b"new")
        resumed.finish("old", "inputs of now")
        assert [file.bytes for file in resumed.files("old")] == [3]
    assert finished(tmp_path, "old", key="inputs of before") == [False]
    assert finished(tmp_path, "old", key="inputs of now") == [True]


def test_worker_that_outlives_its_run_publishes_nothing(
    committed_bundle: Path, tmp_path: Path
) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        orphan = SegmentWriter(stage.directory / "segment", stage.attempts)
        orphan.write(b"half")
    with Staging(tmp_path, "movies", 1) as resumed:
        assert list(resumed.directory.iterdir()) == [resumed.attempts]
        with SegmentWriter(resumed.directory / "segment", resumed.attempts) as writer:
            writer.write(b"whole")
        orphan.write(b" and more")
        with pytest.raises(FileNotFoundError):
            orphan.close()
        with pytest.raises(FileNotFoundError):
            SegmentWriter(resumed.directory / "segment", stage.attempts)  # a task that starts late
        assert (resumed.directory / "segment").read_bytes() == b"whole"
        resumed.commit(copied(resumed, committed_bundle))
    assert os.listdir(tmp_path / "movies") == ["1"]


def test_segment_writers_of_one_file_never_mix(tmp_path: Path) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        first, second = (
            SegmentWriter(stage.directory / "segment", stage.attempts) for _ in range(2)
        )
        first.write(b"the same")
        second.write(b"the ")
        first.close()
        second.write(b"same")
        assert (stage.directory / "segment").read_bytes() == b"the same"
        second.close()
        assert (stage.directory / "segment").read_bytes() == b"the same"
        assert list(stage.attempts.iterdir()) == []


def test_staging_of_a_version_that_another_run_writes_is_rejected(tmp_path: Path) -> None:
    with Staging(tmp_path, "movies", 1):
        with pytest.raises(VersionBusy, match="version 1"):
            Staging(tmp_path, "movies", 1)
        Staging(tmp_path, "movies", 2).close()
    Staging(tmp_path, "movies", 1).close()
