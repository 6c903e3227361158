from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.manifest import Distance
from bundle.tables.segments import RowRange
from runtime.errors import IndexUnreadable, InvalidInput
from runtime.exact import normalized
from runtime.partitions import PartitionedIndex, load_index, partition_rows
from runtime.scann import Kind, ScannIndex, write_index
from runtime.scann_build import build_files
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
SIZE = 1000
DIM = 16
TREE = {"num_leaves": 8, "leaves_to_search": 8, "dimensions_per_block": 2, "reorder": SIZE}
"""Settings by which every candidate is scored exactly."""
Written = Callable[[Distance, Kind, int], tuple[Vectors, list[Path]]]


def _vectors(size: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(size, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Writes an index in partitions; returns its vectors and directories."""
    vectors = _vectors(SIZE)
    cache = dict[tuple[Any, ...], list[Path]]()

    def write(distance: Distance, kind: Kind, partitions: int) -> tuple[Vectors, list[Path]]:
        if (distance, kind, partitions) not in cache:
            base = tmp_path_factory.mktemp("index")
            directories = [
                base / path for path in paths.index_partitions("items/scann", partitions)
            ]
            for directory, rows in zip(directories, partition_rows(SIZE, partitions), strict=True):
                partition = vectors[rows.first : rows.end]
                write_index(partition, distance, kind, TREE if kind == "tree_ah" else {}, directory)
            cache[distance, kind, partitions] = directories
        return vectors, cache[distance, kind, partitions]

    return write


def _queries(distance: Distance, count: int = 5) -> Vectors:
    queries = _vectors(count, seed=1)
    return normalized(queries) if distance == "cosine" else queries


@given(size=st.integers(1, 3000), count=st.integers(1, 3000))
def test_partitions_hold_every_row_once_and_are_found_again_by_their_number(
    size: int, count: int
) -> None:
    ranges = partition_rows(size, min(count, size))
    assert [ranges[0].first, *(row_range.end for row_range in ranges)] == [
        *(row_range.first for row_range in ranges),
        size,
    ]
    assert len({row_range.rows for row_range in ranges[:-1]}) <= 1
    assert 1 <= ranges[-1].rows <= ranges[0].rows
    assert len(ranges) <= count
    assert partition_rows(size, len(ranges)) == ranges


@pytest.mark.parametrize(("size", "partitions"), [(10, 3), (9, 5), (7, 7), (5, 1)])
def test_partition_rows_makes_as_many_partitions_as_requested_if_none_is_empty(
    size: int, partitions: int
) -> None:
    assert len(partition_rows(size, partitions)) == partitions
    assert len(partition_rows(5, 4)) == 3, "2 + 2 + 1"


@pytest.mark.parametrize("distance", get_args(Distance))
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("partitions", [2, 3, 7])
def test_exhaustive_search_of_partitions_equals_that_of_one_index(
    written: Written, distance: Distance, kind: Kind, partitions: int
) -> None:
    single, several = (
        load_index(written(distance, kind, n)[1], distance, written(distance, kind, n)[0])
        for n in (1, partitions)
    )
    assert type(single) is ScannIndex
    assert isinstance(several, PartitionedIndex)
    assert (several.size, several.dim, several.reorder, several.distance) == (
        SIZE,
        DIM,
        single.reorder,
        distance,
    )
    assert [partition.size for partition in several.partitions] == [
        row_range.rows for row_range in partition_rows(SIZE, partitions)
    ]
    for k in (1, 10, SIZE, SIZE + 5):
        actual, scores = several.search(_queries(distance), k)
        wanted = single.search(_queries(distance), k)
        np.testing.assert_array_equal(actual, wanted[0])
        np.testing.assert_array_equal(scores, wanted[1])


@pytest.mark.parametrize("distance", get_args(Distance))
def test_candidates_of_brute_force_partitions_are_the_nearest_best_first(
    written: Written, distance: Distance
) -> None:
    vectors, directories = written(distance, "brute_force", 3)
    index = load_index(directories, distance, vectors)
    single = load_index(written(distance, "brute_force", 1)[1], distance, vectors)
    for query in _queries(distance):
        for pool in (1, 20, SIZE):
            positions, scores = index.scored_candidates(query, pool)
            assert positions.dtype == np.uint32
            np.testing.assert_array_equal(positions, single.candidates(query, pool))
            np.testing.assert_array_equal(positions, index.candidates(query, pool))
            assert (np.diff(scores) <= 0).all()


def test_candidates_of_equal_scores_are_in_the_order_of_their_rows(tmp_path: Path) -> None:
    vectors = np.tile(_vectors(4), (6, 1))
    directories = [tmp_path / path for path in paths.index_partitions("scann", 3)]
    for directory, rows in zip(directories, partition_rows(24, 3), strict=True):
        write_index(vectors[rows.first : rows.end], "dot_product", "brute_force", {}, directory)
    candidates = load_index(directories, "dot_product", vectors).candidates(vectors[2], 6)
    scores = vectors @ vectors[2]
    assert candidates.tolist() == np.lexsort((np.arange(24), -scores))[:6].tolist()


def test_few_leaves_of_each_partition_fill_the_end_with_nothing(written: Written) -> None:
    vectors, directories = written("dot_product", "tree_ah", 3)
    index = load_index(directories, "dot_product", vectors)
    positions, scores = index.search(_queries("dot_product"), SIZE, leaves_to_search=1)
    counts = (positions >= 0).sum(axis=1)
    assert (counts < SIZE).all()
    for row, count in enumerate(counts):
        assert set(positions[row, count:]) == {-1}
        assert np.isneginf(scores[row, count:]).all()
        assert np.unique(positions[row, :count]).size == count
        assert set(np.searchsorted([334, 668], positions[row, :count], "right")) == {0, 1, 2}, (
            "all partitions are searched"
        )
    partitions = index.partitions  # type: ignore[attr-defined]
    scores_by_partition = [
        partition.search(_queries("dot_product"), 1, leaves_to_search=1)[1]
        for partition in partitions
    ]
    np.testing.assert_array_equal(scores[:, 0], np.max(scores_by_partition, axis=0)[:, 0])


def test_settings_of_a_search_replace_those_written_in_every_partition(written: Written) -> None:
    vectors, directories = written("dot_product", "tree_ah", 3)
    index = load_index(directories, "dot_product", vectors)
    queries = _queries("dot_product", 20)
    best = index.search(queries, 10)[1].sum()
    assert index.search(queries, 10, leaves_to_search=1)[1].sum() < best
    assert index.search(queries, 10, reorder=10)[1].sum() < best
    with pytest.raises(InvalidInput, match="k is 0"):
        index.search(queries, 0)


def test_partitions_that_are_not_of_these_vectors_are_unreadable(written: Written) -> None:
    vectors, directories = written("dot_product", "brute_force", 3)
    with pytest.raises(IndexUnreadable, match="index 'items' has 3 partitions; 2 vectors have 2"):
        load_index(directories, "dot_product", vectors[:2])
    with pytest.raises(
        IndexUnreadable,
        match="'items', partition-00000-of-00003 holds 334 vectors; 300 were expected",
    ):
        load_index(directories, "dot_product", vectors[:900])
    with pytest.raises(IndexUnreadable, match="'items', missing lacks scann_assets"):
        load_index(
            [directories[0], directories[1].with_name("missing"), directories[2]],
            "dot_product",
            vectors,
        )


def test_files_of_a_range_of_rows_are_those_of_its_vectors(tmp_path: Path) -> None:
    vectors = _vectors(500)
    vectors.tofile(tmp_path / "vectors.bin")
    rows = VectorFile(tmp_path / "vectors.bin", DIM, RowRange(120, 200))
    assert rows.shape == (200, DIM)
    np.testing.assert_array_equal(rows[:], vectors[120:320])
    np.testing.assert_array_equal(rows[10:30], vectors[130:150])
    np.testing.assert_array_equal(rows[np.array([0, 199])], vectors[[120, 319]])
    np.testing.assert_array_equal(rows.mapped, vectors[120:320])
    build_files(rows, "dot_product", "brute_force", {}, tmp_path / "scann")
    positions, _ = ScannIndex.load(tmp_path / "scann", "dot_product", rows.mapped).search(
        vectors[150:151], 1
    )
    assert positions[0, 0] == np.argmax(vectors[120:320] @ vectors[150])


def test_more_vectors_than_positions_have_bits_for_are_rejected(tmp_path: Path) -> None:
    vectors = np.broadcast_to(np.zeros((1, DIM), np.float32), ((1 << 32) + 1, DIM))
    with pytest.raises(IndexUnreadable, match="has 4294967297 vectors; positions have 32 bits"):
        load_index([tmp_path / "items/scann"], "cosine", vectors)
