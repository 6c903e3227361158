"""Rows that differ from the checkpoint are found, wherever they are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pytest

from bundle.format.manifest import Shard, Table, TableSource
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.errors import VerificationFailed
from export.verify.table_rows import verify_tables
from tests.export.checkpoint.bundles import write_bundle

ROWS, DIM = 5000, 3
VALUES = np.random.default_rng(5).standard_normal((ROWS, DIM)).astype(np.float32)


class Pair(NamedTuple):
    checkpoint: Checkpoint
    root: Path
    table: Table


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A checkpoint in slices, and a bundle of it in two shards, the second behind 7 other bytes."""
    boxes = {"t": [[(0, 1234), (0, -1)], [(1234, ROWS - 1234), (0, -1)]]}
    write_bundle(tmp_path / "ckpt", {"t": VALUES}, boxes=boxes)
    shards = []
    for number, (first, rows, offset) in enumerate(((0, 3000, 0), (3000, 2000, 7))):
        data = VALUES[first : first + rows].tobytes()
        (tmp_path / f"s{number}").write_bytes(bytes(offset) + data)
        crc = google_crc32c.value(data)
        shards.append(
            Shard(
                file=f"s{number}",
                offset=offset,
                first_row=first,
                rows=rows,
                crc32c=crc,
                blocks=(crc,),
            )
        )
    source = TableSource(layout="plain", key="t")
    table = Table(rows=ROWS, dim=DIM, dtype="float32", shards=tuple(shards), source=source)
    return Pair(open_checkpoint(tmp_path), tmp_path, table)


def check(pair: Pair, rows: int | None = 4096, **changed: Any) -> Any:
    return verify_tables(
        pair.checkpoint, pair.root, {"t": pair.table.model_copy(update=changed)}, rows
    )["t"]


def alter(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("rows", "compared"), [(None, ROWS), (100, 100), (ROWS, ROWS), (10 * ROWS, ROWS), (2, 2)]
)
def test_verify_tables_equal_rows_are_counted(pair: Pair, rows: int | None, compared: int) -> None:
    assert check(pair, rows).rows_compared == compared


@pytest.mark.parametrize(
    ("row", "rows"),
    [
        *((row, None) for row in (1, 2999, 3000, 3777)),
        *((row, 20) for row in (0, 1233, 1234, 2999, 3000, ROWS - 1)),
    ],
)
def test_verify_tables_in_full_or_at_the_ends_of_shards_and_slices_finds_any_flipped_bit(
    pair: Pair, row: int, rows: int | None
) -> None:
    file, at = ("s0", 12 * row) if row < 3000 else ("s1", 7 + 12 * (row - 3000))
    alter(pair.root / file, at + 9)
    with pytest.raises(
        VerificationFailed, match=f"'t': row {row} differs from the checkpoint, first in column 2"
    ):
        check(pair, rows)


def test_verify_tables_shard_cut_short_or_missing_is_named(pair: Pair) -> None:
    whole = (pair.root / "s1").read_bytes()
    (pair.root / "s1").write_bytes(whole[:-1])
    with pytest.raises(VerificationFailed, match=r"'s1' has .* cut short"):
        check(pair, 10)
    (pair.root / "s1").unlink()
    with pytest.raises(VerificationFailed, match=r"'t': its rows cannot be read: .*'s1'"):
        check(pair, 10)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"dim": 4}, r"is \[5000, 4\] in the bundle, laid out as plain in float32 \[5000, 3\]"),
        ({"dtype": "float16"}, "is of float16"),
        ({"source": TableSource(layout="plain", key="gone")}, "has no variable 'gone'"),
    ],
)
def test_verify_tables_table_that_is_not_the_variable_is_refused(
    pair: Pair, changed: dict[str, Any], what: str
) -> None:
    with pytest.raises(VerificationFailed, match=what):
        check(pair, **changed)
