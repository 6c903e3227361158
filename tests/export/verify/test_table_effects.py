"""What converted tables do to towers and indexes: measured, told, and refused where the recipe allows less."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.storage.staging import check_files, read_manifest
from export.errors import UsageError, VerificationFailed
from tests.export.exporting import Recipe, changed, export, visible, write_project


@pytest.fixture
def converting(recipe: Recipe, tmp_path: Path) -> Recipe:
    """A recipe whose movies become int8 and whose users become bfloat16."""
    page = changed(recipe, "output.root", str(tmp_path / "root"))
    return changed(changed(page, "tables.movies.dtype", "int8"), "tables.users.dtype", "bfloat16")


def test_run_with_converted_tables_tells_what_they_cost(converting: Recipe, tmp_path: Path) -> None:
    page = converting
    for tower in page["towers"]:
        page = changed(page, f"towers.{tower}.max_abs_error.f32", 0.5)
    bundle = export(write_project(tmp_path, page)).directory
    assert isinstance(bundle, Path)
    found = read_manifest(bundle)
    check_files(bundle, found, tables="full")
    assert {name: table.dtype for name, table in found.tables.items()}["movies"] == "int8"
    errors = {name: table.error for name, table in found.tables.items() if table.error is not None}
    assert sorted(errors) == ["movies", "users"]
    assert all(0 < error.rms < error.max_abs and error.cosine_min > 0.99 for error in errors.values())
    assert set(found.verification.table_effect) == set(page["towers"])
    for name, tower in found.towers.items():
        saved = next(form for form in tower.forms if form.kind == "saved_model")
        assert found.verification.table_effect[name] == pytest.approx(saved.max_abs_error, abs=2e-5)
        assert 1e-4 < max(saved.max_abs_error.values()) < 0.5
    for index in found.indexes.values():
        assert index.recall_of_tables is not None
        assert 0.5 < index.recall_of_tables.value <= 1
        assert index.recall_of_tables.queries == index.recall.queries
    assert not list(bundle.rglob(".*"))


def test_run_with_converted_tables_without_a_limit_tells_the_measured_difference(
    converting: Recipe, tmp_path: Path
) -> None:
    told = r"tables movies, users are converted.*towers\.\w+\.max_abs_error\.f32 \(here 0\.\d+\), towers\."
    with pytest.raises(VerificationFailed, match=told):
        export(write_project(tmp_path, converting))
    assert visible(tmp_path / "root") == []


def test_run_whose_converted_rows_break_a_limit_publishes_nothing(converting: Recipe, tmp_path: Path) -> None:
    page = changed(converting, "tables.movies.max_abs_error", 1e-6)
    with pytest.raises(VerificationFailed, match="table 'movies': max_abs_error of its converted rows is"):
        export(write_project(tmp_path, page))
    assert visible(tmp_path / "root") == []


def test_limit_of_a_tower_that_reads_no_converted_table_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    page = changed(recipe, "towers.query.max_abs_error.f32", 0.5)
    with pytest.raises(UsageError, match=r"towers\.query\.max_abs_error\.f32.*parity rule binds"):
        export(write_project(tmp_path, page))
