"""Indexes of each engine, and codes: what they find beside exact scores, in whatever partitions and
blocks, and the files that they do not load.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format import paths
from bundle.format.indexes import Engine
from bundle.format.manifest import Distance
from bundle.tables.segments import RowRange
from runtime import index_files
from runtime import vectors as vectors_module
from runtime.candidate_index import IndexEngine, Kind
from runtime.codes import CodeBook, VectorCodes
from runtime.engines import open_engine
from runtime.errors import IndexUnreadable
from runtime.exact import ExactIndex, normalized
from runtime.index_files import run_here
from runtime.partitions import load_index, partition_rows
from runtime.vectors import LENGTH_MAX, VectorFile
from tests.bundles.indexes import ENGINES, write_index

Vectors = NDArray[np.float32]
Written = Callable[[Distance, Kind, int], list[Path]]
SIZE = 4000
DIM = 16
TREE: dict[str, Any] = {
    "num_leaves": 40,
    "leaves_to_search": 4,
    "dimensions_per_block": 2,
    "reorder": 40,
}
LEAVES: dict[Engine, str] = {"scann": "datapoint_to_token.npy", "faiss": "leaves.npy"}
"""The file of the leaves of vectors."""
ARRAYS = (*LEAVES.values(), "codes.npy", "hashed_dataset.npy")
"""The files with a value of each vector, which lies behind a header."""
ALL_OF_IT = {"leaves_to_search": 40, "reorder": SIZE}
EVERY_DISTANCE = pytest.mark.parametrize("distance", get_args(Distance))


def clustered(size: int, seed: int = 0) -> Vectors:
    random = np.random.default_rng(seed)
    centers = np.random.default_rng(9).normal(size=(30, DIM))
    spread = random.normal(0, 0.4, (size, DIM))
    return (centers[random.integers(0, 30, size)] + spread).astype(np.float32)


VECTORS = clustered(SIZE)


def queries_of(distance: Distance, count: int) -> Vectors:
    queries = clustered(count, seed=1)
    return normalized(queries) if distance == "cosine" else queries


def recall(positions: NDArray[np.int64], exact: NDArray[np.int64]) -> float:
    pairs = zip(positions.tolist(), exact.tolist(), strict=True)
    return float(np.mean([len({*row} & {*best}) / len(best) for row, best in pairs]))


@pytest.fixture(scope="module", params=ENGINES)
def name(request: pytest.FixtureRequest) -> Engine:
    """The name of each engine that is installed."""
    engine: Engine = request.param
    return engine


@pytest.fixture(scope="module")
def engine(name: Engine) -> IndexEngine:
    return open_engine(name)


@pytest.fixture(scope="module")
def written(name: Engine, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Writes an index of VECTORS in partitions, once; returns their directories."""
    cache: dict[tuple[str, str, int], list[Path]] = {}

    def write(distance: Distance, kind: Kind, partitions: int) -> list[Path]:
        key = (distance, kind, partitions)
        if key not in cache:
            base = tmp_path_factory.mktemp("index")
            directories = paths.index_partitions("items/index", partitions)
            cache[key] = [base / directory for directory in directories]
            parts = zip(cache[key], partition_rows(SIZE, partitions), strict=True)
            for directory, rows in parts:
                parameters = TREE if kind == "tree_ah" else {}
                part = VECTORS[rows.first : rows.end]
                write_index(part, distance, kind, parameters, directory, name)
        return cache[key]

    return write


@pytest.fixture
def tree(written: Written, tmp_path: Path) -> Path:
    """A tree that a test may damage."""
    return shutil.copytree(written("dot_product", "tree_ah", 1)[0], tmp_path / "items" / "index")


