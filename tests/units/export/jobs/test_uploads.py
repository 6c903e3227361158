"""Files of a version on their way to a store: what is sent, noted, removed here and found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.checksums import crc32c
from bundle.format.manifest import File
from bundle.format.objects import POOL, pool_path
from bundle.storage.staging import Staging
from bundle.tables.reader import TableReader
from export.jobs.store_versions import StoreVersion
from export.jobs.streamed_rows import StreamedTable
from export.jobs.uploads import FinishedStep, Uploads, without_objects
from export.tables.plan import UPLOADS
from object_store.locations import location_of
from object_store.remote_path import RemotePath
from tests.bundles.tables import write_table

VALUES = np.arange(40, dtype=np.float32).reshape(20, 2)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Staging]:
    with Staging(tmp_path, "m", 1) as stage:
        yield stage


@pytest.fixture
def version(tmp_path: Path) -> StoreVersion:
    directory = location_of(f"local://{tmp_path}/store/m/1")
    assert isinstance(directory, RemotePath)
    return StoreVersion(directory)


def finished(stage: Staging, name: str, keep: bool) -> FinishedStep:
    """Returns a step that wrote two files."""
    files = []
    for number in range(2):
        content = f"{name} {number}".encode()
        (stage.directory / f"{name}-{number}").write_bytes(content)
        files.append(File(path=f"{name}-{number}", bytes=len(content), crc32c=crc32c(content)))
    return FinishedStep(name, f"key of {name}", {"told": name}, tuple(files), keep)


def objects_of(version: StoreVersion) -> list[str]:
    """Returns the objects in the pool of a version's model."""
    pool = version.directory.parent / POOL
    return [name for directory in pool.iterdir() for name in directory.listing()]


def here(stage: Staging) -> list[str]:
    """Returns the files of steps that lie on the local disk."""
    return sorted(file.name for file in stage.directory.glob("*-[01]"))


def test_sent_files_are_noted_and_removed_unless_they_are_kept(
    stage: Staging, version: StoreVersion
) -> None:
    steps = [finished(stage, "a", keep=False), finished(stage, "b", keep=True)]
    assert steps[0].bytes == 6
    with Uploads(version, stage) as uploads:
        for step in steps:
            uploads.send(step)
        uploads.finish()
    assert here(stage) == ["b-0", "b-1"]
    assert len(objects_of(version)) == 4
    payloads: dict[str, Any] = {}
    for step in steps:
        entry = stage.finished(step.name, step.key)
        assert entry is not None
        assert without_objects(entry.payload) == step.payload
        assert set(entry.payload["objects"]) == {file.path for file in step.files}
        assert [file.path for file in entry.files] == (
            [file.path for file in step.files] if step.keep else []
        )
        payloads[step.name] = entry.payload

    # Another run takes over what is in the store still.
    payloads["c"] = {"told": "c"}  # of which nothing was sent
    with Uploads(version, stage) as second:
        assert second.resume(payloads) == {"a", "b"}
        (lost,) = payloads["a"]["objects"]["a-1"]["objects"]
        (version.directory.parent / pool_path(lost)).remove()
        assert second.resume(payloads) == {"b"}
        assert second.resume({}) == set()


def test_some_steps_are_sent_at_a_time(stage: Staging, version: StoreVersion) -> None:
    with Uploads(version, stage) as uploads:
        for number in range(3 * UPLOADS):
            uploads.send(finished(stage, f"s{number}", keep=False))
            assert len(here(stage)) <= 2 * UPLOADS
        uploads.finish()
    assert here(stage) == []
    assert len(objects_of(version)) == 6 * UPLOADS


def test_table_is_read_from_the_store_once_a_segment_of_it_is_gone_here(
    stage: Staging, version: StoreVersion
) -> None:
    table = write_table(stage.directory, "t", VALUES, "float32", [12])
    with Uploads(version, stage) as uploads:
        local = uploads.open_table(table)
        assert type(local) is TableReader
        np.testing.assert_array_equal(local.gather(np.arange(20)), VALUES)
        local.close()
        for number, segment in enumerate(table.segments):
            file = File(path=segment.file, bytes=segment.rows * 8, crc32c=segment.crc32c)
            keep = number == 0
            uploads.send(FinishedStep(segment.file, "key", {}, (file,), keep))
        uploads.finish()
        remote = uploads.open_table(table)
        assert isinstance(remote, StreamedTable)
        np.testing.assert_array_equal(
            remote.gather(np.array([19, 0, 11, 12])), VALUES[[19, 0, 11, 12]]
        )
