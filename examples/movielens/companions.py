"""Counts of movies that are watched after each other: a ranker can use them, since it sees a pair,
and two towers cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.columns import Ragged, offsets_of
from examples.movielens.data import Ints
from examples.movielens.examples import Encoded
from examples.movielens.model import COMPANIONS

WINDOW = 19
"""Maximum number of interactions between a movie and one that counts as watched after it: the span
of a history and its future.
"""
PRIOR = 10.0
"""Added to the number of times that a movie was watched, so that rare pairs are not close."""


@dataclass(frozen=True)
class Companions:
    """For each movie, the COMPANIONS movies after which it was watched most, relative to how often
    both were watched.

    Attributes:
      movies: The rows of the companions of each movie, the closest first.
      closeness: [movies, COMPANIONS] float32, 0 behind the last companion.
    """

    movies: Ragged
    closeness: NDArray[np.float32]


def count(encoded: Encoded, rows: Ints) -> Companions:
    """Counts the companions of every movie.

    Args:
      encoded: The data set.
      rows: The interactions that count: a prefix of each viewer's interactions.
    """
    size = len(encoded.movie_ids)
    users = encoded.users[rows]
    movies = encoded.movies[rows]
    # A pair is one number, so that equal pairs can be counted. Pairs of two viewers do not count.
    pairs = [movies[lag:] * size + movies[:-lag] for lag in range(1, WINDOW + 1)]
    same = [users[lag:] == users[:-lag] for lag in range(1, WINDOW + 1)]
    keys, counts = np.unique(np.concatenate(pairs)[np.concatenate(same)], return_counts=True)
    movie, companion = np.divmod(keys, size)
    watched = np.bincount(movies, minlength=size) + PRIOR
    closeness = 10 * counts / np.sqrt(watched[movie] * watched[companion])
    order = np.lexsort((companion, -closeness, movie))
    movie = movie[order]
    companion = companion[order]
    closeness = closeness[order]
    rank = np.arange(len(movie)) - np.searchsorted(movie, movie)
    is_companion = rank < COMPANIONS
    dense = np.zeros((size, COMPANIONS), np.float32)
    dense[movie[is_companion], rank[is_companion]] = closeness[is_companion]
    return Companions(
        Ragged(
            companion[is_companion], offsets_of(np.bincount(movie[is_companion], minlength=size))
        ),
        dense,
    )
