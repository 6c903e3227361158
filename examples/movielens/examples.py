"""Turns interactions into what the model reads: rows of tables, windows of history, batches with
sampled negatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Ragged, slices
from examples.movielens.data import Ints, MovieLens, places_from_end
from examples.movielens.settings import Settings

FIRST_USER_ROW = 1
"""Row 0 of the users table is for viewers who were not there in training."""


@dataclass(frozen=True)
class Encoded:
    """A data set in rows.

    Attributes:
      user_ids, movie_ids: sorted ids; `genres`: sorted names. Row = position (+ FIRST_USER_ROW for
        users).
      users, movies, hours: [r] rows of each interaction, in the order of Ratings.
      starts: [users + 1] where each viewer's interactions begin.
      movie_genres: genre rows of each movie. years: [movies], 0 where unknown.
    """

    user_ids: Ints
    movie_ids: Ints
    genres: tuple[str, ...]
    users: Ints
    movies: Ints
    hours: Ints
    starts: Ints
    movie_genres: Ragged
    years: NDArray[np.float32]


def encode(data: MovieLens) -> Encoded:
    """Numbers the viewers, movies and genres of a data set."""
    ratings = data.ratings
    user_ids, starts, positions = np.unique(ratings.users, return_index=True, return_inverse=True)
    genres = tuple(sorted({genre for names in data.movies.genres for genre in names}))
    row_of = {genre: row for row, genre in enumerate(genres)}
    flat = np.array([row_of[genre] for names in data.movies.genres for genre in names], np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(names) for names in data.movies.genres])]).astype(
        np.int64
    )
    return Encoded(
        user_ids=user_ids,
        movie_ids=data.movies.ids,
        genres=genres,
        users=positions.astype(np.int64) + FIRST_USER_ROW,
        movies=np.searchsorted(data.movies.ids, ratings.movies).astype(np.int64),
        hours=ratings.timestamps // 3600 % 24,
        starts=np.append(starts, len(ratings.users)).astype(np.int64),
        movie_genres=Ragged(flat, offsets),
        years=data.movies.years.astype(np.float32),
    )


@dataclass(frozen=True)
class Batch:
    """Contexts, each with the movie that was watched next; then movies that serve as negatives
    only.

    Attributes:
      users, hours: [b] rows. histories: of b contexts.
      movies: [b + s] rows: the b watched next, then s drawn evenly from the catalogue.
      allowed: [b, b + s] whether a movie may be a negative of a context, or is its positive.
      weights: [b] of the contexts in the loss, about 1.
    """

    users: Ints
    hours: Ints
    histories: Ragged
    movies: Ints
    allowed: NDArray[np.bool_]
    weights: NDArray[np.float32]


class Sampler:
    """Draws batches from the interactions that may be trained on."""

    def __init__(self, encoded: Encoded, rows: Ints, settings: Settings, seed: int) -> None:
        """Counts what the correction of the sampled softmax needs.

        Args:
          rows: positions in Ratings; of each viewer a prefix of the interactions.
        """
        self._encoded = encoded
        self._rows = rows
        self._settings = settings
        self._random = np.random.default_rng(seed)
        viewers = len(encoded.user_ids) + FIRST_USER_ROW
        movies = len(encoded.movie_ids)
        self._watched = np.zeros((viewers, movies), np.bool_)
        self._watched[encoded.users[rows], encoded.movies[rows]] = True
        share = np.bincount(encoded.movies[rows], minlength=movies) / max(len(rows), 1)
        self.expected = (settings.batch * share + settings.negatives / movies).astype(np.float32)
        """[movies] how often each is expected in a batch: Q of the logQ correction."""
        counts = np.bincount(encoded.users[rows], minlength=viewers)
        weights = np.maximum(counts, 1.0) ** -settings.balance
        self._weights = (weights / np.mean(weights[encoded.users[rows]])).astype(np.float32)

    @property
    def steps(self) -> int:
        """Batches in one epoch; what does not fill a batch is left to the next epoch's order."""
        return len(self._rows) // self._settings.batch

    def epoch(self) -> Iterator[Batch]:
        """Yields the batches of one pass in a new order."""
        size = self._settings.batch
        order = self._random.permutation(self._rows)
        for step in range(self.steps):
            yield self._batch(order[step * size : (step + 1) * size])

    def _batch(self, rows: Ints) -> Batch:
        encoded = self._encoded
        settings = self._settings
        random = self._random
        users = encoded.users[rows]
        starts = encoded.starts[users - FIRST_USER_ROW]
        ends = np.maximum(rows - random.integers(0, settings.gap + 1, len(rows)), starts)
        movies = np.concatenate(
            [encoded.movies[rows], random.integers(0, len(encoded.movie_ids), settings.negatives)]
        )
        allowed = ~self._watched[users[:, None], movies[None, :]]
        allowed[np.arange(len(rows)), np.arange(len(rows))] = True
        known = random.random(len(rows)) >= settings.user_dropout
        return Batch(
            users=np.where(known, users, 0),
            hours=encoded.hours[rows],
            histories=slices(encoded.movies, np.maximum(starts, ends - settings.history), ends),
            movies=movies,
            allowed=allowed,
            weights=self._weights[users],
        )


def split_newest(encoded: Encoded, rows: Ints, newest: int) -> tuple[Ints, Ints]:
    """Splits interactions, of each viewer a prefix, into those before each viewer's `newest` last
    ones, and these.
    """
    last = places_from_end(encoded.users[rows]) <= newest
    return rows[~last], rows[last]


@dataclass(frozen=True)
class Requests:
    """What each viewer asks after `seen` interactions, and the answers that count as hits.

    Attributes:
      users, hours: [n] rows; the hour is that of the first held-out interaction, when the question
        would be asked.
      histories: the newest watched movies. seen, wanted: all watched movies; the held-out ones.
    """

    users: Ints
    hours: Ints
    histories: Ragged
    seen: Ragged
    wanted: Ragged


def requests(encoded: Encoded, held_out: Ints, history: int) -> Requests:
    """Makes one request per viewer with held-out interactions; these follow all that the viewer has
    seen.
    """
    users, firsts, counts = np.unique(
        encoded.users[held_out], return_index=True, return_counts=True
    )
    ends = held_out[firsts]
    starts = encoded.starts[users - FIRST_USER_ROW]
    return Requests(
        users=users,
        hours=encoded.hours[ends],
        histories=slices(encoded.movies, np.maximum(starts, ends - history), ends),
        seen=slices(encoded.movies, starts, ends),
        wanted=slices(encoded.movies, ends, ends + counts),
    )
