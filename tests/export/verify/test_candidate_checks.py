from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from bundle.format.manifest import Manifest
from bundle.storage import staging
from export.errors import VerificationFailed
from export.recipe.schema import read_recipe
from export.verify.audit import open_parts
from export.verify.candidate_checks import check_candidates
from export.verify.examples import Examples
from tests.export.exporting import MOVIES, Recipe, write_project

Judged = Callable[[], None]


@pytest.fixture
def bundle(undisturbed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "1"))


@pytest.fixture
def judged(undisturbed: Path, bundle: Path, recipe: Recipe, tmp_path: Path) -> Judged:
    """Judges the copy; the original model gives what the undisturbed bundle holds."""
    path = write_project(tmp_path / "project", recipe)
    page = staging.read_manifest(undisturbed)
    vectors = np.fromfile(undisturbed / page.indexes["movies"].vectors, "<f4").reshape(MOVIES, -1)

    def original(tower: str, examples: Examples) -> Any:
        assert tower == "candidate"
        assert set(examples.columns) == {"movie_id", "genres", "year"}
        return vectors

    return lambda: check_candidates(bundle, page, read_recipe(path), path.parent, original)


def rolled(bundle: Path, column: str) -> None:
    """Gives every candidate the next one's value."""
    path = bundle / staging.read_manifest(bundle).candidates["movies"].file
    with ipc.open_file(path) as file:
        table = file.read_all().combine_chunks()
    values = table.column(column).combine_chunks()
    moved = pa.concat_arrays([values.slice(1), values.slice(0, 1)])
    table = table.set_column(table.schema.get_field_index(column), column, moved)
    path.unlink()
    with ipc.new_file(path, table.schema) as out:
        out.write_table(table)


def test_check_candidates_of_what_was_exported_passes(judged: Judged) -> None:
    judged()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", r"row 1: id is 107 in the bundle, column 'movieId' of movies.csv says '100'"),
        ("feature:year", r"row 1: feature 'year' is \[1981.0\] in the bundle, column 'year' of movies.csv says '1980'"),
        ("feature:genres", r"feature 'genres' is \["),
        ("attribute:title", r"""attribute 'title' is 'Movie "1", The' in the bundle"""),
    ],
)
def test_check_candidates_values_of_the_next_candidate_are_refused(
    judged: Judged, bundle: Path, column: str, message: str
) -> None:
    rolled(bundle, column)
    with pytest.raises(VerificationFailed, match=message):
        judged()


def test_check_candidates_vectors_in_another_order_are_refused(judged: Judged, bundle: Path) -> None:
    path = bundle / staging.read_manifest(bundle).indexes["movies"].vectors
    vectors = np.fromfile(path, "<f4").reshape(MOVIES, -1)
    vectors[[3, 8]] = vectors[[8, 3]]
    vectors.tofile(path)
    with pytest.raises(VerificationFailed, match=r"vector of candidate 121 \(row 4 of corpus 'movies'\).*2 of 40"):
        judged()


def test_open_parts_index_over_another_order_is_refused(bundle: Path) -> None:
    page: Manifest = staging.read_manifest(bundle)
    path = bundle / page.indexes["movies"].vectors
    np.fromfile(path, "<f4").reshape(MOVIES, -1)[::-1].tofile(path)
    with pytest.raises(VerificationFailed, match="from other vectors, or in another order"):
        list(open_parts(bundle, page))
