"""The command line on checkpoints that are no TensorBundle: Orbax' trees, Keras' files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from bundle.storage import staging
from bundle.tables.reader import TableReader
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError
from export.model.weights import TrainedModel
from tests.export.checkpoint.orbax_trees import write_step
from tests.export.commands import Command

Write = Callable[[Path], Path]
TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


def orbax(directory: Path) -> Path:
    write_step(
        directory, "7", {"params.user.embedding": TABLE, "opt_state.0.mu.user.embedding": TABLE + 1}
    )
    return directory


def keras(directory: Path) -> Path:
    with h5py.File(directory / "model.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=TABLE)
        file.create_dataset("optimizer/vars/0", data=np.int64(7))
        file.create_dataset("optimizer/vars/2", data=TABLE + 1)
    return directory


def rows_of(directory: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    tables = staging.read_manifest(directory).tables
    return {
        name: TableReader(directory, table).gather(np.arange(table.rows))
        for name, table in tables.items()
    }


@pytest.mark.parametrize(
    ("write", "name", "slots"), [(orbax, "user", ["mu"]), (keras, "embedding", [])]
)
def test_tables_and_verify_of_other_storages(
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
    said = ("--tables", name)
    page = command("tables", checkpoint, tmp_path / "out", *said, "--json").json
    assert list(page["verification"]["tables"]) == [name]
    bundle = tmp_path / "out/tables/1"
    np.testing.assert_array_equal(rows_of(bundle)[name], TABLE)
    audit = command("verify", bundle, "--checkpoint", checkpoint, "--full", "--json").json
    assert audit["tables"][name]["rows_compared"] == 10


@pytest.mark.parametrize("write", [orbax, keras])
def test_weights_of_other_storages_are_refused_with_the_cure(tmp_path: Path, write: Write) -> None:
    with pytest.raises(
        CheckpointError, match=f"saved by {write.__name__.capitalize()}, without an object graph"
    ):
        TrainedModel(None, open_checkpoint(write(tmp_path)), "model").find_weights([])
