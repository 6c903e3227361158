"""Exact searches find what a sort by float64 finds, to the bit whatever they are divided into."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.exact import ExactIndex, VectorBlock, exact_scores, normalized, rank_exactly
from runtime.vectors import VectorFile

Vectors = NDArray[np.float32]
DISTANCES: tuple[Distance, ...] = get_args(Distance)
EVERY_DISTANCE = pytest.mark.parametrize("distance", DISTANCES)


def random_vectors(size: int, dim: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).normal(size=(size, dim)).astype(np.float32)


def whole_numbers(distance: Distance, size: int, queries: int, offset: float) -> list[Vectors]:
    """Returns vectors, of which many score equally, and queries for them. Far from the origin,
    products are rounded more.
    """
    vectors = random_vectors(size, 8).round() + np.float32(offset)
    vectors[::9] = 0
    wanted = random_vectors(queries, 8, seed=1).round() + np.float32(offset)
    return [vectors, normalized(wanted) if distance == "cosine" else wanted]


def scores_in_float64(vectors: Vectors, query: Vectors, distance: Distance) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    wide_query = query.astype(np.float64)
    dots: NDArray[np.float64] = wide @ wide_query
    if distance == "squared_l2":
        distances: NDArray[np.float64] = ((wide - wide_query) ** 2).sum(axis=1)
        return -distances
    if distance == "cosine":
        lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(wide_query)
        np.divide(dots, lengths, out=dots, where=lengths > 0)
    return dots


def ranking(positions: NDArray[Any], scores: Vectors) -> tuple[list[int], list[int]]:
    return positions.tolist(), scores.view(np.uint32).tolist()


def backwards(count: int, score: Callable[[int], None]) -> None:
    for number in reversed(range(count)):
        score(number)


def beside_each_other(count: int, score: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(score, range(count)))


@EVERY_DISTANCE
@settings(max_examples=settings().max_examples // 4)
@given(
    size=st.integers(1, 500),
    k=st.sampled_from([1, 9, 600]),
    block=st.sampled_from([32, 37 * 32, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_a_search_equals_a_sort_by_float64(
    tmp_path_factory: pytest.TempPathFactory,
    distance: Distance,
    size: int,
    k: int,
    block: int,
    seed: int,
) -> None:
    path = tmp_path_factory.mktemp("vectors") / "vectors.bin"
    vectors = random_vectors(size, 8, seed)
    vectors[::40] = 0
    vectors.tofile(path)
    queries = random_vectors(3, 8, seed + 1000)
    allowed = np.random.default_rng(seed).permutation(size)[: size // 2]
    index = ExactIndex(vectors, distance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runtime.exact._BLOCK_BYTES", block)
        for positions in (None, allowed, None):
            found_positions, scores = index.search(queries, k, positions)
            for run_each in (backwards, beside_each_other):
                other_result = index.search(queries, k, positions, run_each=run_each)
                assert ranking(*other_result) == ranking(found_positions, scores)
            from_file = ExactIndex(VectorFile(path, 8), distance).search(queries, k, positions)
            assert ranking(*from_file) == ranking(found_positions, scores)
            candidates = np.arange(size) if positions is None else positions
            for query, row, row_scores in zip(queries, found_positions, scores, strict=True):
                wanted = scores_in_float64(vectors, query, distance)
                count = min(k, candidates.size)
                assert row[count:].tolist() == [-1] * (k - count)
                assert np.isneginf(row_scores[count:]).all()
                assert len({*row[:count].tolist()} & {*candidates.tolist()}) == count
                best = -np.sort(-wanted[candidates])[:count]
                np.testing.assert_allclose(wanted[row[:count]], best, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(row_scores[:count], best, rtol=1e-5, atol=1e-5)
                assert (np.diff(row_scores[:count]) <= 0).all()


@given(
    size=st.integers(1, 60),
    dim=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(0, 70),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e19, 3e38]),
    distance=st.sampled_from(DISTANCES),
)
def test_a_score_depends_on_nothing_but_its_vector_and_the_query(
    size: int, dim: int, seed: int, k: int, scale: float, distance: Distance
) -> None:
    random = np.random.default_rng(seed)
    vectors = np.clip(random.normal(size=(size, dim)), -1, 1).astype(np.float32)
    vectors[random.integers(0, size, size // 2)] = vectors[0]  # equals
    vectors[random.integers(0, size)] *= np.float32(scale)
    query = random.uniform(-1, 1, dim).astype(np.float32)
    if distance == "cosine":
        query = normalized(query[np.newaxis])[0]
    positions = random.permutation(size).astype(np.uint32)
    alone = [rank_exactly(vectors, query, position[None], 1, distance)[1] for position in positions]
    scores = np.concatenate(alone)
    order = np.lexsort((positions, -scores))[:k]
    ranked = rank_exactly(vectors, query, positions, k, distance)
    assert ranking(*ranked) == ranking(positions[order], scores[order])
    together = exact_scores(vectors, query, positions, distance)
    assert together.tobytes() == scores.tobytes()
    if scale in (0.0, 1.0):
        wanted = scores_in_float64(vectors, query, distance)[positions]
        np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)


@EVERY_DISTANCE
@pytest.mark.parametrize("offset", [0.0, 3.0, 1000.0])
@pytest.mark.parametrize("query_count", [1, 7])
def test_blocks_find_what_ranking_all_exactly_finds(
    distance: Distance, offset: float, query_count: int
) -> None:
    size = 2000
    vectors, queries = whole_numbers(distance, size, query_count, offset)
    block = VectorBlock(vectors, distance)
    ranked = [rank_exactly(vectors, query, np.arange(size), size, distance) for query in queries]
    counts = [*itertools.islice(itertools.cycle([1, 5, 20, size - 1, size + 200]), query_count)]
    results = block.search(queries, counts)
    for (positions, scores), (best, best_scores), k in zip(results, ranked, counts, strict=True):
        assert ranking(positions, scores) == ranking(best[:k], best_scores[:k])

    ranks = [*itertools.islice(itertools.cycle([4, 0, 60, 199]), query_count)]
    floors = np.array([scores[rank] for (_, scores), rank in zip(ranked, ranks, strict=True)])
    reaching = block.reaching(queries, floors)
    floored = block.search(queries, [20] * query_count, floors)
    for number, (best, best_scores) in enumerate(ranked):
        count = int(np.count_nonzero(best_scores >= floors[number]))
        positions, scores = floored[number]
        kept_count = min(count, 20)
        reached = ranking(positions[:kept_count], scores[:kept_count])
        assert reached == ranking(best[:kept_count], best_scores[:kept_count])
        if reaching is not None:
            is_of_query = reaching.numbers == number
            indices = reaching.indices[is_of_query]
            order = np.lexsort((indices, -reaching.scores[is_of_query]))
            assert indices.size >= count
            found_positions = ranking(indices[order], reaching.scores[is_of_query][order])
            assert found_positions == ranking(best[: indices.size], best_scores[: indices.size])
    assert reaching is not None or offset == 1000


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_scores_beyond_float32_are_infinities_and_none_is_lost(distance: Distance) -> None:
    vectors = np.array([[1, 1], [1, -1], [2, 2], [-2, 2], [2, -2]], np.float32)
    vectors *= np.float32(1e38)
    query = np.full((1, 2), 3, np.float32)
    ((in_block, block_scores),) = VectorBlock(vectors, distance).search(query, [5])
    positions, scores = ExactIndex(vectors, distance).search(query, 5)
    assert sorted(in_block.tolist()) == sorted(positions[0].tolist()) == [0, 1, 2, 3, 4]
    assert np.isinf(scores).any()
    assert np.isinf(block_scores).any()


def test_neighbors_far_from_the_origin_are_told_apart() -> None:
    # The expanded square |x|^2 - 2xq + |q|^2 would lose these differences in float32.
    steps = np.arange(8, dtype=np.float32)[:, np.newaxis] * 0.01
    vectors = (1000 + steps * np.ones((8, 4))).astype(np.float32)
    positions, scores = ExactIndex(vectors, "squared_l2").search(vectors[3:4], 3)
    assert (positions[0, 0], scores[0, 0]) == (3, 0)
    assert {*positions[0, 1:].tolist()} == {2, 4}
