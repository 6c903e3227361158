"""Reads of files in a store: the bytes asked for, no more than they must be, several at a time where they go on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.datafiles import DataFiles
from export.checkpoint.readahead import READ_AHEAD_BYTES
from export.errors import CheckpointError
from runtime.object_store import RemotePath
from tests.stores import CountedStore

BYTES = 9 << 20


@pytest.fixture
def file(tmp_path: Path) -> RemotePath:
    """A file in a store of its own, of BYTES random bytes."""
    file = RemotePath(f"counted://{tmp_path.name}/data")
    file.write(content())
    return file


@cache
def content() -> bytes:
    return np.random.default_rng(8).bytes(BYTES)


def moved(file: RemotePath) -> tuple[int, int]:
    name = file.parent.name
    return CountedStore.asked[name], CountedStore.moved[name]


def read(files: DataFiles, file: RemotePath, offset: int, count: int) -> bytes:
    buffer = np.empty(count, np.uint8)
    files.read_into(file.url, offset, buffer)
    return buffer.tobytes()


def test_data_files_stream_in_a_store_is_read_in_large_requests(file: RemotePath) -> None:
    step = 100_000
    with DataFiles({file.url: file.stamp()}) as files:
        got = b"".join(read(files, file, at, min(step, BYTES - at)) for at in range(0, BYTES, step))
    assert got == content()
    requests, count = moved(file)
    assert count == BYTES
    assert requests < 20


def test_data_files_single_rows_in_a_store_cost_what_they_hold(file: RemotePath) -> None:
    places = [5_000_000, 17, 8_000_000, 3_000_000]
    with DataFiles({file.url: file.stamp()}) as files:
        assert [read(files, file, at, 128) for at in places] == [content()[at : at + 128] for at in places]
    assert moved(file) == (4, 4 * 128)


def test_data_files_stream_in_a_store_fetches_nothing_behind_its_end(file: RemotePath) -> None:
    end = 3_000_000
    with DataFiles({file.url: file.stamp()}) as files:
        for at in range(0, end, 100_000):
            buffer = np.empty(100_000, np.uint8)
            files.read_into(file.url, at, buffer, end)
    assert moved(file)[1] == end


def test_data_files_interleaved_streams_in_a_store_are_each_gone_on_with(file: RemotePath) -> None:
    lanes, step = 64, 1000
    size = BYTES // lanes
    with DataFiles({file.url: file.stamp()}) as files:
        for at in range(0, size - step, step):
            for lane in range(lanes):
                first = lane * size + at
                assert read(files, file, first, step) == content()[first : first + step]
    assert moved(file)[1] < 2 * BYTES + READ_AHEAD_BYTES


def test_data_files_file_in_a_store_that_changed_is_told(file: RemotePath) -> None:
    stamp = file.stamp()
    file.write(content()[::-1])
    with DataFiles({file.url: stamp}) as files, pytest.raises(CheckpointError, match="changed while it was read"):
        read(files, file, 0, 10)


@pytest.mark.parametrize(("name", "offset", "what"), [("none", 0, "is gone"), ("data", BYTES - 3, "ends before byte")])
def test_data_files_file_in_a_store_that_is_gone_or_short_is_told(
    file: RemotePath, name: str, offset: int, what: str
) -> None:
    with DataFiles() as files, pytest.raises(CheckpointError, match=what):
        read(files, file.with_name(name), offset, 10)
