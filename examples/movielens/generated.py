"""Generates viewers and movies in the shape of MovieLens, with planted taste clusters that a model
can find.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GENRES = (
    "Action",
    "Adventure",
    "Animation",
    "Children",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "IMAX",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
FIRST = (
    "Silent",
    "Golden",
    "Broken",
    "Last",
    "Hidden",
    "Crimson",
    "Endless",
    "Paper",
    "Winter",
    "Electric",
    "Lost",
    "Quiet",
)
SECOND = (
    "River",
    "Empire",
    "Garden",
    "Letter",
    "Highway",
    "Harbor",
    "Mirror",
    "Orchard",
    "Signal",
    "Summer",
    "Tower",
    "Voyage",
)
LARGEST_MOVIE_ID = 193_609
"""The largest id in ml-latest-small."""
DAY_S = 86_400
RATINGS_MIN = 20
"""Minimum number of ratings of a viewer, as in MovieLens."""
RECENT = 10
"""Number of a viewer's last movies whose sequels may be watched next."""


@dataclass(frozen=True)
class Shape:
    """The size and the patterns of generated data.

    Attributes:
      users: The number of viewers.
      movies: The number of movies.
      ratings: The number of ratings.
      clusters: The number of groups of movies that the same viewers watch.
      loyalty: The share of a viewer's ratings that come from the viewer's own clusters.
      sequels: The share of a viewer's ratings that are a sequel of one of the last RECENT movies.
    """

    users: int = 610
    movies: int = 9_700
    ratings: int = 100_000
    clusters: int = 24
    loyalty: float = 0.85
    sequels: float = 0.0


SHAPE = Shape()
SHAPE_WITH_SEQUELS = Shape(sequels=0.5)


@dataclass(frozen=True)
class Generated:
    """A generated catalogue, and interactions in no particular order.

    Attributes:
      movie_ids: [movies] The ids.
      titles: The title of each movie.
      years: [movies] The years.
      genres: The genres of each movie.
      clusters: [movies] The planted clusters.
      users: [ratings] The viewers.
      movies: [ratings] The ids of the movies.
      timestamps: [ratings] The times in seconds since 1970.
    """

    movie_ids: Ints
    titles: tuple[str, ...]
    years: Ints
    genres: tuple[tuple[str, ...], ...]
    clusters: Ints
    users: Ints
    movies: Ints
    timestamps: Ints


def generate(shape: Shape, random: np.random.Generator) -> Generated:
    """Generates viewers who mostly watch the popular movies of one to three clusters, in sessions,
    in order of time.
    """
    movie_ids = _movie_ids(shape.movies, random)
    clusters: Ints = random.integers(0, shape.clusters, shape.movies)
    # A power law, as Zipf's, that is flat for the first few ranks.
    popularity: Floats = np.power(_ranks(clusters, random) + 5.0, -0.9)
    counts = _ratings_per_user(shape, random)
    sequels = None
    if shape.sequels:
        sequels = _sequels(clusters, random)

    users = []
    movies = []
    timestamps = []
    for user, count in enumerate(counts, start=1):
        probabilities = _probabilities(shape, clusters, popularity, random)
        users.append(np.full(count, user, np.int64))
        watched = random.choice(shape.movies, count, replace=False, p=probabilities)
        if sequels is not None:
            watched = _with_sequels(watched, sequels, shape.sequels, random)
        movies.append(movie_ids[watched])
        timestamps.append(_timestamps(count, random))
    return Generated(
        movie_ids=movie_ids,
        titles=_titles(shape.movies),
        years=random.integers(1930, 2019, shape.movies).astype(np.int64),
        genres=_genres(clusters, shape.clusters, random),
        clusters=clusters.astype(np.int64),
        users=np.concatenate(users),
        movies=np.concatenate(movies),
        timestamps=np.concatenate(timestamps),
    )


def _movie_ids(count: int, random: np.random.Generator) -> Ints:
    """Returns [count] ascending ids: the small ones without gaps, so that 1, 260 and 318 are movies
    as in MovieLens.
    """
    dense = count // 2
    sparse = dense + 1 + random.choice(LARGEST_MOVIE_ID - dense, count - dense, replace=False)
    return np.concatenate([np.arange(1, dense + 1), np.sort(sparse)]).astype(np.int64)


