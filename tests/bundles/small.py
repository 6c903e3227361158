"""A small bundle whose towers run, for the tests of the service, its transports and the client.

    towers = compiled_towers(directory)
    small = write_small_bundle(root, towers, model="movies", version=2)
    small.ids[:3], small.tables["users"][5]   # what is in it, for a reference

Everything differs from version to version, so that a response that mixes two versions agrees with
neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.features.columns import Column
from bundle.format import paths
from bundle.format.indexes import Engine
from bundle.format.manifest import (
    DenseFeature,
    Distance,
    EmbeddedFeature,
    Feature,
    Index,
    Manifest,
    Recall,
    ScoreDistribution,
    Stage,
    Table,
    Unknown,
)
from runtime.engines import default_engine
from runtime.partitions import partition_rows
from tests.bundles.indexes import write_index
from tests.bundles.search_costs import COSTS
from tests.bundles.tables import write_int8_table, write_linked_table, write_table
from tests.bundles.towers import write_tower, write_tower_parts
from tests.bundles.writer import BundleWriter
from tests.id_graphs import hash_ids, vocabulary_ids
from tests.models import linear

USERS = 50
CITIES = 16
GENRES = 6
CITY_DEFAULT = "nowhere"
GENRE_NAMES = ("comedy", "drama", "action", "horror", "other")
UNKNOWN_GENRE_ROW = 5
SEQUENCE_LENGTH = 3
FILTERS = ("genres", "year", "rating", "studio", "classic", "latitude", "longitude")

LISTS: dict[str, dict[str, tuple[int, ...]]] = {
    "popular": {"": (30, 2, 11, 25, 7), "oslo": (8, 2, 35), "7": (9,)},
    "new": {"": (39, 38, 37)},
}
"""The positions of the candidates of each list, by segment."""
LIST_INPUTS = {"popular": "city", "new": None}
"""The input whose value is the segment, by list."""

Array = NDArray[Any]

STORED_USERS: dict[int, tuple[tuple[int, ...], tuple[float, ...], tuple[float, float]]] = {
    7: ((1, 4), (0.5, 2.0), (0.25, -1.0)),
    3: ((), (), (0.5, 0.5)),
    21: ((9,), (1.5,), (-0.125, 2.0)),
}
"""The stored contexts by user: the positions of liked candidates, their weights, and the mood."""


@dataclass(frozen=True)
class SmallBundle:
    """What was written, as arrays.

    Attributes:
      tables: [rows, dim] float32 by table: users, cities, movies (row 0 is no movie, row 1 + i is
        candidate i), genres.
      ids: [size] candidate ids, int64 or object holding str, in the order of the index.
      genres: The names of the genres of each candidate.
      years: [size] float32, the values of the feature.
      titles: The title of each candidate.
      vectors: [size, 8] float32, the indexed vectors of the candidate tower.
    """

    directory: Path
    manifest: Manifest
    edition: int
    tables: Mapping[str, Array]
    ids: Array
    genres: tuple[tuple[str, ...], ...]
    years: Array
    titles: tuple[str, ...]
    vectors: Array


def candidate_ids(kind: Literal["int64", "string"], size: int, first: int = 1000) -> Array:
    """Returns ids that are no row numbers: 1000, 1007, ..., or "m-0", "m-1", ..."""
    if kind == "int64":
        return first + 7 * np.arange(size)
    return np.array([f"m-{i}" for i in range(size)], object)


def write_small_bundle(
    root: Path,
    towers: Path,
    model: str = "movies",
    version: int = 1,
    *,
    id_kind: Literal["int64", "string"] = "int64",
    size: int = 40,
    first_id: int = 1000,
    saved_model_only: frozenset[str] = frozenset(),
    index_kind: Literal["brute_force", "tree_ah"] = "brute_force",
    engine: Engine | None = None,
    parameters: Mapping[str, Any] | None = None,
    partitions: int = 1,
    features: Mapping[str, Feature] | None = None,
    without: frozenset[str] = frozenset(),
    row_types: Mapping[str, Literal["int8", "linked"]] | None = None,
    parts: bool = False,
    formula: str | None = None,
    users: bool = False,
    keys: Mapping[str, Array] | None = None,
    tables: Mapping[str, Array] | None = None,
    lost_rows: Mapping[str, int] | None = None,
    unread_inputs: tuple[str, ...] = (),
    scores: ScoreDistribution | None = None,
    more_indexes: tuple[str, ...] = (),
    distances: Mapping[str, Distance] | None = None,
    lists: bool = False,
    keep: int = 0,
    title: str = "Film",
) -> SmallBundle:
    """Writes and commits one version.

    Args:
      towers: The directory that `compiled_towers` returned.
      id_kind: The type of the candidates' ids, and of the features movie, history, liked and
        recent, which have the same vocabulary.
      size: The number of candidates.
      first_id: The smallest id, of int64 ids.
      saved_model_only: The towers that get no compiled form.
      index_kind: The kind of the index.
      engine: The engine of the index; None: the default one.
      parameters: The parameters of the index.
      partitions: The number of partitions of the index.
      features: Entries that replace those of `feature_entries`.
      without: `indexes`, `ranking` or attributes of the candidates: leaves those out.
      row_types: The tables that are written as int8 rows, or as they lie in a checkpoint.
      parts: Divides the ranking tower into parts.
      formula: The formula of the ranking tower.
      users: Adds the store of contexts `users`, with STORED_USERS.
      keys: The keys of each key index, in the order of rows.
      tables: Tables in place of those that are drawn.
      lost_rows: A row of each of these tables that holds NaN.
      unread_inputs: Inputs that no tower reads.
      scores: The distribution of the scores of the ranking tower at export.
      more_indexes: Adds `opposite`, an index of the same candidates with their vectors negated, or
        `shorts`, an index of a corpus of that name, with the first five candidates.
      distances: The distances of indexes by name; the others have the dot product.
      lists: Adds the lists `popular`, by the city of the context, and `new`, the same for all.
      keep: Adds the ranking tower `quick`, whose score is the rating of `ranking`, as a stage
        before it that keeps so many candidates.
      title: The beginning of each candidate's title.
    """
    random = np.random.default_rng([version, size])
    edition = linear.EDITIONS[(version - 1) % len(linear.EDITIONS)]
    ids = candidate_ids(id_kind, size, first_id)
    shapes = {
        "users": (USERS, 8),
        "cities": (CITIES, 4),
        "movies": (size + 1, 8),
        "genres": (GENRES, 4),
    }
    drawn = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tables = {**drawn, **(tables or {})}
    genres = tuple(
        tuple(GENRE_NAMES[(i + j) % len(GENRE_NAMES)] for j in range(i % 3)) for i in range(size)
    )
    years = (np.arange(size) % 30 / 30).astype(np.float32)
    titles = tuple(f"{title} {i} of version {version}" for i in range(size))
    vectors = _candidate_vectors(edition, tables, genres, years)

    with BundleWriter(root, model, version) as writer:
        directory = writer.directory
        writer.unread_inputs = unread_inputs
        for name, row in (lost_rows or {}).items():
            tables[name][row, 1] = np.nan
        for name, rows in tables.items():
            row_type = (row_types or {}).get(name)
            writer.tables[name] = _write_table(directory, name, rows, row_type)
        writer.add_vocabulary("movies", ids)
        writer.add_vocabulary("genres", np.array(GENRE_NAMES, object))
        for name, values in (keys or {}).items():
            writer.add_keys(name, values)

        compiled = towers / str(edition)
        for name in linear.INPUTS:
            if name not in without:
                writer.towers[name] = write_tower(
                    directory, compiled, name, saved_model_only=name in saved_model_only
                )
        if parts or formula:
            tower_parts = write_tower_parts(directory, compiled) if parts else ()
            writer.towers["ranking"] = writer.towers["ranking"].model_copy(
                update={"parts": tower_parts, "formula": formula}
            )
        if scores is not None:
            writer.towers["ranking"] = writer.towers["ranking"].model_copy(
                update={"scores": scores}
            )

        if keep:
            writer.towers["quick"] = writer.towers["ranking"].model_copy(
                update={"result": "rating", "parts": (), "formula": None}
            )
            writer.stages["ranking"] = Stage(tower="quick", keep=keep)

        _add_corpus(writer, "movies", ids, genres, years, titles, without)
        if "shorts" in more_indexes:
            _add_corpus(writer, "shorts", ids[:5], genres[:5], years[:5], titles[:5], without)
        if users:
            _add_users(writer, ids)
        if lists:
            for name, positions_of in LISTS.items():
                segments = {segment: ids[[*rows]] for segment, rows in positions_of.items()}
                writer.add_list(name, "movies", segments, LIST_INPUTS[name])
        if "indexes" not in without:
            searched = {
                "movies": ("movies", vectors),
                "opposite": ("movies", -vectors),
                "shorts": ("shorts", vectors[:5]),
            }
            for name in ("movies", *more_indexes):
                corpus, rows = searched[name]
                distance = (distances or {}).get(name, "dot_product")
                writer.indexes[name] = _write_index(
                    directory,
                    name,
                    corpus,
                    rows,
                    index_kind,
                    engine or default_engine(),
                    distance,
                    parameters or {},
                    partitions,
                )
        committed, manifest = writer.commit({**feature_entries(id_kind), **(features or {})})
    return SmallBundle(committed, manifest, edition, tables, ids, genres, years, titles, vectors)


def feature_entries(id_kind: Literal["int64", "string"] = "int64") -> dict[str, Feature]:
    """Returns the features of the linear model: each kind, id rule, unknown rule and default."""
    movies = vocabulary_ids("movies", id_kind, first_row=1)
    return {
        "user": EmbeddedFeature(
            kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0)
        ),
        "city": EmbeddedFeature(
            kind="single",
            table="cities",
            role="context",
            ids=hash_ids(CITIES),
            default=CITY_DEFAULT,
        ),
        "history": EmbeddedFeature(
            kind="bag", table="movies", role="context", ids=movies, combiner="mean", default=[]
        ),
        "liked": EmbeddedFeature(
            kind="bag",
            table="movies",
            role="context",
            ids=movies,
            combiner="sum",
            weighted=True,
            default=[],
        ),
        "recent": EmbeddedFeature(
            kind="sequence",
            table="movies",
            role="context",
            ids=movies,
            length=SEQUENCE_LENGTH,
            default=[],
        ),
        "hour": DenseFeature(kind="dense", role="context", default=0.0),
        "mood": DenseFeature(kind="dense", role="context", shape=(2,), default=[0.0, 0.0]),
        "movie": EmbeddedFeature(
            kind="single",
            table="movies",
            role="candidate",
            ids=movies,
            unknown=Unknown(rule="refuse"),
        ),
        "genres": EmbeddedFeature(
            kind="bag",
            table="genres",
            role="candidate",
            ids=vocabulary_ids("genres"),
            unknown=Unknown(rule="row", row=UNKNOWN_GENRE_ROW),
            combiner="sum",
        ),
        "year": DenseFeature(kind="dense", role="candidate"),
    }


def coordinates(position: int) -> tuple[float | None, float]:
    """Returns the latitude and longitude of a candidate, in degrees; spread over the earth."""
    latitude = None if position % 9 == 4 else (37.5 * position) % 180 - 90
    return latitude, (73.25 * position) % 360 - 180


def _write_table(
    directory: Path, name: str, rows: Array, row_type: Literal["int8", "linked"] | None
) -> Table:
    half = len(rows) // 2
    if row_type == "linked":
        return write_linked_table(directory, name, rows, [half])
    if row_type == "int8":
        return write_int8_table(directory, name, rows, [half], [half])
    return write_table(directory, name, rows, "float32", [half])


def _candidate_vectors(
    edition: int, tables: Mapping[str, Array], genres: tuple[tuple[str, ...], ...], years: Array
) -> Array:
    genre_rows = [[GENRE_NAMES.index(name) for name in names] for names in genres]
    inputs = {
        "movie": tables["movies"][1 : len(years) + 1],
        "genres": np.array([tables["genres"][rows].sum(axis=0) for rows in genre_rows], np.float32),
        "year": years,
    }
    vectors: Array = linear.formula("candidate", edition, inputs)["vector"].astype(np.float32)
    return vectors


def _add_corpus(
    writer: BundleWriter,
    name: str,
    ids: Array,
    genres: tuple[tuple[str, ...], ...],
    years: Array,
    titles: tuple[str, ...],
    without: frozenset[str],
) -> None:
    positions = range(len(ids))
    genre_column = Column(
        np.array([name for names in genres for name in names], object),
        _offsets([len(names) for names in genres]),
    )
    studios = [None if i % 7 == 3 else f"studio {i % 5}" for i in positions]
    attributes = {
        "title": pa.array(titles),
        "year": pa.array([None if i == 1 else 1990 + i for i in positions], pa.int64()),
        "rating": pa.array([i / 4 for i in positions], pa.float64()),
        "genres": pa.array([list(names) for names in genres], pa.list_(pa.string())),
        "studio": pa.array(studios, pa.string()),
        "classic": pa.array([None if i == 2 else i % 3 == 0 for i in positions], pa.bool_()),
        "latitude": pa.array([coordinates(i)[0] for i in positions], pa.float64()),
        "longitude": pa.array([coordinates(i)[1] for i in positions], pa.float64()),
    }
    writer.add_corpus(
        name,
        ids,
        features={"movie": Column(ids), "genres": genre_column, "year": Column(years)},
        attributes={key: values for key, values in attributes.items() if key not in without},
        filters=tuple([key for key in FILTERS if key not in without]),
    )


def _add_users(writer: BundleWriter, ids: Array) -> None:
    liked = [ids[list(positions)] for positions, _, _ in STORED_USERS.values()]
    weights = [weight for _, weights, _ in STORED_USERS.values() for weight in weights]
    moods = [number for _, _, mood in STORED_USERS.values() for number in mood]
    users = np.array(list(STORED_USERS))
    features = {
        "user": Column(users),
        "liked": Column(
            np.concatenate(liked),
            _offsets([len(movies) for movies in liked]),
            np.array(weights, np.float32),
        ),
        "mood": Column(np.array(moods, np.float32)),
    }
    writer.add_contexts("users", users, features)


def _offsets(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _write_index(
    directory: Path,
    name: str,
    corpus: str,
    vectors: Array,
    kind: Literal["brute_force", "tree_ah"],
    engine: Engine,
    distance: Distance,
    parameters: Mapping[str, Any],
    partitions: int,
) -> Index:
    file = paths.index_vectors(name)
    (directory / file).parent.mkdir(parents=True)
    vectors.tofile(directory / file)

    entry = Index(
        corpus=corpus,
        query_tower="query",
        candidate_tower="candidate",
        engine=engine,
        kind=kind,
        distance=distance,
        dim=linear.DIM,
        directory=paths.index_directory(name, engine),
        partitions=partitions,
        vectors=file,
        parameters=dict(parameters),
        recall=Recall(k=10, value=1.0, low=0.9, queries=100, target=0.95),
        costs=COSTS if kind == "tree_ah" else None,
    )
    written_rows = partition_rows(len(vectors), partitions)
    for partition, rows in zip(entry.directories, written_rows, strict=True):
        write_index(
            vectors[rows.first : rows.end],
            distance,
            kind,
            dict(parameters),
            directory / partition,
            engine,
        )
    return entry
