"""Turns interactions into inputs of the model: rows of tables, windows of history, batches with
sampled negatives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Ragged, offsets_of, slices
from examples.movielens.data import Ints, MovieLens, positions_from_end
from examples.movielens.settings import Settings

FIRST_USER_ROW = 1
"""Row of the first viewer. Row 0 of the users table is for viewers who were not in the training."""


@dataclass(frozen=True)
class Encoded:
    """A data set in rows. The row of an id or name is its position in the sorted list; for viewers
    plus FIRST_USER_ROW.

    Attributes:
      user_ids: The sorted ids of the viewers.
      movie_ids: The sorted ids of the movies.
      genres: The sorted names of the genres.
      users: [r] The viewer's row of each interaction, in the order of Ratings.
      movies: [r] The movie's row of each interaction.
      hours: [r] The hour of each interaction.
      starts: [users + 1] The position at which each viewer's interactions begin.
      movie_genres: The rows of the genres of each movie.
      years: [movies] The year of each movie; 0 where it is unknown.
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
    all_genres = list(itertools.chain.from_iterable(data.movies.genres))
    genres = tuple(sorted(set(all_genres)))
    row_of = {genre: row for row, genre in enumerate(genres)}
    genre_rows = np.array([row_of[genre] for genre in all_genres], np.int64)
    genre_counts = np.array([len(names) for names in data.movies.genres])
    return Encoded(
        user_ids=user_ids,
        movie_ids=data.movies.ids,
        genres=genres,
        users=positions.astype(np.int64) + FIRST_USER_ROW,
        movies=np.searchsorted(data.movies.ids, ratings.movies).astype(np.int64),
        hours=ratings.timestamps // 3600 % 24,
        starts=np.append(starts, len(ratings.users)).astype(np.int64),
        movie_genres=Ragged(genre_rows, offsets_of(genre_counts)),
        years=data.movies.years.astype(np.float32),
    )


@dataclass(frozen=True)
class Batch:
    """Contexts, each with the movie that was watched next; then movies that serve as negatives
    only.

    Attributes:
      users: [b] The rows of the viewers.
      hours: [b] The hours.
      histories: The rows of the watched movies of b contexts.
      movies: [b + s] The rows of the b movies watched next, then of s movies drawn evenly from the
        catalogue.
      allowed: [b, b + s] Whether a movie may be a negative of a context, or is its positive.
      weights: [b] The weights of the contexts in the loss, about 1.
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
        """Computes the expected counts for the correction of the sampled softmax.

        Args:
          encoded: The data set.
          rows: The positions in Ratings that may be trained on: a prefix of each viewer's ratings.
          settings: The settings of the training.
          seed: The seed of the generator.
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
        """[movies] The expected count of each movie in a batch: Q of the logQ correction."""
        # Viewers with many ratings would dominate the loss otherwise.
        counts = np.bincount(encoded.users[rows], minlength=viewers)
        weights = np.maximum(counts, 1.0) ** -settings.balance
        self._weights = (weights / np.mean(weights[encoded.users[rows]])).astype(np.float32)

    @property
    def steps(self) -> int:
        """The number of batches in one epoch. Interactions beyond the last whole batch are left
        out, others in each epoch.
        """
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
        # The held-out movies are watched up to `gap` interactions after a history, so the positives
        # of the training are, too.
        gaps = random.integers(0, settings.gap + 1, len(rows))
        ends = np.maximum(rows - gaps, starts)
        negatives = random.integers(0, len(encoded.movie_ids), settings.negatives)
        movies = np.concatenate([encoded.movies[rows], negatives])

        # Movies that a viewer watched are no negatives, but for the positive on the diagonal.
        allowed = ~self._watched[users[:, None], movies[None, :]]
        positions = np.arange(len(rows))
        allowed[positions, positions] = True
        # Some viewers count as new ones, so that row 0 is trained, too.
        is_known = random.random(len(rows)) >= settings.user_dropout
        return Batch(
            users=np.where(is_known, users, 0),
            hours=encoded.hours[rows],
            histories=slices(encoded.movies, np.maximum(starts, ends - settings.history), ends),
            movies=movies,
            allowed=allowed,
            weights=self._weights[users],
        )


def split_newest(encoded: Encoded, rows: Ints, newest: int) -> tuple[Ints, Ints]:
    """Splits interactions into the earlier ones and the `newest` last ones of each viewer.

    Args:
      encoded: The data set.
      rows: The interactions: a prefix of each viewer's interactions.
      newest: The number of interactions that are the newest.
    """
    is_newest = positions_from_end(encoded.users[rows]) <= newest
    return rows[~is_newest], rows[is_newest]


@dataclass(frozen=True)
class Requests:
    """Requests for recommendations, one per viewer, and the movies that count as hits.

    Attributes:
      users: [n] The rows of the viewers.
      hours: [n] The hour of the first held-out interaction, when the request would be sent.
      histories: The rows of the newest watched movies.
      seen: The rows of all watched movies.
      watched_next: The rows of the held-out movies.
    """

    users: Ints
    hours: Ints
    histories: Ragged
    seen: Ragged
    watched_next: Ragged


def requests(encoded: Encoded, held_out: Ints, history: int) -> Requests:
    """Returns one request per viewer with held-out interactions, which follow all others of the
    viewer.
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
        watched_next=slices(encoded.movies, ends, ends + counts),
    )
