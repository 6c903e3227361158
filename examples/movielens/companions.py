"""Which movies are watched after which, counted: what a ranker can use of a pair, and two towers
cannot.
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
"""The most interactions from a movie to one that counts as watched after it: what a history and its
future span.
"""
PRIOR = 10.0
"""Added to how often a movie was watched, so that rare pairs are not taken for close ones."""


@dataclass(frozen=True)
class Companions:
    """The COMPANIONS movies after which each movie was watched most, relative to how often both
    were.

    Attributes:
      movies: rows, of each movie; the closest first.
      closeness: [movies, COMPANIONS] float32, 0 behind the last one.
    """

    movies: Ragged
    closeness: NDArray[np.float32]


def count(encoded: Encoded, rows: Ints) -> Companions:
    """Counts the companions of every movie in the interactions `rows`; of each viewer a prefix."""
    size = len(encoded.movie_ids)
    users = encoded.users[rows]
    movies = encoded.movies[rows]
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
    place = np.arange(len(movie)) - np.searchsorted(movie, movie)
    kept = place < COMPANIONS
    dense = np.zeros((size, COMPANIONS), np.float32)
    dense[movie[kept], place[kept]] = closeness[kept]
    return Companions(
        Ragged(companion[kept], offsets_of(np.bincount(movie[kept], minlength=size))), dense
    )
