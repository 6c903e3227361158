"""An index loaded without Python's lock is the one that the constructor loads, or is left to the constructor."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import scann, scann_loading
from runtime.errors import IndexUnreadable
from runtime.scann import ScannIndex, write_index
from runtime.scann_loading import load_unlocked

TREE: dict[str, Any] = {"num_leaves": 30, "leaves_to_search": 4, "dimensions_per_block": 2, "reorder": 40}
VECTORS = np.random.default_rng(3).normal(size=(3000, 16)).astype(np.float32)


@pytest.fixture(scope="module", params=["tree_ah", "brute_force"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("index") / "scann"
    write_index(VECTORS, "dot_product", request.param, TREE if request.param == "tree_ah" else {}, directory)
    return directory


def unlocked(directory: Path) -> Any:
    config, assets, _ = scann._read(directory, "index")
    return load_unlocked(scann._scann, directory, config, assets, VECTORS.shape)


def test_index_loaded_without_the_lock_answers_with_the_bits_of_the_constructors(index: Path) -> None:
    found = unlocked(index)
    assert found is not None, "this version of ScaNN was not tried: see TRIED"
    plain = scann._load_locked(index, *scann._read(index, "index")[:2])
    assert (found.size(), found.config()) == (plain.size(), plain.config())
    for query in VECTORS[:50]:
        for ours, theirs in zip(found.search(query, 20, -1, -1), plain.search(query, 20, -1, -1), strict=True):
            assert np.array_equal(ours, theirs)
    both = [each.search_batched(VECTORS[:64], 20, -1, -1, False, 256) for each in (found, plain)]
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(*both, strict=True))


def test_index_outlives_its_files_and_is_let_go_of(index: Path, tmp_path: Path) -> None:
    copied = tmp_path / "scann"
    shutil.copytree(index, copied)
    for _ in range(3):
        found = unlocked(copied)
        assert found is not None
    shutil.rmtree(copied)
    assert found.search(VECTORS[7], 1, -1, -1)[0].tolist() != []


def test_other_version_of_the_library_is_left_to_its_constructor(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scann_loading, "TRIED", frozenset({"0.0.0"}))
    scann_loading._initialize.cache_clear()
    try:
        assert unlocked(index) is None
        assert ScannIndex.load(index, "dot_product", VECTORS).size == 3000
        monkeypatch.setattr(tempfile, "tempdir", str(index / "absent"))  # where its constructor reads a file
        with pytest.raises(IndexUnreadable, match=r"cannot be loaded by ScaNN: .*absent"):
            ScannIndex.load(index, "dot_product", VECTORS)
    finally:
        scann_loading._initialize.cache_clear()


@pytest.mark.parametrize(
    "change",
    [
        lambda page: page[:-1],
        lambda page: page + b"\0",
        lambda page: page.replace(b"'fortran_order'", b"'fortran_error'"),
        lambda page: page.replace(b"<f4", b"<f8").replace(b"u1'", b"u2'"),
        lambda page: page.replace(b"(3000", b"(9000"),
        lambda page: b"\0" + page[1:],
        lambda page: b"",
    ],
)
def test_array_that_the_library_would_throw_upon_is_left_to_its_constructor(
    index: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    directory = tmp_path / "scann"
    shutil.copytree(index, directory)
    file = next(path for path in directory.iterdir() if path.name in {"dataset.npy", "hashed_dataset.npy"})
    file.write_bytes(change(file.read_bytes()))
    assert unlocked(directory) is None
