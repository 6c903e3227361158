"""Writes small whole bundles, by the real writers, for the tests of the service, its transports and the client.

    towers = compiled_towers(directory)           # once: a process of its own runs TensorFlow
    small = write_small_bundle(root, towers, model="movies", version=2)
    small.ids[:3], small.movie_rows["users"][5]   # what is in it, for the reference

Everything differs from version to version, so that an answer mixed of two versions agrees with neither.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bundle.features.reader import Column
from bundle.format import paths
from bundle.format.checksums import crc32c
from bundle.format.manifest import (
    Corpus,
    DenseFeature,
    EmbeddedFeature,
    Feature,
    HashIds,
    Index,
    KeyIndex,
    Manifest,
    Recall,
    Table,
    Tower,
    TowerForm,
    TowerInput,
    TowerOutput,
    Unknown,
    Vocabulary,
    VocabularyIds,
)
from bundle.format.manifest import Shard as ManifestShard
from bundle.storage.staging import Staging
from bundle.stores.writer import write_store
from bundle.tables.key_index import KeyIndexWriter
from bundle.tables.reader import ShardWriter
from bundle.tables.vocabularies import write_vocabulary
from runtime.partitions import partition_rows
from runtime.scann import write_index
from tests.attribute_indexes import with_filters
from tests.conftest import plain_source, provenance, verification, write_int8_table, write_table
from tests.service import small_model
from tests.service.small_pieces import split_tower, write_users
from tests.tensorflow_process import with_tensorflow

USERS, CITIES, GENRES = 50, 16, 6
CITY_DEFAULT = "nowhere"
GENRE_NAMES = ("comedy", "drama", "action", "horror", "other")
UNKNOWN_GENRE_ROW = 5
DIRECTORIES = ("vocabularies", "keys", "candidates", "contexts", "towers", "indexes")
SEQUENCE_LENGTH = 3

Array = NDArray[Any]


@dataclass(frozen=True)
class SmallBundle:
    """What was written, as arrays.

    Attributes:
      tables: [rows, dim] float32 by table: users, cities, movies (row 0 is no movie, row 1 + i is candidate i), genres.
      ids: [size] candidate ids, int64 or object holding str; position = index position.
      genres: genre names of each candidate. years: [size] float32, as the feature. titles: of each candidate.
      vectors: [size, 8] float32: the candidate tower's, as indexed.
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


def compiled_towers(directory: Path) -> Path:
    """Returns `directory` with the towers of every edition in it, compiled there once by a process with TensorFlow."""
    done = directory / "done"
    if not done.exists():
        with_tensorflow(small_model.compile_towers, directory)
        done.touch()
    return directory


def candidate_ids(kind: Literal["int64", "string"], size: int) -> Array:
    """Ids that are no row numbers: 1000, 1007, ..., or "m-0", "m-1", ..."""
    return (
        1000 + 7 * np.arange(size)
        if kind == "int64"
        else np.array([f"m-{i}" for i in range(size)], object)
    )


