from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from bundle.format import paths
from export.corpora.indexes import build_index
from export.corpora.recall import recall_of_cold_users, recall_of_tables
from export.errors import DestinationError, NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import IndexPart
from runtime.exact import ExactIndex
from runtime.partitions import load_index
from runtime.scann import ScannIndex

Vectors = NDArray[np.float32]


def _clustered(size: int, dim: int, clusters: int, seed: int) -> Vectors:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(clusters, dim)).astype(np.float32)
    noise = random.standard_normal((size, dim), dtype=np.float32)
    result: Vectors = centres[random.integers(0, clusters, size)] + np.float32(0.8) * noise
    return result


def _part(**changes: Any) -> IndexPart:
    recall = {
        name: changes.pop(name)
        for name in ("k", "value", "queries", "of_tables")
        if name in changes
    }
    return IndexPart(
        corpus="movies", query_tower="query", candidate_tower="candidate", recall=recall, **changes
    )


def _stage(base: Path, vectors: Vectors) -> Path:
    path = base / paths.index_vectors("movies")
    path.parent.mkdir(parents=True)
    vectors.astype("<f4").tofile(path)
    return base


def _exact(vectors: Vectors, query: Vectors) -> set[int]:
    """The ten nearest by float64 scores and a full sort: another way than the code's."""
    return set(
        np.argsort(-(vectors.astype(np.float64) @ query.astype(np.float64)), kind="stable")[
            :10
        ].tolist()
    )


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_tree_index_records_how_deep_to_search_for_larger_k(tmp_path: Path, distance: Any) -> None:
    vectors = _clustered(20_000, 16, 200, seed=1)
    queries = _clustered(40, 16, 200, seed=2)
    base = _stage(tmp_path, vectors)

    index = build_index(base, "movies", _part(value=0.9, queries=40, distance=distance), queries)

    assert [depth.k for depth in index.depths] == [100, 1000]
    loaded = ScannIndex.load(base / index.directory, distance, vectors)
    exact, _ = ExactIndex(vectors, distance).search(queries, 1000)
    for depth in index.depths:
        found, _ = loaded.search(queries, depth.k, depth.leaves_to_search, depth.reorder)
        hits = sum(
            len({*mine} & {*right[: depth.k]}) for mine, right in zip(found, exact, strict=True)
        )
        assert depth.recall >= 0.9
        assert depth.recall == pytest.approx(hits / (40 * depth.k), abs=0.005)


def test_index_records_no_depths_where_it_searches_all_or_few_candidates(tmp_path: Path) -> None:
    vectors = _clustered(900, 16, 20, seed=1)
    queries = _clustered(40, 16, 20, seed=2)
    for kind in ("brute_force", "tree_ah"):
        base = _stage(tmp_path / kind, vectors)
        assert build_index(base, "movies", _part(kind=kind, value=0.5), queries).depths == ()


def test_tree_index_over_100_000_vectors_records_its_true_recall(tmp_path: Path) -> None:
    vectors = _clustered(100_000, 32, 200, seed=1)
    queries = _clustered(60, 32, 200, seed=2)
    base = _stage(tmp_path, vectors)

    index = build_index(base, "movies", _part(value=0.9, queries=60), queries)

    assert (index.kind, index.dim, index.parameters["num_leaves"]) == ("tree_ah", 32, 316)
    # The cheapest setting is found by measuring, and may have a higher recall.
    assert 0.9 <= index.recall.value <= 1
    loaded = ScannIndex.load(base / index.directory, "dot_product", vectors)
    hits = sum(
        len(_exact(vectors, query) & {*loaded.search(query[np.newaxis], 10)[0][0]})
        for query in queries[1::2]
    )
    # ScaNN adds up in the order that its threads and batches give: a tie of 300 neighbors may fall
    # the other way.
    assert index.recall.value == pytest.approx(hits / 300, abs=1.5 / 300)
    assert (index.recall.queries, index.recall.chosen_on) == (30, 30)
    assert (index.recall.k, index.recall.target) == (10, 0.9)
    assert index.recall.low < index.recall.value
    costs = [point.relative_cost for point in index.curve]
    assert costs == sorted(costs)
    assert min(costs) < 0.5
    recalls = [point.recall for point in index.curve]
    assert min(recalls) < 0.9 <= max(recalls)
    chosen = {name: index.parameters[name] for name in ("leaves_to_search", "reorder")}
    reaching = [point for point in index.curve if point.recall >= 0.9]
    assert chosen in [point.parameters for point in reaching]


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
def test_small_corpus_is_searched_by_brute_force_with_recall_one(
    tmp_path: Path, distance: Any
) -> None:
    vectors = _clustered(3000, 16, 20, seed=1)
    queries = _clustered(40, 16, 20, seed=2)

    index = build_index(
        _stage(tmp_path, vectors), "movies", _part(distance=distance, value=1.0), queries
    )

    assert (index.kind, index.parameters) == ("brute_force", {})
    assert index.recall.value == 1
    assert (index.recall.queries, index.recall.chosen_on) == (40, 0)
    assert [point.parameters for point in index.curve] == [{}]


