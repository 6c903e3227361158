"""Small bundles, written by the real writers, and towers for more of them."""

from __future__ import annotations

import gc
import hashlib
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from bundle.features.reader import Column
from bundle.format import manifest as entries
from bundle.format import paths
from bundle.storage.staging import Staging
from bundle.stores.writer import write_store
from bundle.tables.key_index import KeyIndexWriter
from bundle.tables.reader import ShardWriter
from bundle.tables.vocabularies import write_vocabulary
from tests.attribute_indexes import with_filters
from tests.export.forked_runs import ForkedRuns

if TYPE_CHECKING:
    from tests.service.small_bundle import SmallBundle

# Properties are drawn from fixed seeds, so that a run is repeatable, and not timed, since machines differ.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100, database=None)
settings.load_profile("fixed")


def pytest_configure() -> None:
    """Programs that tests interrupt heed it, also where a shell started the tests in the background and ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays: a full collection took a third of a second to look through TensorFlow's modules."""
    gc.freeze()


def write_table(
    directory: Path, name: str, stored: NDArray[Any], dtype: Any, cuts: list[int]
) -> entries.Table:
    """Writes [rows, dim] of a stored dtype as shards that begin at row 0 and at each cut."""
    rows, dim = stored.shape
    shards = write_shards(directory, stored, cuts, partial(paths.table_shard, name))
    return entries.Table(rows=rows, dim=dim, dtype=dtype, shards=shards, source=plain_source(name))


def write_int8_table(
    directory: Path, name: str, rows: NDArray[Any], cuts: list[int], scale_cuts: list[int]
) -> entries.Table:
    """Writes [rows, dim] float32 as int8 rows and their scales, each as shards that begin at row 0 and at each cut."""
    scales = (np.abs(rows).max(axis=1) / 127).astype("<f4")
    stored = np.rint(rows / scales[:, np.newaxis]).astype(np.int8)
    served = stored * scales[:, np.newaxis]
    cosines = (
        (rows * served).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(served, axis=1)
    )
    return entries.Table(
        rows=len(rows),
        dim=rows.shape[1],
        dtype="int8",
        shards=write_shards(directory, stored, cuts, partial(paths.table_shard, name)),
        scales=write_shards(directory, scales, scale_cuts, partial(paths.table_scales, name)),
        error=entries.TableError(
            source_dtype="float32",
            max_abs=float(np.abs(rows - served).max()),
            rms=float(np.sqrt(np.square(rows - served).mean())),
            cosine_min=float(cosines.min()),
            cosine_mean=float(cosines.mean()),
        ),
        source=plain_source(name),
    )


def plain_source(table: str) -> entries.TableSource:
    """Says that a table was a variable of its own."""
    return entries.TableSource(layout="plain", key=f"model/{table}")


def write_shards(
    directory: Path, stored: NDArray[Any], cuts: list[int], file_of: Callable[[int, int], str]
) -> tuple[entries.Shard, ...]:
    """Writes values as shards that begin at row 0 and at each cut."""
    ends = [*cuts, len(stored)]
    shards, first = [], 0
    for number, end in enumerate(ends):
        path = file_of(number, len(ends))
        with ShardWriter(directory / path) as writer:
            writer.write(np.ascontiguousarray(stored[first:end]).tobytes())
        digest = writer.close()
        shards.append(
            entries.Shard(
                file=path,
                first_row=first,
                rows=end - first,
                crc32c=digest.crc32c,
                blocks=digest.blocks,
            )
        )
        first = end
    return tuple(shards)


def write_sample_bundle(root: Path, model: str = "movies", version: int = 1) -> Path:
    """Writes and commits a bundle with each kind of table, feature, vocabulary and store; returns its directory."""
    random = np.random.default_rng(7)
    with Staging(root, model, version) as staging:
        users = random.standard_normal((50, 4)).astype("<f4")
        movies = random.integers(0, 0x4000, (9, 3)).astype("<u2")
        hours = random.standard_normal((24, 2)).astype("<f2")
        tables = {
            "users": write_table(staging.directory, "users", users, "float32", [20, 21]),
            "movies": write_table(staging.directory, "movies", movies, "bfloat16", []),
            "hours": write_table(staging.directory, "hours", hours, "float16", [12]),
            "brands": write_int8_table(
                staging.directory, "brands", random.standard_normal((12, 5)), [7], [3, 4]
            ),
        }
        write_vocabulary(
            staging.directory / paths.vocabulary("movies"), np.array([10, 5, 70, 8], np.int64)
        )
        write_vocabulary(
            staging.directory / paths.vocabulary("names"), np.array(["ann", "bob"], object)
        )
        with KeyIndexWriter(staging.directory / paths.key_index("shops")) as keys:
            keys.append(np.array([-4, 1 << 40, 0, 77], np.int64))
            keys.finish()
        store_path = staging.directory / paths.candidate_store("movies")
        genres = Column(np.array(["a", "b", "b", "c"], object), np.array([0, 1, 1, 3, 4]))
        store = write_store(
            store_path,
            np.array([10, 5, 70, 8], np.int64),
            {"movie": Column(np.array([10, 5, 70, 8], np.int64)), "genres": genres},
            {
                "title": pa.array(["Ten", None, "Seventy", "Eight"]),
                "year": pa.array([1999, 2001, None, 1950]),
            },
        )
        corpus = entries.Corpus(file=paths.candidate_store("movies"), **vars(store))
        corpus = with_filters(staging.directory, "movies", corpus, "title", "year")
        tower = staging.directory / paths.compiled_tower("query", "f32")
        tower.parent.mkdir(parents=True)
        tower.write_bytes(b"flatbuffer")
        vocabularies = {
            "movies": entries.Vocabulary(file=paths.vocabulary("movies"), size=4, dtype="int64"),
            "names": entries.Vocabulary(file=paths.vocabulary("names"), size=2, dtype="string"),
        }
        manifest = entries.Manifest(
            model=model,
            version=version,
            created="2026-01-01T00:00:00Z",
            provenance=provenance(),
            tables=tables,
            vocabularies=vocabularies,
            keys={"shops": entries.KeyIndex(file=paths.key_index("shops"), size=4)},
            features=_features(),
            towers={"query": _tower()},
            candidates={"movies": corpus},
            verification=verification(tables),
            files=(
                *staging.digests("vocabularies"),
                *staging.digests("keys"),
                *staging.digests("candidates"),
                *staging.digests("towers"),
            ),
        )
        return staging.commit(manifest)


