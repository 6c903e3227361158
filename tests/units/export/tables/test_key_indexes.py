from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format import manifest
from bundle.storage.staging import Staging
from bundle.tables.key_index import KeyIndex
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError, VerificationFailed
from export.tables.dumped import SAMPLED_BLOCKS, SAMPLED_KEYS
from export.tables.key_indexes import check_key_indexes, write_key_indexes
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.tensor_bundles import write_bundle

LONG_AGO_NS = 10**9


def write(directory: Path, keys: list[int]) -> Path:
    """Writes the index of a dump's keys into a version that an earlier run may have begun."""
    rows = np.zeros((len(keys), 2), np.float32)
    sok_dump(directory / "dump", "t", np.array(keys, np.int64), rows)
    checkpoint = open_checkpoint(directory / "dump")
    with Staging(directory, "tables", 1) as stage:
        (entry,) = write_key_indexes(checkpoint, recognize(checkpoint).tables, stage).values()
        return stage.directory / entry.file


def test_write_key_indexes_writes_an_index_once_for_the_same_keys(tmp_path: Path) -> None:
    file = write(tmp_path, [7, 0, 5])
    os.utime(file, ns=(LONG_AGO_NS, LONG_AGO_NS))

    assert write(tmp_path, [7, 0, 5]) == file
    assert file.stat().st_mtime_ns == LONG_AGO_NS

    assert write(tmp_path, [7, 0, 6]) == file
    assert file.stat().st_mtime_ns != LONG_AGO_NS
    assert KeyIndex(file, 3).find(np.array([6, 0, 7, 5])).tolist() == [2, 1, 0, -1]


def dumped(directory: Path, keys: Any) -> Checkpoint:
    """Writes a dump of these keys."""
    keys = np.asarray(keys, np.int64)
    shutil.rmtree(directory / "dump", ignore_errors=True)
    sok_dump(directory / "dump", "t", keys, np.zeros((keys.size, 2), np.float32))
    return open_checkpoint(directory / "dump")


def indexed(directory: Path, keys: Any) -> tuple[dict[str, manifest.Table], Any]:
    """Writes the index of keys; returns what a manifest says of the table and of its index."""
    checkpoint = dumped(directory, keys)
    (table,) = recognize(checkpoint).tables
    with Staging(directory, "tables", 1) as stage:
        entries = write_key_indexes(checkpoint, [table], stage)
        shutil.copytree(stage.directory, directory / "bundle", dirs_exist_ok=True)
    source = manifest.TableSource(layout="plain", key=table.key)
    construct: Any = manifest.Table.model_construct
    return {"t": construct(source=source, rows=table.rows)}, entries


def test_check_key_indexes_compares_keys_from_all_over_the_dump_or_all(tmp_path: Path) -> None:
    keys = np.arange(3 * SAMPLED_KEYS * SAMPLED_BLOCKS)[::-1] * 2
    tables, entries = indexed(tmp_path, keys)
    check_key_indexes(dumped(tmp_path, keys), tmp_path / "bundle", tables, entries)
    check_key_indexes(dumped(tmp_path, keys), tmp_path / "bundle", tables, entries, full=True)

    moved = keys.copy()
    moved[SAMPLED_KEYS] += 1  # right behind those of the first sample
    second = dumped(tmp_path, moved)
    check_key_indexes(second, tmp_path / "bundle", tables, entries)
    with pytest.raises(VerificationFailed) as failure:
        check_key_indexes(second, tmp_path / "bundle", tables, entries, full=True)
    assert str(failure.value).startswith(
        f"table 't': key {moved[SAMPLED_KEYS]} of the dump is row {SAMPLED_KEYS} there and row -1 "
        "by the bundle's index; nothing may be published"
    )


def test_check_key_indexes_names_the_first_key_that_leads_to_another_row(tmp_path: Path) -> None:
    tables, entries = indexed(tmp_path, [7, 5, 9, 11])
    second = dumped(tmp_path, [7, 9, 5, 11])
    with pytest.raises(VerificationFailed, match="key 9 of the dump is row 1 there and row 2 by"):
        check_key_indexes(second, tmp_path / "bundle", tables, entries)


