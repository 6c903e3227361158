"""Exit code 4: something cannot be converted."""

from __future__ import annotations

from pathlib import Path

from tests.export.commands import Command, refused
from tests.export.movies_job import Recipe, changed, write_corpus, write_project
from tests.export.traced_models import TracedCheckpoint


def test_ranking_output_of_several_numbers_exits_4_with_the_remedy(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, changed(recipe, "towers.ranking.outputs", {"score": "query"}))
    refused(
        command,
        project,
        4,
        "output 'score' is 8 numbers for each candidate",
        "'first': scores[:, 0]",
    )


def test_candidate_that_does_not_fit_exits_4_and_names_row_and_column(
    command: Command, project: Path
) -> None:
    write_corpus(project.parent / "movies.csv", {5: {"movieId": "100"}})
    told = "column 'movieId': id 100 stands in row 1 of movies.csv and row 6 of movies.csv"
    refused(command, project, 4, "corpus 'movies'", told)


def test_table_that_is_not_in_the_checkpoint_exits_4_with_the_nearest_name(
    command: Command, recipe: Recipe, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    key = "model/embedding/_tpu_embedding/user"
    refused(
        command,
        write_project(tmp_path, changed(recipe, "tables.users.key", key)),
        4,
        repr(key),
        "did you mean",
    )
    done = command("tables", movies.prefix, tmp_path, "--table", f"users={key}")
    assert done.code == 4
    assert "did you mean 'model/embedding/_tpu_embedding/users'?" in done.message
