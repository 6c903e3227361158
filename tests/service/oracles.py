"""What a small bundle must answer, computed in float64 by dictionaries and loops, without any code of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.service import small_model
from tests.service.small_bundle import CITIES, CITY_DEFAULT, GENRE_NAMES, UNKNOWN_GENRE_ROW, SmallBundle

Array = NDArray[Any]


def movie_row(small: SmallBundle, movie: Any) -> int | None:
    known = {each: 1 + place for place, each in enumerate(small.ids.tolist())}
    return known.get(movie)


def query_vector(
    small: SmallBundle, user: int, history: Sequence[Any] = (), city: str = CITY_DEFAULT, hour: float = 0.0
) -> Array:
    """[8] float64."""
    import farmhash

    known = [row for movie in history if (row := movie_row(small, movie)) is not None]
    movies = small.tables["movies"].astype(np.float64)
    inputs = {
        "user": _user(small, user),
        "history": movies[known].mean(axis=0)[None] if known else np.zeros((1, 8)),
        "city": small.tables["cities"][farmhash.fingerprint64(city) % CITIES][None],
        "hour": np.array([hour]),
    }
    vector: Array = small_model.formula("query", small.edition, inputs)["vector"][0]
    return vector


def neighbors(small: SmallBundle, vector: Array, k: int, excluded: Sequence[Any] = ()) -> list[tuple[Any, float]]:
    """(id, score) of the k nearest by dot product, best first."""
    pairs = []
    for movie, candidate in zip(small.ids.tolist(), small.vectors.astype(np.float64), strict=True):
        if movie not in excluded:
            pairs.append((movie, float(np.dot(candidate, vector))))
    return sorted(pairs, key=lambda pair: -pair[1])[:k]


def ranked(small: SmallBundle, movie: Any, user: int, **context: Any) -> dict[str, float]:
    """Every output of the ranking tower for one stored candidate. context: liked (id -> weight), recent, hour, mood;
    genres and year override what is stored."""
    place = small.ids.tolist().index(movie)
    movies = small.tables["movies"].astype(np.float64)
    liked: Mapping[Any, float] = context.get("liked", {})
    taste = np.zeros(8)
    for each, weight in liked.items():
        row = movie_row(small, each)
        taste += 0 if row is None else weight * movies[row]
    recent = np.zeros((3, 8))
    for step, each in enumerate(list(context.get("recent", ()))[:3]):
        row = movie_row(small, each)
        recent[step] = 0 if row is None else movies[row]
    genres = context.get("genres", small.genres[place])
    genre_rows = [GENRE_NAMES.index(name) if name in GENRE_NAMES else UNKNOWN_GENRE_ROW for name in genres]
    inputs = {
        "user": _user(small, user),
        "liked": taste[None],
        "recent": recent[None],
        "hour": np.array([context.get("hour", 0.0)]),
        "mood": np.array([context.get("mood", (0.0, 0.0))]),
        "movie": movies[1 + place][None],
        "genres": small.tables["genres"][genre_rows].astype(np.float64).sum(axis=0)[None],
        "year": np.array([context.get("year", small.years[place])]),
    }
    return {name: float(value[0]) for name, value in small_model.formula("ranking", small.edition, inputs).items()}


def _user(small: SmallBundle, user: int) -> Array:
    users = small.tables["users"]
    row: Array = users[user if 0 <= user < len(users) else 0]
    return row[None]
