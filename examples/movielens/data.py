"""MovieLens ml-latest-small: from a directory, else from GroupLens' site, else generated in its
shape.

The data set belongs to GroupLens (F. Maxwell Harper and Joseph A. Konstan, 2015, The MovieLens
Datasets: History and Context). Its licence travels with it, so it is read from its directory or
downloaded, and never part of this repository.
"""

from __future__ import annotations

import csv
import io
import re
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.movielens import generated

Ints = NDArray[np.int64]

SITE = "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip"
HELD_OUT = 10
"""Number of each user's interactions in the test split, and before them in the validation split."""
ARCHIVE_BYTES_MAX = 64 << 20
"""Maximum size of the archive that is downloaded; ml-latest-small has 1 MB."""


class DataError(Exception):
    """The data cannot be read; the message names the file and the remedy."""


@dataclass(frozen=True)
class Movies:
    """The catalogue, in ascending order of movie id.

    Attributes:
      ids: [m] int64, the ids, with gaps.
      titles: [m] The titles without the year.
      years: [m] int64, the years; 0 where the title names none.
      genres: [m] The names of the genres of each movie.
    """

    ids: Ints
    titles: tuple[str, ...]
    years: Ints
    genres: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Ratings:
    """Interactions, ordered by user, then time, then movie id.

    Attributes:
      users: [r] int64, the ids of the viewers.
      movies: [r] int64, the ids of the movies.
      timestamps: [r] int64, the times in seconds since 1970, UTC.
    """

    users: Ints
    movies: Ints
    timestamps: Ints


@dataclass(frozen=True)
class MovieLens:
    """One data set, and a description of its source."""

    movies: Movies
    ratings: Ratings
    source: str


@dataclass(frozen=True)
class Split:
    """Positions in Ratings: the last 10 of each user, the 10 before them, and the rest."""

    train: Ints
    validation: Ints
    test: Ints


def ordered(users: Ints, movies: Ints, timestamps: Ints) -> Ratings:
    """Returns interactions ordered by user, then time, ties by movie id."""
    order = np.lexsort((movies, timestamps, users))
    return Ratings(users[order], movies[order], timestamps[order])


def split(ratings: Ratings, held_out: int = HELD_OUT) -> Split:
    """Splits each user's interactions by their order.

    A user with fewer than 2 * `held_out` interactions fills test first, then validation; nothing is
    dropped.
    """
    from_end = positions_from_end(ratings.users)
    return Split(
        train=np.flatnonzero(from_end > 2 * held_out),
        validation=np.flatnonzero((from_end > held_out) & (from_end <= 2 * held_out)),
        test=np.flatnonzero(from_end <= held_out),
    )


def positions_from_end(users: Ints) -> Ints:
    """Returns the position of each interaction of sorted `users` from the user's last one, which
    is 1.
    """
    return np.searchsorted(users, users, side="right") - np.arange(len(users))


def parse_title(text: str) -> tuple[str, int]:
    """Splits `Toy Story (1995)` into title and year; the year is 0 where there is none."""
    match = re.fullmatch(r"(.*?)\s*\((\d{4})\)", text.strip())
    if match is None:
        return text.strip(), 0
    return match[1], int(match[2])


def read(directory: Path) -> MovieLens:
    """Reads movies.csv and ratings.csv.

    Raises:
      DataError: A file is missing or is not MovieLens'; the message names it.
    """
    catalogue = _rows(directory / "movies.csv", ("movieId", "title", "genres"))
    events = _rows(directory / "ratings.csv", ("userId", "movieId", "timestamp"))
    try:
        catalogue.sort(key=lambda row: int(row[0]))
        titles_and_years = [parse_title(title) for _, title, _ in catalogue]
        movies = Movies(
            ids=np.array([int(row[0]) for row in catalogue], np.int64),
            titles=tuple(title for title, _ in titles_and_years),
            years=np.array([year for _, year in titles_and_years], np.int64),
            genres=tuple(tuple(row[2].split("|")) for row in catalogue),
        )
        columns = np.array(events, dtype=np.int64)
    except ValueError as problem:
        raise DataError(f"{directory} holds no MovieLens data: {problem}") from problem
    unknown_ids = np.setdiff1d(columns[:, 1], movies.ids)
    if len(unknown_ids):
        raise DataError(
            f"{directory / 'ratings.csv'} names movie {unknown_ids[0]}, which movies.csv does not "
            "have"
        )
    users, rated_movies, timestamps = columns.T
    ratings = ordered(users, rated_movies, timestamps)
    return MovieLens(movies, ratings, f"MovieLens from {directory}")


def _rows(path: Path, columns: tuple[str, ...]) -> list[tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = set(columns) - set(reader.fieldnames or ())
            if missing:
                raise DataError(
                    f"{path} has no column {min(missing)!r}; MovieLens' own file has "
                    f"{', '.join(columns)}"
                )
            rows = [tuple(row[column] for column in columns) for row in reader]
    except OSError as problem:
        raise DataError(
            f"{path} cannot be read ({problem.strerror}); name the folder that ml-latest-small.zip "
            "unpacks to"
        ) from problem
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def download(into: Path, url: str = SITE, timeout_s: float = 15.0) -> Path:
    """Downloads and unpacks the two files that are read, unless they are there.

    Returns:
      The directory that holds movies.csv and ratings.csv.

    Raises:
      DataError: The site cannot be reached in `timeout_s`, or the archive is not MovieLens'.
    """
    directory = into / "ml-latest-small"
    names = ("movies.csv", "ratings.csv", "README.txt")
    if all((directory / name).exists() for name in names):
        return directory
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            content = response.read(ARCHIVE_BYTES_MAX)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            contents = {name: archive.read(f"ml-latest-small/{name}") for name in names}
    except (OSError, urllib.error.URLError, zipfile.BadZipFile, KeyError) as problem:
        raise DataError(f"{url} cannot be downloaded: {problem}") from problem
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return directory


def make(seed: int = 7, shape: generated.Shape = generated.SHAPE_WITH_SEQUELS) -> MovieLens:
    """Generates a data set of MovieLens' shape with planted taste clusters and sequels; the same
    for the same arguments.
    """
    dataset = generated.generate(shape, np.random.default_rng(seed))
    movies = Movies(dataset.movie_ids, dataset.titles, dataset.years, dataset.genres)
    ratings = ordered(dataset.users, dataset.movies, dataset.timestamps)
    return MovieLens(
        movies,
        ratings,
        f"made up in MovieLens' shape (seed {seed}): no real viewers, no real movies",
    )


def find(directory: Path | None, build: Path) -> MovieLens:
    """Returns MovieLens from `directory`, else from GroupLens' site, else generated data; its
    `source` says which.

    Raises:
      DataError: `directory` is not None and cannot be read.
    """
    if directory is not None:
        return read(directory)
    try:
        return replace(read(download(build)), source=f"MovieLens from {SITE}")
    except DataError as problem:
        movielens = make()
        return replace(movielens, source=f"{movielens.source}, because {problem}")
