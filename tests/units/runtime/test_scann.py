from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.errors import IndexUnreadable, InvalidIndex, InvalidInput
from runtime.scann import ScannIndex, write_index

TREE: dict[str, Any] = {
    "num_leaves": 40,
    "leaves_to_search": 4,
    "dimensions_per_block": 2,
    "reorder": 40,
}


def _vectors(size: int, dim: int = 16, seed: int = 0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(30, dim))
    return (centres[random.integers(0, 30, size)] + random.normal(0, 0.4, (size, dim))).astype(
        np.float32
    )


def _reference(
    vectors: NDArray[np.float32], queries: NDArray[np.float32], distance: Distance
) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    wide_queries = queries.astype(np.float64)
    if distance == "cosine":
        wide = wide / np.sqrt((wide**2).sum(1, keepdims=True))
        wide_queries = wide_queries / np.sqrt((wide_queries**2).sum(1, keepdims=True))
    if distance == "squared_l2":
        return np.array([-((wide - query) ** 2).sum(1) for query in wide_queries])
    return np.array([(wide * query).sum(1) for query in wide_queries])


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[Distance, tuple[ScannIndex, Path]]:
    """An index of each distance as it was built, and where it was written."""
    written: dict[Distance, tuple[ScannIndex, Path]] = {}
    for distance in get_args(Distance):
        directory = tmp_path_factory.mktemp(distance) / "scann"
        written[distance] = (
            write_index(_vectors(4000), distance, "tree_ah", TREE, directory),
            directory,
        )
    return written


@pytest.fixture
def tree(trees: dict[Distance, tuple[ScannIndex, Path]]) -> Path:
    return trees["dot_product"][1]


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
@pytest.mark.parametrize("n", [1, 3])
def test_brute_force_scores_and_order_equal_float64(
    tmp_path: Path, distance: Distance, n: int
) -> None:
    vectors = _vectors(600)
    queries = _vectors(n, seed=1)
    write_index(vectors, distance, "brute_force", {}, tmp_path / "scann")

    positions, scores = ScannIndex.load(tmp_path / "scann", distance, vectors).search(queries, 7)

    assert (positions.shape, positions.dtype.name, scores.dtype.name) == (
        (n, 7),
        "int64",
        "float32",
    )
    wanted = _reference(vectors, queries, distance)
    assert positions.tolist() == np.argsort(-wanted, axis=1)[:, :7].tolist()
    np.testing.assert_allclose(scores, -np.sort(-wanted, axis=1)[:, :7], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
def test_tree_finds_most_and_all_with_every_leaf(
    trees: dict[Distance, tuple[ScannIndex, Path]], distance: Distance
) -> None:
    vectors = _vectors(4000)
    queries = _vectors(50, seed=1)
    (index, _) = trees[distance]
    best = np.argsort(-_reference(vectors, queries, distance), axis=1)[:, :10]

    quick, _ = index.search(queries, 10, leaves_to_search=1, reorder=10)
    every, _ = index.search(queries, 10, leaves_to_search=40, reorder=4000)

    hits = np.mean(
        [
            len(set(actual) & set(wanted))
            for actual, wanted in zip(quick.tolist(), best.tolist(), strict=True)
        ]
    )
    assert 1 < hits < 9.9
    assert [set(row) for row in every.tolist()] == [set(row) for row in best.tolist()]


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2", "cosine"])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_loaded_tree_finds_the_same_as_the_built_one_and_rescores_with_the_mapped_vectors(
    trees: dict[Distance, tuple[ScannIndex, Path]], distance: Distance, n: int
) -> None:
    vectors = _vectors(4000)
    queries = _vectors(n, seed=1)
    (built, directory) = trees[distance]

    positions, scores = ScannIndex.load(directory, distance, vectors).search(queries, 10)

    np.testing.assert_array_equal(positions, built.search(queries, 10)[0])
    wanted = np.take_along_axis(_reference(vectors, queries, distance), positions, 1)
    np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-6)
    assert (np.diff(scores) <= 0).all()


