"""Dumps of parameter servers: what is listed of them, and what is rejected."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.formats.dumps import is_dump, list_dump
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from tests.units.export.checkpoint import dump_files
from tests.units.export.checkpoint.dump_files import (
    KEYS,
    SLOT,
    VECTORS,
    collection_dump,
    file_head,
    head,
)

IDS = np.array([3, 2**40, 11, 7], np.int64)
ROWS = np.arange(20, dtype=np.float32).reshape(4, 5)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "SOK": lambda directory: dump_files.sok_dump(directory, "t", IDS, ROWS, m=ROWS + 1),
    "SOK 1": lambda directory: dump_files.saver_dump(directory, "t", IDS, ROWS),
    "HugeCTR": lambda directory: dump_files.hugectr_dump(
        directory / "t", IDS, ROWS, np.zeros(4, np.uint64)
    ),
    "collection": lambda directory: collection_dump(directory, [(IDS, ROWS)]),
}
"""Dumps of one table by who writes them."""


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("within", [False, True])
def test_dump_is_read_with_its_keys(tmp_path: Path, writer: str, within: bool) -> None:
    directory = WRITERS[writer](tmp_path)
    checkpoint = open_checkpoint(directory if within else tmp_path)
    inventory = recognize(checkpoint)
    (table,) = inventory.tables
    assert table.name == ("collection_0_table_0" if writer == "collection" else "t")
    assert (table.rows, table.dim, table.dtype, table.origin) == (4, 5, "float32", "dump")
    assert (inventory.storage, inventory.dense) == ("SOK" if "SOK" in writer else "HugeCTR", ())
    np.testing.assert_array_equal(checkpoint.read(table.key, 1, 3), ROWS[1:])
    np.testing.assert_array_equal(checkpoint.read(table.keys, 0, 4), IDS)
    assert [slot.name for slot in table.slots] == (["Adam-m"] if writer == "SOK" else [])


@pytest.mark.parametrize(
    ("writer", "strays"),
    [
        ("SOK", ["s/u-weight", "old-key/t", "t-notes/t"]),
        ("HugeCTR", ["settings/key", "other/slot_id"]),
        ("collection", ["embedding_collection_1/notes", "other/meta_data", "other/key0"]),
    ],
)
def test_file_that_only_has_a_name_of_dumps_is_no_table(
    tmp_path: Path, writer: str, strays: list[str]
) -> None:
    WRITERS[writer](tmp_path)
    for stray in strays:
        (tmp_path / stray).parent.mkdir(exist_ok=True)
        (tmp_path / stray).write_text("no numbers")
    assert len(recognize(open_checkpoint(tmp_path)).tables) == 1


def test_directory_without_a_dumped_table_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as error:
        list_dump(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} holds no dumped table: neither `<table>-key` and `<table>-weight`, as "
        "sok.dump writes them, nor `<table>_keys.file` and `<table>_values.file`, as SOK 1 does, "
        "nor `key` and `emb_vector`, nor `embedding_collection_0`, as HugeCTR does"
    )


@pytest.mark.parametrize(("suffix", "second"), [("key", "weight"), ("weight", "key")])
def test_lone_file_of_the_size_of_a_head_is_half_a_table(
    tmp_path: Path, suffix: str, second: str
) -> None:
    (tmp_path / f"t-{suffix}").write_bytes(head(0 if suffix == "key" else 1, 1)[:-1])
    assert not is_dump(tmp_path)
    (tmp_path / f"t-{suffix}").write_bytes(head(0 if suffix == "key" else 1, 1))
    assert is_dump(tmp_path)
    with pytest.raises(CheckpointError) as error:
        list_dump(tmp_path)
    missing = f"dump file {tmp_path / f't-{second}'} is missing, which SOK writes; copy it anew"
    assert str(error.value) == missing


def test_dumps_of_several_writers_are_those_of_the_first(tmp_path: Path) -> None:
    dump_files.hugectr_dump(tmp_path / "h", IDS, ROWS)
    collection_dump(tmp_path, [(IDS, ROWS)])
    listing = list_dump(tmp_path)
    assert (listing.storage.kind, sorted(listing.entries)) == ("HugeCTR", ["h/emb_vector", "h/key"])
    dump_files.saver_dump(tmp_path, "s", IDS, ROWS)
    listing = list_dump(tmp_path)
    assert (listing.storage.kind, sorted(listing.entries)) == (
        "SOK",
        ["s_keys.file", "s_values.file"],
    )
    dump_files.sok_dump(tmp_path, "t", IDS, ROWS)
    listing = list_dump(tmp_path)
    assert sorted(table.name for table in listing.storage.dumped.values()) == ["s", "t"]


def test_name_of_a_dumped_table_may_begin_with_that_of_another(tmp_path: Path) -> None:
    dump_files.sok_dump(tmp_path, "t", IDS, ROWS, m=ROWS + 1)
    dump_files.sok_dump(tmp_path, "t-2", IDS[:2], ROWS[:2], v=ROWS[:2] + 1)
    actual = list_dump(tmp_path).storage.dumped.values()
    slots = {table.name: [entry.key for entry in table.slots.values()] for table in actual}
    assert slots == {"t": ["t-Adam-m"], "t-2": ["t-2-Adam-v"]}


def test_dump_of_hugectr_without_slots_has_no_heads(tmp_path: Path) -> None:
    dump_files.hugectr_dump(tmp_path, IDS, ROWS)
    (table,) = list_dump(tmp_path).storage.dumped.values()
    assert table.name == tmp_path.name
    assert [part.offset for part in (*table.keys.slices, *table.vectors.slices)] == [0, 0]
    (tmp_path / "slot_id").write_bytes(bytes(32))
    (tmp_path / "emb_vector").unlink()
    with pytest.raises(CheckpointError, match=r"emb_vector is missing, which HugeCTR writes"):
        list_dump(tmp_path)
    (tmp_path / "slot_id").unlink()
    assert not is_dump(tmp_path)


def test_file_whose_name_is_no_text_is_rejected(tmp_path: Path) -> None:
    name = os.fsdecode(b"t\xff")
    dump_files.saver_dump(tmp_path, name, IDS, ROWS)
    with pytest.raises(CheckpointError) as error:
        list_dump(tmp_path)
    assert str(error.value) == (
        f"dump file '{tmp_path}/t\\udcff_keys.file' has a name that is no UTF-8 text; rename it"
    )


def test_collections_are_told_apart_by_their_numbers(tmp_path: Path) -> None:
    collection_dump(tmp_path, [(IDS, ROWS), (IDS[:2], ROWS[:2, :3])], collection=1)
    collection_dump(tmp_path, [(IDS, ROWS + 1)])
    checkpoint = open_checkpoint(tmp_path)
    assert {table.name: table.vectors.shape for table in checkpoint.storage.dumped.values()} == {
        "collection_0_table_0": (4, 5),
        "collection_1_table_0": (4, 5),
        "collection_1_table_1": (2, 3),
    }


def test_dump_that_is_written_anew_has_another_fingerprint(tmp_path: Path) -> None:
    first = list_dump(WRITERS["SOK"](tmp_path)).fingerprint
    assert re.fullmatch("sha256:[0-9a-f]{64}", first)
    (tmp_path / "t-key").rename(tmp_path / ".aside")
    assert list_dump(WRITERS["SOK"](tmp_path)).fingerprint != first


def _meta(
    tables: int, kind: int, numbers: tuple[int, ...], keys: tuple[int, ...], dims: tuple[int, ...]
) -> bytes:
    count = len(numbers)
    return struct.pack(
        f"<5i{count}i{count}Q{count}i", tables, kind, 0, 0, 0, *numbers, *keys, *dims
    )


@pytest.mark.parametrize(
    ("writer", "file", "change", "message"),
    [
        ("SOK", "t-key", lambda data: data[:-3], "ends within a int64"),
        ("SOK", "t-key", lambda data: data[:-8], "cannot share evenly"),
        ("SOK", "t-key", lambda data: data[:296], "holds no key"),
        ("SOK", "t-key", lambda data: data[:100], "has 100 bytes, SOK's head alone 296"),
        ("SOK", "t-weight", lambda data: data[:296], "holds 0 values, which 4 keys cannot share"),
        ("SOK", "t-weight", lambda _: None, "t-weight is missing"),
        ("SOK", "t-key", lambda _: None, "t-key is missing"),
        (
            "SOK",
            "t-key",
            lambda data: head(VECTORS, 1) + data[296:],
            "does not begin as SOK begins keys (kind 1",
        ),
        ("SOK", "t-key", lambda data: head(KEYS, 7) + data[296:], "dtype 7"),
        ("SOK", "t-key", lambda data: head(KEYS, 6) + data[296:], "holds float64 keys"),
        ("SOK", "t-weight", lambda data: head(VECTORS, 0) + data[296:], "int32 vectors"),
        ("SOK", "t-Adam-m", lambda data: data[:-20], "holds 15 values of 'Adam-m', the table 20"),
        ("SOK", "t-Adam-m", lambda data: head(SLOT, 9) + data[296:], "dtype 9"),
        ("SOK 1", "t_keys.file", lambda data: data[:24], "cannot share evenly"),
        (
            "SOK 1",
            "t_values.file",
            lambda _: None,
            "t_values.file is missing, which the Saver of SOK 1 writes",
        ),
        ("HugeCTR", "key", lambda data: data[:24], "slot_id is of 4 rows"),
        ("HugeCTR", "emb_vector", lambda data: data[:76], "cannot share evenly"),
        ("HugeCTR", "key", lambda _: None, "key is missing"),
        (
            "collection",
            "meta_data",
            lambda _: None,
            "meta_data is missing, which HugeCTR's embedding_dump writes",
        ),
        (
            "collection",
            "meta_data",
            lambda _: _meta(2, 1, (0,), (4,), (5,)),
            "(2 tables, key type 1, which is 52 b",
        ),
        ("collection", "meta_data", lambda _: _meta(0, 1, (), (), ()), "(0 tables, key type 1"),
        ("collection", "meta_data", lambda _: _meta(1, -1, (0,), (4,), (5,)), "key type -1"),
        ("collection", "meta_data", lambda _: _meta(1, 2, (0,), (4,), (5,)), "key type 2"),
        (
            "collection",
            "meta_data",
            lambda _: _meta(1 << 16, 1, (9,) * 65536, (4,) * 65536, (5,) * 65536),
            "lists tables 9, 9, 9, 9, 9, 9, 9, 9, not all from 0",
        ),
        (
            "collection",
            "meta_data",
            lambda _: _meta(65537, 1, (9,) * 65537, (4,) * 65537, (5,) * 65537),
            "(65537 tables, key type 1, which is 1048612 bytes)",
        ),
        ("collection", "key0", lambda _: None, "key0 is missing"),
        (
            "collection",
            "weight0",
            lambda data: file_head(2, 1) + data[128:],
            "begins vectors of table 0 (kind 2, table 1)",
        ),
        (
            "collection",
            "meta_data",
            lambda _: _meta(2, 1, (1, 3), (4, 4), (5, 5)),
            "lists tables 1, 3, not all from 0",
        ),
        (
            "collection",
            "meta_data",
            lambda _: _meta(1, 1, (0,), (4,), (-5,)),
            "states 4 keys of dim -5",
        ),
        (
            "collection",
            "key0",
            lambda data: file_head(2, 0) + data[128:],
            "begins keys of table 0 (kind 2, table 0)",
        ),
        ("collection", "weight0", lambda data: data + bytes(700), "several processes"),
        (
            "collection",
            "meta_data",
            lambda data: data[:8] + bytes([7]) + data[9:],
            "begins with the numbers 7, 0 and 0 behind the types of keys, which is not understood",
        ),
        (
            "collection",
            "meta_data",
            lambda data: data[:16] + bytes([3]) + data[17:],
            "begins with the numbers 0, 0 and 3 behind the types of keys, which is not understood",
        ),
    ],
)
def test_damaged_dump_is_rejected_by_name(
    tmp_path: Path, writer: str, file: str, change: Callable[[bytes], bytes | None], message: str
) -> None:
    path = WRITERS[writer](tmp_path) / file
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match="dump file") as rejected:
        open_checkpoint(tmp_path)
    assert message in str(rejected.value)


@pytest.mark.parametrize("writer", WRITERS)
def test_file_beside_those_of_a_table_is_rejected_by_name(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path)
    (table,) = list_dump(tmp_path).storage.dumped.values()
    folder = Path(table.keys.slices[0].file).parent
    for harmless in (".DS_Store", "_SUCCESS"):
        (folder / harmless).write_bytes(b"x" if harmless.startswith(".") else b"")
    assert open_checkpoint(tmp_path)
    (folder / "row_order.json").write_text('{"cores": 4}')
    with pytest.raises(CheckpointError, match=r"row_order\.json' is not understood"):
        open_checkpoint(tmp_path)
