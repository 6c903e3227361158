"""ScaNN's kernels for AVX2 give the answers that its wheel gives without them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.manifest import Distance
from runtime import scann, scann_instructions
from runtime.scann import Kind, ScannIndex, write_index
from runtime.scann_instructions import set_avx2

TREE: dict[str, Any] = {"num_leaves": 30, "leaves_to_search": 4, "dimensions_per_block": 2, "reorder": 40}
VECTORS = np.random.default_rng(3).normal(size=(3000, 17)).astype(np.float32)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    set_avx2(scann._scann)


@pytest.mark.parametrize("kind", ["tree_ah", "brute_force"])
@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_queries_one_by_one_are_answered_with_the_same_bits(distance: Distance, kind: Kind, tmp_path: Path) -> None:
    directory = tmp_path / "index" / "scann"
    write_index(VECTORS, distance, kind, TREE if kind == "tree_ah" else {}, directory)
    index = ScannIndex.load(directory, distance, VECTORS)
    answers = []
    for wanted in (False, True):
        assert set_avx2(scann._scann, wanted) == (wanted and scann_instructions._processor_has())
        answers.append([index.search(query[np.newaxis], 20) for query in VECTORS[:200]])
    for plain, faster in zip(*answers, strict=True):
        assert np.array_equal(plain[0], faster[0])
        assert np.array_equal(plain[1].view(np.uint32), faster[1].view(np.uint32))


def test_service_uses_them_where_the_processor_has_them() -> None:
    library = ctypes.CDLL(scann._scann.scann_pybind.__file__)
    used = ctypes.c_bool.in_dll(library, scann_instructions._VARIABLE).value
    assert used == scann_instructions._processor_has()


def test_other_version_of_the_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.scann_loading.TRIED", frozenset({"0.0.0"}))
    assert not set_avx2(scann._scann)