def _ranks(clusters: Ints, random: np.random.Generator) -> Ints:
    """Returns the rank of each movie in its cluster, [movies], 0 for the most popular one."""
    order = random.permutation(len(clusters))
    order = order[np.argsort(clusters[order], kind="stable")]
    firsts = np.searchsorted(clusters[order], clusters[order])
    ranks = np.empty(len(clusters), np.int64)
    ranks[order] = np.arange(len(clusters)) - firsts
    return ranks


def _ratings_per_user(shape: Shape, random: np.random.Generator) -> Ints:
    """Returns counts of ratings, [users], many small and a few large, that add up to `ratings`."""
    share = random.lognormal(0.0, 1.1, shape.users)
    spare = shape.ratings - RATINGS_MIN * shape.users
    if spare < 0:
        raise ValueError(
            f"{shape.users} viewers with at least {RATINGS_MIN} ratings each need more than "
            f"{shape.ratings} ratings"
        )
    # Nobody watches more than a quarter of the movies.
    further = np.minimum(spare * share / share.sum(), shape.movies // 4)
    counts: Ints = RATINGS_MIN + further.astype(np.int64)
    # The ratings that rounding and the cap left over.
    while (missing := shape.ratings - int(counts.sum())) > 0:
        counts[random.choice(shape.users, min(missing, shape.users), replace=False)] += 1
    return counts


def _probabilities(
    shape: Shape, clusters: Ints, popularity: Floats, random: np.random.Generator
) -> Floats:
    """Returns the probability that a new viewer watches each movie, [movies]."""
    liked_clusters = random.choice(shape.clusters, random.integers(1, 4), replace=False)
    is_liked = np.isin(clusters, liked_clusters)
    probabilities: Floats = popularity * (1 - shape.loyalty) / popularity.sum()
    probabilities[is_liked] += popularity[is_liked] * shape.loyalty / popularity[is_liked].sum()
    probabilities /= probabilities.sum()
    return probabilities


def _sequels(clusters: Ints, random: np.random.Generator) -> Ints:
    """Returns the sequel of each movie, [movies]: another movie of its cluster, if there is one."""
    order = random.permutation(len(clusters))
    sequels = np.empty(len(clusters), np.int64)
    for cluster in np.unique(clusters):
        members = order[clusters[order] == cluster]
        sequels[members] = np.roll(members, 1)
    return sequels


def _with_sequels(drawn: Ints, sequels: Ints, share: float, random: np.random.Generator) -> Ints:
    """Replaces a share of the movies that a viewer watches by sequels of the last movies."""
    # A dictionary as an ordered set: nobody watches a movie twice.
    watched: dict[int, None] = {}
    drawn_movies = iter(drawn.tolist())
    while len(watched) < len(drawn):
        movie = next(drawn_movies)
        recent = list(watched)[-RECENT:]
        if recent and random.random() < share:
            watched.setdefault(int(sequels[random.choice(recent)]))
        watched.setdefault(movie)
    return np.array(list(watched)[: len(drawn)], np.int64)


def _timestamps(count: int, random: np.random.Generator) -> Ints:
    """Returns ascending times, [count]: sessions of 20 movies at the viewer's hour, some of which
    are equal.
    """
    start = int(random.integers(828_000_000, 1_500_000_000))
    sessions = np.arange(count) // 20
    hour_s = 3600 * int(random.integers(0, 24))
    within = np.cumsum(random.integers(0, 40, count))
    return (start // DAY_S * DAY_S + hour_s + sessions * 3 * DAY_S + within).astype(np.int64)


def _titles(count: int) -> tuple[str, ...]:
    words = list(itertools.product(FIRST, SECOND))
    titles = []
    for number in range(count):
        part, position = divmod(number, len(words))
        title = " ".join(words[position])
        # Once all pairs of words are used, titles have numbers.
        if part:
            title += f" {part + 1}"
        titles.append(title)
    return tuple(titles)


def _genres(clusters: Ints, count: int, random: np.random.Generator) -> tuple[tuple[str, ...], ...]:
    """Gives each cluster three genres and each of its movies one to three of them."""
    palettes = [random.choice(len(GENRES), 3, replace=False) for _ in range(count)]
    genres = []
    for cluster in clusters:
        chosen = palettes[cluster][: random.integers(1, 4)]
        genres.append(tuple(sorted(GENRES[genre] for genre in chosen)))
    return tuple(genres)
