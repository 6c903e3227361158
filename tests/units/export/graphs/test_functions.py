"""What traced functions say of the values that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.graphs.functions import asserts_without
from export.graphs.loading import load_tensorflow, tf

load_tensorflow()


def all_known(rows: Any) -> None:
    missing = tf.where(tf.equal(rows, -1))
    tf.Assert(tf.equal(tf.size(missing), 0), ["unknown"])


CHECKS: dict[str, tuple[Callable[[Any], object], bool]] = {
    "no row is -1": (all_known, True),
    "no row is negative": (lambda rows: tf.debugging.assert_greater_equal(rows, 0), True),
    "rows are -1 at least": (lambda rows: tf.debugging.assert_greater_equal(rows, -1), False),
    "rows are in a table": (lambda rows: tf.debugging.assert_less(rows, 5), False),
    "another tensor": (lambda rows: tf.debugging.assert_equal(tf.rank(rows), 1), False),
    "nothing": (lambda rows: tf.equal(rows, -1), False),
}


@pytest.mark.parametrize("case", CHECKS)
def test_assertion_that_fails_for_a_value_is_known(case: str) -> None:
    check, fails = CHECKS[case]

    def call(ids: Any) -> Any:
        rows = tf.identity(ids)
        check(rows)
        return rows

    traced = tf.function(call).get_concrete_function(tf.TensorSpec([None], tf.int32))
    (rows,) = (
        operation.outputs[0]
        for operation in traced.graph.get_operations()
        if operation.name == "Identity"
    )
    assert asserts_without(rows, -1) == fails
