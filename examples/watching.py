"""What viewers watched, in the shape of MovieLens, as columns for a model's call and as a client
would send them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from examples.columns import Column, Columns, Ints, Ragged, slices
from examples.movielens import data
from examples.movielens.examples import FIRST_USER_ROW, encode
from examples.movielens.generated import SHAPE, Shape

SHAPES = {
    "tiny": Shape(users=40, movies=120, ratings=1_600, clusters=8),
    "small": SHAPE,
    "article": Shape(users=138_493, movies=26_744, ratings=20_000_263, clusters=64),
}
"""As ml-latest-small and, of the article's size, as MovieLens 20M, which the TFRS articles train
on.
"""
HELD_OUT = 5
"""Of each viewer, the newest interactions."""


class Watching:
    """Generated viewers, movies and what was watched when; rows in columns, ids in requests."""

    def __init__(self, scale: str, history: int, seed: int = 7) -> None:
        """Makes the data.

        Args:
          scale: a key of SHAPES.
          history: the most movies of a context's history, the newest first.
          seed: of the generator.
        """
        self._made = data.make(seed, SHAPES[scale])
        self._encoded = encode(self._made)
        self._most = history
        self._random = np.random.default_rng(seed)
        self.users = len(self._encoded.user_ids) + FIRST_USER_ROW
        self.movies = len(self._encoded.movie_ids)
        self.genres = len(self._encoded.genres)
        starts = self._encoded.starts[:-1]
        ends = self._encoded.starts[1:]
        places = np.arange(len(self._encoded.users))
        held_out = places >= np.repeat(ends - HELD_OUT, ends - starts)
        first = np.isin(places, starts)  # nothing was watched before it
        self.interactions = places
        """All of them, also those with nothing watched before."""
        self.trained = np.flatnonzero(~held_out & ~first)
        """Those to train on; each has one before it."""
        self.held_out = np.flatnonzero(held_out)

    def contexts(self, interactions: Ints) -> dict[str, Column]:
        """Returns who was about to watch: user_id, history, hour, in rows."""
        encoded = self._encoded
        users = encoded.users[interactions]
        starts = np.maximum(encoded.starts[users - FIRST_USER_ROW], interactions - self._most)
        last = len(encoded.movies)
        newest_first = slices(encoded.movies[::-1], last - interactions, last - starts)
        return {"user_id": users, "history": newest_first, "hour": encoded.hours[interactions]}

    def watched(self, interactions: Ints) -> Ints:
        """Returns the movies that were watched, as rows."""
        return self._encoded.movies[interactions]

    def others(self, n: int) -> Ints:
        """Draws movies as often as they are watched, as rows."""
        return self._encoded.movies[self._random.integers(0, len(self._encoded.movies), n)]

    def draw(self, interactions: Ints, n: int) -> Ints:
        """Draws interactions."""
        return self._random.choice(interactions, n)

    def of_movies(self, rows: Ints) -> dict[str, Column]:
        """Returns what is known of movies: movie_id, genres, in rows, and year."""
        encoded = self._encoded
        return {"movie_id": rows, "genres": encoded.movie_genres[rows], "year": encoded.years[rows]}

    def pairs(
        self, interactions: Ints, negatives: int
    ) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Returns each interaction's context with the movie that was watched, and with `negatives`
        others.
        """
        each = np.repeat(interactions, 1 + negatives)
        movies = self.others(len(each))
        movies[:: 1 + negatives] = self.watched(interactions)
        labels = (np.arange(len(each)) % (1 + negatives) == 0).astype(np.float32)
        return {**self.contexts(each), **self.of_movies(movies)}, {"watched": labels}

    def ids(self, columns: Columns) -> dict[str, Column]:
        """Returns columns as a caller sends them: MovieLens' own ids and the names of genres."""
        encoded = self._encoded
        keys = {"user_id": encoded.user_ids, "genres": np.array(encoded.genres, object)}
        keys |= dict.fromkeys(("movie_id", "history"), encoded.movie_ids)
        named: dict[str, Column] = {}
        for name, column in columns.items():
            first = FIRST_USER_ROW if name == "user_id" else 0
            if name not in keys:
                named[name] = column
            elif isinstance(column, Ragged):
                named[name] = Ragged(keys[name][column.values - first], column.offsets)
            else:
                named[name] = keys[name][column - first]
        return named

    def write_catalogue(self, out: Path) -> None:
        """Writes a vocabulary for each table, one key a line in the order of its rows, and the
        movies as a corpus.
        """
        encoded = self._encoded
        movies = self._made.movies
        for name, keys in (
            ("users", encoded.user_ids),
            ("movies", encoded.movie_ids),
            ("genres", encoded.genres),
        ):
            (out / f"{name}.txt").write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
        columns = {
            "movie_id": pa.array(movies.ids),
            "title": pa.array(movies.titles),
            "year": pa.array(encoded.years),
            "genres": pa.array([list(names) for names in movies.genres], pa.list_(pa.string())),
        }
        parquet.write_table(pa.table(columns), out / "movies.parquet")