def test_recall_target_out_of_reach_fails_with_the_best_setting_and_the_remedy(
    tmp_path: Path,
) -> None:
    vectors = _clustered(5000, 16, 50, seed=1)
    queries = _clustered(50, 16, 50, seed=2)
    part = _part(kind="tree_ah", value=0.99, parameters={"leaves_to_search": 1, "reorder": 10})

    with pytest.raises(VerificationFailed) as failure:
        build_index(_stage(tmp_path, vectors), "movies", part, queries)

    told = str(failure.value)
    assert "recall@10 is 0." in told
    assert "on 50 queries (with {'leaves_to_search': 1, 'reorder': 10})" in told
    assert "lower indexes.movies.recall.value" in told
    assert (tmp_path / paths.index_directory("movies")).exists()


@pytest.mark.parametrize(
    ("size", "queries", "part", "problem"),
    [
        (300, (3, 7), {}, "dim 7, which queries have"),
        (300, (0, 8), {}, "q >= 1"),
        (300, (3, 8), {"num_leaves": 301}, "num_leaves is 301, but there are only 300 vectors"),
        (0, (3, 8), {}, "vectors cannot be read"),
        (300, (3, 8), {"leaves": 3}, "unknown key 'leaves'; known: num_leaves"),
    ],
)
def test_index_that_cannot_be_built_is_rejected(
    tmp_path: Path, size: int, queries: tuple[int, int], part: dict[str, int], problem: str
) -> None:
    given = _part(kind="tree_ah" if part else "auto", parameters=part)
    with pytest.raises((NotConvertible, UsageError), match=problem):
        build_index(
            _stage(tmp_path, _clustered(size, 8, 5, 1)),
            "movies",
            given,
            np.zeros(queries, np.float32),
        )


def test_parameters_of_a_tree_for_brute_force_and_queries_of_nan_are_refused(
    tmp_path: Path,
) -> None:
    base = _stage(tmp_path, _clustered(300, 8, 5, 1))
    with pytest.raises(UsageError, match="300 candidates are searched by brute force"):
        build_index(
            base, "movies", _part(parameters={"num_leaves": 3}), np.zeros((3, 8), np.float32)
        )
    with pytest.raises(NotConvertible, match="index 'movies': query vector 0 holds NaN"):
        build_index(base, "movies", _part(), np.full((3, 8), np.nan, np.float32))


def test_directory_that_cannot_be_written_is_a_destination_error(tmp_path: Path) -> None:
    vectors = _clustered(300, 8, 5, seed=1)
    (_stage(tmp_path, vectors) / paths.index_directory("movies")).write_bytes(
        b"a file where the directory should be"
    )

    with pytest.raises(DestinationError, match="index 'movies' cannot be written"):
        build_index(tmp_path, "movies", _part(), vectors[:5])


