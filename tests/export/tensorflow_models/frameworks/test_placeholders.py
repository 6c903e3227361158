from __future__ import annotations

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import (
    FIRST_VALUE_BYTES,
    early_rows,
    line_of_early,
    restoring_up_to,
    tables_unallocated,
)

COLUMNS = 1024
LARGE = (FIRST_VALUE_BYTES // (4 * COLUMNS) + 1, COLUMNS)
"""One row more than a matrix that gets its initial value whatever the limit."""
LARGE_BYTES = 4 * LARGE[0] * LARGE[1]


def twos(*shape: int) -> tf.Variable:
    return tf.Variable(lambda: tf.fill(shape, 2.0), shape=shape, dtype=tf.float32)


@pytest.mark.parametrize("limit", [0, LARGE_BYTES])
def test_matrix_that_is_read_has_its_initial_value(limit: int) -> None:
    with restoring_up_to(limit), tables_unallocated():
        assert float(twos(2, 3)[1, 2]) == 2


@pytest.mark.parametrize(("limit", "has_value"), [(LARGE_BYTES, True), (LARGE_BYTES - 1, False)])
def test_large_matrix_has_its_initial_value_only_up_to_the_limit(
    limit: int, has_value: bool
) -> None:
    with restoring_up_to(limit), tables_unallocated():
        large = twos(*LARGE)
        large.read_value()
    assert bool(large.is_initialized()) == has_value


def test_rows_that_were_read_early_name_the_line_that_read_them() -> None:
    reads = [
        early_rows([2, 3], tf.float32).numpy(),
        early_rows([2, 3], tf.float32).numpy(),
        early_rows([4], tf.float32).numpy(),
    ]
    files, lines = zip(*(line_of_early(each).split(":") for each in reads), strict=True)
    assert {file.rpartition("/")[2] for file in files} == {"test_placeholders.py"}
    assert np.diff(list(map(int, lines))).tolist() == [1, 1]
    beside = np.concatenate([np.array([0, 1, -1], np.float32), reads[2]])
    assert line_of_early(beside) == line_of_early(reads[2])


def test_numbers_that_are_no_early_rows_name_no_line() -> None:
    early = early_rows([1], tf.float32).numpy()
    for others in (early * 2, early / 2, -early, early.astype(np.float64), early[:0]):
        assert line_of_early(others) == ""
