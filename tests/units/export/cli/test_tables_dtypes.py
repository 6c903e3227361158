"""`tables --dtype`: the type of the rows of all or some tables; integers only on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bundle.storage import catalog, integrity
from bundle.tables.reader import TableReader
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command
from tests.units.export.movies_job import visible

TABLE = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
STORED = {
    "user/embeddings": TABLE,
    "user/embeddings/Adagrad": TABLE + 1,
    "item/embeddings": TABLE.astype("f8"),
    "city/embeddings": np.arange(30, dtype="i8").reshape(10, 3),
}


def test_tables_dtype_of_all_and_of_one_converts_rows(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", STORED)
    options = (
        "--dtype",
        "int8",
        "--dtype",
        "city=float32",
        "--table",
        "city=city/embeddings",
        "--full",
    )
    page = command("tables", tmp_path / "c", tmp_path / "out", *options, "--json").json
    assert set(page["table_errors"]) == {"user", "item", "city"}
    assert page["table_errors"]["city"]["max_abs"] == 0
    published = catalog.read_manifest(tmp_path / "out/tables/1")
    integrity.check_files(tmp_path / "out/tables/1", published, tables="full")
    assert {name: table.dtype for name, table in published.tables.items()} == {
        "user": "int8",
        "item": "int8",
        "city": "float32",
    }
    assert set(published.features) == {"user", "item", "city"}
    item = TableReader(tmp_path / "out/tables/1", published.tables["item"]).gather(np.arange(30))
    assert np.abs(item - TABLE).max() <= np.abs(TABLE).max() / 254 * 1.001
    done = command(
        "verify", tmp_path / "out/tables/1", "--checkpoint", tmp_path / "c", "--full", "--json"
    )
    assert done.json["tables"]["item"] == {"rows_compared": 30, "rows": 30}


def test_tables_of_float64_become_float32_by_default_with_a_note(
    command: Command, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "c", STORED)
    page = command("tables", tmp_path / "c", tmp_path / "out", "--json").json
    assert set(page["table_errors"]) == {"item"}
    assert any("converted from float64 to float32" in note for note in page["notes"])


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        (["--dtype", "int4"], 2, "--dtype 'int4' was given; [NAME=]DTYPE was expected"),
        (["--dtype", "users=int8"], 2, "--dtype users=...: no table of that name is exported"),
        (["--table", "city=city/embeddings"], 4, "--dtype city=float32"),
        (
            ["--dtype", "int8", "--only", "bad"],
            4,
            "table 'bad': 1 row holds NaN or an infinity, first row 17",
        ),
    ],
)
def test_tables_with_an_invalid_dtype_are_rejected(
    command: Command, tmp_path: Path, options: list[str], code: int, what: str
) -> None:
    values = TABLE.copy()
    values[17, 2] = np.inf
    write_bundle(tmp_path / "c", STORED | {"bad/embeddings": values})
    done = command("tables", tmp_path / "c", tmp_path / "out", *options)
    assert (done.code, visible(tmp_path / "out")) == (code, [])
    assert what in done.message