def test_tree_that_holds_its_vectors_too_is_read_without_them(tree: Path, tmp_path: Path) -> None:
    """As bundles were written before: `dataset.npy` beside the codes."""
    directory = tmp_path / "scann"
    vectors = _vectors(4000)
    shutil.copytree(tree, directory)
    np.save(directory / "dataset.npy", vectors[::-1])
    with (directory / "scann_assets.pbtxt").open("a") as assets:
        assets.write('assets { asset_type: DATASET_NPY asset_path: "dataset.npy" }')

    queries = _vectors(3, seed=1)
    positions, scores = ScannIndex.load(directory, "dot_product", vectors).search(queries, 9)

    wanted, exact = ScannIndex.load(tree, "dot_product", vectors).search(queries, 9)
    np.testing.assert_array_equal(positions, wanted)
    np.testing.assert_array_equal(scores, exact)


def test_written_settings_are_what_a_loaded_index_uses(
    trees: dict[Distance, tuple[ScannIndex, Path]], tmp_path: Path
) -> None:
    vectors = _vectors(4000)
    queries = _vectors(40, seed=1)
    (built, _) = trees["dot_product"]
    built.write(tmp_path / "scann", leaves_to_search=1, reorder=12)

    loaded = ScannIndex.load(tmp_path / "scann", "dot_product", vectors)

    narrow = built.search(queries, 10, leaves_to_search=1, reorder=12)[0]
    np.testing.assert_array_equal(loaded.search(queries, 10)[0], narrow)
    assert not np.array_equal(built.search(queries, 10)[0], narrow)


def test_moved_index_loads_and_holds_no_path_and_no_ids(tree: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(tree, moved)

    assert ScannIndex.load(moved, "dot_product", _vectors(4000)).size == 4000
    assert not [*tree.glob("*.pkl"), *tree.glob("dataset*")]
    assert all(str(tree.parent).encode() not in path.read_bytes() for path in tree.iterdir())


def test_pickled_ids_beside_an_index_are_never_opened(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree, tmp_path / "scann")
    mark = tmp_path / "opened"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (mark,))

    (tmp_path / "scann" / "scann_docids.pkl").write_bytes(pickle.dumps(Trap()))

    ScannIndex.load(tmp_path / "scann", "dot_product", _vectors(4000))

    assert not mark.exists()


@pytest.mark.parametrize("n", [1, 2, 20])
def test_k_beyond_the_index_is_filled(tmp_path: Path, n: int) -> None:
    index = write_index(_vectors(5), "squared_l2", "brute_force", {}, tmp_path)

    positions, scores = index.search(_vectors(n, seed=1), 8)

    assert sorted(positions[0, :5].tolist()) == [0, 1, 2, 3, 4]
    assert positions[:, 5:].tolist() == [[-1, -1, -1]] * n
    assert np.isneginf(scores[:, 5:]).all()
    assert np.isfinite(scores[:, :5]).all()


@pytest.mark.parametrize("n", [1, 2, 20])
def test_k_beyond_the_leaves_searched_is_filled(tree: Path, n: int) -> None:
    index = ScannIndex.load(tree, "dot_product", _vectors(4000))

    positions, scores = index.search(_vectors(n, seed=1), 3000, leaves_to_search=1)

    is_candidate = positions >= 0
    assert 0 < is_candidate[0].sum() < 3000
    assert np.isfinite(scores[is_candidate]).all()
    assert np.isneginf(scores[~is_candidate]).all()
    assert len(set(positions[0][is_candidate[0]].tolist())) == is_candidate[0].sum()


def test_k_beyond_the_written_reorder_is_still_met(tree: Path) -> None:
    index = ScannIndex.load(tree, "dot_product", _vectors(4000))

    positions, _ = index.search(_vectors(1, seed=1), 100, leaves_to_search=40)

    assert (positions >= 0).all()


@pytest.mark.parametrize("k", [10, 300])
@pytest.mark.parametrize("n", [2, 40])
def test_search_of_several_queries_gives_each_the_bits_of_a_search_alone(
    tree: Path, k: int, n: int
) -> None:
    index = ScannIndex.load(tree, "dot_product", _vectors(4000))
    queries = _vectors(n, seed=3)

    positions, scores = index.search(queries, k, leaves_to_search=1)

    alone = [index.search(query[np.newaxis], k, leaves_to_search=1) for query in queries]
    assert (
        positions.tobytes()
        == np.concatenate([positions_of_query for positions_of_query, _ in alone]).tobytes()
    )
    assert (
        scores.tobytes()
        == np.concatenate([scores_of_query for _, scores_of_query in alone]).tobytes()
    )