def write_small_bundle(
    root: Path,
    towers: Path,
    model: str = "movies",
    version: int = 1,
    *,
    id_kind: Literal["int64", "string"] = "int64",
    size: int = 40,
    saved_model_only: frozenset[str] = frozenset(),
    index_kind: Literal["brute_force", "tree_ah"] = "brute_force",
    parameters: Mapping[str, Any] | None = None,
    partitions: int = 1,
    features: Mapping[str, Feature] | None = None,
    without: frozenset[str] = frozenset(),
    row_types: Mapping[str, Literal["int8", "linked"]] | None = None,
    parts: bool = False,
    formula: str | None = None,
    users: bool = False,
    keys: Mapping[str, Array] | None = None,
) -> SmallBundle:
    """Writes and commits one version.

    Args:
      towers: what `compiled_towers` returned.
      id_kind: of the candidates, and of the features movie, history, liked and recent, whose vocabulary they are.
      size: candidates.
      saved_model_only: towers that get no compiled form.
      index_kind, parameters, partitions: of the index.
      features: entries that replace those of `feature_entries`.
      without: `indexes` or `ranking`: leaves those out.
      row_types: tables written as int8 rows, or as they lie in a checkpoint, amid other bytes of one file.
      parts, formula: of the ranking tower. users: with a store `users` of the contexts of `small_pieces`.
      keys: of each key index, in the order of their rows.
    """
    random = np.random.default_rng([version, size])
    edition = small_model.EDITIONS[(version - 1) % len(small_model.EDITIONS)]
    ids = candidate_ids(id_kind, size)
    shapes = {
        "users": (USERS, 8),
        "cities": (CITIES, 4),
        "movies": (size + 1, 8),
        "genres": (GENRES, 4),
    }
    tables = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    genres = tuple(
        tuple(GENRE_NAMES[(i + j) % len(GENRE_NAMES)] for j in range(i % 3)) for i in range(size)
    )
    years = (np.arange(size) % 30 / 30).astype(np.float32)
    titles = tuple(f"Film {i} of version {version}" for i in range(size))
    vectors = _candidate_vectors(edition, tables, genres, years)
    with Staging(root, model, version) as staging:
        place = staging.directory
        entries = {
            name: _write_table(place, name, rows, (row_types or {}).get(name))
            for name, rows in tables.items()
        }
        named = (name for name in small_model.INPUTS if name not in without)
        written = {
            name: _write_tower(place, towers / str(edition), name, name in saved_model_only)
            for name in named
        }
        if parts or formula:
            written["ranking"] = split_tower(
                written["ranking"], place, towers / str(edition), parts, formula
            )
        how = (index_kind, parameters or {}, partitions)
        indexed = {} if "indexes" in without else {"movies": _write_index(place, vectors, *how)}
        manifest = Manifest(
            model=model,
            version=version,
            created="2026-01-01T00:00:00Z",
            provenance=provenance(version),
            tables=entries,
            vocabularies=_write_vocabularies(place, ids, id_kind),
            keys={name: _write_keys(place, name, values) for name, values in (keys or {}).items()},
            features={**feature_entries(), **(features or {})},
            towers=written,
            candidates={"movies": _write_corpus(place, ids, genres, years, titles)},
            contexts={"users": write_users(place, ids)} if users else {},
            indexes=indexed,
            verification=verification(entries),
            files=tuple(
                file
                for name in DIRECTORIES
                if (place / name).exists()
                for file in staging.digests(name)
            ),
        )
        final = staging.commit(manifest)
    return SmallBundle(final, manifest, edition, tables, ids, genres, years, titles, vectors)


def feature_entries() -> dict[str, Feature]:
    """The features of the small model: each kind, id rule, unknown rule and default once."""
    movies = VocabularyIds(vocabulary="movies", first_row=1)
    return {
        "user": EmbeddedFeature(
            kind="single", table="users", role="context", unknown=Unknown(rule="row", row=0)
        ),
        "city": EmbeddedFeature(
            kind="single",
            table="cities",
            role="context",
            ids=HashIds(buckets=CITIES),
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
            ids=VocabularyIds(vocabulary="genres"),
            unknown=Unknown(rule="row", row=UNKNOWN_GENRE_ROW),
            combiner="sum",
        ),
        "year": DenseFeature(kind="dense", role="candidate"),
    }


def _write_vocabularies(
    place: Path, ids: Array, id_kind: Literal["int64", "string"]
) -> dict[str, Vocabulary]:
    write_vocabulary(place / paths.vocabulary("movies"), ids)
    write_vocabulary(place / paths.vocabulary("genres"), np.array(GENRE_NAMES, object))
    return {
        "movies": Vocabulary(file=paths.vocabulary("movies"), size=len(ids), dtype=id_kind),
        "genres": Vocabulary(
            file=paths.vocabulary("genres"), size=len(GENRE_NAMES), dtype="string"
        ),
    }


def _write_keys(place: Path, name: str, keys: Array) -> KeyIndex:
    with KeyIndexWriter(place / paths.key_index(name)) as writer:
        writer.append(keys)
        return KeyIndex(file=paths.key_index(name), size=writer.finish())


def _write_table(place: Path, name: str, rows: Array, row_type: str | None) -> Table:
    half = len(rows) // 2
    if row_type == "linked":
        return _write_linked_table(place, name, rows)
    if row_type == "int8":
        return write_int8_table(place, name, rows, [half], [half])
    return write_table(place, name, rows, "float32", [half])


def _write_linked_table(place: Path, name: str, rows: Array) -> Table:
    file, half = paths.table_shard(name, 0, 1), len(rows) // 2
    shards, offset = [], 13
    with ShardWriter(place / file) as writer:
        writer.write(b"\xff" * offset)
        for first, part in ((0, rows[:half]), (half, rows[half:])):
            data = np.ascontiguousarray(part).tobytes()
            writer.write(data + b"\xff" * 6)
            shards.append(
                ManifestShard(
                    file=file,
                    offset=offset,
                    first_row=first,
                    rows=len(part),
                    crc32c=crc32c(data),
                    blocks=(),
                )
            )
            offset += len(data) + 6
    return Table(
        rows=len(rows),
        dim=rows.shape[1],
        dtype="float32",
        shards=tuple(shards),
        source=plain_source(name),
    )


