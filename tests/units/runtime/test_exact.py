from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import InvalidInput
from runtime.exact import ExactIndex, VectorBlock, normalized, rank_exactly


def _vectors(size: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(size, dim)).astype(np.float32)


def _reference(
    vectors: NDArray[np.float32], query: NDArray[np.float32], distance: Distance
) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    wide_query = query.astype(np.float64)
    if distance == "squared_l2":
        return np.array([-float(np.sum((row - wide_query) ** 2)) for row in wide])
    dots = np.array([float(np.sum(row * wide_query)) for row in wide])
    if distance == "cosine":
        dots /= np.array([np.linalg.norm(row) for row in wide]) * np.linalg.norm(wide_query)
    return dots


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
def test_exact_search_equals_float64_sort(distance: Distance) -> None:
    vectors = _vectors(700, 12)
    queries = _vectors(3, 12, seed=1)

    positions, scores = ExactIndex(vectors, distance).search(queries, 9)

    assert (positions.dtype.name, scores.dtype.name) == ("int64", "float32")
    for row, query in enumerate(queries):
        wanted = _reference(vectors, query, distance)
        best = sorted(range(700), key=lambda position: -wanted[position])[:9]
        assert positions[row].tolist() == best
        np.testing.assert_allclose(scores[row], wanted[best], rtol=1e-5, atol=1e-6)


def test_cosine_finds_the_same_whatever_was_searched_before() -> None:
    """Lengths of vectors are kept, whichever search computed them."""
    vectors = _vectors(300, 6)
    vectors[::40] = 0
    queries = _vectors(2, 6, seed=1)
    some_positions = np.arange(5, 290, 7)
    whole = ExactIndex(vectors, "cosine").search(queries, 300)
    part = ExactIndex(vectors, "cosine").search(queries, 20, some_positions)

    index = ExactIndex(vectors, "cosine")
    for _ in range(2):
        part_again = index.search(queries, 20, some_positions)
        np.testing.assert_array_equal(part_again[0], part[0])
        np.testing.assert_array_equal(part_again[1], part[1])
        whole_again = index.search(queries, 300)
        np.testing.assert_array_equal(whole_again[0], whole[0])
        np.testing.assert_array_equal(whole_again[1], whole[1])
    zeros = np.isin(whole[0], np.arange(0, 300, 40))
    assert zeros.sum() == 2 * 8
    assert (whole[1][zeros] == 0).all()


