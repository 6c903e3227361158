"""Tables that a parameter server dumped: exported with their keys, found by them, verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.features.reader import open_features
from bundle.storage import catalog
from export.errors import UsageError
from export.tables.dumped import open_dumps
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
