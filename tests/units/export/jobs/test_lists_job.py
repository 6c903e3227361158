"""A whole job with lists of candidates: what is in the bundle, and what stops it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.storage import integrity
from bundle.stores.lists import read_list
from export.errors import ExportError
from tests.units.export.movies_job import MOVIE_IDS, Recipe, changed, export, write_project

POPULAR = {
    "corpus": "movies",
    "file": "popular.csv",
    "id": "movie",
    "segment": "user",
    "by": "user_id",
}


def project_of(directory: Path, recipe: Recipe, rows: str, **part: str) -> Path:
    """Writes a project whose recipe has the list `popular`; returns the path of the recipe."""
    lists = {"popular": {**POPULAR, **part}}
    project = write_project(directory / "project", changed(recipe, "lists", lists))
    project.with_name("popular.csv").write_text(f"user,movie\n{rows}")
    return project


def test_lists_of_a_recipe_are_in_the_bundle(small_recipe: Recipe, tmp_path: Path) -> None:
    rows = f",{MOVIE_IDS[3]}\n,{MOVIE_IDS[1]}\n7,{MOVIE_IDS[2]}\n"
    published = export(project_of(tmp_path, small_recipe, rows), 1)
    entry = published.manifest.lists["popular"]
    assert (entry.corpus, entry.size, entry.by, entry.default) == ("movies", 3, "user_id", "")
    bundle = tmp_path / "project" / "bundles" / "small" / "1"
    integrity.check_files(bundle, published.manifest, "full")
    lists = read_list(bundle / entry.file, entry, "int64")
    assert {segment: ids.tolist() for segment, ids in lists.items()} == {
        "": [MOVIE_IDS[3], MOVIE_IDS[1]],
        "7": [MOVIE_IDS[2]],
    }


@pytest.mark.parametrize(
    ("rows", "part", "message"),
    [
        (f",{MOVIE_IDS[0]}\n,5\n", {}, "1 of 2 ids are not in corpus 'movies', such as 5"),
        ("", {"corpus": "films"}, "lists.popular.corpus names 'films'; the recipe has movies"),
        (
            f",{MOVIE_IDS[0]}\n",
            {"by": "movie_id"},
            "'movie_id', an input of candidates; one of contexts",
        ),
        ("", {"by": "country"}, "lists.popular.by names 'country'; the recipe has the inputs"),
        ("", {"file": "old.csv"}, "lists.popular.file: "),
    ],
)
def test_list_that_does_not_fit_stops_the_job_before_tables_are_copied(
    rows: str, part: dict[str, str], message: str, small_recipe: Recipe, tmp_path: Path
) -> None:
    project = project_of(tmp_path, small_recipe, rows, **part)
    with pytest.raises(ExportError) as problem:
        export(project, 1)
    assert message in str(problem.value)
    assert not list((tmp_path / "project" / "bundles").rglob("rows-*"))