@EVERY_DISTANCE
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_search_of_everything_finds_what_exact_search_finds(
    name: Engine, written: Written, distance: Distance, kind: Kind, partitions: int
) -> None:
    index = load_index(name, written(distance, kind, partitions), distance, VECTORS)
    assert (index.size, index.dim, index.distance) == (SIZE, DIM, distance)
    settings = ALL_OF_IT if kind == "tree_ah" else {}
    for count, k in ((1, 1), (1, SIZE + 5), (40, 10)):
        queries = queries_of(distance, count)
        positions, scores = index.search(queries, k, **settings)
        exact, exact_scores = ExactIndex(VECTORS, distance).search(queries, k)
        assert positions.dtype == np.int64
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, exact_scores, rtol=1e-4, atol=1e-5)
        assert recall(positions[:, :10], exact[:, :10]) > 0.99
        assert (positions[:, SIZE:] == -1).all()
    for query in queries[:3]:
        candidates, scores = index.scored_candidates(query, 20)
        np.testing.assert_array_equal(candidates, index.candidates(query, 20))
        assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_search_of_few_leaves_finds_some_the_same_for_each_query_alone(
    name: Engine, written: Written, partitions: int
) -> None:
    directories = written("dot_product", "tree_ah", partitions)
    index = load_index(name, directories, "dot_product", VECTORS)
    queries = queries_of("dot_product", 20)
    exact, _ = ExactIndex(VECTORS, "dot_product").search(queries, 10)
    narrow = index.search(queries, 10, leaves_to_search=1, reorder=10)
    wide = index.search(queries, 10, leaves_to_search=20)
    assert 0.1 < recall(narrow[0], exact) < recall(wide[0], exact)
    for k in (10, 300, SIZE):
        positions, scores = index.search(queries, k, leaves_to_search=1)
        for number, query in enumerate(queries[:, np.newaxis]):
            alone = index.search(query, k, leaves_to_search=1)
            assert positions[number].tobytes() == alone[0].tobytes()
            assert scores[number].tobytes() == alone[1].tobytes()
        is_candidate = positions >= 0
        assert np.isneginf(scores[~is_candidate]).all()
        assert is_candidate[0].any()
    assert not is_candidate.all()
    # k beyond the reorder that was written is still met.
    assert (index.search(queries, 100, leaves_to_search=40)[0] >= 0).all()
    empty = index.search(queries[:0], 5)
    assert empty[0].shape == empty[1].shape == (0, 5)


def test_settings_that_are_written_are_those_of_a_loaded_index(
    engine: IndexEngine, tree: Path
) -> None:
    queries = queries_of("dot_product", 40)
    before = engine.load(tree, "dot_product", VECTORS)
    narrow = before.search(queries, 10, leaves_to_search=1, reorder=12)[0]
    assert not np.array_equal(before.search(queries, 10)[0], narrow)
    engine.set_search_parameters(tree, leaves_to_search=1)
    engine.set_search_parameters(tree, reorder=12)
    after = engine.load(tree, "dot_product", VECTORS)
    np.testing.assert_array_equal(after.search(queries, 10)[0], narrow)


def test_searches_at_once_find_what_each_finds_alone(name: Engine, written: Written) -> None:
    index = load_index(name, written("squared_l2", "tree_ah", 3), "squared_l2", VECTORS)
    queries = np.repeat(queries_of("squared_l2", 25), 8, axis=0)

    def search(number: int) -> bytes:
        leaves = number % 8 + 1
        return index.search(queries[[number]], 10, leaves_to_search=leaves)[0].tobytes()

    alone = [search(number) for number in range(len(queries))]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(search, range(len(queries)))) == alone


@pytest.mark.parametrize("dims_per_block", [1, 3, 5])
def test_blocks_need_not_divide_the_dims(
    name: Engine, engine: IndexEngine, tmp_path: Path, dims_per_block: int
) -> None:
    parameters = TREE | {"dimensions_per_block": dims_per_block}
    write_index(VECTORS, "squared_l2", "tree_ah", parameters, tmp_path / "tree", name)
    index = engine.load(tmp_path / "tree", "squared_l2", VECTORS)
    queries = queries_of("squared_l2", 20)
    exact, _ = ExactIndex(VECTORS, "squared_l2").search(queries, 10)
    positions, _ = index.search(queries, 10, leaves_to_search=40, reorder=400)
    assert recall(positions, exact) > 0.95


@EVERY_DISTANCE
@pytest.mark.parametrize("value", [0, 1, LENGTH_MAX / DIM])
def test_a_tree_of_equal_vectors_finds_as_many_as_its_leaves_hold(
    name: Engine, engine: IndexEngine, tmp_path: Path, distance: Distance, value: float
) -> None:
    vectors = np.full((300, DIM), value, np.float32)
    parameters = TREE | {"num_leaves": 8, "leaves_to_search": 8}
    write_index(vectors, distance, "tree_ah", parameters, tmp_path / "tree", name)
    index = engine.load(tmp_path / "tree", distance, vectors)
    for query in (0, 1, LENGTH_MAX / DIM):
        positions, _ = index.search(np.full((1, DIM), query, np.float32), 300)
        assert sorted(positions[0].tolist()) == [*range(300)]


def test_a_tree_holds_no_path_and_no_vectors(tree: Path) -> None:
    contents = [path.read_bytes() for path in tree.iterdir()]
    assert not any(str(tree.parent).encode() in content for content in contents)
    assert sum(map(len, contents)) < VECTORS.nbytes / 2


