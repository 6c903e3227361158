"""The command line on checkpoints that are no TensorBundle: trees of Orbax, files of Keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bundle.storage import catalog
from bundle.tables.reader import TableReader
from tests.units.export.checkpoint import single_tables
from tests.units.export.checkpoint.single_tables import TABLE
from tests.units.export.commands import Command

Write = Callable[[Path], Path]


def rows_of(directory: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    tables = catalog.read_manifest(directory).tables
    return {
        name: TableReader(directory, table).gather(np.arange(table.rows))
        for name, table in tables.items()
    }


@pytest.mark.parametrize(
    ("write", "name", "slots"),
    [(single_tables.orbax, "user", ["mu"]), (single_tables.keras, "embedding", [])],
)
def test_tables_of_orbax_and_keras_checkpoints_verify(
    command: Command, tmp_path: Path, write: Write, name: str, slots: list[str]
) -> None:
    (tmp_path / "c").mkdir()
    checkpoint = write(tmp_path / "c")
    page = command("inspect", checkpoint, "--json").json
    assert (page["storage"], page["step"], page["complete"]) == (
        write.__name__.capitalize(),
        7,
        True,
    )
    assert page["tables"][name]["slots"] == slots
    page = command("tables", checkpoint, tmp_path / "out", "--only", name, "--json").json
    assert list(page["verification"]["tables"]) == [name]
    bundle = tmp_path / "out/tables/1"
    np.testing.assert_array_equal(rows_of(bundle)[name], TABLE)
    audit = command("verify", bundle, "--checkpoint", checkpoint, "--full", "--json").json
    assert audit["tables"][name]["rows_compared"] == 10
