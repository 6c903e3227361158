"""Exact reads of data files, on a disk and in a store."""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from bundle.arithmetic import ceil_div
from export.checkpoint import datafiles
from export.checkpoint.datafiles import (
    REQUEST_BYTES,
    REQUESTS,
    DataFiles,
    check_unchanged,
    stamps_of,
)
from export.checkpoint.variables import Slice
from export.errors import CheckpointError
from object_store.remote_path import RemotePath
from object_store.stamps import local_stamp
from tests.e2e.process import until
from tests.units.object_store.memory_stores import CountedStore

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
    positions = [(5_000_000, 128), (17, 1), (0, BYTES)]
    with DataFiles({file.url: file.stamp()}) as files:
        for position in positions:
            files.prefetch(file.url, *position)
        for offset, count in positions:
            assert read(files, file, offset, count) == content()[offset : offset + count]
    requests = CountedStore.requests[file.parent.name]
    count = CountedStore.bytes_read[file.parent.name]
    assert (requests, count) == (2 + ceil_div(BYTES, REQUEST_BYTES), 129 + BYTES)


@pytest.mark.parametrize(
    ("name", "offset", "stamped", "what"),
    [
        ("none", 0, False, "is gone"),
        ("data", BYTES - 3, False, f"data ends before byte {BYTES + 7}: it was cut short"),
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
    """A store that responds to no request before it is released."""

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
    return any(thread.name.startswith("rowcast-fetch") for thread in threading.enumerate())


def test_closed_files_make_no_further_requests(file: RemotePath) -> None:
    contents = file.url.replace("counted://", "held://")
    files = DataFiles()
    for position in range(4 * REQUESTS):
        files.prefetch(contents, position, 1)

    files.close()
    HeldStore.let_go.set()

    until(lambda: not fetching())
    assert CountedStore.requests[file.parent.name] <= REQUESTS
    buffer = np.empty(1, np.uint8)
    with files:
        files.read_into(contents, 4 * REQUESTS - 1, buffer)
    assert buffer.tobytes() == content()[4 * REQUESTS - 1 :][:1]


def open_files(directory: Path) -> list[str]:
    """Returns the names of the files of a directory that this process holds open."""
    links = (os.readlink(child) for child in Path("/proc/self/fd").iterdir() if child.is_symlink())
    return sorted(Path(link).name for link in links if Path(link).parent == directory)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A file of this machine that holds 26 letters."""
    (tmp_path / "data").write_bytes(LETTERS)
    return tmp_path / "data"


LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def test_files_are_opened_once_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datafiles, "OPEN_FILES_MAX", 2)
    for name in "abc":
        (tmp_path / name).write_text(f"file {name}")
    with DataFiles() as files:
        for name, contents in [("a", "a"), ("a", "a"), ("b", "ab"), ("c", "bc"), ("a", "ac")]:
            assert read(files, tmp_path / name, 5, 1) == name.encode()
            assert open_files(tmp_path) == list(contents)
    assert open_files(tmp_path) == []


def test_prefetch_of_a_file_of_this_machine_does_nothing(local: Path) -> None:
    before = set(threading.enumerate())
    with DataFiles() as files:
        files.prefetch(str(local), 0, 5)
        assert set(threading.enumerate()) <= before
        assert open_files(local.parent) == []


def test_file_is_read_on_where_the_system_reads_less(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda handle, to, offset: whole(handle, [to[0][:3]], offset))
    with DataFiles() as files:
        assert read(files, local, 2, 10) == LETTERS[2:12]
        assert read(files, local, 25, 1) == b"z"
        with pytest.raises(CheckpointError) as error:
            read(files, local, 20, 7)
    assert str(error.value) == (
        f"data file {local} ends before byte 27: it was cut short; copy it anew"
    )


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("the disk is gone"), "the disk is gone"),
        (None, "no bytes were read, though the file is long enough"),
    ],
)
def test_file_that_cannot_be_read_is_an_error_with_its_byte(
    local: Path, monkeypatch: pytest.MonkeyPatch, problem: OSError | None, message: str
) -> None:
    whole = os.preadv
    reads = []

    def failing(handle: int, to: Any, offset: int) -> int:
        reads.append(offset)
        if len(reads) == 1:
            return whole(handle, [to[0][:3]], offset)
        if problem is not None:
            raise problem
        return 0

    monkeypatch.setattr(os, "preadv", failing)
    with DataFiles() as files, pytest.raises(CheckpointError) as error:
        read(files, local, 2, 24)
    assert str(error.value) == (
        f"data file {local} cannot be read at byte 5: {message}; once it can, run again: it resumes"
    )


def test_file_that_changed_is_not_read_or_kept_open(local: Path) -> None:
    stamps = {str(local): local_stamp(local.stat())}
    check_unchanged(stamps)
    with DataFiles(stamps) as files:
        assert read(files, local, 0, 3) == b"abc"
    local.write_bytes(LETTERS * 2)
    message = (
        f"data file {local} changed while it was read; export a checkpoint that is complete and "
        "that nothing writes to"
    )
    with DataFiles(stamps) as files:
        with pytest.raises(CheckpointError) as error:
            read(files, local, 0, 3)
        assert str(error.value) == message
        assert open_files(local.parent) == []
    with pytest.raises(CheckpointError) as error:
        check_unchanged(stamps)
    assert str(error.value) == message
    local.unlink()
    with pytest.raises(CheckpointError) as error:
        check_unchanged(stamps)
    assert str(error.value) == (
        f"data file {local} cannot be looked at any more: No such file or directory; did its "
        "training job delete it?"
    )
    with DataFiles() as files, pytest.raises(CheckpointError) as error:
        read(files, local, 0, 3)
    assert str(error.value) == (
        f"data file {local} is gone; did its training job delete the checkpoint? Keep more of them "
        "(max_to_keep)"
    )


def test_read_behind_the_end_of_a_file_is_an_error(local: Path) -> None:
    with DataFiles() as files, pytest.raises(CheckpointError) as error:
        read(files, local, 30, 2)
    assert str(error.value) == (
        f"data file {local} ends before byte 32: it was cut short; copy it anew"
    )


def test_stamps_are_those_of_the_slices_that_have_one(local: Path) -> None:
    stamp = local_stamp(local.stat())
    slices = [
        Slice(file, 0, 4, None, (0,), (1,), path)
        for file, path in (("a", stamp), ("b", None), ("a", stamp))
    ]
    assert stamps_of(slices) == {"a": stamp}
