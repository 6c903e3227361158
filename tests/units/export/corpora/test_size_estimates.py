from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from bundle.format import paths
from export.corpora import candidates
from export.corpora.files import CorpusFile
from export.corpora.indexes import build_index
from export.corpora.size_estimates import forecast_index
from export.errors import NotConvertible, UsageError
from export.recipe.schema import IndexSection

DIM = 16
PART = IndexSection(corpus="movies", query_tower="query", candidate_tower="candidate")


def corpus(directory: Path, *sizes: int) -> list[CorpusFile]:
    files = [
        CorpusFile(directory / f"{number}.parquet", "parquet", False)
        for number in range(len(sizes))
    ]
    for file, size in zip(files, sizes, strict=True):
        parquet.write_table(pa.table({"id": np.arange(size)}), file.path)
    return files


@pytest.mark.parametrize(("size", "partitions"), [(3000, 1), (120_000, 1), (3000, 4), (120_000, 4)])
def test_index_takes_no_more_disk_than_forecast(tmp_path: Path, size: int, partitions: int) -> None:
    random = np.random.default_rng(0)
    vectors = tmp_path / paths.index_vectors("movies")
    vectors.parent.mkdir(parents=True)
    random.random((size, DIM), np.float32).tofile(vectors)
    part = PART.model_copy(
        update={"parameters": {"leaves_to_search": 1, "reorder": 10}} if size > 20_000 else {}
    )
    part = part.model_copy(update={"partitions": partitions})
    build_index(tmp_path, "movies", part, random.random((5, DIM), np.float32), representative=False)
    written = sum(file.stat().st_size for file in vectors.parent.rglob("*") if file.is_file())

    forecast = forecast_index("movies", part, corpus(tmp_path, size - 1000, 1000), DIM, encoders=2)

    assert (forecast.candidates, forecast.partitions) == (size, partitions)
    # These are its settings, centroids and code book.
    assert 0.5 * forecast.disk_bytes < written <= forecast.disk_bytes + (1 << 20)


def test_forecast_of_files_without_a_count_assumes_a_million_candidates(
    tmp_path: Path,
) -> None:
    text = CorpusFile(tmp_path / "movies.csv", "csv", False)
    unknown = forecast_index("movies", PART, [text, *corpus(tmp_path, 3)], DIM, encoders=2)
    forecast = forecast_index("movies", PART, corpus(tmp_path, 1_000_000), DIM, encoders=2)
    assert unknown.candidates is None
    assert (unknown.disk_bytes, unknown.build_bytes) == (forecast.disk_bytes, forecast.build_bytes)
    (tmp_path / "0.parquet").write_bytes(b"damaged")
    damaged = [CorpusFile(tmp_path / "0.parquet", "parquet", False)]
    assert forecast_index("movies", PART, damaged, DIM, encoders=2) == unknown


def test_forecast_of_partitions_builds_in_the_memory_of_one(tmp_path: Path) -> None:
    files = corpus(tmp_path, 3_000_000)
    whole, part = (
        forecast_index(
            "movies", PART.model_copy(update={"partitions": count}), files, 256, encoders=1
        )
        for count in (1, 50)
    )
    assert part.build_bytes < 0.6 * whole.build_bytes
    assert (part.disk_bytes, part.load_bytes) == (whole.disk_bytes, whole.load_bytes)
    with pytest.raises(UsageError, match="partitions is 10; there are only 9 candidates"):
        forecast_index(
            "movies", PART.model_copy(update={"partitions": 10}), corpus(tmp_path, 9), DIM, 1
        )


def test_forecast_of_an_index_that_cannot_be_built_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"indexes\.movies\.parameters: unknown key 'leafs'"):
        forecast_index(
            "movies",
            PART.model_copy(update={"parameters": {"leafs": 3}}),
            corpus(tmp_path, 9),
            DIM,
            2,
        )


def test_forecast_of_more_candidates_than_positions_have_bits_for_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "CANDIDATES_MAX", 10)
    assert forecast_index("movies", PART, corpus(tmp_path, 10), DIM, 2).candidates == 10
    message = "corpora.movies: its files hold 11 candidates or more; a corpus may have at most 10"
    with pytest.raises(NotConvertible, match=message):
        forecast_index("movies", PART, corpus(tmp_path, 8, 3), DIM, 2)


@pytest.mark.parametrize(
    ("size", "dim", "part", "encoders", "disk_bytes", "build_bytes", "load_bytes"),
    [
        # A brute-force index: 64 bytes for each vector, and as many again.
        (3000, 16, {}, 2, 384_000, 384_000, 384_000),
        (0, 16, {}, 2, 128, 128, 128),
        # Of a million, 100 000 are the sample; two processes of 640 MiB encode the others.
        (None, 16, {}, 2, 88_000_000, 1_342_177_280, 24_000_000),
        (None, 16, {}, 1, 88_000_000, 671_088_640, 24_000_000),
        # All are the sample, of which training holds eight copies.
        (90_000, 16, {"kind": "tree_ah"}, 2, 7_920_000, 46_080_000, 2_160_000),
        # The sample is a hundred for each leaf.
        (None, 16, {"parameters": {"num_leaves": 2000}}, 0, 88_000_000, 102_400_000, 24_000_000),
        (None, 1, {}, 0, 14_000_000, 16_000_000, 10_000_000),  # 16 bytes for each id
        (None, 9, {"partitions": 20}, 2, 54_000_000, 18_000_000, 18_000_000),  # the codes, twice
    ],
)
def test_forecast_is_the_largest_of_what_each_step_of_the_build_holds(
    tmp_path: Path,
    size: int | None,
    dim: int,
    part: dict[str, object],
    encoders: int,
    disk_bytes: int,
    build_bytes: int,
    load_bytes: int,
) -> None:
    files = [CorpusFile(tmp_path / "movies.csv", "csv", False)]
    if size is not None:
        files = corpus(tmp_path, size)
    index = PART.model_copy(update=part)
    actual = forecast_index("movies", index, files, dim, encoders)
    assert actual.candidates == size
    assert (actual.disk_bytes, actual.build_bytes, actual.load_bytes) == (
        disk_bytes,
        build_bytes,
        load_bytes,
    )
    assert actual.partitions == index.partitions
