"""Tables of feature specifications in a checkpoint: found by a layout, never by a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.tables.reader import TableReader
from export.errors import ExportError
from tests.models import sparsecore_ranker as ranker
from tests.units.export.checkpoint.orbax_trees import write_item
from tests.units.export.job_runs import assert_refused, prepare, publish

pytest.importorskip("jax")

MORE = """

def placed(only=(), **changes):
    specs = feature_specs()
    for name, table in changes.items():
        for spec in specs.values():
            if spec["table_spec"]["name"] == name:
                page = spec["table_spec"]
                setting = {**page["setting_in_stack"], **table.get("setting_in_stack", {})}
                spec["table_spec"] = {**page, **table, "setting_in_stack": setting}
    chosen = {name: spec for name, spec in specs.items() if not only or name in only}

    def scored(parameters, inputs):
        rows = [jnp.sum(inputs[name], axis=-1) for name in chosen]
        return {"score": sum(rows) * parameters["b"][0]}

    return shapes(), {"score": scored if only else score}, chosen
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("specified")
    ranker.write(root, prepared=True, more=MORE)
    return root


def page_of(layout: str = "", **changes: Any) -> dict[str, Any]:
    """Returns a recipe, which names a layout or leaves it to the specifications."""
    checkpoint = {"path": "checkpoint"} | ({"layout": layout} if layout else {})
    return ranker.recipe(checkpoint=checkpoint, **changes)


def test_prepared_specifications_place_tables_if_the_recipe_accepts_them(folder: Path) -> None:
    with pytest.raises(ExportError, match="the layouts of the rows are stated"):
        publish(page_of(), folder)
    page = page_of(model="accepted", verify={"stated_layouts": "accept"})
    published = publish(page, folder).manifest.tables
    for name, rows in ranker.tables().items():
        reader = TableReader(folder / "bundles/accepted/1", published[name])
        np.testing.assert_array_equal(reader.gather(np.arange(len(rows))), rows, name)


@dataclass(frozen=True)
class Misplaced:
    """Specifications that contradict the checkpoint of the ranker, or do not place a table.

    Attributes:
      words: Words of the message.
      changes: Fields of tables that differ.
      only: The features that the model has; empty: all.
      layout: Whether the recipe names the layout that training wrote.
      chunk_rows: The rows that the checkpoint stores together.
    """

    words: tuple[str, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    layout: bool = False
    chunk_rows: int = 1 << 20


def in_stack(**settings: Any) -> dict[str, Any]:
    return {"setting_in_stack": settings}


def stack_of(rows: int, **settings: Any) -> dict[str, Any]:
    return {"stacked_table_spec": {"stack_vocab_size": rows}, **in_stack(**settings)}


MISPLACED: dict[str, Misplaced] = {
    "another rotation than the layout": Misplaced(
        ("'users'", "(256, 16, 3)", "(256, 16, 4)"),
        {"users": in_stack(shard_rotation=3)},
        layout=True,
    ),
    "another size": Misplaced(
        ("'genres'", "[25, 3]", "[24, 3]"), {"genres": {"vocabulary_size": 25}}, layout=True
    ),
    "a stack that is not there": Misplaced(
        ("'elsewhere'", "'movies_users'"), {"users": in_stack(stack_name="elsewhere")}
    ),
    "other devices": Misplaced(
        ("'users'", "64 SparseCores"), {"users": in_stack(row_offset_in_shard=2)}
    ),
    "a larger stack": Misplaced(
        ("'movies_users'", "320", "256"),
        {"users": stack_of(320, padded_vocab_size=192), "movies": stack_of(320)},
    ),
    "another table of the stack left out": Misplaced(
        ("'users'", "create_proto_from_feature_specs"), only=("user", "tags")
    ),
    "chunks of more devices": Misplaced(("8 SparseCores", "16 chunks"), chunk_rows=16),
}


@pytest.mark.parametrize("case", MISPLACED)
def test_specifications_that_do_not_place_their_tables_are_rejected(
    case: str, tmp_path: Path
) -> None:
    misplaced = MISPLACED[case]
    ranker.write(tmp_path, prepared=True, more=MORE, chunk_rows=misplaced.chunk_rows)
    page = page_of("layout.textproto" if misplaced.layout else "")
    page["code"] = {
        "factory": "model.py:placed",
        "arguments": {"only": list(misplaced.only), **misplaced.changes},
    }
    if misplaced.only:
        page["inputs"] = {name: page["inputs"][name] for name in ("tags", "tag_weights", "user")}
        page["features"] = {"tags": {"role": "candidate"}}
    assert_refused(page, tmp_path, *misplaced.words)


def test_layout_of_another_combiner_is_rejected(tmp_path: Path) -> None:
    ranker.write(tmp_path)
    layout = tmp_path / "layout.textproto"
    before, after = layout.read_text().split('table_name: "tags"')
    changed = after.replace('combiner: "sum"', 'combiner: "mean"', 1)
    layout.write_text(f'{before}table_name: "tags"{changed}')
    assert_refused(ranker.recipe(), tmp_path, "'tags'", "'sum'", "'mean'")


def trained_rows() -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    random = np.random.default_rng(2)
    return {
        name: np.flatnonzero(random.random(table.rows) < 0.5)
        for name, table in ranker.TABLES.items()
    }


def write_ids(folder: Path) -> dict[str, str]:
    """Writes the ids that occur in training; returns their files by feature or table."""
    trained = trained_rows()
    files = {}
    for name in ("user", "movie", "genres", "tags"):
        table = ranker.FEATURES[name]
        (folder / f"{table}.txt").write_text("\n".join(map(str, trained[table])))
        files["users" if name == "user" else name] = f"{table}.txt"
    return files


def test_ids_of_training_prove_prepared_specifications(tmp_path: Path) -> None:
    ranker.write(tmp_path, prepared=True, trained=trained_rows())
    page = page_of(verify={"trained_ids": write_ids(tmp_path)})
    checks = publish(page, tmp_path).manifest.verification.tables.values()
    assert {check.stated_layout for check in checks} == {"trained_ids"}


def test_specifications_that_ids_of_training_contradict_are_rejected_whatever_the_consent(
    tmp_path: Path,
) -> None:
    ranker.write(tmp_path, prepared=True, more=MORE, trained=trained_rows())
    turned = {"users": in_stack(shard_rotation=3)}
    page = page_of(
        code={"factory": "model.py:placed", "arguments": turned},
        verify={"trained_ids": write_ids(tmp_path), "stated_layouts": "accept"},
    )
    assert_refused(page, tmp_path, "'users'", "rotation 3) contradicts", "rotation 4)")


def test_table_that_is_no_stack_is_found_by_its_stated_key(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ranker.model_file())
    leaves = {f"params.{name}": values for name, values in ranker.parameters().items()}
    leaves |= {f"{name}_rows": values for name, values in ranker.tables().items()}
    write_item(tmp_path / "checkpoint", leaves)
    assert_refused(page_of(), tmp_path, "name its array as tables.users.key")
    keys = {name: {"key": f"{name}_rows"} for name in ranker.TABLES}
    tables = prepare(page_of(tables=keys), tmp_path).inventory.tables
    assert {table.key for table in tables} == {f"{name}_rows" for name in keys}
