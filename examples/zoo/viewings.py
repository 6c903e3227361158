"""MovieLens small in the form that published recommenders take: consecutive ids, titles, histories.

What MovieLens small lacks (the gender, age, occupation and zip code of a user, and here the rating)
is drawn by the user's or the movie's id.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.movielens import data

USERS = 610
MOVIES = 9_742
"""The largest ids of users and movies: the recipes of the zoo have tables of one row more."""
HISTORY = 50
"""The number of movies in the longest history."""
OCCUPATIONS = ("artist", "doctor", "engineer", "lawyer", "librarian", "student", "writer")

Column = NDArray[Any]


class Viewings:
    """Who watched what.

    Attributes:
      source: A description of the data's source.
      titles: The titles of the movies 1, 2, ..., such as `Toy Story (1995)`.
      genres: The names of each movie's genres.
    """

    def __init__(self, movielens: data.MovieLens) -> None:
        """Takes the first USERS users and the first MOVIES movies."""
        movies = movielens.movies
        ratings = movielens.ratings
        self.source = movielens.source
        self.titles = tuple(
            f"{title} ({year})"
            for title, year in zip(movies.titles[:MOVIES], movies.years[:MOVIES], strict=True)
        )
        self.genres = movies.genres[:MOVIES]
        user = np.unique(ratings.users, return_inverse=True)[1] + 1
        movie = np.searchsorted(movies.ids, ratings.movies) + 1
        is_kept = (user <= USERS) & (movie <= MOVIES)
        self._user = user[is_kept].astype(np.int32)
        self._movie = movie[is_kept].astype(np.int32)
        self._timestamp = ratings.timestamps[is_kept]

    def draw(self, count: int, seed: int = 1) -> dict[str, Column]:
        """Returns `count` random viewings, each with the history before it.

        Returns:
          user_id, movie_id, timestamp [count]; movie_title, user_gender, user_occupation_text,
          user_zip_code, bucketized_user_age, user_rating [count]; history [count, HISTORY] int32,
          the oldest movie first, filled up with 0 at the end.
        """
        positions = np.random.default_rng(seed).integers(len(self._user), size=count)
        user = self._user[positions]
        return {
            "user_id": user,
            "movie_id": self._movie[positions],
            "movie_title": self.titles_of(self._movie[positions]),
            "timestamp": self._timestamp[positions],
            "history": np.stack([self._history(position) for position in positions]),
            "user_rating": (1 + (3 * user + self._movie[positions]) % 5).astype(np.float32),
            "user_gender": (user % 2).astype(np.int32),
            "bucketized_user_age": (18 + 10 * (user % 4)).astype(np.int32),
            "user_occupation_text": np.array(OCCUPATIONS)[user % len(OCCUPATIONS)],
            "user_zip_code": (10_000 + 37 * (user % 100)).astype(str),
        }

    def titles_of(self, movies: NDArray[np.int32]) -> Column:
        """Returns the titles of movies."""
        return np.array(self.titles)[movies - 1]

    def _history(self, position: int) -> NDArray[np.int32]:
        """Returns [HISTORY], the movies that a user watched before one of the viewings."""
        first = max(int(np.searchsorted(self._user, self._user[position])), position - HISTORY)
        watched = self._movie[first:position]
        return np.pad(watched, (0, HISTORY - len(watched)))


def read_viewings(directory: Path | None, build: Path) -> Viewings:
    """Returns viewings of MovieLens from `directory`, else from GroupLens' site, else generated.

    Raises:
      DataError: `directory` is not None and cannot be read.
    """
    return Viewings(data.find(directory, build))


def write_corpus(path: Path, catalog: Mapping[str, Column]) -> None:
    """Writes the corpus of all movies as CSV.

    Args:
      path: The file.
      catalog: The inputs of a candidate tower for the movies 1, 2, ...; `movie_id` is added.
    """
    (count,) = {len(column) for column in catalog.values()}
    columns = {"movie_id": np.arange(1, count + 1), **catalog}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(map(_fields, zip(*columns.values(), strict=True)))


def _fields(row: tuple[Any, ...]) -> list[str]:
    """Returns the fields of a row: the values of a list are separated by `|`."""
    return ["|".join(map(str, value)) if np.ndim(value) else str(value) for value in row]


def write_lines(path: Path, keys: Sequence[object] | Column) -> None:
    """Writes a vocabulary: one key per line."""
    path.write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
