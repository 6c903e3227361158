from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from bundle.format import paths
from bundle.format.indexes import Codes
from bundle.format.manifest import AttributeIndex, Corpus
from export.corpora.indexes import build_index, choose, has_codes, index_steps
from export.corpora.recall import note_of_cold_users, recall_of_cold_users, recall_of_tables
from export.errors import DestinationError, NotConvertible, UsageError, VerificationFailed
from export.recipe.schema import IndexSection, RecallSection
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


def _part(**changes: Any) -> IndexSection:
    recall = {
        name: changes.pop(name)
        for name in ("k", "value", "queries", "of_tables", "of_cold_users")
        if name in changes
    }
    return IndexSection(
        corpus="movies",
        query_tower="query",
        candidate_tower="candidate",
        recall=RecallSection(**recall),
        **changes,
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
    leaves = index.parameters["leaves_to_search"]
    reorder = index.parameters["reorder"]
    for depth in index.depths:
        # Each k is ten times the one before.
        assert leaves <= depth.leaves_to_search <= 10 * leaves
        assert reorder <= depth.reorder <= 18 * reorder
        leaves = depth.leaves_to_search
        reorder = depth.reorder
        actual, _ = loaded.search(queries, depth.k, depth.leaves_to_search, depth.reorder)
        hits = sum(
            len({*mine} & {*right[: depth.k]}) for mine, right in zip(actual, exact, strict=True)
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

    message = str(failure.value)
    assert "recall@10 is 0." in message
    assert "on 50 queries (with {'leaves_to_search': 1, 'reorder': 10})" in message
    assert "lower indexes.movies.recall.value" in message
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
    arguments = _part(kind="tree_ah" if part else "auto", parameters=part)
    with pytest.raises((NotConvertible, UsageError), match=problem):
        build_index(
            _stage(tmp_path, _clustered(size, 8, 5, 1)),
            "movies",
            arguments,
            np.zeros(queries, np.float32),
        )


def test_parameters_of_a_tree_for_brute_force_and_queries_of_nan_are_rejected(
    tmp_path: Path,
) -> None:
    base = _stage(tmp_path, _clustered(300, 8, 5, 1))
    with pytest.raises(UsageError, match="300 candidates are searched by exact search"):
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
    vectors, sent_queries = (
        rows + noise.normal(0, 0.05, rows.shape).astype(np.float32) for rows in (trained, queries)
    )
    base = _stage(tmp_path, vectors)
    part = _part(queries=40)
    page = build_index(base, "movies", part, sent_queries)
    trained.tofile(base / "aside")

    recall = recall_of_tables(base, "movies", part, page, sent_queries, queries, base / "aside")

    rows = np.linspace(0, 59, 40).round().astype(int)
    hits = sum(
        len(_exact(trained, queries[row]) & _exact(vectors, sent_queries[row])) for row in rows
    )
    assert page.recall.value == 1
    assert recall.value == pytest.approx(hits / 400, abs=1e-9)
    assert 0.7 < recall.value < 1
    assert (recall.k, recall.queries, recall.target) == (10, 40, 0)
    with pytest.raises(
        VerificationFailed, match=r"made of the checkpoint's own rows, the recipe requires 0\.999"
    ):
        recall_of_tables(
            base,
            "movies",
            _part(queries=40, of_tables=0.999),
            page,
            sent_queries,
            queries,
            base / "aside",
        )


def test_recall_of_cold_users_counts_each_of_their_queries_once(tmp_path: Path) -> None:
    vectors = _clustered(2000, 16, 20, seed=1)
    queries = _clustered(8, 16, 20, seed=2)
    base = _stage(tmp_path, vectors)
    part = _part(queries=8)
    page = build_index(base, "movies", part, queries)
    rows = np.arange(6)

    alike = np.repeat(queries[:1], 6, axis=0)
    recall = recall_of_cold_users(base, "movies", part, page, alike, rows)
    assert recall is not None
    assert (recall.k, recall.value, recall.queries, recall.chosen_on) == (10, 1.0, 1, 0)

    several = recall_of_cold_users(base, "movies", part, page, queries, rows)
    assert several is not None
    assert (several.queries, several.target) == (6, page.recall.target)
    assert several.low < several.value

    alike[3, 0] = np.inf
    assert recall_of_cold_users(base, "movies", part, page, alike, rows) is None
    with pytest.raises(
        VerificationFailed, match=r"is not finite, .* requires 0\.5; .*of_cold_users"
    ):
        recall_of_cold_users(base, "movies", _part(of_cold_users=0.5), page, alike, rows)


def test_cold_users_below_the_recall_are_noted_or_rejected(tmp_path: Path) -> None:
    # Without clusters, the neighbors of a query are spread over the leaves, however ScaNN's threads
    # train the tree.
    random = np.random.default_rng(1)
    vectors = random.standard_normal((4000, 16), np.float32)
    queries = random.standard_normal((40, 16), np.float32)
    base = _stage(tmp_path, vectors)
    tree = {"num_leaves": 60, "leaves_to_search": 2, "dimensions_per_block": 2, "reorder": 200}
    part = _part(value=0.01, kind="tree_ah", parameters=tree)
    page = build_index(base, "movies", part, queries)
    users = queries[:8]
    rows = np.arange(8)
    cold = recall_of_cold_users(base, "movies", part, page, users, rows)
    assert cold is not None
    assert cold.value < 0.9
    with_cold = page.model_copy(update={"recall_of_cold_users": cold})
    promised = page.recall.model_copy(update={"target": 0.9})
    note = note_of_cold_users("movies", with_cold.model_copy(update={"recall": promised}))
    assert f"recall@10 is {cold.value:.4f} for users with empty bags" in note
    assert "less than the 0.9 that" in note
    promised = page.recall.model_copy(update={"target": cold.value})
    assert note_of_cold_users("movies", with_cold.model_copy(update={"recall": promised})) == ""
    assert "rejects such users" in note_of_cold_users("movies", page)

    limited = _part(value=0.01, kind="tree_ah", parameters=tree, of_cold_users=0.9)
    with pytest.raises(
        VerificationFailed,
        match=rf"is {cold.value:.4f} for users with empty bags .* requires 0\.9;",
    ):
        recall_of_cold_users(base, "movies", limited, page, users, rows)
    met = _part(value=0.01, kind="tree_ah", parameters=tree, of_cold_users=cold.value)
    recall = recall_of_cold_users(base, "movies", met, page, users, rows)
    assert recall is not None
    assert recall.target == cold.value


def test_tree_in_partitions_records_the_recall_of_the_merged_results(tmp_path: Path) -> None:
    vectors = _clustered(64_000, 16, 200, seed=1)
    queries = _clustered(60, 16, 200, seed=2)
    base = _stage(tmp_path, vectors)

    index = build_index(base, "movies", _part(value=0.9, queries=60, partitions=3), queries)

    assert (index.kind, index.partitions, index.parameters["num_leaves"]) == ("tree_ah", 3, 146), (
        "of 21 334 each"
    )
    assert sorted(path.name for path in (base / index.directory).iterdir()) == [
        f"partition-0000{number}-of-00003" for number in range(3)
    ]
    assert not list(base.rglob("dataset.npy"))
    loaded = load_index(
        [base / directory for directory in index.directories], "dot_product", vectors
    )
    hits = sum(
        len(_exact(vectors, query) & {*loaded.search(query[np.newaxis], 10)[0][0]})
        for query in queries[1::2]
    )
    assert index.recall.value == pytest.approx(hits / 300, abs=1.5 / 300)
    assert index.recall.value >= 0.9
    assert max(point.recall for point in index.curve) >= 0.9


@pytest.mark.parametrize(("size", "query_count", "actual"), [(10, 3, 3), (5, 4, 3), (7, 7, 7)])
def test_brute_force_in_partitions_is_exact(
    tmp_path: Path, size: int, query_count: int, actual: int
) -> None:
    vectors = _clustered(size, 8, 3, seed=1)
    index = build_index(
        _stage(tmp_path, vectors), "movies", _part(partitions=query_count, value=1.0), vectors
    )
    assert (index.partitions, len(index.directories), index.recall.value) == (actual, actual, 1)


def test_partitions_are_built_once_each_and_others_are_swept(tmp_path: Path) -> None:
    vectors = _clustered(300, 8, 5, seed=1)
    done = list[str]()
    base = _stage(tmp_path, vectors)

    def run(partitions: int) -> list[str]:
        def once(partition: str, _: object, make: Callable[[], None]) -> None:
            if partition not in done:
                make()
                done.append(partition)

        before = len(done)
        build_index(base, "movies", _part(partitions=partitions), vectors[:5], build_once=once)
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
    assert easy_share > _share_found(written, vectors, hard, leaves_to_search=1) + 0.05
    assert index.recall.value == pytest.approx(_share_found(written, vectors, hard), abs=2 / 400)
    assert index.recall.value >= 0.9
    assert (index.recall.queries, index.recall.chosen_on) == (40, 40)


def _share_found(index: ScannIndex, vectors: Vectors, queries: Vectors, **setting: int) -> float:
    exact, _ = ExactIndex(vectors, index.distance).search(queries, 10)
    actual, _ = index.search(queries, 10, **setting)
    return float(np.mean([len({*a} & {*b}) / 10 for a, b in zip(exact, actual, strict=True)]))


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
        index = build_index(base, "movies", part, queries, build_once=once)
        assert index.recall.value >= changes["value"]

    assert len(built) == 1
    more_leaves = _part(kind="tree_ah", parameters={"num_leaves": 90})
    build_index(base, "movies", more_leaves, vectors[:50], build_once=once)
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
def test_partitions_that_cannot_be_built_are_rejected(
    tmp_path: Path, part: dict[str, Any], problem: str
) -> None:
    vectors = _clustered(300, 8, 5, 1)
    with pytest.raises((NotConvertible, UsageError), match=problem):
        build_index(_stage(tmp_path, vectors), "movies", _part(**part), vectors[:5])


@pytest.mark.parametrize("partitions", [0, -1, 1.5, 1 << 17])
def test_invalid_number_of_partitions_is_rejected(partitions: object) -> None:
    with pytest.raises(ValidationError, match="partitions"):
        _part(partitions=partitions)


TREE = {"leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 10}


@pytest.mark.parametrize(
    ("changes", "size", "kind", "parameters"),
    [
        ({}, 19_999, "brute_force", {}),
        ({}, 20_000, "tree_ah", TREE | {"num_leaves": 141}),
        ({"partitions": 2}, 39_999, "tree_ah", TREE | {"num_leaves": 141}),
        ({"partitions": 2}, 39_998, "brute_force", {}),
        ({"kind": "brute_force"}, 50_000, "brute_force", {}),
        ({"kind": "tree_ah"}, 100, "tree_ah", TREE | {"num_leaves": 10}),
        ({"kind": "tree_ah", "k": 7}, 1, "tree_ah", TREE | {"num_leaves": 1, "reorder": 7}),
        # Of three, three and one.
        ({"kind": "tree_ah", "partitions": 3}, 7, "tree_ah", TREE | {"num_leaves": 1}),
        (
            {"kind": "tree_ah", "parameters": {"num_leaves": 3, "reorder": 50}},
            100,
            "tree_ah",
            TREE | {"num_leaves": 3, "reorder": 50},
        ),
        ({"partitions": 3}, 3, "brute_force", {}),
    ],
)
def test_choose_takes_a_tree_of_about_the_square_root_for_many_candidates(
    changes: dict[str, Any], size: int, kind: str, parameters: dict[str, int]
) -> None:
    assert choose(_part(**changes), "movies", size) == (kind, parameters)


@pytest.mark.parametrize(
    ("changes", "size", "problem"),
    [
        ({"partitions": 4}, 3, "indexes.movies.partitions is 4; there are only 3 candidates"),
        ({}, 0, "indexes.movies.partitions is 1; there are only 0 candidates"),
        (
            {"parameters": {"reorder": 3, "leafs": 3, "aaa": 1}},
            9,
            "indexes.movies.parameters: unknown key 'aaa'; known: num_leaves, leaves_to_search, "
            "dimensions_per_block, reorder",
        ),
        (
            {"partitions": 2, "parameters": {"reorder": 3}},
            9,
            "indexes.movies.parameters are of a tree, but 5 candidates are searched by exact "
            "search; leave them out or set kind = 'tree_ah'",
        ),
    ],
)
def test_choose_rejects_what_no_index_can_be(
    changes: dict[str, Any], size: int, problem: str
) -> None:
    with pytest.raises(UsageError) as rejection:
        choose(_part(**changes), "movies", size)
    assert str(rejection.value) == problem


def settings_of(base: Path, queries: Vectors, vectors: Vectors, **changes: Any) -> set[Any]:
    """Returns the leaves and the reordering of all settings that a tree of 10 leaves tries."""
    parameters = {"num_leaves": 10} | changes.pop("parameters", {})
    part = _part(kind="tree_ah", parameters=parameters, **changes)
    index = build_index(_stage(base, vectors), "movies", part, queries, representative=False)
    tried = [point.parameters for point in index.curve]
    actual = {(setting["leaves_to_search"], setting["reorder"]) for setting in tried}
    assert len(actual) == len(tried)
    return actual


def test_settings_are_tried_by_rising_cost_until_two_beyond_the_first_that_reaches_the_target(
    tmp_path: Path,
) -> None:
    vectors = _clustered(300, 16, 10, seed=1)
    queries = _clustered(40, 16, 10, seed=2)
    low_target = settings_of(tmp_path / "few", queries, vectors, value=0.1)
    assert low_target == {
        (leaves, reorder) for leaves in (1, 2, 4) for reorder in (20, 50, 150, 300)
    }
    scattered = np.random.default_rng(3).standard_normal((300, 16)).astype(np.float32)
    every = settings_of(tmp_path / "all", scattered[:40] * -1, scattered, value=1.0, k=3)
    assert every == {
        (leaves, reorder) for leaves in (1, 2, 4, 6, 10) for reorder in (6, 15, 45, 135)
    }


@pytest.mark.parametrize(
    ("parameters", "tried"),
    [
        ({"leaves_to_search": 3}, {(3, 20), (3, 50), (3, 150), (3, 300)}),
        ({"reorder": 70}, {(1, 70), (2, 70), (4, 70)}),
        ({"leaves_to_search": 3, "reorder": 70}, {(3, 70)}),
    ],
)
def test_settings_of_the_recipe_are_not_chosen(
    tmp_path: Path, parameters: dict[str, int], tried: set[tuple[int, int]]
) -> None:
    vectors = _clustered(300, 16, 10, seed=1)
    queries = _clustered(40, 16, 10, seed=2)
    actual = settings_of(tmp_path, queries, vectors, value=0.1, parameters=parameters)
    assert actual == tried


@pytest.mark.parametrize(
    ("size", "k", "deeper"), [(1000, 10, [100]), (999, 10, []), (1000, 99, [100]), (1000, 100, [])]
)
def test_deeper_searches_are_of_at_most_a_tenth_of_the_candidates(
    tmp_path: Path, size: int, k: int, deeper: list[int]
) -> None:
    vectors = _clustered(size, 16, 10, seed=1)
    part = _part(kind="tree_ah", k=k, value=0.1, parameters={"num_leaves": 4})
    index = build_index(_stage(tmp_path, vectors), "movies", part, vectors[:9])
    assert [depth.k for depth in index.depths] == deeper


def test_recall_below_the_target_tells_which_queries_chose_the_setting(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).standard_normal((300, 16)).astype(np.float32)
    part = _part(kind="tree_ah", value=0.99, parameters={"num_leaves": 10, "leaves_to_search": 1})
    with pytest.raises(VerificationFailed) as failure:
        build_index(_stage(tmp_path, vectors), "movies", part, -vectors[:40])
    assert re.fullmatch(
        r"index 'movies': recall@10 is 0\.\d{4} on 20 queries \(with \{'leaves_to_search': 1, "
        r"'reorder': \d+\}, chosen on 20 other queries, where it is 0\.\d{4}\), the recipe "
        r"requires 0\.99; .*",
        str(failure.value),
    )


def test_files_that_another_number_of_partitions_left_are_removed(tmp_path: Path) -> None:
    vectors = _clustered(300, 8, 5, seed=1)
    directory = _stage(tmp_path, vectors) / paths.index_directory("movies")
    build_index(tmp_path, "movies", _part(), vectors[:5])
    assert any(path.is_file() for path in directory.iterdir())
    build_index(tmp_path, "movies", _part(partitions=2), vectors[:5])
    assert sorted(path.name for path in directory.iterdir()) == [
        "partition-00000-of-00002",
        "partition-00001-of-00002",
    ]


def test_steps_of_an_index_are_those_of_its_partitions_and_codes(tmp_path: Path) -> None:
    vectors = _clustered(300, 8, 5, seed=1)
    index = build_index(_stage(tmp_path, vectors), "movies", _part(partitions=2), vectors[:5])
    assert index.vectors == "indexes/movies/vectors.bin"
    built = [f"built indexes/movies/scann/partition-0000{number}-of-00002" for number in (0, 1)]
    assert index_steps(index) == (*built, "indexes/movies/scann")
    coded = index.model_copy(update={"codes": Codes.of("movies")})
    assert index_steps(coded) == (*built, "indexes/movies/scann", paths.index_codes("movies"))


@pytest.mark.parametrize(
    ("kind", "filters", "coded"),
    [("tree_ah", ["year"], True), ("tree_ah", [], False), ("brute_force", ["year"], False)],
)
def test_trees_of_corpora_with_filters_have_codes(
    kind: Any, filters: list[str], coded: bool
) -> None:
    filtered = AttributeIndex(
        values=paths.attribute_values("movies", 0), rows=paths.attribute_rows("movies", 0)
    )
    corpus = Corpus(
        file=paths.corpus_store("movies"),
        size=3,
        id_dtype="int64",
        features=(),
        attributes=dict.fromkeys(filters, "int64"),
        filters=dict.fromkeys(filters, filtered),
    )
    assert has_codes(kind, corpus) is coded