def _write_tower(place: Path, edition: Path, name: str, saved_model_only: bool) -> Tower:
    forms = []
    outputs = small_model.OUTPUTS[name]
    error = dict.fromkeys(outputs, 0.0)
    shutil.copytree(edition / name / "saved_model", place / paths.saved_model(name))
    forms.append(
        TowerForm(
            kind="saved_model", precision="f32", path=paths.saved_model(name), max_abs_error=error
        )
    )
    if not saved_model_only:
        file = paths.compiled_tower(name, "f32")
        shutil.copyfile(edition / name / "compiled-f32.tflite", place / file)
        forms.append(TowerForm(kind="litert", precision="f32", path=file, max_abs_error=error))
    shape = (None,) if name == "ranking" else (None, small_model.DIM)
    return Tower(
        role=small_model.ROLES[name],
        inputs=tuple(
            TowerInput(name=each, feature=each, dtype="float32", shape=(None, *size))
            for each, size in small_model.INPUTS[name].items()
        ),
        outputs=tuple(TowerOutput(name=each, dtype="float32", shape=shape) for each in outputs),
        result=outputs[0],
        forms=tuple(forms),
    )


def _candidate_vectors(
    edition: int, tables: Mapping[str, Array], genres: tuple[tuple[str, ...], ...], years: Array
) -> Array:
    genre_rows = [[GENRE_NAMES.index(name) for name in names] for names in genres]
    inputs = {
        "movie": tables["movies"][1:],
        "genres": np.array([tables["genres"][rows].sum(axis=0) for rows in genre_rows], np.float32),
        "year": years,
    }
    vectors: Array = small_model.formula("candidate", edition, inputs)["vector"].astype(np.float32)
    return vectors


def _write_corpus(
    place: Path,
    ids: Array,
    genres: tuple[tuple[str, ...], ...],
    years: Array,
    titles: tuple[str, ...],
) -> Corpus:
    offsets = np.concatenate([[0], np.cumsum([len(names) for names in genres])]).astype(np.int64)
    flat = np.array([name for names in genres for name in names], object)
    stored = {"movie": Column(ids), "genres": Column(flat, offsets), "year": Column(years)}
    attributes = {
        "title": pa.array(titles),
        "year": pa.array([None if i == 1 else 1990 + i for i in range(len(ids))], pa.int64()),
        "rating": pa.array([i / 4 for i in range(len(ids))], pa.float64()),
        "genres": pa.array([list(names) for names in genres], pa.list_(pa.string())),
        "studio": pa.array(
            [None if i % 7 == 3 else f"studio {i % 5}" for i in range(len(ids))], pa.string()
        ),
        "classic": pa.array([None if i == 2 else i % 3 == 0 for i in range(len(ids))], pa.bool_()),
    }
    store = write_store(place / paths.candidate_store("movies"), ids, stored, attributes)
    corpus = Corpus(file=paths.candidate_store("movies"), **vars(store))
    return with_filters(place, "movies", corpus, "genres", "year", "rating", "studio", "classic")


def _write_index(
    place: Path,
    vectors: Array,
    kind: Literal["brute_force", "tree_ah"],
    parameters: Mapping[str, Any],
    partitions: int,
) -> Index:
    (place / paths.index_vectors("movies")).parent.mkdir(parents=True)
    vectors.tofile(place / paths.index_vectors("movies"))
    directories = paths.index_partitions(paths.index_directory("movies"), partitions)
    for directory, rows in zip(directories, partition_rows(len(vectors), partitions), strict=True):
        write_index(
            vectors[rows.first : rows.end], "dot_product", kind, dict(parameters), place / directory
        )
    return Index(
        corpus="movies",
        query_tower="query",
        candidate_tower="candidate",
        kind=kind,
        distance="dot_product",
        dim=small_model.DIM,
        directory=paths.index_directory("movies"),
        partitions=partitions,
        vectors=paths.index_vectors("movies"),
        parameters=dict(parameters),
        recall=Recall(k=10, value=1.0, low=0.9, queries=100, target=0.95),
    )
