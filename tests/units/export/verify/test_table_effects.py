"""The effects of converted tables on towers and indexes: measured, reported, and rejected where the
recipe allows less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Segment, Table, TableError, TableSource
from bundle.storage.catalog import read_manifest
from bundle.storage.integrity import check_files
from export.verify.table_effects import TrainedRows, converted, trained_tables
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command, rejected
from tests.units.export.movies_job import Recipe, changed, export, values_of, write_project
from tests.units.export.traced_models import TracedCheckpoint


@pytest.fixture
def converting(recipe: Recipe) -> Recipe:
    """A recipe whose movies become int8 and whose users become bfloat16."""
    return changed(changed(recipe, "tables.movies.dtype", "int8"), "tables.users.dtype", "bfloat16")


def test_run_with_converted_tables_reports_their_errors(converting: Recipe, tmp_path: Path) -> None:
    page = converting
    for tower in page["towers"]:
        page = changed(page, f"towers.{tower}.max_abs_error.f32", 0.5)
    page = changed(page, "tables.users.unavailable", "unknown")
    bundle = export(write_project(tmp_path, page)).directory
    assert isinstance(bundle, Path)
    published = read_manifest(bundle)
    check_files(bundle, published, tables="full")
    assert {name: table.dtype for name, table in published.tables.items()}["movies"] == "int8"
    assert {name for name, table in published.tables.items() if table.unavailable == "unknown"} == {
        "users"
    }
    errors = {
        name: table.error for name, table in published.tables.items() if table.error is not None
    }
    assert sorted(errors) == ["movies", "users"]
    assert all(
        0 < error.rms < error.max_abs and error.cosine_min > 0.99 for error in errors.values()
    )
    assert set(published.verification.table_effect) == set(page["towers"])
    for name, tower in published.towers.items():
        saved = next(form for form in tower.forms if form.kind == "saved_model")
        assert published.verification.table_effect[name] == pytest.approx(
            saved.max_abs_error, abs=2e-5
        )
        assert 1e-4 < max(saved.max_abs_error.values()) < 0.5
    for index in published.indexes.values():
        assert index.recall_of_tables is not None
        assert 0.5 < index.recall_of_tables.value <= 1
        assert index.recall_of_tables.queries == index.recall.queries
    assert not list(bundle.rglob(".*"))


def test_recall_of_tables_counts_what_converted_users_find_of_what_trained_users_would(
    movies: TracedCheckpoint, recipe: Recipe, tmp_path: Path
) -> None:
    values = values_of(movies.prefix)
    users = values[movies.keys["users"]]
    users[:, 0] = 1000  # int8 keeps nothing of the row's other values
    kernel = values["model/query_tower/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
    kernel[0] = 0  # and the tower ignores this one
    write_bundle(tmp_path / "ckpt-3", values)
    page = changed(recipe, "checkpoint.path", str(tmp_path / "ckpt-3"))
    page = changed(page, "tables", {"users": {"dtype": "int8"}})
    page = changed(page, "towers.ranking", None)
    page = changed(page, "towers.query.max_abs_error.f32", 10.0)

    bundle = export(write_project(tmp_path, page)).directory

    assert isinstance(bundle, Path)
    index = read_manifest(bundle).indexes["movies"]
    assert index.recall.value == 1
    assert index.recall_of_tables is not None
    assert 0.2 < index.recall_of_tables.value < 0.9


@pytest.mark.parametrize(
    ("changes", "code", "expected_text"),
    [
        (
            {},
            5,
            [
                "tables movies, users are stored with lower precision, so outputs",
                ".max_abs_error.f32 (measured: 0.",
            ],
        ),
        (
            {"tables.movies.max_abs_error": 1e-6},
            5,
            ["table 'movies': max_abs_error of its converted rows is"],
        ),
        (
            {"tables": {}, "towers.query.max_abs_error.f32": 0.5},
            2,
            ["towers.query.max_abs_error.f32: the tower"],
        ),
    ],
)
def test_run_whose_limits_do_not_fit_its_converted_tables_publishes_nothing(
    command: Command,
    converting: Recipe,
    tmp_path: Path,
    changes: dict[str, Any],
    code: int,
    expected_text: list[str],
) -> None:
    for key, value in changes.items():
        converting = changed(converting, key, value)
    rejected(command, write_project(tmp_path, converting), code, *expected_text)


def table(name: str, error: TableError | None = None) -> Table:
    segment = Segment(file=name, first_row=0, rows=5, crc32c=0, blocks=(0,))
    source = TableSource(layout="plain", key=name)
    dtype: Any = "float32" if error is None else "float16"
    return Table(rows=5, dim=2, dtype=dtype, segments=(segment,), source=source, error=error)


def test_trained_rows_are_those_of_the_checkpoint_for_any_rows_that_are_asked_for() -> None:
    reads: list[tuple[str, list[int]]] = []

    def read_rows(name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        reads.append((name, rows.tolist()))
        vectors: NDArray[Any] = rows[:, np.newaxis] + np.array([[10, 20, 99]])
        return vectors  # the last column is padding

    reader = TrainedRows("users", table("users"), read_rows)
    rows = np.array([3, -1, 0, 3])
    expected = [[13, 23], [0, 0], [10, 20], [13, 23]]
    assert reader.take(rows).tolist() == expected
    assert reads == [("users", [0, 3])]
    out = np.full((4, 2), 7, np.float32)
    assert reader.take(rows, out) is out
    assert out.tolist() == expected
    assert (reader.rows, reader.dim, reader.dtype) == (5, 2, "float32")
    reader.release()
    reader.close()


def test_trained_rows_are_read_of_converted_tables_alone() -> None:
    error = TableError(
        source_dtype="float32", max_abs=0.1, rms=0.1, cosine_min=0.9, cosine_mean=0.99
    )
    tables = {"users": table("users"), "movies": table("movies", error)}
    assert converted(tables) == {"movies"}
    assert list(trained_tables(tables, lambda _name, _rows: np.zeros((0, 2)))) == ["movies"]
