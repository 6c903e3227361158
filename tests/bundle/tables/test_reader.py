from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bundle.errors import DigestMismatch, RowOutOfRange
from bundle.format import manifest as entries
from bundle.format.checksums import crc32c
from bundle.storage.residency import PIECE_BYTES
from bundle.tables.reader import SYNC_BYTES, ShardWriter, TableReader

SOURCE = entries.TableSource(layout="plain", key="k")


def table(file: str, offset: int, rows: int, dim: int, dtype: str = "float32") -> entries.Table:
    size = rows * dim * (4 if dtype == "float32" else 2)
    shard = entries.Shard(
        file=file, offset=offset, first_row=0, rows=rows, crc32c=0, blocks=(0,) * -(-size // entries.BLOCK_BYTES)
    )
    return entries.Table.model_validate(
        {"rows": rows, "dim": dim, "dtype": dtype, "shards": (shard,), "source": SOURCE}
    )


def test_gather_returns_stored_bits_in_the_order_asked(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 1 << 32, (100, 7), np.uint32)  # NaNs with payloads among them
    (tmp_path / "t").write_bytes(stored.astype("<u4").tobytes())
    with_duplicates = np.array([99, 0, 5, 5, 42])
    gathered = TableReader(tmp_path, table("t", 0, 100, 7)).gather(with_duplicates)
    assert gathered.dtype == np.float32
    assert gathered.flags.c_contiguous
    assert gathered.flags.owndata or gathered.base is not None
    assert (gathered.view(np.uint32) == stored[with_duplicates]).all()


def test_gather_is_owned_by_the_caller(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(np.ones((2, 2), "<f4").tobytes())
    reader = TableReader(tmp_path, table("t", 0, 2, 2))
    reader.gather(np.array([0]))[:] = 9
    assert (reader.gather(np.array([0, 1])) == 1).all()


@pytest.mark.parametrize("offset", [1, 3, 4095, 4096, 4097, 70001])
def test_gather_from_a_misaligned_shard_returns_stored_bits(tmp_path: Path, offset: int) -> None:
    stored = np.random.default_rng(1).standard_normal((300, 5)).astype("<f4")
    (tmp_path / "t").write_bytes(os.urandom(offset) + stored.tobytes() + os.urandom(11))
    reader = TableReader(tmp_path, table("t", offset, 300, 5))
    rows = np.random.default_rng(2).integers(0, 300, 1000)
    assert (reader.gather(rows) == stored[rows]).all()
    assert (reader.read(17, 200) == stored[17:217]).all()


def test_gather_of_bfloat16_widens_as_ml_dtypes_does(tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype="<u2").reshape(-1, 4)
    (tmp_path / "t").write_bytes(bits.tobytes())
    reader = TableReader(tmp_path, table("t", 0, len(bits), 4, "bfloat16"))
    expected = bits.view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(reader.gather(np.arange(len(bits))), expected)
    assert (reader.read(0, 3) == bits[:3]).all()


def test_gather_of_float16_widens_exactly(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype="<u2").view("<f2").reshape(-1, 2)
    (tmp_path / "t").write_bytes(halves.tobytes())
    reader = TableReader(tmp_path, table("t", 0, len(halves), 2, "float16"))
    np.testing.assert_array_equal(reader.gather(np.arange(len(halves))), halves.astype(np.float64))


@pytest.mark.parametrize("row", [-1, 10, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_gather_of_a_row_outside_raises_and_names_it(tmp_path: Path, row: int) -> None:
    (tmp_path / "t").write_bytes(bytes(10 * 4 * 2))
    reader = TableReader(tmp_path, table("t", 0, 10, 2))
    with pytest.raises(RowOutOfRange, match=str(row)):
        reader.gather(np.array([0, row]))


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 11), (10, 1), (3, -1)])
def test_read_outside_the_table_raises(tmp_path: Path, first: int, count: int) -> None:
    (tmp_path / "t").write_bytes(bytes(10 * 4 * 2))
    with pytest.raises(RowOutOfRange):
        TableReader(tmp_path, table("t", 0, 10, 2)).read(first, count)


def test_gather_of_no_rows_is_empty(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(8))
    assert TableReader(tmp_path, table("t", 0, 1, 2)).gather(np.empty(0, np.int64)).shape == (0, 2)


def test_take_of_negative_rows_gives_zeros(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(np.ones((3, 2), "<f4").tobytes())
    found = TableReader(tmp_path, table("t", 0, 3, 2)).take(np.array([-1, 2, -(1 << 63)]))
    assert (found == [[0, 0], [1, 1], [0, 0]]).all()


def test_rows_are_written_into_a_stretch_of_a_wider_array(tmp_path: Path) -> None:
    stored = np.random.default_rng(3).standard_normal((50, 5)).astype("<f4")
    (tmp_path / "t").write_bytes(stored.tobytes())
    reader = TableReader(tmp_path, table("t", 0, 50, 5))
    packed = np.full((9, 20), 7, np.float32)
    rows, offsets = np.random.default_rng(4).integers(0, 50, 27), np.arange(10, dtype=np.int64) * 3
    assert reader.gather(rows[:9], packed[:, 1:6]).base is packed
    reader.take(rows[9:18], packed[:, 6:11])
    reader.bags(rows, offsets, "sum", None, packed[:, 11:16])
    expected = np.concatenate([stored[rows[:9]], stored[rows[9:18]], reader.bags(rows, offsets, "sum")], axis=1)
    assert (packed[:, 1:16] == expected).all()
    assert (packed[:, [0, 16, 17, 18, 19]] == 7).all()


def test_bags_leave_negative_rows_and_their_weights_out(tmp_path: Path) -> None:
    stored = np.arange(12, dtype="<f4").reshape(4, 3)
    (tmp_path / "t").write_bytes(stored.tobytes())
    reader = TableReader(tmp_path, table("t", 0, 4, 3))
    rows, weights = np.array([-1, 1, 3, -2, -1]), np.array([9, 1, 3, 9, 9], np.float32)
    offsets = np.array([0, 3, 4, 5])
    assert (reader.bags(rows, offsets, "mean") == [(stored[1] + stored[3]) / 2, [0, 0, 0], [0, 0, 0]]).all()
    assert (reader.bags(rows, offsets, "mean", weights)[0] == (stored[1] + 3 * stored[3]) / 4).all()


@pytest.mark.parametrize("native", [True, False])
def test_warm_brings_rows_and_scales_into_memory(tmp_path: Path, native: bool) -> None:
    rows = 5 << 20
    for name, size in (("t", 3 + rows), ("s", 4 * rows)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    shards = table("t", 3, rows, 1).shards
    page = {"rows": rows, "dim": 1, "dtype": "int8", "shards": shards, "source": SOURCE}
    page["scales"] = (shards[0].model_copy(update={"file": "s", "offset": 0, "blocks": ()}),)
    page["shards"] = (shards[0].model_copy(update={"blocks": ()}),)
    reader = TableReader(tmp_path, entries.Table.model_validate(page), native=native)
    assert 0 <= reader.resident_bytes() <= 5 * rows + 3
    assert rows * 5 <= sum(reader.warm()) <= rows * 5 + 3
    assert reader.resident_bytes() >= 5 * rows
    warming = reader.warm()
    assert next(warming) == PIECE_BYTES
    reader.close()
    assert list(warming) == []
    assert reader.resident_bytes() == 0


def test_gather_after_close_raises(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(8))
    reader = TableReader(tmp_path, table("t", 0, 1, 2))
    reader.close()
    with pytest.raises(RowOutOfRange, match="closed"):
        reader.gather(np.array([0]))


def test_open_of_a_file_that_is_short_by_a_byte_raises_before_mapping(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(79))
    with pytest.raises(DigestMismatch, match=r"'t' has 79 bytes.*byte 80"):
        TableReader(tmp_path, table("t", 0, 10, 2))


def test_open_of_rows_far_beyond_the_file_raises(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(79))
    with pytest.raises(DigestMismatch):
        TableReader(tmp_path, table("t", 1 << 61, 1 << 10, 1 << 20))


def test_shard_writer_digests_what_lies_on_disk(tmp_path: Path) -> None:
    data = os.urandom(entries.BLOCK_BYTES + 100)
    with ShardWriter(tmp_path / "deep" / "t") as writer:
        writer.write(data[:1000])
        writer.write(memoryview(data)[1000:5000])
        writer.write(np.frombuffer(data, np.uint8)[5000:])
    digest = writer.close()
    assert (tmp_path / "deep" / "t").read_bytes() == data
    assert (digest.bytes, digest.crc32c) == (len(data), crc32c(data))
    assert digest.blocks == (crc32c(data[: entries.BLOCK_BYTES]), crc32c(data[entries.BLOCK_BYTES :]))


def test_shard_writer_of_a_known_size_takes_bytes_in_any_order(tmp_path: Path) -> None:
    data = os.urandom(entries.BLOCK_BYTES + 100)
    with ShardWriter(tmp_path / "t", size=len(data)) as writer:
        for start in (5000, 0, 1000):
            writer.place(start, data[start : {5000: len(data), 0: 1000, 1000: 5000}[start]])
    digest = writer.close()
    assert (tmp_path / "t").read_bytes() == data
    assert (digest.bytes, digest.crc32c) == (len(data), crc32c(data))


def test_shard_writer_of_an_unknown_size_places_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="size"), ShardWriter(tmp_path / "t") as writer:
        writer.place(0, b"abc")
    assert not (tmp_path / "t").exists()


def test_shard_writer_left_by_an_exception_removes_its_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardWriter(tmp_path / "t") as writer:  # noqa: PT012
        writer.write(b"abc")
        raise KeyError
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("placed", [False, True])
def test_a_shard_is_whole_whose_sync_begins_while_it_is_written(tmp_path: Path, placed: bool) -> None:
    data = np.random.default_rng(3).integers(0, 256, 2 * SYNC_BYTES + 5, np.uint8)
    with ShardWriter(tmp_path / "t", size=data.size if placed else None) as writer:
        at = 0
        for piece in np.array_split(data, 7):
            if placed:
                writer.place(at, piece)
            else:
                writer.write(piece)
            at += piece.size
    assert (np.fromfile(tmp_path / "t", np.uint8) == data).all()
    assert writer.close().crc32c == crc32c(data)
