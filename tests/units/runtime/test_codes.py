"""Codes of vectors: what they find, beside exact scores, and what their files hold."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.format.manifest import Distance
from runtime.codes import CodeBook, VectorCodes
from runtime.errors import IndexUnreadable
from runtime.exact import exact_scores, normalized

DISTANCES: list[Distance] = ["dot_product", "squared_l2", "cosine"]


def some_vectors(size: int, dim: int) -> NDArray[np.float32]:
    random = np.random.default_rng(4)
    centers = random.standard_normal((20, dim), np.float32)
    spread = random.standard_normal((size, dim), np.float32) * np.float32(0.6)
    return centers[random.integers(0, 20, size)] + spread


def written(
    directory: Path, vectors: NDArray[np.float32], distance: Distance
) -> tuple[VectorCodes, Path, Path]:
    book = CodeBook.train(vectors, distance)
    book.write(directory / "codebook.bin")
    book.encode(vectors).tofile(directory / "codes.bin")
    files = (directory / "codes.bin", directory / "codebook.bin")
    return VectorCodes.load(*files, len(vectors), vectors.shape[1], distance), *files


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dim", [1, 5, 32])
def test_codes_find_what_exact_scores_do(tmp_path: Path, distance: Distance, dim: int) -> None:
    vectors = some_vectors(6000, dim)
    codes, _, _ = written(tmp_path, vectors, distance)
    positions = np.flatnonzero(np.arange(6000) % 3 == 1).astype(np.uint32)
    packed = codes.pack(positions)
    assert packed.size == 2000

    hits = 0
    for vector in vectors[:20] + np.float32(0.1):
        query = normalized(vector[np.newaxis])[0] if distance == "cosine" else vector
        scores = exact_scores(vectors, query, positions, distance)
        best = np.sort(scores)[-10]
        row_positions = packed.nearest(query, 300)
        assert len({*row_positions.tolist()}) == row_positions.size <= 300
        hits += min(10, int(np.count_nonzero(scores[row_positions] >= best)))
    assert hits >= 0.95 * 200


def test_training_and_encoding_compute_in_one_thread() -> None:
    vectors = some_vectors(600, 8)
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(3)
        book = CodeBook.train(vectors, "dot_product")
        assert faiss.omp_get_max_threads() == 1
        faiss.omp_set_num_threads(3)
        book.encode(vectors)
        assert faiss.omp_get_max_threads() == 1
    finally:
        faiss.omp_set_num_threads(before)


@pytest.mark.parametrize("distance", DISTANCES)
def test_codes_of_a_vector_depend_on_no_other(tmp_path: Path, distance: Distance) -> None:
    vectors = some_vectors(3000, 8)
    codes, _, _ = written(tmp_path, vectors, distance)
    alone = np.concatenate([codes.book.encode(vectors[row : row + 1]) for row in range(50)])
    np.testing.assert_array_equal(codes.codes[:50], alone)
    np.testing.assert_array_equal(codes.part(100, 200).codes, codes.codes[100:200])
    retrained = CodeBook.train(vectors, distance)
    assert retrained.centroids.tobytes() == codes.book.centroids.tobytes()


def test_codes_of_few_vectors_are_found() -> None:
    vectors = some_vectors(5, 4)
    book = CodeBook.train(vectors, "dot_product")
    packed = book.pack(book.encode(vectors))
    assert packed.nearest(vectors[2], 1).tolist() == [int(np.argmax(vectors @ vectors[2]))]


def test_files_of_another_size_are_rejected(tmp_path: Path) -> None:
    vectors = some_vectors(100, 6)
    _, codes, codebook = written(tmp_path, vectors, "dot_product")
    with pytest.raises(IndexUnreadable, match=r"codes.bin has 200 bytes; 198 were expected"):
        VectorCodes.load(codes, codebook, 99, 6, "dot_product")
    with pytest.raises(IndexUnreadable, match=r"codebook.bin has 384 bytes; 512 were expected"):
        VectorCodes.load(codes, codebook, 100, 8, "dot_product")
    codes.unlink()
    with pytest.raises(IndexUnreadable, match=r"codes.bin cannot be read"):
        VectorCodes.load(codes, codebook, 100, 6, "dot_product")
