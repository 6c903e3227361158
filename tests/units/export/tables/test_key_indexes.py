"""Tables that a parameter server dumped: exported with their keys, found by them, verified."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.format import manifest
from bundle.storage import catalog
from bundle.storage.staging import Staging
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import CheckpointError, UsageError, VerificationFailed
from export.tables.dumped import SAMPLED_BLOCKS, SAMPLED_KEYS, KeyFile, open_dumps
from export.tables.key_indexes import check_key_indexes, write_key_indexes
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.commands import Command
from tests.units.export.verify.small_reference import job_of

RANDOM = np.random.default_rng(4)
COUNT = 3000
ROWS = RANDOM.standard_normal((COUNT, 6)).astype(np.float32)
KEYS = {
    "int32": RANDOM.permutation(COUNT * 3)[:COUNT],
    "uint32": RANDOM.permutation(COUNT * 3)[:COUNT],
    "int64": RANDOM.permutation(np.unique(RANDOM.integers(0, 2**62, COUNT))),
    "uint64": RANDOM.permutation(np.unique(RANDOM.integers(0, 2**62, COUNT))),
}


def looked_up(bundle: Path, table: str, ids: list[int]) -> np.ndarray:
    features = open_features(bundle, catalog.read_manifest(bundle))
    actual = features.activation(table, {table: Column(np.array(ids, np.int64))}, len(ids)).values
    features.close()
    return np.asarray(actual)


@pytest.mark.parametrize(
    ("dtype", "block_keys"), [("int32", 7), ("uint32", 1 << 20), ("int64", 1 << 20), ("uint64", 7)]
)
def test_rows_of_a_dump_are_found_by_its_keys_and_verified(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, block_keys: int
) -> None:
    monkeypatch.setattr("export.tables.dumped.BLOCK_KEYS", block_keys)
    keys = KEYS[dtype].astype(dtype)
    keys[keys == 0] = COUNT * 3
    keys[4] = 0
    dump = sok_dump(tmp_path / "dump", "user_0", keys, ROWS, m=ROWS)
    line = ("tables", dump, tmp_path / "out", "--table", "users=user_0", "--json")
    page = command(*line).json
    bundle = tmp_path / "out/tables/1"
    assert page["verification"]["tables"]["users"] == {"rows_compared": COUNT, "rows": COUNT}
    wanted = [0, COUNT - 1, 4, 7, 8, 17, 17]
    rows = looked_up(bundle, "users", [int(keys[row]) for row in wanted])
    np.testing.assert_array_equal(rows, ROWS[wanted])
    assert not looked_up(bundle, "users", [int(keys.max()) + 1]).any()
    for more in ((), ("--full",)):
        assert command("verify", bundle, "--checkpoint", dump, *more).code == 0

    for row in (0, COUNT - 1):
        changed = keys.copy()
        changed[row] = keys.max() + 1
        sok_dump(tmp_path / "dump", "user_0", changed, ROWS)
        done = command("verify", bundle, "--checkpoint", dump)
        assert (done.code, f"row {row} there and row -1" in done.message) == (5, True)
    (bundle / "keys/users.bin").write_bytes(b"torn")
    done = command("verify", bundle)
    assert (done.code, "keys/users.bin" in done.message) == (5, True)


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


def test_keys_from_all_over_the_dump_are_compared_or_all_of_them(tmp_path: Path) -> None:
    keys = np.arange(3 * SAMPLED_KEYS * SAMPLED_BLOCKS)[::-1] * 2
    tables, entries = indexed(tmp_path, keys)
    check_key_indexes(dumped(tmp_path, keys), tmp_path / "bundle", tables, entries, full=True)
    moved = keys.copy()
    moved[SAMPLED_KEYS] += 1  # right behind those of the first sample
    second = dumped(tmp_path, moved)
    check_key_indexes(second, tmp_path / "bundle", tables, entries)
    with pytest.raises(VerificationFailed, match=f"row {SAMPLED_KEYS} there and row -1"):
        check_key_indexes(second, tmp_path / "bundle", tables, entries, full=True)
    longer = dumped(tmp_path, [*keys, 1])
    with pytest.raises(VerificationFailed, match=f"holds {keys.size} keys"):
        check_key_indexes(longer, tmp_path / "bundle", tables, entries)


def test_examples_get_keys_from_all_over_the_dump(tmp_path: Path) -> None:
    keys = np.arange(2 * SAMPLED_KEYS * SAMPLED_BLOCKS)[::-1]
    (table,) = dumped(tmp_path, keys).storage.dumped.values()
    sample = KeyFile(table).sample()
    assert np.unique(sample).size == SAMPLED_KEYS * SAMPLED_BLOCKS
    assert {0, keys.size - 1} <= {*sample.tolist()}


def test_keys_that_another_dump_replaced_are_rejected(tmp_path: Path) -> None:
    checkpoint = dumped(tmp_path, [7, 5, 9])
    (path,) = (tmp_path / "dump").glob("*-key*")
    os.utime(path, ns=(10**9, 10**9))
    with (
        pytest.raises(CheckpointError, match="t-key changed while it was read"),
        Staging(tmp_path, "tables", 1) as stage,
    ):
        write_key_indexes(checkpoint, recognize(checkpoint).tables, stage)


@pytest.mark.parametrize(
    ("contents", "part", "name", "words"),
    [
        (["users", "users_0", "other"], {}, "users", ""),
        (["users_0", "other"], {}, "users_0", ""),
        (["other"], {}, "other", ""),
        (["users", "other"], {"key": "other"}, "other", ""),
        (["films", "movies"], {}, "", "no table 'users'; it has films, movies"),
        (["films", "movies"], {"key": "movie"}, "", "did you mean 'movies'"),
        (["films"], {"dump": "gone"}, "", "tables.users.dump: .*gone is not a directory"),
        (["films"], {"dump": "s3://bucket/dump"}, "", "is a URL"),
    ],
)
def test_table_of_a_dump_is_the_named_one_that_of_its_name_or_the_only_one(
    tmp_path: Path, contents: list[str], part: dict[str, str], name: str, words: str
) -> None:
    for table in contents:
        sok_dump(tmp_path / "dump", table, np.array([7, 5]), np.ones((2, 3), np.float32))
    job = job_of(tables={"users": {"dump": "dump"} | part})
    if words:
        with pytest.raises(UsageError, match=words):
            open_dumps(job, tmp_path)
        return
    opened = open_dumps(job, tmp_path)
    assert {table: dump.name for table, dump in opened.items()} == {"users": name}
