from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from bundle.format import paths
from bundle.format.manifest import Distance, Index
from export.corpora.indexes import build_index
from export.corpora.recall import (
    ExactNeighbors,
    QuerySplit,
    load_written,
    measure_again,
    open_vectors,
    recall_of_tables,
    sample_rows,
    wilson_low,
)
from export.errors import DestinationError, NotConvertible, VerificationFailed
from export.recipe.schema import IndexSection
from runtime.errors import InvalidInput
from runtime.scann import ScannIndex
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
MINUTE_S = 60


@pytest.mark.parametrize(
    ("share", "queries", "low"),
    [
        (0.9, 100, 0.825635),  # R: prop.test(90, 100, correct = FALSE)
        (0.5, 10, 0.236593),  # R: prop.test(5, 10, correct = FALSE)
        (1.0, 10, 0.722467),
        (0.0, 10, 0.0),
    ],
)
def test_wilson_low_is_the_lower_end_of_the_score_interval(
    share: float, queries: int, low: float
) -> None:
    assert wilson_low(share, queries) == pytest.approx(low, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "wanted", "rows"),
    [
        (10, 3, [0, 4, 9]),
        (9, 3, [0, 4, 8]),
        (3, 10, [0, 1, 2]),
        (4, 4, [0, 1, 2, 3]),
        (5, 1, [0]),
    ],
)
def test_sample_rows_are_evenly_spread_from_the_first_to_the_last(
    count: int, wanted: int, rows: list[int]
) -> None:
    assert sample_rows(count, wanted).tolist() == rows


@pytest.mark.parametrize(
    ("count", "has_choice", "choosing", "judging", "chosen_on"),
    [
        (5, True, [10, 12, 14], [11, 13], 3),
        (2, True, [10], [11], 1),
        (1, True, [10], [10], 0),
        (3, False, [10, 11, 12], [10, 11, 12], 0),
    ],
)
def test_every_second_query_chooses_and_the_others_judge(
    count: int, has_choice: bool, choosing: list[int], judging: list[int], chosen_on: int
) -> None:
    split = QuerySplit.of(np.arange(10, 10 + count), has_choice)
    assert (split.choosing.tolist(), split.judging.tolist()) == (choosing, judging)
    assert split.chosen_on == chosen_on


class Finds:
    """Finds the same positions whatever is searched for, and notes each search."""

    def __init__(self, *positions: int) -> None:
        self.positions = positions
        self.searches: list[tuple[list[float], int, dict[str, int]]] = []

    def search(self, queries: Vectors, k: int, **setting: int) -> tuple[Any, None]:
        (query,) = queries.tolist()
        self.searches.append((query, k, setting))
        return np.array([self.positions]), None

    def measured_by(self, exact: ExactNeighbors, **options: Any) -> list[float]:
        """Returns the share that each query found."""
        measured = exact.measure(cast(ScannIndex, self), options.pop("setting", {}), **options)
        shares: list[float] = measured.shares.tolist()
        return shares


def neighbors(
    directory: Path, vectors: ArrayLike, query: list[float], k: int, **options: Any
) -> ExactNeighbors:
    """Returns the true neighbors of one query among vectors of a file."""
    path = directory / "vectors.bin"
    np.asarray(vectors, "<f4").tofile(path)
    distance: Distance = options.pop("distance", "dot_product")
    file = VectorFile(path, len(query))
    return ExactNeighbors(file, distance, k, np.array([query], np.float32), **options)


@pytest.mark.parametrize(
    ("actual", "share"),
    [
        ([0, 1, 2], 1),
        ([0, 1, 3], 1),  # as good as the third
        ([0, 1, 4], 1),  # so is one whose score is the same in float32
        ([0, 1, 5], 2 / 3),
        ([0, 6, -1], 1 / 3),
        ([-1, -1, -1], 0),
        ([0, 0, 0], 1 / 3),  # one candidate counts once
    ],
)
def test_found_candidate_is_right_if_it_is_as_near_as_the_last_of_the_true_ones(
    tmp_path: Path, actual: list[int], share: float
) -> None:
    lengths = [5, 4, 3, 3, 2.9999985, 2.99998, 1]
    vectors = [[length, 0] for length in lengths]
    assert Finds(*actual).measured_by(neighbors(tmp_path, vectors, [1, 0], 3)) == [share]


@pytest.mark.parametrize(
    ("distance", "vectors", "right", "wrong"),
    [
        ("dot_product", [[5, 0], [4, 9], [3, 0]], 1, 2),
        ("cosine", [[1, 0], [1, 1], [100, 101]], 1, 2),
        ("squared_l2", [[1, 0], [1, 1], [-2, 0]], 1, 2),
    ],
)
def test_found_candidates_are_scored_by_the_distance_of_the_index(
    tmp_path: Path, distance: Distance, vectors: list[list[int]], right: int, wrong: int
) -> None:
    exact = neighbors(tmp_path, vectors, [2, 0], 2, distance=distance)
    assert Finds(0, right).measured_by(exact) == [1]
    assert Finds(0, wrong).measured_by(exact) == [0.5]


