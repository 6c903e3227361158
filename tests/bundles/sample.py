"""A bundle with each kind of table, feature, vocabulary and store. Its only tower cannot run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from bundle.features.columns import Column
from bundle.format import paths
from bundle.format.manifest import (
    DenseFeature,
    EmbeddedFeature,
    Feature,
    KeyedIds,
    Tower,
    TowerForm,
    TowerInput,
    TowerOutput,
    Unknown,
)
from tests.bundles.tables import write_int8_table, write_table
from tests.bundles.writer import BundleWriter
from tests.id_graphs import bucket_ids, hash_ids, vocabulary_ids

MOVIES = np.array([10, 5, 70, 8], np.int64)


def write_sample_bundle(root: Path, model: str = "movies", version: int = 1) -> Path:
    """Writes and commits the bundle; returns its directory."""
    with BundleWriter(root, model, version) as writer:
        _add_tables(writer)
        writer.add_vocabulary("movies", MOVIES)
        writer.add_vocabulary("names", np.array(["ann", "bob"], object))
        writer.add_keys("shops", np.array([-4, 1 << 40, 0, 77], np.int64))
        _add_corpus(writer)
        _add_tower(writer)
        directory, _ = writer.commit(_features())
    return directory


def _add_tables(writer: BundleWriter) -> None:
    random = np.random.default_rng(7)
    directory = writer.directory

    users = random.standard_normal((50, 4)).astype("<f4")
    writer.tables["users"] = write_table(directory, "users", users, "float32", [20, 21])

    movies = random.integers(0, 0x4000, (9, 3)).astype("<u2")
    writer.tables["movies"] = write_table(directory, "movies", movies, "bfloat16", [])

    hours = random.standard_normal((24, 2)).astype("<f2")
    writer.tables["hours"] = write_table(directory, "hours", hours, "float16", [12])

    brands = random.standard_normal((12, 5))
    writer.tables["brands"] = write_int8_table(directory, "brands", brands, [7], [3, 4])


def _add_corpus(writer: BundleWriter) -> None:
    genres = np.array(["a", "b", "b", "c"], object)
    features = {"movie": Column(MOVIES), "genres": Column(genres, np.array([0, 1, 1, 3, 4]))}
    attributes = {
        "title": pa.array(["Ten", None, "Seventy", "Eight"]),
        "year": pa.array([1999, 2001, None, 1950]),
    }
    writer.add_corpus("movies", MOVIES, features, attributes, filters=["title", "year"])


def _add_tower(writer: BundleWriter) -> None:
    file = paths.compiled_tower("query", "f32")
    (writer.directory / file).parent.mkdir(parents=True)
    (writer.directory / file).write_bytes(b"flatbuffer")
    form = TowerForm(kind="litert", precision="f32", path=file, max_abs_error={"vector": 0.0})
    writer.towers["query"] = Tower(
        role="query",
        inputs=(TowerInput(name="user", feature="user", dtype="float32", shape=(None, 4)),),
        outputs=(TowerOutput(name="vector", dtype="float32", shape=(None, 4)),),
        result="vector",
        forms=(form,),
    )


def _features() -> dict[str, Feature]:
    movies = vocabulary_ids("movies", "int64")
    return {
        "user": EmbeddedFeature(
            kind="single", table="users", role="context", unknown=Unknown(rule="row", row=3)
        ),
        "name": EmbeddedFeature(
            kind="single",
            table="users",
            role="context",
            ids=vocabulary_ids("names", first_row=30),
        ),
        "movie": EmbeddedFeature(kind="single", table="movies", role="candidate", ids=movies),
        "watched": EmbeddedFeature(
            kind="bag",
            table="movies",
            role="context",
            ids=movies,
            combiner="mean",
            weighted=True,
            default=[],
        ),
        "recent": EmbeddedFeature(
            kind="sequence", table="movies", role="context", length=3, default=[1, 2]
        ),
        "genres": EmbeddedFeature(
            kind="bag",
            table="hours",
            role="candidate",
            ids=hash_ids(24),
            combiner="sum",
            default=[],
        ),
        "hour": EmbeddedFeature(
            kind="single",
            table="hours",
            role="context",
            ids=bucket_ids((0.5, 1.5)),
            default=1.0,
        ),
        "shop": EmbeddedFeature(
            kind="single", table="hours", role="context", ids=KeyedIds(keys="shops")
        ),
        "strict": EmbeddedFeature(
            kind="single", table="hours", role="context", unknown=Unknown(rule="refuse")
        ),
        "age": DenseFeature(kind="dense", role="context", default=30.0),
        "grid": DenseFeature(kind="dense", role="context", shape=(2, 2), dtype="int32"),
    }
