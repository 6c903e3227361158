"""Compiled code packs codes as the installed release of faiss does, so that faiss searches them."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from bundle import native
from runtime.codes import CodeBook

pytestmark = pytest.mark.skipif(native.pack_codes is None, reason=native.MISSING)


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("dim", [1, 2, 3, 32, 33, 34, 64, 130])
def test_codes_are_packed_as_faiss_packs_them(dim: int, count: int) -> None:
    assert native.pack_codes is not None
    random = np.random.default_rng(dim)
    book = CodeBook.train(random.normal(size=(40, dim)).astype(np.float32), "squared_l2")
    codes = book.encode(random.normal(size=(200, dim)).astype(np.float32))
    positions = random.permutation(200)[:count].astype(np.uint32)
    pairs = (dim + 1) // 2
    unpacked = faiss.IndexPQ(2 * pairs, pairs, 4)
    unpacked.is_trained = True
    unpacked.ntotal = count
    faiss.copy_array_to_vector(codes[positions].ravel(), unpacked.codes)
    by_faiss = faiss.IndexPQFastScan(unpacked)
    expected = faiss.AlignedTable_to_array(by_faiss.codes)
    packed = np.empty(expected.size, np.uint8)
    native.pack_codes(codes, positions, packed)
    assert packed.tolist() == expected.tolist()


def test_packed_codes_are_searched_alike_without_compiled_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(500, 30)).astype(np.float32)
    book = CodeBook.train(vectors, "dot_product")
    codes = book.encode(vectors)
    positions = np.flatnonzero(random.random(500) < 0.4)
    compiled = book.pack(codes, positions)
    monkeypatch.setattr(native, "pack_codes", None)
    by_faiss = book.pack(codes, positions)
    assert (compiled.size, compiled.bytes) == (by_faiss.size, by_faiss.bytes)
    queries = random.normal(size=(9, 30)).astype(np.float32)
    for actual, expected in zip(
        compiled.scored(queries, 60), by_faiss.scored(queries, 60), strict=True
    ):
        np.testing.assert_array_equal(actual, expected)
