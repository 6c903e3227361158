from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values, per_example
from export.tensorflow_models.graph.origins import Source
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, trace


def origins(change: Any, **inputs: Any) -> list[Source | str]:
    """Returns the source of each value of an example, or the operation that computes it."""
    traced = trace(lambda features: {"result": change(features)}, **inputs)
    result = traced.results["result"]
    size = per_example(result)
    assert size is not None
    found = [traced.calls.origin(Values(result, place, size)) for place in range(size)]
    return [each if isinstance(each, Source) else each.type for each in found]


def test_origin_of_all_values_is_their_input() -> None:
    traced = trace(
        lambda features: {"result": tf.reshape(tf.cast(features["x"], tf.int32), [-1])}, x=ids(3)
    )
    assert traced.calls.origin(Values(traced.results["result"])) == Source("x", "dense")


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (lambda x: x[:, 1:3], [1, 2]),
        (lambda x: tf.gather(x, [3, 0], axis=1), [3, 0]),
        (lambda x: tf.reverse(x, [1]), [3, 2, 1, 0]),
        (lambda x: tf.transpose(tf.reshape(x, [-1, 2, 2]), [0, 2, 1]), [0, 2, 1, 3]),
        (lambda x: tf.split(x, 2, axis=1)[1], [2, 3]),
        (lambda x: tf.stack(tf.unstack(x, axis=1)[2:], 1), [2, 3]),
    ],
    ids=["slice", "gather", "reverse", "transpose", "split", "unstack"],
)
def test_origin_of_selected_columns_is_their_place(change: Any, places: list[int]) -> None:
    found = origins(lambda features: change(features["x"]), x=ids(4))
    assert found == [Source("x", "dense", place) for place in places]


def test_origin_of_joined_inputs_is_each_input() -> None:
    found = origins(
        lambda features: tf.concat([features["y"][:, 1:], features["x"]], 1), x=ids(2), y=ids(2)
    )
    assert found == [
        Source("y", "dense", 1),
        Source("x", "dense", 0),
        Source("x", "dense", 1),
    ]


def test_origin_of_computed_values_is_the_operation() -> None:
    found = origins(
        lambda features: tf.concat([features["x"][:, :1], features["x"][:, 1:] * 2], 1), x=ids(2)
    )
    assert found == [Source("x", "dense", 0), "Mul"]


def test_origin_of_floats_that_are_rounded_is_the_cast() -> None:
    found = origins(
        lambda features: tf.cast(tf.cast(features["n"], tf.float16), tf.float32), n=numbers(1)
    )
    assert found == ["Cast"]


def test_values_inputs_of_a_broadcast_sum_are_those_of_the_same_place() -> None:
    offsets = [10, 20, 30]
    traced = trace(lambda features: {"result": features["x"] + offsets}, x=ids(3))
    values = Values(traced.results["result"], 1, 3)
    calls = traced.calls
    ids_value, offset = values.inputs
    assert calls.origin(ids_value) == Source("x", "dense", 1)
    assert calls.number(offset) == 20


def test_constant_of_what_depends_on_no_input_is_computed() -> None:
    captured = tf.constant([1, 2, 3])

    def call(features: Any) -> dict[str, Any]:
        return {"known": tf.cumsum(captured) * 2, "unknown": features["x"] + 1}

    traced = trace(call, x=ids())
    np.testing.assert_array_equal(traced.calls.constant(traced.results["known"]), [2, 6, 12])
    assert traced.calls.constant(traced.results["unknown"]) is None


def test_per_example_of_an_open_or_a_fixed_batch() -> None:
    traced = trace(lambda features: {"open": features["x"], "fixed": tf.zeros([4, 2])}, x=ids(2, 3))
    assert per_example(traced.results["open"]) == 6
    assert per_example(traced.results["fixed"]) is None
    assert per_example(tf.constant(1)) is None
