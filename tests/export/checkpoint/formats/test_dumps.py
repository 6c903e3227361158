"""Dumps of parameter servers: what is listed of them, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.dumps import list_dump
from export.checkpoint.inventory.recognition import recognise
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.export.checkpoint.dump_files import (
    KEYS,
    SLOT,
    VECTORS,
    collection_dump,
    file_head,
    head,
    hugectr_dump,
    saver_dump,
    sok_dump,
)

IDS = np.array([3, 2**40, 11, 7], np.int64)
ROWS = np.arange(20, dtype=np.float32).reshape(4, 5)


def test_dump_of_sok_is_read_with_its_keys_and_slots(tmp_path: Path) -> None:
    sok_dump(tmp_path, "user_0", IDS, ROWS, m=ROWS + 1, v=ROWS + 2)
    sok_dump(tmp_path, "item_0", IDS[:2].astype(np.uint32), ROWS[:2].astype(np.float16))
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognise(checkpoint)
    assert [(each.name, each.rows, each.dim, each.dtype) for each in inventory.tables] == [
        ("item_0", 2, 5, "float16"),
        ("user_0", 4, 5, "float32"),
    ]
    user = inventory.table("user_0")
    assert (user.keys, user.origin, [slot.name for slot in user.slots]) == ("user_0-key", "dump", ["Adam-m", "Adam-v"])
    assert inventory.storage == "SOK"
    assert inventory.dense == ()
    np.testing.assert_array_equal(checkpoint.read(user.key, 1, 3), ROWS[1:])
    np.testing.assert_array_equal(checkpoint.read(user.keys, 0, 4), IDS)
    np.testing.assert_array_equal(checkpoint.read("user_0-Adam-v", 0, 4), ROWS + 2)


def test_dump_of_the_saver_of_sok_1_is_read_with_its_keys(tmp_path: Path) -> None:
    saver_dump(tmp_path, "user", IDS, ROWS)
    saver_dump(tmp_path, "item", IDS[:2], ROWS[:2])
    checkpoint = open_checkpoint(tmp_path)
    inventory = recognise(checkpoint)
    assert [(each.name, each.rows, each.dim, each.dtype) for each in inventory.tables] == [
        ("item", 2, 5, "float32"),
        ("user", 4, 5, "float32"),
    ]
    assert (inventory.storage, inventory.dense) == ("SOK", ())
    user = inventory.table("user")
    np.testing.assert_array_equal(checkpoint.read(user.key, 1, 3), ROWS[1:])
    np.testing.assert_array_equal(checkpoint.read(user.keys, 0, 4), IDS)


@pytest.mark.parametrize(
    ("file", "size", "told"),
    [
        ("t_keys.file", 24, "cannot share evenly"),
        ("t_keys.file", 30, "ends within a int64"),
        ("t_keys.file", 0, "holds no key"),
        ("t_values.file", 76, "cannot share evenly"),
        ("t_values.file", -1, "t_values.file is missing, which the Saver of SOK 1 writes"),
        ("t_keys.file", -1, "t_keys.file is missing"),
    ],
)
def test_damaged_dump_of_the_saver_of_sok_1_is_refused_by_name(tmp_path: Path, file: str, size: int, told: str) -> None:
    path = saver_dump(tmp_path, "t", IDS, ROWS) / file
    data = path.read_bytes()
    path.unlink() if size < 0 else path.write_bytes(data[:size])
    with pytest.raises(CheckpointError, match="dump file") as refused:
        open_checkpoint(tmp_path)
    assert told in str(refused.value)


@pytest.mark.parametrize("nested", [False, True])
def test_dump_of_hugectr_is_read_with_its_keys(tmp_path: Path, nested: bool) -> None:
    hugectr_dump(tmp_path / "dump/users", IDS, ROWS, np.zeros(4, np.uint64))
    hugectr_dump(tmp_path / "dump/items", IDS[:2], ROWS[:2])
    checkpoint = open_checkpoint(tmp_path / "dump" if nested else tmp_path / "dump/users")
    inventory = recognise(checkpoint)
    assert [each.name for each in inventory.tables] == (["items", "users"] if nested else ["users"])
    table = inventory.table("users")
    np.testing.assert_array_equal(checkpoint.read(table.key, 0, 4), ROWS)
    np.testing.assert_array_equal(checkpoint.read(table.keys, 0, 4), IDS)


def test_dump_that_is_written_anew_has_another_fingerprint(tmp_path: Path) -> None:
    first = list_dump(sok_dump(tmp_path, "t", IDS, ROWS)).fingerprint
    (tmp_path / "t-key").rename(tmp_path / "aside")
    assert list_dump(sok_dump(tmp_path, "t", IDS, ROWS)).fingerprint != first


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("t-key", lambda data: data[:-3], "ends within a int64"),
        ("t-key", lambda data: data[:-8], "cannot share evenly"),
        ("t-weight", lambda data: data[:-4], "cannot share evenly"),
        ("t-weight", lambda data: data[:-1], "ends within a float32"),
        ("t-weight", lambda data: data[:296], "cannot share evenly"),
        ("t-key", lambda data: data[:296], "holds no key"),
        ("t-key", lambda data: data[:100], "has 100 bytes, SOK's head alone 296"),
        ("t-key", lambda _: b"", "has 0 bytes"),
        ("t-weight", lambda _: None, "t-weight is missing"),
        ("t-key", lambda _: None, "t-key is missing"),
        ("t-key", lambda data: head(VECTORS, 1) + data[296:], "does not begin as SOK begins keys (kind 1"),
        ("t-key", lambda data: head(KEYS, 7) + data[296:], "dtype 7"),
        ("t-key", lambda data: head(KEYS, 6) + data[296:], "holds float64 keys"),
        ("t-weight", lambda data: head(VECTORS, 0) + data[296:], "int32 vectors"),
        ("t-weight", lambda data: b"\xff" * 296 + data[296:], "kind 4294967295"),
        ("t-Adam-m", lambda data: data[:-20], "holds 15 values of 'Adam-m', the table 20"),
        ("t-Adam-m", lambda data: head(SLOT, 9) + data[296:], "dtype 9"),
    ],
)
def test_damaged_dump_of_sok_is_refused_by_name(tmp_path: Path, file: str, change, told: str) -> None:  # type: ignore[no-untyped-def]
    sok_dump(tmp_path, "t", IDS, ROWS, m=ROWS)
    data = change((tmp_path / file).read_bytes())
    (tmp_path / file).unlink()
    if data is not None:
        (tmp_path / file).write_bytes(data)
    with pytest.raises(CheckpointError, match="dump file") as refused:
        open_checkpoint(tmp_path)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("file", "size", "told"),
    [
        ("key", 24, "slot_id is of 4 rows"),
        ("key", 30, "ends within a int64"),
        ("slot_id", 24, "slot_id is of 3 rows"),
        ("emb_vector", 76, "cannot share evenly"),
        ("emb_vector", -1, "emb_vector is missing"),
        ("key", -1, "key is missing"),
    ],
)
def test_damaged_dump_of_hugectr_is_refused_by_name(tmp_path: Path, file: str, size: int, told: str) -> None:
    hugectr_dump(tmp_path / "t", IDS, ROWS, np.zeros(4, np.uint64))
    path = tmp_path / "t" / file
    data = path.read_bytes()
    path.unlink() if size < 0 else path.write_bytes(data[:size])
    with pytest.raises(CheckpointError, match="dump file") as refused:
        open_checkpoint(tmp_path / "t")
    assert told in str(refused.value)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "uint32"])
def test_dump_of_embedding_collections_is_read_with_its_keys(tmp_path: Path, within: bool, dtype: str) -> None:
    ids, wide = np.array([3, 2**31, 11, 7]).astype(dtype), np.full((3, 2), 0.5, np.float32)
    place = collection_dump(tmp_path, [(ids, ROWS), (ids[:3], wide)], mixed=within)
    checkpoint = open_checkpoint(place if within else tmp_path)
    inventory = recognise(checkpoint)
    assert inventory.storage == "HugeCTR"
    assert [(each.name, each.rows, each.dim, each.dtype) for each in inventory.tables] == [
        ("collection_0_table_0", 4, 5, "float32"),
        ("collection_0_table_1", 3, 2, "float32"),
    ]
    first, second = inventory.tables
    np.testing.assert_array_equal(checkpoint.read(first.key, 0, 4), ROWS)
    np.testing.assert_array_equal(checkpoint.read(first.keys, 0, 4), ids)
    np.testing.assert_array_equal(checkpoint.read(second.key, 1, 2), wide[1:])
    np.testing.assert_array_equal(checkpoint.read(second.keys, 0, 3), ids[:3])


def _meta(tables: int, kind: int, numbers: tuple[int, ...], keys: tuple[int, ...], dims: tuple[int, ...]) -> bytes:
    count = len(numbers)
    return struct.pack(f"<5i{count}i{count}Q{count}i", tables, kind, 0, 0, 0, *numbers, *keys, *dims)


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("meta_data", lambda _: None, "meta_data is missing, which HugeCTR's embedding_dump writes"),
        ("meta_data", lambda data: data[:10], "has 10 bytes, HugeCTR's embedding_dump's head alone 20"),
        ("meta_data", lambda data: data[:-1], "does not tell embedding tables"),
        ("meta_data", lambda _: _meta(0, 1, (), (), ()), "(0 tables, key type 1, which is 20 bytes)"),
        ("meta_data", lambda _: _meta(2, 1, (0,), (4,), (5,)), "(2 tables, key type 1, which is 52 bytes)"),
        ("meta_data", lambda _: _meta(1, 2, (0,), (4,), (5,)), "key type 2"),
        ("meta_data", lambda _: _meta(2, 1, (1, 3), (4, 4), (5, 5)), "lists tables 1, 3, not all from 0 on"),
        ("meta_data", lambda _: _meta(1, 1, (0,), (2**63,), (5,)), f"tells {2**63} keys of dim 5"),
        ("meta_data", lambda _: _meta(1, 1, (0,), (4,), (-5,)), "tells 4 keys of dim -5"),
        ("meta_data", lambda _: _meta(1, 1, (0,), (4,), (4,)), "holds 20 values"),
        ("meta_data", lambda _: _meta(1, 0, (0,), (4,), (5,)), "key0 holds 8 values"),
        ("key0", lambda _: None, "key0 is missing"),
        ("key0", lambda data: data[:-8], "key0 holds 3 values"),
        ("key0", lambda data: data[:-1], "ends within a int64"),
        ("key0", lambda data: file_head(2, 0) + data[128:], "begins keys of table 0 (kind 2, table 0)"),
        ("key0", lambda data: file_head(1, 1) + data[128:], "(kind 1, table 1)"),
        ("weight0", lambda data: data[:100], "has 100 bytes"),
        ("weight0", lambda data: data[:-20], "weight0 holds 15 values"),
        ("weight0", lambda data: data + bytes(700), "several processes"),
        ("weight0", lambda _: None, "weight0 is missing"),
    ],
)
def test_damaged_dump_of_an_embedding_collection_is_refused_by_name(
    tmp_path: Path, file: str, change: Callable[[bytes], bytes | None], told: str
) -> None:
    path = collection_dump(tmp_path, [(IDS, ROWS)]) / file
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match="dump file") as refused:
        open_checkpoint(tmp_path)
    assert told in str(refused.value)
