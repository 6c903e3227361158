from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bundle import native

if native.Rows is None:
    pytest.skip(f"rows were not compiled: {native.MISSING}", allow_module_level=True)

MEMORY = np.arange(4 * 6 * 10, dtype=np.uint8)
ROWS = native.Rows("float32", 6, [(MEMORY, 0, 10)], None)
WANTED = np.array([3, 1])


@pytest.mark.parametrize(
    ("dtype", "dim", "values", "scales"),
    [
        *((dtype, 6, [(MEMORY, 0, 10)], None) for dtype in ("float64", "int8")),
        *(("float32", dim, [(MEMORY, 0, 1)], None) for dim in (0, 1 << 62)),
        *(
            ("float32", 6, [(MEMORY, first, rows)], None)
            for first, rows in ((1, 10), (0, 11), (-1, 1), (0, 0), (0, 1 << 62))
        ),
        *(
            ("float32", 6, values, None)
            for values in ([], [(MEMORY[::2], 0, 1)], [(MEMORY.view(np.float32), 0, 1)])
        ),
        ("float32", 6, [(MEMORY, 0, 10)], [(MEMORY, 0, 10)]),
        ("int8", 6, [(MEMORY, 0, 10)], [(MEMORY, 0, 9)]),
    ],
)
def test_rows_outside_their_memory_are_rejected(
    dtype: str, dim: int, values: Any, scales: Any
) -> None:
    assert native.Rows is not None
    with pytest.raises(ValueError, match=r"row|segment|dtype"):
        native.Rows(dtype, dim, values, scales)


@pytest.mark.parametrize(
    "out",
    [
        *(np.zeros(shape, np.float32) for shape in ((2, 5), (3, 6), 12)),
        *(np.zeros((2, 6)), np.zeros((2, 6), ">f4"), np.zeros((6, 2), np.float32).T, [0]),
        *(
            np.zeros((2, 12), np.float32)[:, ::2],
            np.frombuffer(bytes(48), np.float32).reshape(2, 6),
        ),
    ],
)
def test_output_that_cannot_hold_the_rows_is_rejected(out: Any) -> None:
    with pytest.raises(ValueError, match=r"float32 array \[2, 6\]"):
        ROWS.take(WANTED, out)
    with pytest.raises(ValueError, match=r"float32 array \[2, 6\]"):
        ROWS.bags(WANTED, np.array([0, 1, 2]), "sum", None, out)


@pytest.mark.parametrize("offsets", [[], [0, 3], [-1, 2], [0, 2, 1], [2, 0]])
def test_offsets_outside_the_rows_are_rejected(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        ROWS.bags(WANTED, np.array(offsets, np.int64), "sum", None, None)


def test_weights_and_combiner_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(ValueError, match="weights"):
        ROWS.bags(WANTED, np.array([0, 2]), "sum", np.ones(3, np.float32), None)
    with pytest.raises(ValueError, match="max"):
        ROWS.bags(WANTED, np.array([0, 2]), "max", None, None)


def test_many_rows_are_read_by_several_threads_at_once() -> None:
    wanted = np.random.default_rng(0).integers(0, 10, 200_000)  # enough for the GIL to be released
    expected = MEMORY.view(np.float32).reshape(10, 6)[wanted]
    with ThreadPoolExecutor(3) as pool:
        are_equal = pool.map(lambda _: np.array_equal(ROWS.take(wanted, None), expected), range(15))
    assert all(are_equal)