def test_recall_of_tables_compares_converted_rows_with_trained_rows(
    tmp_path: Path,
) -> None:
    trained = _clustered(2000, 16, 20, seed=1)
    queries = _clustered(60, 16, 20, seed=2)
    noise = np.random.default_rng(5)
    vectors, asked = (
        each + noise.normal(0, 0.05, each.shape).astype(np.float32) for each in (trained, queries)
    )
    base = _stage(tmp_path, vectors)
    part = _part(queries=40)
    page = build_index(base, "movies", part, asked)
    trained.tofile(base / "aside")

    recall = recall_of_tables(base, "movies", part, page, asked, queries, base / "aside")

    rows = np.linspace(0, 59, 40).round().astype(int)
    hits = sum(len(_exact(trained, queries[row]) & _exact(vectors, asked[row])) for row in rows)
    assert page.recall.value == 1
    assert recall.value == pytest.approx(hits / 400, abs=1e-9)
    assert 0.7 < recall.value < 1
    assert (recall.k, recall.queries, recall.target) == (10, 40, 0)
    with pytest.raises(
        VerificationFailed, match=r"made of the checkpoint's own rows, the recipe asks for 0\.999"
    ):
        recall_of_tables(
            base, "movies", _part(queries=40, of_tables=0.999), page, asked, queries, base / "aside"
        )


def test_recall_of_cold_users_counts_each_of_their_queries_once(tmp_path: Path) -> None:
    vectors = _clustered(2000, 16, 20, seed=1)
    queries = _clustered(8, 16, 20, seed=2)
    base = _stage(tmp_path, vectors)
    page = build_index(base, "movies", _part(queries=8), queries)
    rows = np.arange(6)

    alike = np.repeat(queries[:1], 6, axis=0)
    recall = recall_of_cold_users(base, "movies", page, alike, rows)
    assert recall is not None
    assert (recall.k, recall.value, recall.queries, recall.chosen_on) == (10, 1.0, 1, 0)

    several = recall_of_cold_users(base, "movies", page, queries, rows)
    assert several is not None
    assert (several.queries, several.target) == (6, page.recall.target)
    assert several.low < several.value

    alike[3, 0] = np.inf
    assert recall_of_cold_users(base, "movies", page, alike, rows) is None


def test_tree_in_partitions_records_the_recall_of_the_merged_results(tmp_path: Path) -> None:
    vectors = _clustered(64_000, 16, 200, seed=1)
    queries = _clustered(60, 16, 200, seed=2)
    base = _stage(tmp_path, vectors)

    index = build_index(base, "movies", _part(value=0.9, queries=60, partitions=3), queries)

    assert (index.kind, index.partitions, index.parameters["num_leaves"]) == ("tree_ah", 3, 146), (
        "of 21 334 each"
    )
    assert sorted(each.name for each in (base / index.directory).iterdir()) == [
        f"partition-0000{number}-of-00003" for number in range(3)
    ]
    assert not list(base.rglob("dataset.npy"))
    loaded = load_index([base / each for each in index.directories], "dot_product", vectors)
    hits = sum(
        len(_exact(vectors, query) & {*loaded.search(query[np.newaxis], 10)[0][0]})
        for query in queries[1::2]
    )
    assert index.recall.value == pytest.approx(hits / 300, abs=1.5 / 300)
    assert index.recall.value >= 0.9
    assert max(point.recall for point in index.curve) >= 0.9


@pytest.mark.parametrize(("size", "asked", "found"), [(10, 3, 3), (5, 4, 3), (7, 7, 7)])
def test_brute_force_in_partitions_is_exact(
    tmp_path: Path, size: int, asked: int, found: int
) -> None:
    vectors = _clustered(size, 8, 3, seed=1)
    index = build_index(
        _stage(tmp_path, vectors), "movies", _part(partitions=asked, value=1.0), vectors
    )
    assert (index.partitions, len(index.directories), index.recall.value) == (found, found, 1)