def _features() -> dict[str, entries.Feature]:
    embedded = entries.EmbeddedFeature
    return {
        "user": embedded(
            kind="single", table="users", role="context", unknown=entries.Unknown(rule="row", row=3)
        ),
        "name": embedded(
            kind="single",
            table="users",
            role="context",
            ids=entries.VocabularyIds(vocabulary="names", first_row=30),
        ),
        "movie": embedded(
            kind="single",
            table="movies",
            role="candidate",
            ids=entries.VocabularyIds(vocabulary="movies"),
        ),
        "watched": embedded(
            kind="bag",
            table="movies",
            role="context",
            ids=entries.VocabularyIds(vocabulary="movies"),
            combiner="mean",
            weighted=True,
            default=[],
        ),
        "recent": embedded(
            kind="sequence", table="movies", role="context", length=3, default=[1, 2]
        ),
        "genres": embedded(
            kind="bag",
            table="hours",
            role="candidate",
            ids=entries.HashIds(buckets=24),
            combiner="sum",
            default=[],
        ),
        "hour": embedded(
            kind="single",
            table="hours",
            role="context",
            ids=entries.BucketIds(boundaries=(0.5, 1.5)),
            default=1.0,
        ),
        "shop": embedded(
            kind="single", table="hours", role="context", ids=entries.KeyedIds(keys="shops")
        ),
        "strict": embedded(
            kind="single", table="hours", role="context", unknown=entries.Unknown(rule="refuse")
        ),
        "age": entries.DenseFeature(kind="dense", role="context", default=30.0),
        "grid": entries.DenseFeature(kind="dense", role="context", shape=(2, 2), dtype="int32"),
    }


def _tower() -> entries.Tower:
    return entries.Tower(
        role="query",
        inputs=(entries.TowerInput(name="user", feature="user", dtype="float32", shape=(None, 4)),),
        outputs=(entries.TowerOutput(name="vector", dtype="float32", shape=(None, 4)),),
        result="vector",
        forms=(
            entries.TowerForm(
                kind="litert",
                precision="f32",
                path=paths.compiled_tower("query", "f32"),
                max_abs_error={"vector": 0.0},
            ),
        ),
    )


def verification(tables: Mapping[str, entries.Table]) -> entries.Verification:
    """Says that all rows and one example were compared."""
    checks = {
        name: entries.TableCheck(rows_compared=table.rows, rows=table.rows)
        for name, table in tables.items()
    }
    return entries.Verification(tables=checks, examples=1, tolerance="1e-5 + 1e-5 |y|")


def provenance(step: int = 1) -> entries.Provenance:
    """Says where an invented model came from."""
    return entries.Provenance(
        checkpoint=f"ckpt-{step}",
        step=step,
        fingerprint="crc32c:00000000",
        model_code="small_model:build",
        exporter="0.1.0",
        libraries={},
    )


@pytest.fixture(scope="session")
def committed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle that no test may change."""
    return write_sample_bundle(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def sample_bundle(committed_bundle: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    copy = tmp_path / "bundles" / "movies" / "1"
    shutil.copytree(committed_bundle, copy)
    return copy


@pytest.fixture(scope="session")
def small_towers(request: pytest.FixtureRequest) -> Path:
    """Compiled towers of the small model in every edition; made again when its file changes."""
    from tests.service import small_model
    from tests.service.small_bundle import compiled_towers

    script = Path(small_model.__file__).read_bytes()
    cache = request.config.cache
    assert cache is not None, (
        "the towers are kept in pytest's cache: run without -p no:cacheprovider"
    )
    return compiled_towers(cache.mkdir("small_towers_" + hashlib.sha256(script).hexdigest()[:16]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty directory of bundles."""
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    return bundles


@pytest.fixture(scope="session")
def originals() -> dict[str, SmallBundle]:
    """Bundles written in this run of the tests, by how they were: writing syncs every file, copying does not."""
    return {}


@pytest.fixture
def write(
    root: Path,
    small_towers: Path,
    originals: dict[str, SmallBundle],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., SmallBundle]:
    """`write_small_bundle` into `root`."""
    from tests.service.small_bundle import write_small_bundle

    def written(model: str = "movies", version: int = 1, **options: object) -> SmallBundle:
        how = repr((model, version, sorted(options.items())))
        if how not in originals:
            place = tmp_path_factory.mktemp("originals")
            originals[how] = write_small_bundle(place, small_towers, model, version, **options)  # type: ignore[arg-type]
        aside = root.parent / f"copied-{model}-{version}"
        shutil.copytree(originals[how].directory, aside)
        (root / model).mkdir(exist_ok=True)
        return replace(originals[how], directory=aside.rename(root / model / str(version)))

    return written


@pytest.fixture(scope="session")
def forked() -> ForkedRuns:
    """Runs of `rowcast-export` in children of a process that has imported TensorFlow."""
    return ForkedRuns()