@pytest.mark.needs("scann")
@pytest.mark.parametrize("name", ["scann"], indirect=True)
def test_scann_lists_no_ids_and_opens_no_pickle(engine: IndexEngine, tree: Path) -> None:
    assert not [*tree.glob("*.pkl"), *tree.glob("dataset*")]
    mark = tree / "opened"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (mark,))

    (tree / "scann_docids.pkl").write_bytes(pickle.dumps(Trap()))
    queries = queries_of("dot_product", 3)
    expected = engine.load(tree, "dot_product", VECTORS).search(queries, 9)
    assert not mark.exists()
    # Bundles of before hold `dataset.npy` beside the codes, which is not read.
    np.save(tree / "dataset.npy", VECTORS[::-1])
    with (tree / "scann_assets.pbtxt").open("a") as assets:
        assets.write('assets { asset_type: DATASET_NPY asset_path: "dataset.npy" }')
    actual_arrays = engine.load(tree, "dot_product", VECTORS).search(queries, 9)
    for actual, array in zip(actual_arrays, expected, strict=True):
        np.testing.assert_array_equal(actual, array)


def test_a_damaged_index_is_unreadable(engine: IndexEngine, tree: Path) -> None:
    files = list(tree.iterdir())
    assert len(files) >= 5
    for file in files:
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2], b"\xff" * len(content), None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(IndexUnreadable):
                engine.load(tree, "dot_product", VECTORS)
        if file.name in ARRAYS:
            values = len(content) * 3 // 4
            file.write_bytes(content[:-values] + b"\x7f" * values)
            # It ends no process, whatever it finds.
            with suppress(IndexUnreadable):
                engine.load(tree, "dot_product", VECTORS).search(VECTORS[:3], 5)
        file.write_bytes(content)
    engine.load(tree, "dot_product", VECTORS)


def test_files_of_other_vectors_are_unreadable(
    name: Engine, engine: IndexEngine, written: Written, tree: Path
) -> None:
    with pytest.raises(IndexUnreadable, match="4001"):
        engine.load(tree, "dot_product", clustered(SIZE + 1))
    with pytest.raises(IndexUnreadable, match="squared_l2"):
        engine.load(tree, "squared_l2", VECTORS)
    parts = written("dot_product", "brute_force", 3)
    missing = [parts[0], parts[1].with_name("missing"), parts[2]]
    for directories, size, words in (
        (parts, 2, "3 partitions"),
        (parts, 900, "1334 vectors; 300"),
        (missing, SIZE, "missing (lacks|has no)"),
    ):
        with pytest.raises(IndexUnreadable, match=words):
            load_index(name, directories, "dot_product", VECTORS[:size])
    many = np.broadcast_to(np.zeros((1, DIM), np.float32), ((1 << 32) + 1, DIM))
    with pytest.raises(IndexUnreadable, match="32 bits"):
        load_index(name, parts[:1], "cosine", many)


@pytest.mark.needs("scann")
@pytest.mark.parametrize("name", ["scann"], indirect=True)
def test_scann_reads_no_file_outside_the_directory(engine: IndexEngine, tree: Path) -> None:
    (tree / "hashed_dataset.npy").rename(tree.parent / "codes.npy")
    assets = tree / "scann_assets.pbtxt"
    text = assets.read_text()
    assets.write_text(text.replace('"hashed_dataset.npy"', f'"{tree.parent}/codes.npy"'))
    with pytest.raises(IndexUnreadable, match="not in its directory"):
        engine.load(tree, "dot_product", VECTORS)


@pytest.mark.parametrize("name", ["faiss"], indirect=True)
def test_arrays_of_another_form_or_with_other_numbers_are_unreadable(
    engine: IndexEngine, tree: Path
) -> None:
    changes: list[tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = [
        ("leaves.npy", lambda leaves: leaves + np.uint32(40)),
        ("leaves.npy", lambda leaves: leaves.astype(np.int64)),
        ("codes.npy", lambda codes: codes[:, :-1]),
        ("codes.npy", np.asfortranarray),
        ("centroids.npy", lambda centroids: centroids * np.float32(np.nan)),
        ("centroids.npy", lambda centroids: centroids[:0]),
        ("codebook.npy", lambda book: book * np.float32(np.inf)),
        ("codebook.npy", lambda book: book[:-1]),
        ("codebook.npy", lambda book: book[:, :-1]),
        ("codebook.npy", lambda book: book.astype(object)),
    ]
    for file, change in changes:
        array = np.load(tree / file)
        np.save(tree / file, change(array))
        with pytest.raises(IndexUnreadable):
            engine.load(tree, "dot_product", VECTORS)
        np.save(tree / file, array)
    engine.load(tree, "dot_product", VECTORS)


@EVERY_DISTANCE
def test_faiss_writes_the_same_files_whatever_the_number_of_threads(
    file: VectorFile, tmp_path: Path, distance: Distance
) -> None:
    engine = open_engine("faiss")
    contents = []
    for threads, run in ((1, run_here), (3, backwards)):
        faiss.omp_set_num_threads(threads)
        directory = tmp_path / f"{threads}"
        engine.build_files(file, distance, "tree_ah", TREE, directory, run)
        contents.append({path.name: path.read_bytes() for path in directory.iterdir()})
    assert contents[0] == contents[1]
    assert faiss.omp_get_max_threads() == 1, "training and encoding compute in one thread"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VectorFile:
    """More vectors than are sampled, in several blocks, amid others of a file."""
    monkeypatch.setattr(index_files, "SAMPLE_ROWS", 2000)
    monkeypatch.setattr(vectors_module, "BLOCK_BYTES", 4 * DIM * 700)
    np.concatenate([VECTORS[:7] * 9, VECTORS, VECTORS[:5]]).tofile(tmp_path / "vectors.bin")
    return VectorFile(tmp_path / "vectors.bin", DIM, RowRange(7, SIZE))


def backwards(function: Callable[[Any], None], tasks: Any) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(function, tasks[::-1]))


