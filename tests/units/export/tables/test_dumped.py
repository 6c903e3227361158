"""Tables that a parameter server dumped, on the command line: inspected, exported with their keys,
verified.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.storage import catalog
from export.checkpoint.formats.dumps import list_dump
from export.checkpoint.reader import open_checkpoint
from export.checkpoint.variables import DumpedTable
from export.errors import CheckpointError, UsageError
from export.tables.dumped import (
    BLOCK_KEYS,
    SAMPLED_BLOCKS,
    SAMPLED_KEYS,
    KeyFile,
    open_dumps,
    vectors_key,
    with_dumps,
)
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command
from tests.units.export.movies_job import visible
from tests.units.export.verify.small_reference import job_of

RANDOM = np.random.default_rng(4)
IDS = np.unique(RANDOM.integers(0, 2**62, 3000))
RANDOM.shuffle(IDS)
ROWS = RANDOM.standard_normal((IDS.size, 6)).astype(np.float32)


def looked_up(bundle: Path, table: str, ids: list[int]) -> np.ndarray:
    features = open_features(bundle, catalog.read_manifest(bundle))
    actual = features.activation(table, {table: Column(np.array(ids, np.int64))}, len(ids)).values
    features.close()
    return np.asarray(actual)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32", "int32"])
def test_tables_of_a_dump_are_looked_up_by_their_keys(
    command: Command, tmp_path: Path, dtype: str
) -> None:
    keys = (
        IDS.astype(dtype)
        if dtype.endswith("64")
        else RANDOM.permutation(IDS.size * 3)[: IDS.size].astype(dtype)
    )
    keys[keys == 0] = IDS.size * 3
    keys[4] = 0
    dump = sok_dump(tmp_path / "dump", "user_0", keys, ROWS, m=ROWS)
    page = command("tables", dump, tmp_path / "out", "--table", "users=user_0", "--json").json
    bundle = tmp_path / "out/tables/1"
    assert page["verification"]["tables"]["users"] == {"rows_compared": 3000, "rows": 3000}
    wanted = [0, 2999, 4, 17, 17]
    np.testing.assert_array_equal(
        looked_up(bundle, "users", [int(keys[row]) for row in wanted]), ROWS[wanted]
    )
    assert not looked_up(bundle, "users", [int(keys.max()) + 1]).any()
    for more in ((), ("--full",)):
        assert command("verify", bundle, "--checkpoint", dump, *more).code == 0


def test_keys_of_several_blocks_lead_to_their_rows(command: Command, tmp_path: Path) -> None:
    count = BLOCK_KEYS + 5
    keys = np.arange(count, dtype=np.int64)[::-1] * 3
    rows = np.arange(count, dtype=np.float32).reshape(-1, 1)
    dump = sok_dump(tmp_path / "dump", "t", keys, rows)
    assert command("tables", dump, tmp_path / "out").code == 0

    bundle = tmp_path / "out/tables/1"
    wanted = [0, BLOCK_KEYS - 1, BLOCK_KEYS, count - 1]
    actual = looked_up(bundle, "t", [int(keys[row]) for row in wanted])
    np.testing.assert_array_equal(actual[:, 0], wanted)
    assert command("verify", bundle, "--checkpoint", dump, "--full").code == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.array([5, 9, 5], np.int64), "key 5 comes twice, as row 0 and row 2"),
        (np.array([5, -9, 6], np.int64), "the key of row 1 in 't-key' is -9"),
        (np.array([5, 9, 2**63], np.uint64), "the key of row 2 in 't-key' is 9223372036854775808"),
    ],
)
def test_dump_with_invalid_keys_exits_3_and_leaves_no_files(
    command: Command,
    tmp_path: Path,
    keys: np.ndarray,
    message: str,
) -> None:
    sok_dump(tmp_path / "dump", "t", keys, ROWS[:3])
    done = command("tables", tmp_path / "dump", tmp_path / "out")
    assert done.code == 3
    assert message in done.message
    assert visible(tmp_path / "out") == []


@pytest.mark.parametrize("row", [0, IDS.size - 1])
def test_verify_finds_another_first_or_last_key(command: Command, tmp_path: Path, row: int) -> None:
    sok_dump(tmp_path / "dump", "t", IDS, ROWS)
    assert command("tables", tmp_path / "dump", tmp_path / "out").code == 0
    changed = IDS.copy()
    changed[row] = (1 << 62) + 1
    sok_dump(tmp_path / "dump", "t", changed, ROWS)
    done = command("verify", tmp_path / "out/tables/1", "--checkpoint", tmp_path / "dump")
    assert done.code == 5
    assert f"of the dump is row {row} there and row -1 by the bundle's index" in done.message


def test_verify_finds_keys_of_other_rows(command: Command, tmp_path: Path) -> None:
    sok_dump(tmp_path / "dump", "t", IDS, ROWS)
    command("tables", tmp_path / "dump", tmp_path / "out", "--json").json  # noqa: B018
    moved = IDS.copy()
    moved[[10, 20]] = moved[[20, 10]]
    sok_dump(tmp_path / "dump", "t", moved, ROWS)
    done = command("verify", tmp_path / "out/tables/1", "--checkpoint", tmp_path / "dump")
    assert done.code == 5
    assert (
        f"key {IDS[20]} of the dump is row 10 there and row 20 by the bundle's index"
        in done.message
    )
    damaged = tmp_path / "out/tables/1/keys/t.bin"
    damaged.chmod(0o644)
    data = bytearray(damaged.read_bytes())
    data[8] ^= 1
    damaged.write_bytes(data)
    done = command("verify", tmp_path / "out/tables/1")
    assert done.code == 5
    assert "keys/t.bin" in done.message


def key_file(directory: Path, keys: np.ndarray) -> KeyFile:
    sok_dump(directory, "t", keys, np.ones((keys.size, 2), np.float32))
    (table,) = list_dump(directory).storage.dumped.values()
    return KeyFile(table)


def test_rows_of_keys_are_found_however_they_are_asked_for(tmp_path: Path) -> None:
    file = key_file(tmp_path / "dump", np.array([7, 3, 9, 1], np.int64))
    assert file.rows(np.array([9])).tolist() == [2]
    assert file.rows(np.array([9, 1, 8, 9])).tolist() == [2, 3, -1, 2]
    assert file.rows(np.array([3, 7, 8, 0, 10])).tolist() == [1, 0, -1, -1, -1]
    assert file.rows(np.empty(0, np.int64)).tolist() == []
    assert file.of(np.array([3, 0, 0])).tolist() == [1, 7, 7]
    assert file.of(np.empty(0, np.int64)).tolist() == []
    assert file.read(1, 2).tolist() == [3, 9]
    assert [(first, keys.tolist()) for first, keys in file.blocks()] == [(0, [7, 3, 9, 1])]
    assert file.sample().tolist() == [1, 3, 7, 9]


def test_sample_of_keys_is_from_all_over_the_file(tmp_path: Path) -> None:
    keys = np.arange(SAMPLED_KEYS * SAMPLED_BLOCKS * 2, dtype=np.int64)[::-1] + 5
    file = key_file(tmp_path / "dump", keys)
    blocks = list(file.sampled_blocks())
    assert len(blocks) == SAMPLED_BLOCKS
    assert (blocks[0][0], blocks[-1][0]) == (0, keys.size - SAMPLED_KEYS)
    for first, contents in blocks:
        np.testing.assert_array_equal(contents, keys[first : first + SAMPLED_KEYS])
    assert file.sample().size == SAMPLED_KEYS * SAMPLED_BLOCKS


def test_keys_that_were_cut_short_since_are_an_error(tmp_path: Path) -> None:
    file = key_file(tmp_path / "dump", np.array([7, 3, 9, 1], np.int64))
    (path,) = (tmp_path / "dump").glob("*-key*")
    path.write_bytes(path.read_bytes()[:-8])
    assert file.read(0, 3).tolist() == [7, 3, 9]
    with pytest.raises(CheckpointError, match=f"{path.name} was cut short while it was read"):
        file.read(0, 4)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} cannot be read: No such file"):
        file.read(0, 1)


def dumps(directory: Path, **tables: Any) -> dict[str, DumpedTable]:
    """Opens the dumped tables of a recipe."""
    return open_dumps(job_of(tables=tables), directory)


def write_dump(directory: Path, *names: str) -> None:
    for name in names:
        sok_dump(directory, name, np.array([7, 5], np.int64), np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    ("contents", "part", "name"),
    [
        (["users", "users_0", "other"], {}, "users"),
        (["users_0", "other"], {}, "users_0"),
        (["other"], {}, "other"),
        (["users", "other"], {"key": "other"}, "other"),
    ],
)
def test_dumped_table_is_the_named_one_that_of_its_name_or_the_only_one(
    tmp_path: Path, contents: list[str], part: dict[str, str], name: str
) -> None:
    write_dump(tmp_path / "dump", *contents)
    actual = dumps(tmp_path, users={"dump": "dump"} | part, plain={"segment_rows": 5})
    assert {table: dumped.name for table, dumped in actual.items()} == {"users": name}


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (
            {},
            "tables.users: dump ROOT/dump has no table 'users'; it has films, movies "
            "(tables.users.key names it)",
        ),
        (
            {"key": "movie"},
            "tables.users: dump ROOT/dump has no table 'movie'; did you mean 'movies'? "
            "(tables.users.key names it)",
        ),
        ({"dump": "gone"}, "tables.users.dump: ROOT/gone is not a directory"),
        (
            {"dump": "s3://bucket/dump"},
            "tables.users.dump: s3://bucket/dump is a URL; bring the dump to a disk of this "
            "machine",
        ),
    ],
)
def test_dumped_table_that_is_not_there_is_rejected(
    tmp_path: Path, part: dict[str, str], problem: str
) -> None:
    write_dump(tmp_path / "dump", "films", "movies")
    with pytest.raises(UsageError) as rejection:
        dumps(tmp_path, users={"dump": "dump"} | part)
    assert str(rejection.value) == problem.replace("ROOT", str(tmp_path))


def test_checkpoint_with_dumps_holds_their_variables_under_keys_of_their_own(
    tmp_path: Path,
) -> None:
    write_bundle(tmp_path / "ckpt", {"t": np.ones((2, 2), np.float32)})
    write_dump(tmp_path / "dump", "movies")
    checkpoint = open_checkpoint(tmp_path / "ckpt")
    assert with_dumps(checkpoint, {}) is checkpoint
    assert vectors_key(checkpoint, "users") is None

    joined = with_dumps(checkpoint, dumps(tmp_path, users={"dump": "dump"}))
    new_keys = set(joined.entries) - set(checkpoint.entries)
    assert len(new_keys) == 2
    assert all(key.startswith("tables.users.dump/") for key in new_keys)
    key = vectors_key(joined, "users")
    assert key is not None
    assert joined.read_all(key).tolist() == [[1, 1, 1]] * 2
    assert joined.storage.dumped[key].name == "users"
    assert joined.storage.dumped[key].keys.key in new_keys
    assert vectors_key(joined, "user") is None
    assert joined.fingerprint.startswith(f"{checkpoint.fingerprint}+crc32c:")
    assert (joined.prefix, joined.name) == (checkpoint.prefix, checkpoint.name)
