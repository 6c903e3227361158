"""The tables of a model in its checkpoint: by its objects, by name, and as the recipe states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.checkpoint.inventory.specs import Inventory
from export.checkpoint.layouts import Mod, stored_rows
from export.checkpoint.reader import open_checkpoint
from export.errors import CheckpointError, NotConvertible, UsageError
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.placeholders import remember_line
from export.tensorflow_models.model.tables import recognize_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.traced_models import TracedCheckpoint


def tables(
    movies: TracedCheckpoint, base: Path, checkpoint_at: Path | None = None, **sections: Any
) -> Inventory:
    """What is found for the movies' recipe with keys of some sections changed."""
    recipe = movies.job.model_dump()
    for section, keys in sections.items():
        recipe[section] |= keys
    opened = open_checkpoint(checkpoint_at or movies.prefix)
    return recognize_tables(opened, movies.model, ExportJob.model_validate(recipe), base)


def test_recognize_tables_follows_the_layout_file(movies: TracedCheckpoint, tmp_path: Path) -> None:
    users = tables(movies, tmp_path).table("users")
    stated = (
        f'[tables.users]\nkey = "{users.key}"\nkind = "sparse_core"\nrows = '
        f"{users.rows}\ndim = {users.dim}\ncores = "
    )
    (tmp_path / "layout.toml").write_text(stated + "2\n")
    inventory = tables(movies, tmp_path, checkpoint={"layout": "layout.toml"})
    assert (inventory.table("users").origin, inventory.table("users").layout.lanes) == (
        "layout file",
        2,
    )
    assert {table.name for table in inventory.tables} >= set(movies.tables)
    (tmp_path / "layout.toml").write_text(stated + "3\n")
    with pytest.raises(NotConvertible, match="3 cores"):
        tables(movies, tmp_path, checkpoint={"layout": "layout.toml"})
    with pytest.raises(UsageError, match=r"none\.toml cannot be read"):
        tables(movies, tmp_path, checkpoint={"layout": "none.toml"})


def test_recognize_tables_by_mod_follows_the_recipe(
    movies: TracedCheckpoint, tmp_path: Path
) -> None:
    saved = open_checkpoint(movies.prefix)
    key = tables(movies, tmp_path).table("users").key
    rows = len(movies.tables["users"])
    dealt = [np.arange(first, rows, 3) for first in range(3)]
    starts = np.cumsum([0, *map(len, dealt)]).tolist()
    values: dict[str, Any] = {
        name: saved.read_string(name) if entry.dtype == "string" else saved.read_all(name)
        for name, entry in saved.entries.items()
    }
    values[key] = movies.tables["users"][np.concatenate(dealt)]
    boxes = [[(start, len(part)), (0, -1)] for start, part in zip(starts, dealt, strict=False)]
    write_bundle(tmp_path / "ckpt-1", values, boxes={key: boxes})
    with pytest.raises(NotConvertible, match=r"'users'.* 1 row range"):
        tables(movies, tmp_path, tables={"users": {"mod": True}})
    table = tables(movies, tmp_path, tmp_path / "ckpt-1", tables={"users": {"mod": True}}).table(
        "users"
    )
    assert table.layout == Mod(tuple(starts[:3]))
    stored = open_checkpoint(tmp_path / "ckpt-1").read(key, 0, rows)
    np.testing.assert_array_equal(
        stored[stored_rows(table.layout, np.arange(rows))], movies.tables["users"]
    )


def test_recognize_tables_of_other_code_names_the_line(
    movies: TracedCheckpoint, tmp_path: Path
) -> None:
    def recognize_with(other_model: Any, **changed: Any) -> None:
        spec = movies.model.spec
        tables = dict(spec.tables) | {"users": replace(spec.tables["users"], **changed)}
        model = replace(
            movies.model,
            spec=replace(spec, tables=tables),
            tables=dict(movies.model.tables) | other_model,
        )
        recognize_tables(open_checkpoint(movies.prefix), model, movies.job, tmp_path)

    message = (
        r"'users' is \[51, 8\] in the model \(two_towers.py:\d+\) and \[50, 8\] in "
        r"checkpoint .* not the one"
    )
    with pytest.raises(CheckpointError, match=message):
        recognize_with({}, rows=51)
    strange = tf.Variable([[1.0]])
    remember_line(strange)
    message = (
        r"'users' of the model \(test_tables.py:\d+\): checkpoint .* no table 'people' "
        r".*tables.NAME.key"
    )
    with pytest.raises(NotConvertible, match=message):
        recognize_with({"users": strange}, config_name="people")