def test_partitions_are_built_once_each_and_others_are_swept(tmp_path: Path) -> None:
    vectors = _clustered(300, 8, 5, seed=1)
    done = list[str]()
    base = _stage(tmp_path, vectors)

    def run(partitions: int) -> list[str]:
        def once(place: str, _: object, make: Callable[[], None]) -> None:
            if place not in done:
                make()
                done.append(place)

        before = len(done)
        build_index(base, "movies", _part(partitions=partitions), vectors[:5], once=once)
        return done[before:]

    assert run(2) == [f"indexes/movies/scann/partition-0000{number}-of-00002" for number in (1, 0)]
    assert run(2) == []
    assert len(run(3)) == 3
    assert len(list((base / "indexes/movies/scann").iterdir())) == 3
    assert run(1) == ["indexes/movies/scann"]
    assert not list((base / "indexes/movies/scann").glob("partition-*"))


def test_setting_is_judged_by_other_queries_than_chose_it(tmp_path: Path) -> None:
    vectors = _clustered(500, 16, 50, seed=1).repeat(10, axis=0)
    easy = vectors[::125]  # whose ten neighbors are equal to them, and so in one leaf
    hard = _clustered(40, 16, 50, seed=3)
    queries = np.stack([easy, hard], axis=1).reshape(80, 16)
    part = _part(kind="tree_ah", distance="squared_l2", value=0.9)

    index = build_index(_stage(tmp_path, vectors), "movies", part, queries)

    written = ScannIndex.load(tmp_path / index.directory, "squared_l2", vectors)
    easy_share = _share_found(written, vectors, easy, leaves_to_search=1)
    assert easy_share > _share_found(written, vectors, hard, leaves_to_search=1) + 0.1
    assert index.recall.value == pytest.approx(_share_found(written, vectors, hard), abs=2 / 400)
    assert index.recall.value >= 0.9
    assert (index.recall.queries, index.recall.chosen_on) == (40, 40)


def _share_found(index: ScannIndex, vectors: Vectors, queries: Vectors, **setting: int) -> float:
    exact, _ = ExactIndex(vectors, index.distance).search(queries, 10)
    found, _ = index.search(queries, 10, **setting)
    return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, found, strict=True)]))


def test_partitions_do_not_depend_on_recall_or_queries(tmp_path: Path) -> None:
    vectors = _clustered(5000, 16, 50, seed=1)
    base = _stage(tmp_path, vectors)
    built: list[object] = []

    def once(_: str, inputs: object, make: Callable[[], None]) -> None:
        if inputs not in built:
            make()
            built.append(inputs)

    for seed, changes in enumerate(({"value": 0.5}, {"value": 0.95}, {"value": 0.9, "k": 5})):
        part = _part(kind="tree_ah", **changes)
        queries = _clustered(50, 16, 50, seed=seed)
        index = build_index(base, "movies", part, queries, once=once)
        assert index.recall.value >= changes["value"]

    assert len(built) == 1
    more_leaves = _part(kind="tree_ah", parameters={"num_leaves": 90})
    build_index(base, "movies", more_leaves, vectors[:50], once=once)
    assert len(built) == 2


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"partitions": 301}, "indexes.movies.partitions is 301; there are only 300 candidates"),
        (
            {"partitions": 3, "kind": "tree_ah", "parameters": {"num_leaves": 101}},
            "only 100 vectors",
        ),
        (
            {"partitions": 30, "kind": "tree_ah"},
            "index 'movies': ScaNN builds no tree_ah index over 10 vectors",
        ),
    ],
)
def test_partitions_that_cannot_be_built_are_refused(
    tmp_path: Path, part: dict[str, Any], problem: str
) -> None:
    vectors = _clustered(300, 8, 5, 1)
    with pytest.raises((NotConvertible, UsageError), match=problem):
        build_index(_stage(tmp_path, vectors), "movies", _part(**part), vectors[:5])


@pytest.mark.parametrize("partitions", [0, -1, 1.5, 1 << 17])
def test_invalid_number_of_partitions_is_rejected(partitions: object) -> None:
    with pytest.raises(ValidationError, match="partitions"):
        _part(partitions=partitions)
