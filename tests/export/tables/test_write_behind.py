"""A shard written by a thread of its own: the same bytes, every failure told, nothing left waiting."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import numpy as np
import pytest

from bundle.format.checksums import BLOCK_BYTES, crc32c
from bundle.tables.reader import ShardWriter
from export.tables.write_behind import BUFFERS, WriteBehind

VALUES = np.random.default_rng(1).integers(0, 255, BLOCK_BYTES + 12345, np.uint8)


def test_write_behind_with_buffers_by_turns_writes_every_byte_in_order(tmp_path: Path) -> None:
    ring = np.empty((BUFFERS, 70_000), np.uint8)
    with ShardWriter(tmp_path / "shard") as writer:
        with WriteBehind(writer) as behind:
            done = turn = 0
            while done < VALUES.size:
                piece = ring[turn % BUFFERS][: min(70_000, VALUES.size - done, behind.room_bytes)]
                piece[...] = VALUES[done : done + piece.size]
                behind.write(piece, crc32c(piece))
                done, turn = done + piece.size, turn + 1
        digest = writer.close()
    assert (tmp_path / "shard").read_bytes() == VALUES.tobytes()
    assert digest.crc32c == crc32c(VALUES)


def test_write_behind_wait_lets_a_buffer_be_used_again(tmp_path: Path) -> None:
    buffer = np.empty(1000, np.uint8)
    with ShardWriter(tmp_path / "shard") as writer, WriteBehind(writer) as behind:
        for value in range(50):
            behind.wait()
            buffer[...] = value
            behind.write(buffer)
    assert (tmp_path / "shard").read_bytes() == b"".join(bytes([value]) * 1000 for value in range(50))


def test_write_behind_places_what_comes_in_another_order(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "shard", size=VALUES.size) as writer:
        with WriteBehind(writer) as behind:
            behind.place([(1000, VALUES[1000:3000]), (5000, VALUES[5000:])])
            behind.place([(3000, VALUES[3000:5000]), (0, VALUES[:1000])])
        digest = writer.close()
    assert (tmp_path / "shard").read_bytes() == VALUES.tobytes()
    assert digest.crc32c == crc32c(VALUES)


def write_often(writer: ShardWriter, times: int, problem: BaseException | None = None) -> None:
    with WriteBehind(writer) as behind:
        for _ in range(times):
            behind.write(VALUES)
        if problem is not None:
            raise problem


def test_write_behind_tells_a_failed_write_and_ends_its_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    writer = ShardWriter(tmp_path / "shard")
    with Path("/dev/full").open("wb", buffering=0) as full:
        writer._file.close()
        writer._file = full
        with pytest.raises(OSError, match="No space left") as told:
            write_often(writer, 5)
    assert told.value.errno == errno.ENOSPC
    assert not set(threading.enumerate()) - before


def test_write_behind_left_by_an_exception_ends_its_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyError), ShardWriter(tmp_path / "shard") as writer:
        write_often(writer, 1, KeyError())
    assert not set(threading.enumerate()) - before
    assert list(tmp_path.iterdir()) == []
