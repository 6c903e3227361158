"""Files of ids that occur in training, damaged: rows, or a typed error that names the file."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from export.errors import UsageError
from export.verify.trained_ids import trained_rows_of_tables
from tests.hostile.mutations import flip
from tests.hostile.ordeal import deadline

SOUND = {
    "ids.txt": "\n".join(map(str, range(200))),
    "ids.csv": "id,count\n" + "\n".join(f"{number},{number + 1}" for number in range(200)),
    "ids.jsonl": "\n".join(f'{{"id": {number}, "count": 2}}' for number in range(200)),
}
CLAIMS = {
    "long.txt": "9" * 100_000,
    "long.csv": "id\n" + "9" * 100_000,
    "wide.csv": ",".join(map(str, range(20_000))),
    "deep.jsonl": "[" * 100_000,
    "nested.jsonl": '{"id": ' + "[" * 500 + "]" * 500 + "}",
    "none.parquet": "PAR1PAR1",
    "nul.txt": "1\0\n2",
}


def endure(path: Path) -> str:
    """Returns what was rejected, "" for nothing."""
    try:
        with deadline():
            rows = trained_rows_of_tables([("t", str(path))], ["t"])["t"].rows
    except UsageError as problem:
        return str(problem)
    assert rows.min() >= 0
    return ""


def sound(directory: Path, name: str) -> bytes:
    if name == "ids.parquet":
        columns = {"id": list(range(200)), "count": [3] * 200}
        parquet.write_table(pa.table(columns), directory / name)
        return (directory / name).read_bytes()
    return SOUND[name].encode()


@pytest.mark.parametrize("name", [*SOUND, "ids.parquet"])
def test_file_of_ids_with_any_damage_gives_rows_or_a_typed_error(name: str, tmp_path: Path) -> None:
    data = sound(tmp_path, name)
    path = tmp_path / name
    path.write_bytes(data)
    assert endure(path) == ""
    for seed in range(150):
        rng = random.Random(seed)
        damaged = flip(rng, data) if seed % 2 else data[: rng.randrange(len(data))]
        path.write_bytes(damaged)
        endure(path)


@pytest.mark.parametrize("name", CLAIMS)
def test_file_of_ids_that_claims_too_much_is_rejected(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(CLAIMS[name])
    assert name in endure(path)