def test_exact_search_over_several_blocks_equals_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = _vectors(500, 8)
    queries = _vectors(4, 8, seed=1)
    whole = ExactIndex(vectors, "dot_product").search(queries, 20)
    monkeypatch.setattr("runtime.exact._BLOCK_BYTES", 4 * 8 * 37)

    parts = ExactIndex(vectors, "dot_product").search(queries, 20)

    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-6)


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
def test_exact_search_finds_the_same_in_whatever_order_and_threads_blocks_are_scored(
    distance: Distance, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = _vectors(500, 8).round()
    queries = _vectors(4, 8, seed=1).round()  # of many equal scores
    monkeypatch.setattr("runtime.exact._BLOCK_BYTES", 4 * 8 * 37)
    index = ExactIndex(vectors, distance)

    def backwards(count: int, score: Callable[[int], None]) -> None:
        for number in reversed(range(count)):
            score(number)

    def beside_each_other(count: int, score: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(score, range(count)))

    in_turn = index.search(queries, 20)
    for run_each in (backwards, beside_each_other):
        positions, scores = index.search(queries, 20, run_each=run_each)
        assert positions.tobytes() == in_turn[0].tobytes()
        assert scores.tobytes() == in_turn[1].tobytes()


def test_exact_search_equal_scores_come_in_order_of_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = np.ones((100, 4), np.float32)
    vectors[70] = 2
    monkeypatch.setattr("runtime.exact._BLOCK_BYTES", 4 * 4 * 16)

    positions, scores = ExactIndex(vectors, "dot_product").search(np.ones((1, 4), np.float32), 5)

    assert positions.tolist() == [[70, 0, 1, 2, 3]]
    assert scores.tolist() == [[8, 4, 4, 4, 4]]


def test_exact_search_k_beyond_the_vectors_is_filled() -> None:
    positions, scores = ExactIndex(-np.eye(3, dtype=np.float32), "dot_product").search(
        np.eye(3, dtype=np.float32), 5
    )

    assert positions[0].tolist() == [1, 2, 0, -1, -1]
    assert scores[0, :3].tolist() == [0, 0, -1]
    assert scores[0, 3:].tolist() == [-np.inf, -np.inf]


def test_exact_search_among_allowed_positions_finds_only_those() -> None:
    vectors = _vectors(300, 6)
    queries = _vectors(2, 6, seed=1)
    allowed = np.array([299, 5, 17, 4, 200])

    positions, scores = ExactIndex(vectors, "squared_l2").search(queries, 4, allowed)

    for row, query in enumerate(queries):
        wanted = _reference(vectors, query, "squared_l2")
        assert (
            positions[row].tolist()
            == sorted(allowed.tolist(), key=lambda position: -wanted[position])[:4]
        )
    nothing, _ = ExactIndex(vectors, "squared_l2").search(queries, 2, np.empty(0, np.int64))
    assert nothing.tolist() == [[-1, -1], [-1, -1]]
    assert scores.max() <= 0


def test_exact_search_of_a_mapped_file_needs_no_copy(tmp_path: Path) -> None:
    vectors = _vectors(200, 6)
    vectors.tofile(tmp_path / "vectors.bin")
    mapped = np.memmap(tmp_path / "vectors.bin", np.float32, "r").reshape(200, 6)

    positions, _ = ExactIndex(mapped, "dot_product").search(vectors[:1], 3)

    np.testing.assert_array_equal(
        positions, ExactIndex(vectors, "dot_product").search(vectors[:1], 3)[0]
    )


def test_exact_squared_l2_distinguishes_neighbors_far_from_the_origin() -> None:
    # The expanded square |x|^2 - 2xq + |q|^2 would lose these differences in float32.
    vectors = (1000 + np.arange(8, dtype=np.float32)[:, None] * 0.01 * np.ones((8, 4))).astype(
        np.float32
    )

    positions, scores = ExactIndex(vectors, "squared_l2").search(vectors[3:4], 3)

    assert positions[0, 0] == 3
    assert scores[0, 0] == 0
    assert set(positions[0, 1:].tolist()) == {2, 4}


def test_exact_scores_are_those_of_the_search() -> None:
    vectors = _vectors(50, 6)
    queries = _vectors(1, 6, seed=1)
    index = ExactIndex(vectors, "cosine")
    positions, scores = index.search(queries, 50)

    np.testing.assert_allclose(index.scores(queries[0], positions[0]), scores[0], rtol=1e-6)


def test_normalized_zeros_stay_zeros() -> None:
    result = normalized(np.array([[3, 4], [0, 0]], np.float32))

    np.testing.assert_allclose(result, np.array([[0.6, 0.8], [0, 0]]), rtol=1e-6)


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.zeros((1, 5), np.float32), 3, r"\[1, 5\]; \[n, 6\] was expected"),
        (np.zeros(6, np.float32), 3, r"\[6\]; \[n, 6\] was expected"),
        (np.array([[0] * 6, [0] * 5 + [np.nan]], np.float32), 3, "query vector 1 holds NaN"),
        (np.array([[0] * 5 + [-np.inf]], np.float32), 3, "query vector 0 holds NaN or an infinity"),
        (
            np.full((1, 6), 1e18, np.float32),
            3,
            "query vector 0 holds numbers up to 1e\\+18; a vector",
        ),
        (np.zeros((1, 6), np.float32), 0, "k is 0"),
    ],
)
def test_exact_search_wrong_query_is_rejected(
    queries: NDArray[np.float32], k: int, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        ExactIndex(_vectors(10, 6), "dot_product").search(queries, k)


def test_exact_search_large_finite_query_is_no_infinity() -> None:
    queries = np.full((1, 6), 1e17, np.float32)

    positions, _ = ExactIndex(np.eye(6, dtype=np.float32), "dot_product").search(queries, 1)

    assert positions.tolist() == [[0]]


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_exact_search_scores_beyond_float32_are_infinities_and_none_is_lost(
    distance: Distance,
) -> None:
    vectors = np.array([[1, 1], [1, -1], [2, 2], [-2, 2], [2, -2]], np.float32)
    vectors *= np.float32(1e38)

    positions, scores = ExactIndex(vectors, distance).search(np.full((1, 2), 3, np.float32), 5)

    assert sorted(positions[0].tolist()) == [0, 1, 2, 3, 4]
    assert np.isinf(scores).any()


@pytest.mark.parametrize("distance", ["dot_product", "cosine", "squared_l2"])
@pytest.mark.parametrize("k", [0, 1, 7, 40, 60])
def test_rank_exactly_finds_what_exact_search_finds(distance: Distance, k: int) -> None:
    vectors = _vectors(50, 19)
    query = normalized(vectors[3:4])[0]
    chosen = np.random.default_rng(2).permutation(50)[:40]

    positions, scores = rank_exactly(vectors, query, chosen.astype(np.uint32), k, distance)

    assert (positions.dtype.name, scores.dtype.name) == ("int64", "float32")
    wanted = _reference(vectors, query, distance)[chosen]
    best = np.lexsort((chosen, -wanted))[:k]
    assert positions.tolist() == chosen[best].tolist()
    np.testing.assert_allclose(scores, wanted[best], rtol=1e-5, atol=1e-6)


@given(
    size=some.integers(1, 60),
    dim=some.integers(1, 70),
    seed=some.integers(0, 2**32 - 1),
    k=some.integers(0, 70),
    scale=some.sampled_from([0.0, 1e-30, 1.0, 1e19, 3e38]),
    distance=some.sampled_from(["dot_product", "cosine", "squared_l2"]),
)
def test_rank_exactly_scores_depend_on_nothing_but_vector_and_query(
    size: int, dim: int, seed: int, k: int, scale: float, distance: Distance
) -> None:
    random = np.random.default_rng(seed)
    vectors = np.clip(random.normal(size=(size, dim)), -1, 1).astype(np.float32)
    vectors[random.integers(0, size, size // 2)] = vectors[0]  # equals
    vectors[random.integers(0, size)] *= np.float32(scale)
    query = random.uniform(-1, 1, dim).astype(np.float32)
    positions = random.permutation(size).astype(np.uint32)
    single_scores = [
        rank_exactly(vectors, query, position[np.newaxis], 1, distance)[1] for position in positions
    ]

    ranked, scores = rank_exactly(vectors, query, positions, k, distance)

    expected_scores = np.concatenate(single_scores)
    order = np.lexsort((positions, -expected_scores))[:k]
    assert ranked.tolist() == positions[order].tolist()
    assert scores.tobytes() == expected_scores[order].tobytes()


class Ranking(NamedTuple):
    """What a search returned: positions, and scores to the bit."""

    positions: list[int]
    score_bits: list[int]


def _ranking(positions: NDArray[np.int64], scores: NDArray[np.float32]) -> Ranking:
    return Ranking(positions.tolist(), scores.view(np.uint32).tolist())


def _block_case(
    distance: Distance, offset: float, size: int, query_count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns vectors of whole numbers, of which many score equally, and queries for them.

    Args:
      distance: Of the index: queries by cosine have length 1.
      offset: Added to all numbers: far from the origin, products are rounded more.
      size: The number of vectors.
      query_count: The number of queries.
    """
    vectors = _vectors(size, 8).round() + np.float32(offset)
    vectors[::9] = 0
    queries = _vectors(query_count, 8, seed=1).round() + np.float32(offset)
    if distance == "cosine":
        queries = normalized(queries)
    return vectors, queries


blocks = pytest.mark.parametrize(
    ("distance", "offset"),
    [*itertools.product(["dot_product", "squared_l2", "cosine"], [0.0, 1000.0])],
)


@blocks
def test_block_search_finds_what_ranking_all_exactly_does(
    distance: Distance, offset: float
) -> None:
    vectors, queries = _block_case(distance, offset, 500, 5)
    counts = [1, 5, 20, 499, 700]
    block = VectorBlock(vectors, distance)

    together = block.search(queries, counts)
    alone = [
        block.search(query[np.newaxis], [k])[0] for query, k in zip(queries, counts, strict=True)
    ]

    expected = [
        _ranking(*rank_exactly(vectors, query, np.arange(500), k, distance))
        for query, k in zip(queries, counts, strict=True)
    ]
    assert [_ranking(*result) for result in together] == expected
    assert [_ranking(*result) for result in alone] == expected


@blocks
def test_block_search_leaves_out_nothing_that_reaches_the_floor(
    distance: Distance, offset: float
) -> None:
    vectors, queries = _block_case(distance, offset, 3000, 60)
    k = 20
    ranked = [rank_exactly(vectors, query, np.arange(3000), k, distance) for query in queries]
    ranks = itertools.cycle([0, 1, 5, k - 1])
    floors = np.array([scores[rank] for (_, scores), rank in zip(ranked, ranks, strict=False)])
    floors[::7] = -np.inf

    results = VectorBlock(vectors, distance).search(queries, [k] * len(queries), floors)

    for floor, (positions, scores), (best, best_scores) in zip(
        floors, results, ranked, strict=True
    ):
        count = int(np.count_nonzero(best_scores >= floor))
        assert count > 0
        reached = _ranking(positions[:count], scores[:count])
        assert reached == _ranking(best[:count], best_scores[:count])


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
@pytest.mark.parametrize("offset", [0.0, 3.0])
@pytest.mark.parametrize("query_count", [1, 7])
def test_what_reaches_the_floors_is_what_scores_at_least_as_high(
    distance: Distance, offset: float, query_count: int
) -> None:
    vectors, queries = _block_case(distance, offset, 3000, query_count)
    ranked = [rank_exactly(vectors, query, np.arange(3000), 3000, distance) for query in queries]
    ranks = itertools.cycle([4, 0, 60, 199])
    floors = np.array([scores[rank] for (_, scores), rank in zip(ranked, ranks, strict=False)])

    reaching = VectorBlock(vectors, distance).reaching(queries, floors)

    assert reaching is not None
    assert (np.diff(reaching.numbers) >= 0).all()
    for number, (floor, (best, best_scores)) in enumerate(zip(floors, ranked, strict=True)):
        is_of_query = reaching.numbers == number
        indices = reaching.indices[is_of_query]
        scores = reaching.scores[is_of_query]
        order = np.lexsort((indices, -scores))
        count = int(np.count_nonzero(best_scores >= floor))
        expected = _ranking(best[: indices.size], best_scores[: indices.size])
        assert indices.size >= count
        assert _ranking(indices[order], scores[order]) == expected


@pytest.mark.parametrize(
    ("scale", "floor"),
    [(1.0, -np.inf), (1.0, -10.0), (1e20, 1.0), (1e18, 1.0)],
    ids=["no floor", "all reach it", "scores beyond float32", "scores near its end"],
)
def test_block_does_not_collect_what_reaches_floors_where_a_search_is_due(
    scale: float, floor: float
) -> None:
    vectors = _vectors(2000, 4) * np.float32(scale)
    query = np.full((1, 4), scale, np.float32)

    reaching = VectorBlock(vectors, "dot_product").reaching(query, np.array([floor], np.float32))

    assert reaching is None


def test_block_search_scores_beyond_float32_are_not_lost() -> None:
    vectors = np.array([[1, 1], [2, 2], [-2, 2], [1, -1]], np.float32)
    query = np.full((1, 2), 3e38, np.float32)

    ((positions, scores),) = VectorBlock(vectors, "dot_product").search(query, [2])

    assert positions.size == 2
    assert not np.isfinite(scores).all()


def test_search_of_an_empty_block_finds_nothing() -> None:
    block = VectorBlock(np.empty((0, 2), np.float32), "dot_product")

    ((positions, _),) = block.search(np.ones((1, 2), np.float32), [2])

    assert positions.size == 0
