"""Exact reads of data files, on a disk and in a store."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from bundle.arithmetic import ceil_div
from export.checkpoint.datafiles import REQUEST_BYTES, REQUESTS, DataFiles
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from tests.e2e.process import until
from tests.object_store.memory_stores import CountedStore

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


def read(files: DataFiles, file: RemotePath | Path, offset: int, count: int) -> bytes:
    buffer = np.empty(count, np.uint8)
    files.read_into(str(file), offset, buffer)
    return buffer.tobytes()


def test_read_from_a_store_requests_each_byte_once_in_bounded_requests(file: RemotePath) -> None:
    places = [(5_000_000, 128), (17, 1), (0, BYTES)]
    with DataFiles({file.url: file.stamp()}) as files:
        for place in places:
            files.prefetch(file.url, *place)
        for at, count in places:
            assert read(files, file, at, count) == content()[at : at + count]
    requests = CountedStore.requests[file.parent.name]
    count = CountedStore.bytes_read[file.parent.name]
    assert (requests, count) == (2 + ceil_div(BYTES, REQUEST_BYTES), 129 + BYTES)


@pytest.mark.parametrize(
    ("name", "offset", "stamped", "what"),
    [
        ("none", 0, False, "is gone"),
        ("data", BYTES - 3, False, "ends before byte"),
        ("data", 0, True, "changed while"),
    ],
)
def test_file_in_a_store_that_is_missing_short_or_changed_is_an_error(
    file: RemotePath, name: str, offset: int, stamped: bool, what: str
) -> None:
    stamps = {file.url: file.stamp()} if stamped else None
    file.write(content()[::-1])
    with DataFiles(stamps) as files, pytest.raises(CheckpointError, match=what):
        read(files, file.with_name(name), offset, 10)


class HeldStore(CountedStore):
    """A store that answers no request before it is let go."""

    protocol = "held"
    let_go = threading.Event()

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        self.let_go.wait()
        return super().cat_file(path, start, end, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("held://", "counted://")))


fsspec.register_implementation("held", HeldStore, clobber=True)


def fetching() -> bool:
    return any(each.name.startswith("rowcast-fetch") for each in threading.enumerate())


def test_closed_files_make_no_further_requests(file: RemotePath) -> None:
    held = file.url.replace("counted://", "held://")
    files = DataFiles()
    for place in range(4 * REQUESTS):
        files.prefetch(held, place, 1)

    files.close()
    HeldStore.let_go.set()

    until(lambda: not fetching())
    assert CountedStore.requests[file.parent.name] <= REQUESTS