def test_measure_compares_as_many_neighbors_as_it_is_told_but_no_more_than_there_are(
    tmp_path: Path,
) -> None:
    vectors = [[length, 0] for length in (5, 4, 3, 2, 1)]
    exact = neighbors(tmp_path, vectors, [1, 0], 2, k_max=4)
    index = Finds(0, 1, 4)
    assert index.measured_by(exact) == [1]
    assert index.measured_by(exact, k=1) == [1]
    assert index.measured_by(exact, k=4, setting={"reorder": 9}) == [0.5]
    assert index.measured_by(exact, sent_queries=np.array([[7.0, 8.0]])) == [1]
    assert index.searches == [
        ([1, 0], 2, {}),
        ([1, 0], 1, {}),
        ([1, 0], 4, {"reorder": 9}),
        ([7, 8], 2, {}),
    ]

    every = neighbors(tmp_path, vectors, [1, 0], 9)
    assert every.k == 5
    assert index.measured_by(every) == index.measured_by(every, k=7) == [3 / 5]
    assert [k for _, k, _ in index.searches[4:]] == [5, 5]


def test_measured_searches_take_some_time_which_is_told_in_seconds(tmp_path: Path) -> None:
    exact = neighbors(tmp_path, np.ones((200_000, 2)), [1, 0], 2)
    measured = exact.measure(cast(ScannIndex, Finds(0, 1)), {})
    assert 0 < measured.search_s < MINUTE_S
    assert 1e-5 < exact.search_s() < MINUTE_S  # no machine reads 1.6 MB any faster


def test_neighbors_of_queries_that_are_no_numbers_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="query vector 0 holds NaN"):
        neighbors(tmp_path, [[1, 0]], [np.nan, 0], 1)


PART = IndexSection(corpus="movies", query_tower="query", candidate_tower="candidate")


def written(base: Path, vectors: Vectors, queries: Vectors) -> Index:
    """Writes a brute-force index of vectors."""
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return build_index(base, "movies", PART, queries)


def test_measure_again_takes_the_queries_that_judged_the_setting(tmp_path: Path) -> None:
    vectors = np.eye(40, dtype=np.float32)
    queries = vectors[::4]
    page = written(tmp_path, vectors, queries)
    recall = page.recall.model_copy(update={"k": 1, "queries": 3, "chosen_on": 4, "target": 0.5})
    page = page.model_copy(update={"recall": recall})
    path = tmp_path / page.vectors

    # Of ten queries these are the seven that were measured; every second one judged.
    sent_queries = queries.copy()
    judging = np.array([0, 2, 3, 4, 6, 8, 9])[1::2]
    sent_queries[judging[0]] = vectors[1]
    actual = measure_again(tmp_path, "movies", page, sent_queries, queries, path)
    assert (actual.k, actual.queries, actual.chosen_on, actual.target) == (1, 3, 4, 0.5)
    assert actual.value == pytest.approx(2 / 3)
    assert actual.low == pytest.approx(wilson_low(2 / 3, 3))

    sent_queries = np.roll(queries, 1, axis=0)
    sent_queries[judging] = queries[judging]
    assert measure_again(tmp_path, "movies", page, sent_queries, queries, path).value == 1

    recall = recall.model_copy(update={"queries": 7, "chosen_on": 0})
    page = page.model_copy(update={"recall": recall})
    actual = measure_again(tmp_path, "movies", page, sent_queries, queries, path)
    assert (actual.queries, actual.chosen_on) == (7, 0)
    assert actual.value == pytest.approx(3 / 7)

    recall = recall.model_copy(update={"queries": 1, "chosen_on": 1})
    page = page.model_copy(update={"recall": recall})
    actual = measure_again(tmp_path, "movies", page, sent_queries, queries, path)
    assert (actual.queries, actual.chosen_on, actual.value) == (1, 1, 0)


def test_recall_of_tables_may_be_just_what_the_recipe_asks_for(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).standard_normal((40, 4)).astype(np.float32)
    page = written(tmp_path, vectors, vectors[:6])
    path = tmp_path / page.vectors
    part = PART.model_copy(update={"recall": PART.recall.model_copy(update={"of_tables": 1.0})})
    recall = recall_of_tables(tmp_path, "movies", part, page, vectors[:6], vectors[:6], path)
    assert (recall.value, recall.target) == (1, 1)

    far_vectors = -vectors[:6]
    with pytest.raises(VerificationFailed, match=r"index 'movies': recall@10 is 0\.\d{4} against"):
        recall_of_tables(tmp_path, "movies", part, page, far_vectors, vectors[:6], path)


@pytest.mark.parametrize(
    ("size", "queries", "problem"),
    [
        (6, (2,), r"queries have shape \[2\]; \[q, dim\] was expected, q >= 1"),
        (6, (0, 2), r"queries have shape \[0, 2\]; \[q, dim\] was expected, q >= 1"),
        (6, (1, 4), "6 values .* dim 4, which queries have; both towers must end in the same dim"),
        (0, (1, 2), "vectors cannot be read: vectors.bin is empty"),
        (None, (1, 2), "vectors cannot be read: .*No such file"),
    ],
)
def test_vectors_that_do_not_fit_their_queries_are_rejected(
    tmp_path: Path, size: int | None, queries: tuple[int, ...], problem: str
) -> None:
    path = tmp_path / "vectors.bin"
    if size is not None:
        np.zeros(size, "<f4").tofile(path)
    with pytest.raises(NotConvertible, match=f"index 'movies': {problem}"):
        open_vectors(path, "movies", np.zeros(queries, np.float32))


def test_index_that_was_not_written_whole_is_a_destination_error(tmp_path: Path) -> None:
    vectors = np.eye(40, dtype=np.float32)
    page = written(tmp_path, vectors, vectors[:2])
    opened = VectorFile(tmp_path / page.vectors, 40)
    with pytest.raises(DestinationError, match=r"index 'movies' was not written whole: .* full"):
        load_written([tmp_path / "gone"], page.distance, opened, "movies")
