from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import DigestMismatch, FormatError
from bundle.tables.key_index import KeyIndex, KeyIndexWriter, index_bytes


def written(path: Path, *parts: NDArray[np.int64]) -> KeyIndex:
    with KeyIndexWriter(path) as writer:
        for part in parts:
            writer.append(part)
        size = writer.finish()
    return KeyIndex(path, size)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 8, 9, 17, 1000, 70_000])
def test_key_index_finds_the_row_of_each_key_and_of_no_other(tmp_path: Path, size: int) -> None:
    every = [*range(-size + 4, size, 2), -(1 << 63), (1 << 63) - 2]
    keys = np.random.default_rng(size).permutation(every[-size:])
    index = written(tmp_path / "k", *np.array_split(keys, 3))
    assert (index.find(keys) == np.arange(size)).all()
    assert (index.find(keys + 1) == -1).all()
    assert index.find(keys[:0]).shape == (0,)
    assert [path.name for path in tmp_path.iterdir()] == ["k"]
    assert (tmp_path / "k").stat().st_size == index_bytes(size)


def test_key_index_with_a_repeated_key_names_it_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="key -7 comes twice, as row 1 and row 4"):
        written(tmp_path / "k", np.array([3, -7, 5]), np.array([9, -7]))
    assert not list(tmp_path.iterdir())
    with pytest.raises(FormatError, match="would hold no key"):
        written(tmp_path / "k")


def test_key_index_of_another_size_or_without_a_header_is_rejected(tmp_path: Path) -> None:
    written(tmp_path / "k", np.arange(10))
    with pytest.raises(DigestMismatch, match="one of 11 keys has"):
        KeyIndex(tmp_path / "k", 11)
    with pytest.raises(DigestMismatch, match="missing"):
        KeyIndex(tmp_path / "gone", 10)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_index_never_reads_outside_its_file(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.integers(-(1 << 62), 1 << 62, 100)
    written(tmp_path / "k", keys)
    damaged = np.fromfile(tmp_path / "k", "<i8")
    damaged[200 + random.integers(0, damaged.size - 200, 5)] = random.integers(
        -(1 << 63), (1 << 63) - 1, 5
    )
    damaged.tofile(tmp_path / "k")
    assert KeyIndex(tmp_path / "k", 100).find(keys).shape == (100,)
