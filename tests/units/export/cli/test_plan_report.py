from __future__ import annotations

from pathlib import Path

from tests.units.export.commands import Command
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    write_project,
)


def test_plan_lists_the_bundle_and_writes_nothing(command: Command, project: Path) -> None:
    page = command("plan", project, "--json").json
    assert page["destination"] == str(project.parent / "bundles/movies/1")
    assert page["tables"].keys() == {"users", "movies", "hours", "genres_all"}
    assert page["towers"]["query"]["features"] == ["history", "hour", "user_id"]
    assert page["features"]["history"]["combiner"] == "mean"
    assert not (project.parent / "bundles").exists()
    output = command("plan", project)
    assert output.code == 0
    assert "genres_all" in output.out.replace("…", "")
    assert not (project.parent / "bundles").exists()


def test_plan_lists_what_shards_and_routers_would_hold(command: Command, project: Path) -> None:
    options = ("--shards", "3", "--shard-min-bytes", str(40 * 8 * 4))
    *shards, router = command("plan", project, *options, "--json").json["shards"]
    assert [shard["shard"] for shard in shards] == ["1/3", "2/3", "3/3"]
    users = (17, 17, 16)
    movies = (14, 13, 13)
    expected = [(rows + movie_rows) * 8 * 4 for rows, movie_rows in zip(users, movies, strict=True)]
    assert [shard["table_bytes"] for shard in shards] == expected
    assert router["table_bytes"] == (24 + 9) * 4 * 4
    assert router["index_bytes"] > 0, "an index without partitions is on every router"
    assert "2/3" in command("plan", project, *options).out
    done = command("plan", project, "--shards", "3", "--tables", "inline")
    assert (done.code, "shards serve bundles" in done.message) == (2, True)


def test_plan_warns_of_features_of_one_vocabulary_with_other_first_rows(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    shorter = changed(recipe, "vocabularies.movies.file", "fewer.txt")
    (tmp_path / "fewer.txt").write_text("".join(f"{movie}\n" for movie in MOVIE_IDS[:-1]))
    shifted = changed(shorter, "features.history.ids.first_row", 1)
    done = command("plan", write_project(tmp_path, shifted))
    assert done.code == 0, done.err
    assert "(first_row): one is likely wrong" in " ".join(done.out.split())