def test_check_key_indexes_needs_the_keys_of_the_same_dump(tmp_path: Path) -> None:
    tables, entries = indexed(tmp_path, [7, 5, 9])
    longer = dumped(tmp_path, [7, 5, 9, 11])
    with pytest.raises(VerificationFailed) as failure:
        check_key_indexes(longer, tmp_path / "bundle", tables, entries)
    assert str(failure.value) == "table 't': its key index holds 3 keys, the dump 4"

    write_bundle(tmp_path / "ckpt", {"t": np.zeros((3, 2), np.float32)})
    with pytest.raises(
        VerificationFailed, match=r"'t' is found by keys, which checkpoint .*ckpt does not have"
    ):
        check_key_indexes(open_checkpoint(tmp_path / "ckpt"), tmp_path / "bundle", tables, entries)
    check_key_indexes(longer, tmp_path / "bundle", tables, {})


def test_check_key_indexes_tells_an_index_that_cannot_be_read(tmp_path: Path) -> None:
    tables, entries = indexed(tmp_path, [7, 5, 9])
    (tmp_path / "bundle" / entries["t"].file).write_bytes(b"torn")
    with pytest.raises(VerificationFailed, match=r"'t\.bin' has 4 bytes"):
        check_key_indexes(dumped(tmp_path, [7, 5, 9]), tmp_path / "bundle", tables, entries)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (np.array([5, -1, -2], np.int64), "the key of row 1 in 't-key' is -1; ids are"),
        (np.array([5, -3], np.int32), "the key of row 1 in 't-key' is -3; ids are"),
        (np.array([1 << 63, 1], np.uint64), "the key of row 0 in 't-key' is 9223372036854775808"),
        (np.array([5, 5], np.int64), "'t-key': key 5 comes twice, as row 0 and row 1; keys must"),
    ],
)
def test_write_key_indexes_rejects_keys_that_are_no_ids(
    tmp_path: Path, keys: Any, problem: str
) -> None:
    sok_dump(tmp_path / "dump", "t", keys, np.zeros((keys.size, 2), np.float32))
    checkpoint = open_checkpoint(tmp_path / "dump")
    with (
        pytest.raises(CheckpointError, match=f"table 't': {problem}"),
        Staging(tmp_path, "tables", 1) as stage,
    ):
        write_key_indexes(checkpoint, recognize(checkpoint).tables, stage)


def test_write_key_indexes_passes_over_tables_without_keys(tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"t": np.zeros((3, 2), np.float32)})
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    with Staging(tmp_path, "tables", 1) as stage:
        assert write_key_indexes(checkpoint, recognize(checkpoint, {"t": "t"}).tables, stage) == {}


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_write_key_indexes_takes_0_as_a_key(tmp_path: Path, dtype: str) -> None:
    keys = np.array([5, 0, 3], dtype)
    sok_dump(tmp_path / "dump", "t", keys, np.zeros((3, 2), np.float32))
    checkpoint = open_checkpoint(tmp_path / "dump")
    with Staging(tmp_path, "tables", 1) as stage:
        (entry,) = write_key_indexes(checkpoint, recognize(checkpoint).tables, stage).values()
        index = KeyIndex(stage.directory / entry.file, 3)
        assert index.find(np.array([0, 3, 5])).tolist() == [1, 2, 0]


def test_write_key_indexes_of_a_file_that_another_dump_replaced_is_rejected(tmp_path: Path) -> None:
    checkpoint = dumped(tmp_path, [7, 5, 9])
    (path,) = (tmp_path / "dump").glob("*-key*")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    with (
        pytest.raises(CheckpointError, match="t-key changed while it was read"),
        Staging(tmp_path, "tables", 1) as stage,
    ):
        write_key_indexes(checkpoint, recognize(checkpoint).tables, stage)
