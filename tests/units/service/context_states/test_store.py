"""A store of bytes: what was stored is found whole or not at all, whatever becomes of its files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from service.context_states.store import ByteStore

KEY = "00a1b2c3"
OTHER_KEY = "00ffeedd"
VALUE = bytes(range(256)) * 40
AGE_S = 1000.0
MAX_BYTES = 64 * 64 * 1024


def store_in(directory: Path) -> ByteStore:
    return ByteStore(directory, MAX_BYTES, AGE_S)


def keep(store: ByteStore, key: str, value: bytes = VALUE) -> None:
    assert store.keep(key, [value[:100], value[100:]])
    store.flush()


def found(store: ByteStore, key: str = KEY, size: int = len(VALUE)) -> bytes | None:
    value = store.find(key, size)
    return None if value is None else bytes(value)


def file_of(directory: Path, key: str = KEY) -> Path:
    (file,) = directory.rglob(key)
    return file


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[1234] ^= 1
    file.write_bytes(content)


def make_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def age(file: Path) -> None:
    before = time.time() - AGE_S - 1
    os.utime(file, (before, before))


def test_another_process_finds_what_was_stored(tmp_path: Path) -> None:
    keep(store_in(tmp_path / "new"), KEY)
    other = store_in(tmp_path / "new")
    assert found(other) == VALUE
    assert found(other, OTHER_KEY) is None
    keep(other, KEY, VALUE[::-1])
    assert found(store_in(tmp_path / "new")) == VALUE[::-1]


def test_nobody_else_reads_the_files(tmp_path: Path) -> None:
    keep(store_in(tmp_path / "states"), KEY)
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "states").glob("*/*")}
    assert modes == {0}


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda file: os.truncate(file, 0),
        lambda file: os.truncate(file, 5000),
        lambda file: file.write_bytes(file.read_bytes() + b"x"),
        Path.unlink,
        make_fifo,
        make_directory,
        age,
    ],
    ids=["flipped", "emptied", "cut", "longer", "removed", "fifo", "directory", "old"],
)
def test_what_is_damaged_or_old_is_no_value(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    store = store_in(tmp_path)
    keep(store, KEY)
    keep(store, OTHER_KEY)
    damage(file_of(tmp_path))
    assert found(store) is None
    assert found(store, OTHER_KEY) == VALUE


def test_value_of_another_size_is_not_taken(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    keep(store, KEY)
    assert found(store, size=len(VALUE) - 1) is None
    assert found(store, size=len(VALUE) + 1) is None


def test_store_that_cannot_be_written_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    store = store_in(in_the_way)
    for key in (KEY, OTHER_KEY):
        keep(store, key)
        assert found(store, key) is None
    assert [record.message for record in caplog.records] == ["context_states_unusable"]


def test_size_is_bounded_and_the_values_that_are_read_stay(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    assert store.holds(len(VALUE))
    assert not store.holds(MAX_BYTES // 64)
    read = "0000ffff"
    keep(store, read)
    # All in one directory, which has room for six of them.
    for number in range(200):
        os.utime(file_of(tmp_path, read))
        keep(store, f"0000{number:04x}")
    sizes = [path.stat().st_size for path in tmp_path.glob("*/*")]
    assert sum(sizes) < MAX_BYTES // 64 + 17 * len(VALUE)
    assert len(sizes) >= 5
    assert found(store, read) == VALUE
