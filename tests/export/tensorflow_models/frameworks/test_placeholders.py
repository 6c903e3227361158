from __future__ import annotations

import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import (
    FIRST_VALUE_BYTES,
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
