"""Compiled fingerprints check what they are given: no text is read out of bounds.

tests/laws/test_fingerprints.py compares them with TensorFlow's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bundle import native
from bundle.fingerprints import numpy_fingerprints
from tests.units.bundle.features.readers import objects

pytestmark = pytest.mark.skipif(native.Rows is None, reason=f"not compiled: {native.MISSING}")
MEMORY = np.frombuffer(b"one two three" * 9, np.uint8)


@pytest.mark.parametrize("value", [1, None, 2.5, bytearray(b"a"), ["a"]])
def test_what_is_no_text_is_rejected(value: Any) -> None:
    assert native.text_fingerprints is not None
    with pytest.raises(TypeError, match="number 1 is neither"):
        native.text_fingerprints(objects("a", value))


def test_texts_may_lie_at_any_stride() -> None:
    assert native.text_fingerprints is not None
    texts = objects(*map(str, range(99)))
    actual = native.text_fingerprints(texts[::-2])
    assert actual.tolist() == numpy_fingerprints(texts)[::-2].tolist()


@pytest.mark.parametrize(
    ("memory", "offsets"),
    [
        *(
            (MEMORY, np.array(ends, np.int64))
            for ends in ([], [0, 118], [-1, 3], [4, 3], [0, 9, 8])
        ),
        (MEMORY, np.array([[0, 3]])),
        (MEMORY, np.array([0, 3], np.int32)),
        (MEMORY, [0, 3]),
        (MEMORY[::2], np.array([0, 3])),
        (MEMORY.view(np.int8), np.array([0, 3])),
        (b"one two three", np.array([0, 3])),
        (None, None),
    ],
)
def test_texts_outside_their_memory_are_rejected(memory: Any, offsets: Any) -> None:
    assert native.column_fingerprints is not None
    with pytest.raises(ValueError, match="offsets that never fall"):
        native.column_fingerprints(memory, offsets)


def test_many_texts_are_hashed_by_several_threads_at_once() -> None:
    assert native.column_fingerprints is not None
    random = np.random.default_rng(0)
    ends = np.sort(random.integers(0, MEMORY.size + 1, 200_001))  # enough to release the GIL
    texts = [MEMORY[begin:end].tobytes() for begin, end in pairwise(ends)]
    expected = numpy_fingerprints(objects(*texts))
    hash_column = native.column_fingerprints
    with ThreadPoolExecutor(3) as pool:
        results = pool.map(lambda _: hash_column(MEMORY, ends), range(9))
    assert all(np.array_equal(result, expected) for result in results)
