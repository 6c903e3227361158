"""A version is staged step by step, appears whole or not at all, and goes when it is old."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import (
    DestinationExists,
    DigestMismatch,
    FormatError,
    NotCommitted,
    VersionBusy,
)
from bundle.format import paths
from bundle.format.manifest import Manifest
from bundle.storage import journal, retention
from bundle.storage.catalog import committed_versions, next_version, read_manifest
from bundle.storage.integrity import check_files
from bundle.storage.staging import Staging
from bundle.tables.segment_writer import SegmentWriter

KEY = "key"
ROOT = Path(__file__).parents[4]


def finished(root: Path, *steps: str, key: str = KEY) -> list[bool]:
    """Says which steps of version 1 a further run finds finished."""
    with Staging(root, "movies", 1) as resumed:
        return [resumed.finished(step, key) is not None for step in steps]


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("movies/*") if path.name[0] != ".")


def copied(stage: Staging, bundle: Path) -> Manifest:
    """Fills a staging directory with the files of a bundle; returns the manifest of the staged
    version.
    """
    shutil.copytree(bundle, stage.directory, dirs_exist_ok=True)
    (stage.directory / paths.MANIFEST).unlink()
    version = int(stage.directory.name.removeprefix(".staging-"))
    return read_manifest(bundle).model_copy(update={"version": version})


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ran(code: str, *arguments: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_a_commit_publishes_the_files_of_the_manifest_and_nothing_else(
    committed_bundle: Path, tmp_path: Path
) -> None:
    stage = Staging(tmp_path, "movies", 2)
    manifest = copied(stage, committed_bundle)
    stray = stage.directory / "tables" / "old" / "rows-00000-of-00009.bin"
    stray.parent.mkdir()
    stray.write_bytes(b"half")
    with pytest.raises(FormatError, match="version 1"):
        stage.commit(manifest.model_copy(update={"version": 1}))
    file = stage.directory / manifest.files[0].path
    file.rename(tmp_path / "kept")
    with pytest.raises(DigestMismatch, match=manifest.files[0].path):
        stage.commit(manifest)
    assert visible(tmp_path) == []
    (tmp_path / "kept").rename(file)

    (tmp_path / "movies" / "2").mkdir()  # another run was faster
    with pytest.raises(DestinationExists):
        stage.commit(manifest)
    assert os.listdir(tmp_path / "movies" / "2") == []
    (tmp_path / "movies" / "2").rmdir()
    assert stage.commit(manifest) == tmp_path / "movies" / "2"
    assert os.listdir(tmp_path / "movies") == ["2"]
    assert read_manifest(tmp_path / "movies" / "2") == manifest
    check_files(tmp_path / "movies" / "2", manifest, "full")
    assert not (tmp_path / "movies" / "2" / "tables" / "old").exists()
    with pytest.raises(DestinationExists, match="never overwritten"):
        Staging(tmp_path, "movies", 2)


def test_a_run_takes_over_the_steps_that_a_killed_run_has_finished(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from bundle.storage.staging import Staging\n"
        "stage = Staging(pathlib.Path(sys.argv[1]), 'movies', 1)\n"
        "(stage.directory / 'whole').write_bytes(b'whole')\n"
        "stage.finish('whole', 'key', {'rows': 5})\n"
        "(stage.directory / 'half').write_bytes(b'ha')\n"
        "print('staged', flush=True)\n"
        "input()\n"
    )
    with ran(code, tmp_path) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"staged\n"
        with pytest.raises(VersionBusy, match="version 1"):
            Staging(tmp_path, "movies", 1)
        Staging(tmp_path, "movies", 2).close()
        run.kill()
    with Staging(tmp_path, "movies", 1) as stage:
        whole = stage.finished("whole", KEY)
        assert whole is not None
        assert whole.payload == {"rows": 5}
        assert [(file.path, file.bytes) for file in whole.files] == [("whole", 5)]
        assert stage.finished("half", KEY) is None


def test_a_step_is_finished_while_its_key_and_its_files_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Staging(tmp_path, "movies", 1) as stage:
        (stage.directory / "towers" / "q").mkdir(parents=True)
        for name in ("towers/a", "towers/q/b", "kept"):
            (stage.directory / name).write_bytes(b"whole")
            stage.finish(name.partition("/")[0], KEY)
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(OSError, match="No space"):
                stage.finish("during", KEY)
        stage.finish("wrong", KEY)
        for step in ("wrong", "never done"):
            stage.forget(step)
        assert [file.path for file in stage.digests("towers")] == ["towers/a", "towers/q/b"]
        assert stage.digests("none") == stage.digests("../..") == ()
    steps = ("towers", "kept", "during", "wrong")
    assert finished(tmp_path, *steps) == [True, True, False, False]
    assert finished(tmp_path, *steps, key="inputs of now") == [False] * 4
    for damage in (b"", b"whola", b"whole and more", None):
        file = tmp_path / "movies" / ".staging-1" / "towers" / "q" / "b"
        file.unlink()
        if damage is not None:
            file.write_bytes(damage)
        assert finished(tmp_path, "towers", "kept") == [False, True]
        file.write_bytes(b"whole")


@pytest.mark.parametrize("torn", [1, 5, 9, 30])
def test_a_journal_loses_the_line_that_was_torn_and_no_other(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "journal"
    assert journal.read(path) == {}
    for step, payload in (("a", 0), ("a", 1), ("b", "payload")):
        journal.append(path, step, KEY, payload, [])
    assert payloads(path) == {"a": 1, "b": "payload"}
    path.write_bytes(path.read_bytes()[:-torn])
    assert payloads(path) == {"a": 1}
    journal.append(path, "c", KEY, 3, [])
    assert payloads(path) == {"a": 1, "c": 3}


def payloads(path: Path) -> dict[str, Any]:
    return {step: entry.payload for step, entry in journal.read(path).items()}


def test_files_of_other_versions_stay_and_those_of_late_writers_are_not_published(
    committed_bundle: Path, tmp_path: Path
) -> None:
    published = tmp_path / "published"
    published.write_bytes(b"of another version")
    with Staging(tmp_path, "movies", 1) as stage:
        for name in ("listed", "towers/unlisted"):
            (stage.directory / name).parent.mkdir(exist_ok=True)
            (stage.directory / name).hardlink_to(published)
        stage.finish("listed", KEY)
        first, late = (SegmentWriter(stage.directory / "segment", stage.attempts) for _ in range(2))
        late.write(b"half")
        first.write(b"the same")
        first.close()
    with Staging(tmp_path, "movies", 1) as resumed:
        names = {path.name for path in resumed.directory.rglob("*") if path.is_file()}
        assert names == {"listed", "segment"}
        with SegmentWriter(resumed.directory / "segment", resumed.attempts) as writer:
            writer.write(b"whole")
        late.write(b" and more")
        with pytest.raises(FileNotFoundError):
            late.close()
        with pytest.raises(FileNotFoundError):
            SegmentWriter(resumed.directory / "segment", stage.attempts)  # a task that starts late
        assert (resumed.directory / "segment").read_bytes() == b"whole"
        resumed.commit(copied(resumed, committed_bundle))
    assert os.listdir(tmp_path / "movies") == ["1"]
    assert published.read_bytes() == b"of another version"


def test_versions_are_directories_and_committed_ones_have_a_manifest(sample_bundle: Path) -> None:
    root = sample_bundle.parents[1]
    for name in ("12", "007", "-3", "x", "0"):
        (sample_bundle.parent / name).mkdir()
    for version in ("10", "2"):
        shutil.copytree(sample_bundle, sample_bundle.with_name(version))
    assert (next_version(root, "movies"), committed_versions(root, "movies")) == (13, [1, 2, 10])
    assert (next_version(root, "new"), committed_versions(root, "new")) == (1, [])


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    """Five versions, as far as a sweep looks at them, and something that is none."""
    for version in range(1, 6):
        (tmp_path / "movies" / str(version) / "tables").mkdir(parents=True)
        (tmp_path / "movies" / str(version) / "manifest.json").write_text("{}")
    (tmp_path / "movies" / "7").mkdir()
    return tmp_path


def test_a_sweep_keeps_the_newest_the_spared_and_those_in_use(versions: Path) -> None:
    with pytest.raises(NotCommitted, match="removed"):
        retention.hold(versions / "movies" / "9")
    descriptor = retention.hold(versions / "movies" / "2")
    code = (
        "import sys, pathlib; from bundle.storage import retention; "
        "retention.hold(pathlib.Path(sys.argv[1])); print(1, flush=True); input()"
    )
    with ran(code, versions / "movies" / "3") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        assert retention.sweep_old(versions, "movies", 1, spare=1) == ([4], [2, 3])
        holder.kill()
    assert retention.sweep_old(versions, "movies", 1, spare=1) == ([3], [2])
    assert descriptor is not None
    os.close(descriptor)
    assert retention.sweep_old(versions, "movies", 1, spare=1) == ([2], [])
    assert visible(versions) == ["1", "5", "7"]


def test_a_sweep_removes_links_alone_and_what_a_killed_one_has_left(versions: Path) -> None:
    checkout = versions / "checkout"
    (versions / "movies" / "2").rename(checkout)
    (versions / "movies" / "2").symlink_to(checkout)
    (versions / "movies" / "3").rename(versions / "movies" / ".swept-3")
    (versions / "movies" / ".swept-9").symlink_to(checkout)
    assert committed_versions(versions, "movies") == [1, 2, 4, 5]
    assert retention.sweep_old(versions, "movies", 1, spare=5) == ([1, 2, 4], [])
    assert sorted(os.listdir(versions / "movies")) == ["5", "7"]
    assert (checkout / "manifest.json").is_file()


def test_staging_directories_that_no_run_writes_are_removed(tmp_path: Path) -> None:
    Staging(tmp_path, "movies", 3).close()
    Staging(tmp_path, "songs", 1).close()
    os.utime(tmp_path / "songs/.staging-1", (0, 0))
    with Staging(tmp_path, "movies", 4) as busy:
        (tmp_path / "movies/1").mkdir()
        assert retention.clean(tmp_path, older_than_s=3600) == ([tmp_path / "songs/.staging-1"], [])
        assert retention.clean(tmp_path) == ([tmp_path / "movies/.staging-3"], [busy.directory])
    assert retention.clean(tmp_path) == ([busy.directory], [])
    Staging(tmp_path, "movies", 1, adding=True).close()
    assert retention.clean(tmp_path) == ([tmp_path / "movies/.staging-1"], [])
    assert os.listdir(tmp_path / "movies") == ["1"]
