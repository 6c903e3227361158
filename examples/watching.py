"""Movies that viewers watched, in the shape of MovieLens: as inputs of a model, and as a client
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
"""Sizes of the data: `small` is that of ml-latest-small, `article` that of MovieLens 20M, which the
TFRS articles train on.
"""
HELD_OUT = 5
"""Number of each viewer's newest interactions that are held out."""


class Watching:
    """Generated viewers, movies and interactions: rows in columns, ids in requests.

    Attributes:
      users: The number of rows of the users' table.
      movies: The number of rows of the movies' table.
      genres: The number of rows of the genres' table.
      interactions: All interactions, as positions.
      trained: The interactions to train on. Before each, the viewer has watched another movie.
      held_out: The newest interactions of each viewer.
    """

    def __init__(self, scale: str, history: int, seed: int = 7) -> None:
        """Generates the data.

        Args:
          scale: A key of SHAPES.
          history: The maximum length of a context's history, whose newest movie is the first.
          seed: The seed of the generator.
        """
        self._movielens = data.make(seed, SHAPES[scale])
        self._encoded = encode(self._movielens)
        self._history_max = history
        self._random = np.random.default_rng(seed)
        self.users = len(self._encoded.user_ids) + FIRST_USER_ROW
        self.movies = len(self._encoded.movie_ids)
        self.genres = len(self._encoded.genres)
        starts = self._encoded.starts[:-1]
        ends = self._encoded.starts[1:]
        positions = np.arange(len(self._encoded.users))
        held_out = positions >= np.repeat(ends - HELD_OUT, ends - starts)
        # Without an earlier movie, the history is empty.
        is_first = np.isin(positions, starts)
        self.interactions = positions
        self.trained = np.flatnonzero(~held_out & ~is_first)
        self.held_out = np.flatnonzero(held_out)

    def contexts(self, interactions: Ints) -> dict[str, Column]:
        """Returns the contexts of interactions, before each movie was watched: user_id, history and
        hour, in rows.
        """
        encoded = self._encoded
        users = encoded.users[interactions]
        starts = np.maximum(
            encoded.starts[users - FIRST_USER_ROW], interactions - self._history_max
        )
        # Slices ascend, so the newest first are slices of the reversed interactions.
        last = len(encoded.movies)
        newest_first = slices(encoded.movies[::-1], last - interactions, last - starts)
        return {"user_id": users, "history": newest_first, "hour": encoded.hours[interactions]}

    def watched(self, interactions: Ints) -> Ints:
        """Returns the movies that were watched, as rows."""
        return self._encoded.movies[interactions]

    def draw_movies(self, n: int) -> Ints:
        """Draws movies as often as they are watched, as rows."""
        return self._encoded.movies[self._random.integers(0, len(self._encoded.movies), n)]

    def draw(self, interactions: Ints, n: int) -> Ints:
        """Draws interactions."""
        return self._random.choice(interactions, n)

    def movie_features(self, rows: Ints) -> dict[str, Column]:
        """Returns the features of movies: movie_id and genres, in rows, and year."""
        encoded = self._encoded
        return {"movie_id": rows, "genres": encoded.movie_genres[rows], "year": encoded.years[rows]}

    def pairs(
        self, interactions: Ints, negatives: int
    ) -> tuple[Columns, dict[str, NDArray[np.float32]]]:
        """Returns each interaction's context with the movie that was watched, and with `negatives`
        further movies.
        """
        repeated = np.repeat(interactions, 1 + negatives)
        movies = self.draw_movies(len(repeated))
        movies[:: 1 + negatives] = self.watched(interactions)
        labels = (np.arange(len(repeated)) % (1 + negatives) == 0).astype(np.float32)
        return {**self.contexts(repeated), **self.movie_features(movies)}, {"watched": labels}

    def ids(self, columns: Columns) -> dict[str, Column]:
        """Returns columns as a caller sends them: with MovieLens' ids and the names of genres."""
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
        """Writes a vocabulary for each table, with one key per line in the order of the rows, and
        the movies as a corpus.
        """
        encoded = self._encoded
        movies = self._movielens.movies
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
