"""A bundle that was changed while it was served gives the same responses, bit for bit, as one that
is exported anew with the changed candidates.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from export.errors import UsageError
from export.recipe.schema import ExportJob, read_recipe
from export.verify.published import verify_against_recipe
from service.contract.forms import IdLists
from service.contract.messages import (
    Condition,
    Filter,
    LookupRequest,
    RankingRequest,
    RecommendationRequest,
    RetrievalRequest,
    Target,
)
from tests.differential.random_changes import Change
from tests.random_cases import seeds
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    export,
    genres_of,
    recipe_of,
    title_of,
    write_project,
    year_of,
)
from tests.units.export.movies_job import changed as edited
from tests.units.export.traced_models import movies_recipe, save_checkpoint
from tests.units.service.changes.making import change, file_of, status
from tests.units.service.running import RunningService

TARGET = Target("movies")
STEPS = 40
"""The number of changes before an export, while it runs, and behind it."""
SHARES = {"add": 0.5, "replace": 0.3, "delete": 0.1, "attributes": 0.1}


@dataclass
class Movie:
    """A candidate, as the corpus has it; `movie` is the id that its features hold."""

    movie: int
    genres: list[int]
    feature_year: float
    title: str
    year: int


@dataclass
class History:
    """What changes were made, as data.

    Attributes:
      movies: The candidates by id, in the order in which they were last changed.
    """

    movies: dict[int, Movie]


@pytest.mark.slow
def test_responses_after_any_history_equal_those_of_a_rebuild(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Even of one that an export has read in the middle, for a bundle that is served then."""
    checkpoint = save_checkpoint(movies_recipe(), tmp_path / "checkpoint")
    history = History(_first_movies())
    changed = _served(tmp_path / "changed", checkpoint, history.movies)
    rebuilt = None
    try:
        (seed,) = seeds(request, 1, 1)[:1]
        random = np.random.default_rng(seed)
        _make_changes(changed, random, history)
        published = _export_with_changes(changed)
        _make_changes(changed, random, history)
        verify_against_recipe(*published, with_changes=file_of(changed))
        changed.scan()
        assert changed.current().version == 2
        # What the bundle contains is left out, and no more.
        counts = status(changed)["versions"][-1]["changed"]
        assert 0 < counts["candidates movies"] <= STEPS
        _make_changes(changed, random, history)

        rebuilt = _served(tmp_path / "rebuilt", checkpoint, history.movies)
        for call_request, call in _requests(history):
            result = changed.execute(call_request, call)
            _assert_equal(result, rebuilt.execute(call_request, call))
    finally:
        for service in (changed, rebuilt):
            if service is not None:
                service.close()


def _make_changes(service: RunningService, random: np.random.Generator, history: History) -> None:
    for _ in range(STEPS):
        path, body = _change(random, history)
        options = {name: value for name, value in body.items() if name != "items"}
        change(service, path, *body["items"], **options)


def _export_with_changes(service: RunningService) -> tuple[Path, ExportJob, Path]:
    """Publishes version 2 with the changes so far; has it compared with its recipe and these once
    more, as `verify` does. Returns the bundle, the recipe and its folder.
    """
    file = file_of(service)
    project = service.settings.root.parent / "recipe.toml"
    published = export(project, 2, with_changes=file)
    last = status(service)["sequence"]
    assert any(f"up to sequence {last}" in note for note in published.notes)
    included = published.manifest.changes_included
    assert included is not None
    assert included.sequence == last
    job = read_recipe(project)
    bundle = Path(str(published.directory))
    verify_against_recipe(bundle, job, project.parent, with_changes=file)
    with pytest.raises(UsageError, match="name the changes file of the service"):
        verify_against_recipe(bundle, job, project.parent)
    return bundle, job, project.parent


def _first_movies() -> dict[int, Movie]:
    return {
        movie: Movie(movie, genres_of(row), float(year_of(row)), title_of(row), year_of(row))
        for row, movie in enumerate(MOVIE_IDS)
    }


