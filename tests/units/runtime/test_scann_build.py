from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import Distance
from bundle.tables.segments import RowRange
from runtime import scann_build, vectors
from runtime.errors import IndexUnreadable, InvalidIndex, InvalidInput
from runtime.exact import ExactIndex, normalized
from runtime.scann import CODES, DATASET, TOKENS, Kind, ScannIndex, encode
from runtime.scann_build import build_files, match_stored
from runtime.vectors import VectorFile

N = 6000
DIM = 18
TREE = {"num_leaves": 20, "leaves_to_search": 1, "dimensions_per_block": 2, "reorder": 10}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VectorFile:
    """More vectors than are read_sample, in several blocks, the last of them a short one."""
    monkeypatch.setattr(scann_build, "SAMPLE_ROWS", 2000)
    monkeypatch.setattr(vectors, "BLOCK_BYTES", 4 * DIM * 700)
    random = np.random.default_rng(4)
    centres = random.normal(size=(60, DIM))
    values = centres[random.integers(0, 60, N)] + 0.2 * random.normal(size=(N, DIM))
    values.astype("<f4").tofile(tmp_path / "vectors.bin")
    return VectorFile(tmp_path / "vectors.bin", DIM)


def _recall(index: ScannIndex, file: VectorFile, distance: Distance) -> float:
    queries = file[np.arange(0, N, 150)] + np.float32(0.01)
    positions, _ = index.search(queries, 10, 12, 200)
    right, _ = ExactIndex(file, distance).search(queries, 10)
    return float(
        np.mean(
            [
                len(set(a) & set(b)) / 10
                for a, b in zip(positions.tolist(), right.tolist(), strict=True)
            ]
        )
    )


@pytest.mark.parametrize("distance", ["dot_product", "cosine", "squared_l2"])
def test_build_files_block_by_block_gives_the_codes_of_one_build(
    file: VectorFile, tmp_path: Path, distance: Distance
) -> None:
    built = tmp_path / "built"
    whole = tmp_path / "whole"
    build_files(file, distance, "tree_ah", TREE, built)

    whole.mkdir()
    np.save(whole / DATASET, normalized(file[:]) if distance == "cosine" else file[:])
    encode(built, whole)
    for name in (CODES, TOKENS):
        np.testing.assert_array_equal(np.load(built / name), np.load(whole / name))
    assert not (built / DATASET).exists()
    assert _recall(ScannIndex.load(built, distance, file.mapped), file, distance) > 0.95
    assert sorted(path.name for path in tmp_path.iterdir()) == ["built", "vectors.bin", "whole"]


def test_build_files_by_brute_force_finds_all(file: VectorFile, tmp_path: Path) -> None:
    build_files(file, "dot_product", "brute_force", {}, tmp_path / "built")

    assert (
        _recall(
            ScannIndex.load(tmp_path / "built", "dot_product", file.mapped), file, "dot_product"
        )
        > 0.999
    )


def test_build_files_blocks_may_be_encoded_in_any_order_at_once(
    file: VectorFile, tmp_path: Path
) -> None:
    def backwards(function: Any, tasks: Any) -> None:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(function, tasks[::-1]))

    build_files(file, "dot_product", "tree_ah", TREE, tmp_path / "one")
    codes = np.load(tmp_path / "one" / TOKENS)
    build_files(file, "dot_product", "tree_ah", TREE, tmp_path / "two", backwards)
    assert np.load(tmp_path / "two" / TOKENS).shape == codes.shape
    assert (
        _recall(ScannIndex.load(tmp_path / "two", "dot_product", file.mapped), file, "dot_product")
        > 0.95
    )


def test_build_files_that_cannot_be_built_is_rejected(file: VectorFile, tmp_path: Path) -> None:
    with pytest.raises(InvalidIndex, match="'reorder' is 0; a positive integer"):
        build_files(file, "dot_product", "tree_ah", TREE | {"reorder": 0}, tmp_path / "built")


def test_vector_file_reads_what_an_array_holds(file: VectorFile) -> None:
    stored = np.fromfile(file.path, "<f4").reshape(N, DIM)

    assert (len(file), file.shape) == (N, (N, DIM))
    np.testing.assert_array_equal(file[:], stored)
    np.testing.assert_array_equal(file[5990:9000], stored[5990:])
    np.testing.assert_array_equal(file[np.array([7, 7, 0])], stored[[7, 7, 0]])
    with pytest.raises(InvalidInput, match="no vectors of dim 7"):
        VectorFile(file.path, 7)


@pytest.mark.parametrize("distance", ["dot_product", "cosine", "squared_l2"])
def test_exact_index_over_a_file_finds_the_same_as_over_an_array(
    file: VectorFile, distance: Distance
) -> None:
    queries = np.random.default_rng(6).normal(size=(5, DIM)).astype(np.float32)

    positions, scores = ExactIndex(file, distance).search(queries, 20)
    right, wanted = ExactIndex(file[:], distance).search(queries, 20)

    np.testing.assert_array_equal(positions, right)
    np.testing.assert_array_equal(scores, wanted)


@pytest.mark.parametrize("kind", ["tree_ah", "brute_force"])
@pytest.mark.parametrize("distance", ["dot_product", "cosine", "squared_l2"])
@pytest.mark.parametrize("size", [20, N])
def test_match_stored_finds_the_vectors_at_their_positions(
    file: VectorFile, tmp_path: Path, kind: Kind, distance: Distance, size: int
) -> None:
    part = VectorFile(file.path, DIM, RowRange(0, size))
    built = tmp_path / "built"
    build_files(part, distance, kind, TREE if kind == "tree_ah" else {}, built)
    rows = np.arange(0, size, max(1, size // 100))

    assert match_stored(built, part, rows, distance, kind).all()

    file[:][::-1].astype("<f4").tofile(tmp_path / "reversed.bin")
    reversed_file = VectorFile(tmp_path / "reversed.bin", DIM, RowRange(N - size, size))
    assert match_stored(built, reversed_file, rows, distance, kind).mean() < 0.2


def test_match_stored_of_damaged_codes_is_rejected(file: VectorFile, tmp_path: Path) -> None:
    build_files(file, "cosine", "tree_ah", TREE, tmp_path / "built")
    codes = tmp_path / "built" / CODES
    codes.write_bytes(codes.read_bytes()[:200])

    with pytest.raises(IndexUnreadable, match=CODES):
        match_stored(tmp_path / "built", file, np.arange(5), "cosine", "tree_ah")
