"""Sizes that depend on the batch, and values that are repeated only where that is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import load_tensorflow, tf
from export.jax_models.values import Computation, Parameter, Sizes, Value, constant, is_static

jax = pytest.importorskip("jax")
load_tensorflow()
(BATCH,) = jax.export.symbolic_shape("b")
SIZES = Sizes({"b": tf.constant(3)})


@pytest.mark.parametrize("size", [3, np.int64(3)])
def test_number_is_a_static_size(size: Any) -> None:
    assert is_static(size)
    assert SIZES.size(size) == 3
    assert type(SIZES.size(size)) is int


def test_size_of_the_batch_is_a_tensor() -> None:
    assert not is_static(BATCH)
    assert int(SIZES.size(2 * BATCH + 1)) == 7
    assert SIZES.vector([4, 5]) == [4, 5]
    assert SIZES.vector([BATCH, 5]).numpy().tolist() == [3, 5]


@pytest.mark.parametrize(
    ("shape", "static_sizes"),
    [
        ((2, 6), [2, 6]),
        ((BATCH, 4), [None, 4]),
        ((4, BATCH), [4, None]),
        ((BATCH, 1, 4), [None, 1, 4]),
    ],
)
def test_reshape_keeps_the_sizes_that_are_known(
    shape: tuple[Any, ...], static_sizes: list[int | None]
) -> None:
    spec = tf.TensorSpec([None], tf.float32)
    reshaped = tf.function(
        lambda values: SIZES.reshape(values, shape), input_signature=[spec], autograph=False
    )
    graph = reshaped.get_concrete_function()
    assert graph.outputs[0].shape.as_list() == static_sizes
    actual = graph(tf.range(12.0)).numpy()
    assert actual.shape == tuple(3 if size is None else size for size in static_sizes)
    assert actual.reshape(-1).tolist() == list(range(12))


def test_reshape_to_two_open_sizes_or_to_nothing() -> None:
    assert SIZES.reshape(tf.range(9.0), (BATCH, BATCH)).shape == (3, 3)
    assert SIZES.reshape(tf.zeros([0]), (BATCH, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("tensor_shape", "shape", "expected"),
    [
        ((1, 2), (BATCH, 2), (3, 2)),
        ((3, 2), (BATCH, 2), (3, 2)),
        ((1, 2), (4, 2), (4, 2)),
        ((1, 2), (1, 2), (1, 2)),
        ((3, 1), (BATCH, 2), (3, 2)),
        ((2,), (BATCH, 2), (3, 2)),
        ((), (), ()),
    ],
)
def test_value_is_repeated_to_its_whole_shape(
    tensor_shape: tuple[int, ...], shape: tuple[Any, ...], expected: tuple[int, ...]
) -> None:
    tensor = tf.ones(tensor_shape)
    actual = SIZES.full(Value(shape, tensor))
    assert actual.shape == expected
    assert (actual is tensor) is (tensor_shape == expected)


def test_value_tells_what_made_it() -> None:
    one_value = constant(1)
    added = Value((), tf.constant(2), computation=Computation("add", (one_value, one_value)))
    assert added.arguments_of("add") == (one_value, one_value)
    assert added.arguments_of("sub") == ()
    assert one_value.arguments_of("add") == ()


def test_constant_is_known_and_made_where_it_is_needed() -> None:
    value = constant(np.array([1, 2], np.int32))
    assert value.shape == (2,)
    assert np.asarray(value.constant).tolist() == [1, 2]
    with tf.Graph().as_default() as graph:
        assert value.tensor.graph is graph
    assert value.tensor.numpy().tolist() == [1, 2]


def test_parameter_is_read_whole_where_something_else_takes_it() -> None:
    parameter = Parameter(tf.Variable([[1.0, 2.0]]))
    assert parameter.shape == (1, 2)
    assert parameter.constant is None
    assert parameter.tensor.numpy().tolist() == [[1, 2]]
