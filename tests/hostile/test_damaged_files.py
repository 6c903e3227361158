"""Dumps, layout files and files of ids that are damaged or claim much: values that fit the files,
or a typed error, in bounded time.
"""

from __future__ import annotations

import json
import os
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from export.checkpoint.inventory.layout_file import read_layouts
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import Statements
from export.checkpoint.reader import Checkpoint, open_checkpoint
from export.cli.documents import inspected
from export.cli.report import render
from export.errors import DestinationError, ExportError
from export.jobs.space import check_plan_fits
from export.tables.plan import plan_tables
from export.verify.trained_ids import trained_rows_of_tables
from tests.cases.checkpoints.layout_files import KEY, SPEC_TEXT, STACK, TOML, spec_bytes
from tests.hostile import ordeal
from tests.hostile.damage import case_files, trial
from tests.hostile.mutations import NUMBERS, flip, reword
from tests.hostile.ordeal import deadline
from tests.units.export.checkpoint.dump_files import collection_dump, head, hugectr_dump, sok_dump
from tests.units.export.checkpoint.tensor_bundles import write_bundle

IDS = np.arange(40, dtype=np.int64) * 3
ROWS = np.ones((40, 4), np.float32)
DAMAGES = 200
"""Of each dump and each file."""
DUMPS: dict[str, Callable[[Path], object]] = {
    "SOK": lambda folder: sok_dump(folder, "t", IDS, ROWS, m=ROWS),
    "HugeCTR": lambda folder: hugectr_dump(folder / "t", IDS, ROWS, np.zeros(40, np.uint64)),
    "collection": lambda folder: collection_dump(folder, [(IDS, ROWS), (IDS[:3], ROWS[:3])]),
}


@pytest.mark.parametrize("kind", DUMPS)
def test_damaged_dump_gives_values_or_a_typed_error(tmp_path: Path, kind: str) -> None:
    DUMPS[kind](tmp_path)
    assert ordeal.endure(tmp_path) == ""
    files = case_files(tmp_path)
    for seed in range(DAMAGES):
        with TemporaryDirectory() as directory:
            trial(seed, files, Path(directory))


def test_dump_of_a_terabyte_is_planned_without_being_read(tmp_path: Path) -> None:
    for name, kind, dtype, size in (("t-key", 0, 1, 8 << 34), ("t-weight", 1, 5, 64 << 34)):
        (tmp_path / name).write_bytes(head(kind, dtype))
        os.truncate(tmp_path / name, 296 + size)
    with deadline():
        checkpoint = open_checkpoint(tmp_path)
        (table,) = recognize(checkpoint).tables
        assert (table.rows, table.dim) == (1 << 34, 16)
        plan = plan_tables(checkpoint, recognize(checkpoint), tmp_path / "out")
    # Vectors, keys aside, and their index.
    with pytest.raises(DestinationError, match=r"the tables need 1\.\d TiB"):
        check_plan_fits(plan, tmp_path)


@pytest.mark.parametrize("name", ["a[b]*?", "\x1b[2J", "line\nbreak", "-key", "x" * 200])
def test_names_of_files_in_a_dump_are_only_names(tmp_path: Path, name: str) -> None:
    sok_dump(tmp_path, name, IDS, ROWS, m=ROWS)
    inventory = recognize(open_checkpoint(tmp_path))
    (table,) = inventory.tables
    assert table.name == name
    document = inspected(inventory)
    assert document["tables"][name]["rows"] == 40
    assert render(document)


STATED = TOML.partition("[tables.words]")[0]
"""Without the table that is to be derived."""
COUNTS = pa.BufferOutputStream()
parquet.write_table(pa.table({"id": range(200), "count": [3] * 200}), COUNTS)
SOUND: dict[str, bytes] = {
    "layouts.toml": STATED.encode(),
    "layouts.json": json.dumps(tomllib.loads(STATED)).encode(),
    "layouts.textproto": SPEC_TEXT.encode(),
    "layouts.pb": spec_bytes(),
    "ids.txt": "\n".join(map(str, range(200))).encode(),
    "ids.csv": "\n".join(["id,count", *(f"{row},{row + 1}" for row in range(200))]).encode(),
    "ids.jsonl": "\n".join(f'{{"id": {row}, "count": 2}}' for row in range(200)).encode(),
    "ids.parquet": COUNTS.getvalue().to_pybytes(),
}
"""Files of layouts and of ids that occur in training."""
CLAIMS: dict[str, bytes] = {
    "layouts-deep.toml": b"a = " + b"[" * 200_000,
    "layouts-deep.json": b"[" * 200_000,
    "layouts-deep.textproto": b"a {" * 200_000,
    "layouts-long.json": b'{"tables": {"a": {"key": "stack", "kind": "plain", "rows": '
    + b"9" * 10_000
    + b"}}}",
    "layouts-long.textproto": b"stack_vocab_size: " + b"9" * 10_000,
    "layouts.pb": b"\x0a\xff\xff\xff\xff\x0f",
    "ids-long.txt": b"9" * 100_000,
    "ids-long.csv": b"id\n" + b"9" * 100_000,
    "ids-wide.csv": ",".join(map(str, range(20_000))).encode(),
    "ids-deep.jsonl": b"[" * 100_000,
    "ids-nested.jsonl": b'{"id": ' + b"[" * 500 + b"]" * 500 + b"}",
    "ids-keys.jsonl": "\n".join(f'{{"k{row}": 1}}' for row in range(20_000)).encode(),
    "ids-none.parquet": b"PAR1PAR1",
    "ids-nul.txt": b"1\0\n2",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Variables that the sound layouts speak of."""
    root = tmp_path_factory.mktemp("layouts")
    files = {KEY: STACK, "genres": STACK[:10], "ages": STACK[:128]}
    write_bundle(root / "all/ckpt-1", files)
    return open_checkpoint(root / "all")


def endure(checkpoint: Checkpoint, path: Path, data: bytes) -> str:
    """Writes and reads a file; returns what was rejected, "" for nothing."""
    path.write_bytes(data)
    try:
        with deadline():
            if path.name.startswith("ids"):
                rows = trained_rows_of_tables([("t", str(path))], ["t"])["t"].rows
                assert rows.min() >= 0
            else:
                inventory = recognize(checkpoint, Statements(layouts=read_layouts(path)))
                plan_tables(checkpoint, inventory, path.parent / "out")
    except ExportError as problem:
        return str(problem)
    return ""


def damaged(rng: random.Random, name: str, data: bytes) -> bytes:
    """Returns a file with other bytes, other fields, other numbers, or cut short."""
    kind = rng.randrange(4)
    if kind == 0 and name.endswith(".pb"):
        return reword(rng, data)
    if kind == 0:
        return re.sub(
            rb"\d+",
            lambda found: found[0] if rng.random() < 0.8 else b"%d" % rng.choice([*NUMBERS, -1]),
            data,
        )
    if kind == 1:
        return data[: rng.randrange(len(data))]
    return flip(rng, data)


@pytest.mark.parametrize("name", SOUND)
def test_file_with_any_damage_fits_or_is_a_typed_error(
    checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    assert endure(checkpoint, tmp_path / name, SOUND[name]) == ""
    for seed in range(DAMAGES):
        data = damaged(random.Random(seed), name, SOUND[name])
        endure(checkpoint, tmp_path / name, data)


@pytest.mark.parametrize("name", CLAIMS)
def test_file_that_claims_much_is_rejected_by_its_name(
    checkpoint: Checkpoint, tmp_path: Path, name: str
) -> None:
    assert name in endure(checkpoint, tmp_path / name, CLAIMS[name])