def test_search_without_queries_returns_empty_arrays(tree: Path) -> None:
    positions, scores = ScannIndex.load(tree, "dot_product", _vectors(4000)).search(
        np.empty((0, 16), np.float32), 5
    )

    assert (positions.shape, scores.shape) == ((0, 5), (0, 5))


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.zeros((1, 15), np.float32), 3, r"\[1, 15\]; \[n, 16\] was expected"),
        (np.zeros(16, np.float32), 3, r"\[n, 16\] was expected"),
        (np.full((1, 16), np.nan, np.float32), 3, "NaN"),
        (
            np.vstack([np.zeros(16), np.full(16, np.inf)]).astype(np.float32),
            3,
            "query vector 1 holds NaN",
        ),
        (np.zeros((1, 16), np.float32), 0, "k is 0"),
    ],
)
def test_wrong_query_is_rejected_and_the_next_search_works(
    tree: Path, queries: NDArray[np.float32], k: int, message: str
) -> None:
    index = ScannIndex.load(tree, "dot_product", _vectors(4000))

    with pytest.raises(InvalidInput, match=message):
        index.search(queries, k)

    assert (index.search(_vectors(1, seed=1), 3)[0] >= 0).all()


def test_threads_search_one_index_at_once(tree: Path) -> None:
    index = ScannIndex.load(tree, "dot_product", _vectors(4000))
    queries = _vectors(200, seed=1)
    wanted = [index.search(queries[row : row + 1], 10)[0][0].tolist() for row in range(200)]
    wrong: list[int] = []

    def search() -> None:
        for row in range(200):
            if index.search(queries[row : row + 1], 10)[0][0].tolist() != wanted[row]:
                wrong.append(row)  # noqa: PERF401 - a thread appends as it goes

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


FILES = ["scann_assets.pbtxt", "scann_config.pb", "ah_codebook.pb", "serialized_partitioner.pb"]


@pytest.mark.parametrize("file", [*FILES, "hashed_dataset.npy", "datapoint_to_token.npy"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_damaged_index_is_unreadable(tree: Path, tmp_path: Path, file: str, damage: str) -> None:
    directory = tmp_path / "scann"
    shutil.copytree(tree, directory)
    content = (directory / file).read_bytes()
    if damage == "missing":
        (directory / file).unlink()
    else:
        (directory / file).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")

    with pytest.raises(IndexUnreadable):
        ScannIndex.load(directory, "dot_product", _vectors(4000))


def test_index_that_names_a_file_outside_is_unreadable(tree: Path, tmp_path: Path) -> None:
    directory = tmp_path / "scann"
    shutil.copytree(tree, directory)
    (directory / "hashed_dataset.npy").rename(tmp_path / "codes.npy")
    assets = (directory / "scann_assets.pbtxt").read_text()
    (directory / "scann_assets.pbtxt").write_text(
        assets.replace('"hashed_dataset.npy"', f'"{tmp_path}/codes.npy"')
    )

    with pytest.raises(IndexUnreadable, match="not in its directory"):
        ScannIndex.load(directory, "dot_product", _vectors(4000))


def test_index_of_another_size_or_distance_is_unreadable(tree: Path) -> None:
    with pytest.raises(IndexUnreadable, match="holds 4000 vectors; 4001 were expected"):
        ScannIndex.load(tree, "dot_product", _vectors(4001))
    with pytest.raises(IndexUnreadable, match="squared_l2 was expected"):
        ScannIndex.load(tree, "squared_l2", _vectors(4000))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"leaves": 3}, "takes parameters"),
        ({"num_leaves": 5000}, "only 4000 vectors"),
        ({"leaves_to_search": 41}, "has 40 leaves"),
        ({"reorder": 0}, "'reorder' is 0; a positive integer"),
        ({"reorder": True}, "'reorder' is True"),
        ({"num_leaves": 2.5}, r"'num_leaves' is 2\.5"),
    ],
)
def test_build_with_wrong_parameters_is_rejected(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidIndex, match=message):
        ScannIndex.build(_vectors(4000), "dot_product", "tree_ah", TREE | changed)


def test_build_of_a_tree_over_too_few_vectors_is_rejected() -> None:
    parameters = {"num_leaves": 2, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 4}

    with pytest.raises(
        InvalidIndex, match="ScaNN builds no tree_ah index over 8 vectors of dim 16"
    ):
        ScannIndex.build(_vectors(8), "dot_product", "tree_ah", parameters)
