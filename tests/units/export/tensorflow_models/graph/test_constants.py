"""Tensors of a traced call that depend on no input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values
from tests.units.export.tensorflow_models.graph.traced_calls import ids, trace

CAPTURED = tf.range(200)
"""So many numbers that TensorFlow captures them, instead of a copy in the graph."""
VARIABLE = tf.Variable([3, 4, 5])
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
        tf.constant([10, 20, 30], tf.int64), tf.constant([0, 1, 2], tf.int64)
    ),
    -1,
)


def batch(x: Any) -> Any:
    return tf.shape(x)[0]


@pytest.mark.parametrize(
    ("change", "value"),
    [
        pytest.param(lambda _: tf.constant([1, 2]), [1, 2], id="constant"),
        pytest.param(lambda _: tf.constant([1, 2]) * 3 + 1, [4, 7], id="computed"),
        pytest.param(lambda _: tf.identity(CAPTURED) + 1, list(range(1, 201)), id="captured"),
        pytest.param(lambda _: tf.identity(TABLE.resource_handle), None, id="a resource"),
        pytest.param(lambda _: TABLE.size() + 1, 4, id="size of a table"),
        pytest.param(tf.zeros_like, 0, id="zeros like an input"),
        pytest.param(tf.ones_like, 1, id="ones like an input"),
        pytest.param(lambda x: tf.fill([batch(x)], 7), 7, id="filled for each example"),
        pytest.param(
            lambda x: tf.broadcast_to(tf.constant(7), [batch(x)]), 7, id="one for each example"
        ),
        pytest.param(lambda _: tf.fill([2, 1], 7), 7, id="filled"),
        pytest.param(lambda x: tf.fill([batch(x)], 7) * 2, 14, id="computed of a filled one"),
        pytest.param(
            lambda x: tf.broadcast_to(tf.constant([[7, 8]]), [batch(x), 2]), None, id="two for each"
        ),
        pytest.param(lambda x: x + 1, None, id="an input"),
        pytest.param(lambda x: tf.fill([batch(x)], x[0]), None, id="filled with an input"),
        pytest.param(lambda _: VARIABLE.read_value(), None, id="a variable"),
        pytest.param(lambda _: tf.random.uniform([2]), None, id="random"),
        pytest.param(lambda _: tf.range(1 << 20) + 1, None, id="too many values"),
    ],
)
def test_constant_is_the_value_of_what_depends_on_no_input(change: Any, value: Any) -> None:
    traced = trace(lambda features: {"found": change(features["x"])}, x=ids())
    constant = traced.calls.constant(traced.results["found"])
    if value is None:
        assert constant is None
    else:
        assert constant is not None
        # A single value may represent all of a tensor.
        np.testing.assert_array_equal(constant, np.array(value, constant.dtype), strict=True)


@pytest.mark.parametrize(
    ("constant", "position", "count", "number"),
    [
        (5, 0, 0, 5),
        ([5], 0, 0, 5),
        ([2.5], 1, 3, 2.5),
        ([5, 6, 7], 1, 3, 6),
        ([[5, 6, 7]], 2, 3, 7),
        ([5, 6], 1, 3, None),
        (["5"], 0, 0, None),
        ([True], 0, 0, None),
    ],
)
def test_number_is_what_all_values_equal(
    constant: Any, position: int, count: int, number: float | None
) -> None:
    traced = trace(lambda features: {"x": features["x"], "c": tf.constant(constant)}, x=ids())
    values = Values(traced.results["c"], position, count)
    assert traced.calls.number(values) == number