@EVERY_DISTANCE
@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_index_built_block_by_block_finds_its_vectors(
    name: Engine,
    engine: IndexEngine,
    file: VectorFile,
    tmp_path: Path,
    distance: Distance,
    kind: Kind,
) -> None:
    parameters = TREE if kind == "tree_ah" else {}
    engine.build_files(file, distance, kind, parameters, tmp_path / "built", backwards)
    index = engine.load(tmp_path / "built", distance, file.mapped)
    queries = queries_of(distance, 40)
    exact, _ = ExactIndex(file, distance).search(queries, 10)
    settings = {"leaves_to_search": 20, "reorder": 200} if kind == "tree_ah" else {}
    assert recall(index.search(queries, 10, **settings)[0], exact) > 0.95
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "vectors.bin"]

    rows = np.arange(0, SIZE, 40)
    assert engine.match_stored(tmp_path / "built", file, rows, distance, kind).all()
    VECTORS[::-1].tofile(tmp_path / "reversed.bin")
    reversed_file = VectorFile(tmp_path / "reversed.bin", DIM)
    is_same = engine.match_stored(tmp_path / "built", reversed_file, rows, distance, kind)
    # Exact search beside faiss has no copy of the vectors that could differ.
    if (name, kind) != ("faiss", "brute_force"):
        assert is_same.mean() < 0.2
    if kind == "tree_ah":
        leaves = tmp_path / "built" / LEAVES[name]
        assert np.load(leaves).shape == (SIZE,)
        leaves.write_bytes(leaves.read_bytes()[:200])
        with pytest.raises(IndexUnreadable, match=LEAVES[name]):
            engine.match_stored(tmp_path / "built", file, rows, distance, kind)


@EVERY_DISTANCE
def test_codes_find_what_exact_scores_find_and_depend_on_no_other_vector(
    tmp_path: Path, distance: Distance
) -> None:
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    book = CodeBook.train(VECTORS, distance)
    codes = book.encode(VECTORS)
    assert faiss.omp_get_max_threads() == 1, "training and encoding compute in one thread"
    faiss.omp_set_num_threads(before)
    book.write(tmp_path / "codebook.bin")
    codes.tofile(tmp_path / "codes.bin")
    files = (tmp_path / "codes.bin", tmp_path / "codebook.bin")
    stored = VectorCodes.load(*files, SIZE, DIM, distance)
    alone = [book.encode(VECTORS[row : row + 1]) for row in range(50)]
    np.testing.assert_array_equal(stored.codes[:50], np.concatenate(alone))
    np.testing.assert_array_equal(stored.part(100, 200).codes, codes[100:200])
    assert CodeBook.train(VECTORS, distance).centroids.tobytes() == book.centroids.tobytes()

    positions = np.arange(1, SIZE, 3, dtype=np.uint32)
    packed = stored.pack(positions)
    queries = queries_of(distance, 20)
    exact, _ = ExactIndex(VECTORS[positions], distance).search(queries, 10)
    found_positions = np.array(packed.nearest(queries, 200))
    alone_positions = [packed.nearest(query[np.newaxis], 200)[0] for query in queries]
    np.testing.assert_array_equal(alone_positions, found_positions)
    assert (packed.size, found_positions.shape) == (positions.size, (20, 200))
    assert recall(found_positions, exact) > 0.95
    few_codes = book.pack(codes[:5])
    assert sorted(few_codes.nearest(queries[:1], 9)[0].tolist()) == [0, 1, 2, 3, 4]

    for size, dim, words in ((SIZE - 1, DIM, "codes.bin"), (SIZE, DIM + 2, "codebook.bin")):
        with pytest.raises(IndexUnreadable, match=words):
            VectorCodes.load(*files, size, dim, distance)
    files[0].unlink()
    with pytest.raises(IndexUnreadable, match=r"codes\.bin"):
        VectorCodes.load(*files, SIZE, DIM, distance)
