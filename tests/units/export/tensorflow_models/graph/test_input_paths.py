from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.graph.input_paths import Values, per_example
from export.tensorflow_models.graph.origins import Source
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers, trace


def origins(change: Any, **inputs: Any) -> list[Source | str]:
    """Returns the source of each value of an example, or the operation that computes it."""
    traced = trace(lambda features: {"result": change(features)}, **inputs)
    result = traced.results["result"]
    size = per_example(result)
    assert size is not None
    origins_of_columns = [
        traced.calls.origin(Values(result, position, size)) for position in range(size)
    ]
    return [origin if isinstance(origin, Source) else origin.type for origin in origins_of_columns]


def test_origin_of_all_values_is_their_input() -> None:
    traced = trace(
        lambda features: {"result": tf.reshape(tf.cast(features["x"], tf.int32), [-1])}, x=ids(3)
    )
    assert traced.calls.origin(Values(traced.results["result"])) == Source("x", "dense")


@pytest.mark.parametrize(
    ("change", "positions"),
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
def test_origin_of_selected_columns_is_their_place(change: Any, positions: list[int]) -> None:
    actual = origins(lambda features: change(features["x"]), x=ids(4))
    assert actual == [Source("x", "dense", position) for position in positions]


def test_origin_of_joined_inputs_is_each_input() -> None:
    actual = origins(
        lambda features: tf.concat([features["y"][:, 1:], features["x"]], 1), x=ids(2), y=ids(2)
    )
    assert actual == [
        Source("y", "dense", 1),
        Source("x", "dense", 0),
        Source("x", "dense", 1),
    ]


def test_origin_of_computed_values_is_the_operation() -> None:
    actual = origins(
        lambda features: tf.concat([features["x"][:, :1], features["x"][:, 1:] * 2], 1), x=ids(2)
    )
    assert actual == [Source("x", "dense", 0), "Mul"]


@pytest.mark.parametrize(
    ("dtypes", "origin"),
    [
        ((tf.float32, tf.float64), Source("n", "dense")),
        ((tf.float16, tf.float32), "Cast"),
        ((tf.bfloat16, tf.float32), "Cast"),
        ((tf.float64, tf.float32), "Cast"),
    ],
)
def test_origin_of_floats_that_are_rounded_is_the_cast(dtypes: Any, origin: Any) -> None:
    def call(features: Any) -> Any:
        numbers = features["n"]
        for dtype in dtypes:
            numbers = tf.cast(numbers, dtype)
        return numbers

    assert origins(call, n=numbers(1)) == [origin]


@pytest.mark.parametrize(
    ("before", "after", "origin"),
    [
        (tf.float16, tf.bfloat16, "Cast"),
        (tf.bfloat16, tf.float16, "Cast"),
        (tf.bfloat16, tf.float32, Source("n", "dense")),
    ],
)
def test_origin_of_half_precision_floats_in_another_format_is_the_cast(
    before: Any, after: Any, origin: Any
) -> None:
    actual = origins(
        lambda features: tf.cast(features["n"], after), n=tf.TensorSpec([None, 1], before)
    )
    assert actual == [origin]


@pytest.mark.parametrize(
    ("offsets", "number"),
    [
        (5, 5),
        ([5], 5),
        ([[5]], 5),
        ([10, 20, 30], 20),
        ([[10, 20, 30]], 20),
    ],
)
def test_values_inputs_of_a_broadcast_sum_are_those_of_the_same_place(
    offsets: Any, number: int
) -> None:
    traced = trace(lambda features: {"result": features["x"] + offsets}, x=ids(3))
    calls = traced.calls
    ids_value, offset = Values(traced.results["result"], 1, 3).inputs
    assert calls.origin(ids_value) == Source("x", "dense", 1)
    assert calls.number(offset) == number


@pytest.mark.parametrize(
    ("offsets", "numbers"),
    [
        ([[1], [2]], [1, 1, 2, 2]),
        ([[3, 4]], [3, 4, 3, 4]),
        ([[1, 2], [3, 4]], [1, 2, 3, 4]),
    ],
)
def test_values_inputs_of_a_sum_of_matrices_are_those_of_the_same_place(
    offsets: Any, numbers: list[int]
) -> None:
    traced = trace(lambda features: {"result": features["x"] + offsets}, x=ids(2, 2))
    operands = [Values(traced.results["result"], position, 4).inputs for position in range(4)]
    sources = [traced.calls.origin(operand) for operand, _ in operands]
    assert sources == [Source("x", "dense", position) for position in range(4)]
    assert [traced.calls.number(offset) for _, offset in operands] == numbers


def test_values_inputs_of_a_sum_over_an_axis_are_all_values() -> None:
    traced = trace(lambda features: {"result": tf.reduce_sum(features["x"], 1)}, x=ids(2, 3))
    summed, _ = Values(traced.results["result"], 1, 3).inputs
    assert traced.calls.origin(summed) == Source("x", "dense")


def test_values_inputs_of_all_values_are_all_of_each_operand() -> None:
    traced = trace(lambda features: {"result": features["x"] + [10, 20, 30]}, x=ids(3))
    whole, offsets = Values(traced.results["result"]).inputs
    assert traced.calls.origin(whole) == Source("x", "dense")
    assert (offsets.position, offsets.count) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3,), [(1, 3), (1, 3)]),
        ((), [(1, 3), (0, 1)]),
        ((1,), []),
    ],
)
def test_values_inputs_of_a_fixed_batch_are_known_of_one_shape_or_a_number(
    shape: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    traced = trace(
        lambda features: {"result": features["x"] + features["y"]},
        x=tf.TensorSpec([3], tf.int64),
        y=tf.TensorSpec(shape, tf.int64),
    )
    operands = Values(traced.results["result"], 1, 3).inputs
    assert [(values.position, values.count) for values in operands] == expected


@pytest.mark.parametrize(
    ("shape", "source"),
    [
        ((3,), Source("y", "dense", 1)),
        ((1,), Source("y", "dense")),
        ((), None),
        ((None,), None),
    ],
)
def test_values_inputs_of_another_input_are_those_that_stand_beside(
    shape: tuple[int | None, ...], source: Source | None
) -> None:
    traced = trace(
        lambda features: {"result": tf.ensure_shape(features["x"] + features["y"], [None, 3])},
        x=ids(3),
        y=tf.TensorSpec([None, *shape], tf.int64),
    )
    added = traced.results["result"].op.inputs[0]
    if added.shape.as_list() != [None, 3]:
        added.set_shape([None, 3])
    _, operand = Values(added, 1, 3).inputs
    origin = traced.calls.origin(operand)
    assert (origin if isinstance(origin, Source) else None) == source


def test_values_inputs_of_a_product_with_a_matrix_are_not_one_number() -> None:
    matrix = tf.constant([[10, 20, 30], [40, 50, 60]], tf.int64)
    traced = trace(lambda features: {"result": tf.matmul(features["x"], matrix)}, x=ids(2))
    for position in range(3):
        _, factor = Values(traced.results["result"], position, 3).inputs
        assert traced.calls.number(factor) is None
    beyond, _ = Values(traced.results["result"], 2, 3).inputs
    assert isinstance(traced.calls.origin(beyond), Values)


def test_origin_of_more_values_than_an_example_has_is_not_known() -> None:
    traced = trace(lambda features: {"result": tf.identity(features["x"])}, x=ids(3))
    values = Values(traced.results["result"], 1, 6)
    assert isinstance(traced.calls.origin(values), Values)


def test_origin_of_floats_that_are_moved_or_cast_to_longer_ones_is_their_input() -> None:
    actual = origins(
        lambda features: tf.cast(tf.reshape(features["n"], [-1, 1]), tf.float64), n=numbers()
    )
    assert actual == [Source("n", "dense")]


def test_constant_of_what_depends_on_no_input_is_computed() -> None:
    captured = tf.constant([1, 2, 3])

    def call(features: Any) -> dict[str, Any]:
        return {"known": tf.cumsum(captured) * 2, "unknown": features["x"] + 1}

    traced = trace(call, x=ids())
    np.testing.assert_array_equal(traced.calls.constant(traced.results["known"]), [2, 6, 12])
    assert traced.calls.constant(traced.results["unknown"]) is None


def test_per_example_of_an_open_or_a_fixed_batch() -> None:
    traced = trace(
        lambda features: {
            "open": features["x"],
            "single": features["x"][:, 0, 0],
            "fixed": tf.zeros([4, 2]),
            "unknown": features["y"],
        },
        x=ids(2, 3),
        y=tf.TensorSpec([None, None], tf.int64),
    )
    sizes = {name: per_example(tensor) for name, tensor in traced.results.items()}
    assert sizes == {"open": 6, "single": 1, "fixed": None, "unknown": None}
    assert per_example(tf.constant(1)) is None