def _change(random: np.random.Generator, history: History) -> Change:
    """Returns a random change, which the history has then."""
    known = [*history.movies]
    kind = random.choice([*SHARES], p=[*SHARES.values()])
    if kind == "delete" and len(known) > 10:
        key = int(random.choice(known))
        del history.movies[key]
        return "candidates/delete", {"items": [{"id": key}]}
    key = int(random.choice(known))
    if kind == "attributes":
        movie = history.movies.pop(key)
        drawn: dict[str, Any] = {"title": f"Later {key}", "year": int(random.integers(1900, 2030))}
        names = random.permutation([*drawn])[: random.integers(1, 3)].tolist()
        attributes = {name: drawn[name] for name in names}
        history.movies[key] = replace(movie, **attributes)
        return "candidates/attributes", {"items": [{"id": key, "attributes": attributes}]}
    if kind == "add":
        key = int(random.integers(10_000))
    history.movies.pop(key, None)
    movie = Movie(
        int(random.choice(MOVIE_IDS)),
        random.integers(9, size=random.integers(3)).tolist(),
        float(random.integers(1900, 2030)),
        f"New {key}",
        int(random.integers(1900, 2030)),
    )
    history.movies[key] = movie
    features = {"movie_id": movie.movie, "genres": movie.genres, "year": movie.feature_year}
    attributes = {
        "title": movie.title,
        "year": movie.year,
        "genres": [str(genre) for genre in movie.genres],
    }
    return (
        "candidates/upsert",
        {"items": [{"id": key, "features": features, "attributes": attributes}]},
    )


def _requests(history: History) -> Iterator[tuple[Any, str]]:
    """Yields requests of every call, with all candidates that there are."""
    users = np.arange(50)
    context = {"user_id": Column(users), "hour": Column(users % 24)}
    count = len(history.movies)
    keys = np.array([*history.movies])
    attributes = ("title", "year")
    for k, exact in ((1, False), (5, True), (5, False), (count, True)):
        yield (
            RetrievalRequest(TARGET, context=context, k=k, exact=exact, attributes=attributes),
            "retrieve",
        )
        yield RetrievalRequest(TARGET, ids=keys, k=min(k, 20), exact=exact), "retrieve"
    later = Filter({"year": Condition(ge=1990)})
    yield RetrievalRequest(TARGET, context=context, k=7, exact=True, filter=later), "retrieve"
    excluded = IdLists(keys[: count // 2])
    yield (
        RetrievalRequest(TARGET, context=context, k=7, exact=True, exclude_ids=excluded),
        "retrieve",
    )
    for user in range(0, 50, 10):
        one = {"user_id": Column(users[user : user + 1]), "hour": Column(users[:1])}
        yield RankingRequest(TARGET, context=one, candidate_ids=keys), "rank"
        yield RecommendationRequest(TARGET, context=one, k=10, pool_size=count), "recommend"
    for feature, size in (("user_id", 50), ("hour", 24), ("genres", 9)):
        yield LookupRequest(TARGET, feature, Column(np.arange(size))), "lookup"


def _assert_equal(result: Any, expected: Any) -> None:
    for name, value in vars(expected).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(result, name), value, err_msg=name)
        elif name != "version":
            assert getattr(result, name) == value, name


def _served(directory: Path, checkpoint: Path, movies: Mapping[int, Movie]) -> RunningService:
    """Exports a checkpoint and candidates, and serves them."""
    features = {"movie_id": "movie", "genres": "genres", "year": "feature_year"}
    recipe: Recipe = edited(recipe_of(checkpoint), "corpora.movies.features", features)
    project = write_project(directory / "project", recipe)
    with (project.parent / "movies.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["movieId", "movie", "title", "genres", "feature_year", "year"])
        for key, movie in movies.items():
            genres = "|".join(map(str, movie.genres))
            writer.writerow([key, movie.movie, movie.title, genres, movie.feature_year, movie.year])
    export(project)
    return RunningService(project.parent / "bundles")
