"""Checkpoints that Orbax itself wrote (orbax.tar.xz), read and copied without it: every table, bit
for bit.

Each case holds its checkpoint, `values.npz` (what it must be read as) and, of stacks, the trainer's
`layout.pb`. All were written on four CPU devices of two cores each by flax with optax, keras-rs
0.4.0 and jax-tpu-embedding 0.1.0.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from export.checkpoint.inventory.layout_file import read_embedding_spec, read_layouts
from export.checkpoint.inventory.recognition import recognize
from export.checkpoint.inventory.specs import StatedTable, Statements
from export.checkpoint.reader import open_checkpoint
from export.errors import NotConvertible
from export.verify.stated_layouts import check_padding
from tests.differential.copies import copied

FLAT = ("packed_zarr2", "packed_zarr3", "loose_zarr2", "loose_zarr3")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases."""
    root = tmp_path_factory.mktemp("orbax")
    with tarfile.open(Path(__file__).with_name("orbax.tar.xz")) as archive:
        archive.extractall(root, filter="data")
    return root


def values_of(case: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(case / "values.npz") as file:
        return {name: file[name] for name in file.files}


def as_bytes(values: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(value).tobytes() for name, value in values.items()}


def test_steps_of_a_manager_are_read_at_the_newest(written: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(written / "flax_steps")
    actual = recognize(checkpoint)
    assert (actual.checkpoint, actual.step, actual.storage) == ("flax_steps/10", 10, "Orbax")
    (table,) = actual.tables
    assert (table.name, table.origin, table.slices) == ("movies", "Flax Embed", 4)
    assert [slot.name for slot in table.slots] == ["mu", "nu"]
    assert [entry.key for entry in actual.candidates] == ["params.Dense_0.kernel"]
    assert copied(checkpoint, actual, tmp_path) == as_bytes(values_of(written / "flax_steps"))


@pytest.mark.parametrize("name", FLAT)
def test_tree_of_a_checkpointer_is_copied_by_named_keys(
    name: str, written: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / name)
    assert recognize(checkpoint).step == 3
    values = values_of(written / name)
    named = Statements({"a": "params.a", "half": "params.half"})
    expected = as_bytes({"a": values["a"], "half": values["half"].astype(ml_dtypes.bfloat16)})
    assert copied(checkpoint, recognize(checkpoint, named), tmp_path) == expected


@pytest.mark.parametrize("name", ["step", "converted", "in_order"])
@pytest.mark.parametrize("stated", ["", "proto.pbtxt", "layout.toml"])
def test_step_of_jax_tpu_embedding_is_copied_by_the_record_in_it(
    name: str, stated: str, tmp_path: Path
) -> None:
    with tarfile.open(Path(__file__).with_name("jax_tpu_embedding.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    values = values_of(tmp_path)
    checkpoint = open_checkpoint(tmp_path / name)
    statements = Statements()
    if stated == "proto.pbtxt" and name != "in_order":
        record = tmp_path / name / "5/embedding_spec/proto.pbtxt"
        statements = Statements(layouts=read_layouts(record))
    elif stated == "layout.toml":
        rows, dim = values["tags"].shape
        cores = {"in_order": 1}.get(name, 8)
        (tmp_path / stated).write_text(
            f'[tables.tags]\nkey = "model.embedding_layer.embedding_table.value.tags.table"\n'
            f'kind = "sparse_core"\nrows = {rows}\ndim = {dim}\ncores = {cores}\n'
        )
        statements = Statements(layouts=read_layouts(tmp_path / stated))

    actual = recognize(checkpoint, statements)

    assert {table.name: table.combiner for table in actual.tables} == {
        "genres": "mean",
        "movies": "mean",
        "tags": "sum",
        "users": "mean",
    }
    assert not any(table.stated for table in actual.tables)
    assert copied(checkpoint, actual, tmp_path / "copy") == as_bytes(values)


@pytest.mark.parametrize("name", ["jax_stacks", "keras_rs_stacks"])
def test_stack_with_a_recorded_layout_is_copied_and_without_one_is_rejected(
    name: str, written: Path, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(written / name)
    actual = recognize(checkpoint)
    (rejected,) = actual.rejected
    assert "--layout" in rejected.reason
    assert rejected.name.startswith("movies_users")
    assert [slot.trained_key for slot in actual.slots if "slot" in slot.key] == [rejected.key]
    with pytest.raises(NotConvertible, match="--layout"):
        actual.table(rejected.name)
    stated = recognize(checkpoint, Statements(layouts=read_layouts(written / name / "layout.pb")))
    assert copied(checkpoint, stated, tmp_path) == as_bytes(values_of(written / name))


@pytest.mark.parametrize("name", ["jax_stacks", "keras_rs_stacks"])
@pytest.mark.parametrize(
    "wrong",
    [
        *({"cores": cores, "rotation": 0} for cores in (1, 2, 4, 16, 32)),
        *({"rotation": rotation} for rotation in (1, 3, 7)),
        {"rows": 27},
    ],
)
def test_stack_contradicts_a_layout_that_is_not_its_trainers(
    name: str, wrong: dict[str, int], written: Path
) -> None:
    """Rows behind the last row of a table are NaN, and their accumulators as they began."""
    checkpoint = open_checkpoint(written / name)

    def check(change: dict[str, int]) -> None:
        layouts = {}
        record = (written / name / "layout.pb").read_bytes()
        for table, recorded in read_embedding_spec(record, text=False).items():
            layout = recorded.layout
            stated: dict[str, int] = {
                "rows": recorded.rows,
                "dim": recorded.dim,
                "cores": layout.cores,
                "rotation": layout.rotation,
            } | change
            stated["offset"] = layout.offset * layout.cores // stated["cores"]
            layouts[table] = StatedTable(key=recorded.stack, kind="sparse_core", **stated)
        actual = recognize(checkpoint, Statements(layouts=layouts))
        check_padding(checkpoint, actual.tables, [table.name for table in actual.tables])

    check({})
    with pytest.raises(NotConvertible, match="correct cores, offset, rotation and rows"):
        check(wrong)
