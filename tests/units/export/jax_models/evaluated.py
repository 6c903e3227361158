"""Evaluates functions of JAX as TensorFlow operations, beside JAX itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from numpy.typing import NDArray

from export.graphs.loading import tf
from export.jax_models.evaluation import Evaluator
from export.jax_models.loading import jax
from export.jax_models.open_batch import with_open_batch
from export.jax_models.tracing import BATCH, trace
from export.jax_models.values import Value

DTYPES = ("float32", "bfloat16")
EXAMPLES = settings(max_examples=2, phases=[Phase.generate])
"""Few, since each is compiled; and not made smaller, which compiles hundreds."""
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2}
"""Of what TensorFlow and JAX round differently, relative to the largest value."""


def check_same(function: Callable[..., Any], *arrays: NDArray[Any]) -> None:
    """Checks that a function of arrays gives the same in TensorFlow, traced for any batch, as in
    JAX.

    Args:
      function: The function, of these arrays, whose first axis is the batch.
      arrays: The arguments, NumPy arrays.
    """
    check_all({"function": function}, *arrays)


def check_all(functions: Mapping[str, Callable[..., Any]], *arrays: NDArray[Any]) -> None:
    """Checks functions as `check_same` does, in one trace: compiling takes most of the time."""

    def every(*values: Any) -> dict[str, Any]:
        return {name: function(*values) for name, function in functions.items()}

    result = jax.jit(every)(*arrays)
    expected, _ = jax.tree.flatten_with_path(result)
    results = evaluated(every, *arrays)
    assert len(results) == len(expected)
    for actual, (path, leaf) in zip(results, expected, strict=True):
        assert_close(actual, np.asarray(leaf), jax.tree_util.keystr(path))


def assert_close(actual: NDArray[Any], expected: NDArray[Any], what: str) -> None:
    """Checks shape, dtype and values."""
    assert (what, actual.shape) == (what, expected.shape)
    assert (what, actual.dtype) == (what, expected.dtype)
    tolerance = TOLERANCE.get(str(expected.dtype))
    if tolerance is None:
        np.testing.assert_array_equal(actual, expected, what)
        return
    wide = expected.astype(np.float64)
    scale = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
    narrow = actual.astype(np.float64)
    np.testing.assert_allclose(narrow, wide, tolerance, tolerance * scale, err_msg=what)


def evaluated(function: Callable[..., Any], *arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """Returns what a function gives when it is evaluated in a graph for any batch."""
    graph = graph_of(function, *arrays)
    actual = graph(*(tf.constant(array) for array in arrays))
    # NumPy makes no array of a single bfloat16 by itself.
    return [np.asarray(tensor.numpy()) for tensor in actual]


def graph_of(function: Callable[..., Any], *arrays: NDArray[Any]) -> Any:
    """Returns a function as a graph of TensorFlow for any batch; it is evaluated when it is called,
    or by its `get_concrete_function()`.
    """
    names = [f"x{number}" for number in range(len(arrays))]
    specs = {
        name: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
        for name, array in zip(names, arrays, strict=True)
    }

    def of_dict(_parameters: Any, inputs: dict[str, Any]) -> Any:
        return function(*(inputs[name] for name in names))

    traced = trace(of_dict, {}, specs, "the function")

    def body(*tensors: Any) -> list[Any]:
        batch = tf.shape(tensors[0])[0]
        values = [
            Value((aval.shape), tensor)
            for aval, tensor in zip(traced.jaxpr.in_avals, tensors, strict=True)
        ]
        return Evaluator({BATCH: batch}).results(traced.jaxpr, values)

    return tf.function(body, input_signature=[specs[name] for name in names], autograph=False)


def with_opened_batch(
    function: Callable[..., Any], batch: int, positions: Sequence[int], *arrays: NDArray[Any]
) -> list[NDArray[Any]]:
    """Returns what a function gives that is traced in a fixed batch, which is then opened.

    Args:
      function: The function, of these arrays; it may run in that batch only.
      batch: The number of examples that it is traced with.
      positions: The number of entries of an array's first axis that belong to one example.
      arrays: Arrays of any number of examples.
    """
    names = [f"x{number}" for number in range(len(arrays))]
    specs = {
        name: tf.TensorSpec([None, *array.shape[1:]], array.dtype)
        for name, array in zip(names, arrays, strict=True)
    }

    def of_dict(_parameters: Any, inputs: dict[str, Any]) -> Any:
        return function(*(inputs[name] for name in names))

    sizes = dict(zip(names, positions, strict=True))
    fixed = trace(of_dict, {}, specs, "the function", positions=sizes, batch=batch)
    opened = with_open_batch(fixed, batch, positions)

    def body(*tensors: Any) -> list[Any]:
        values = [
            Value(aval.shape, tensor)
            for aval, tensor in zip(opened.jaxpr.in_avals, tensors, strict=True)
        ]
        examples = tf.shape(tensors[0])[0] // positions[0]
        return Evaluator({BATCH: examples}).results(opened.jaxpr, values)

    graph = tf.function(body, input_signature=[*specs.values()], autograph=False)
    actual = graph(*(tf.constant(array) for array in arrays))
    return [np.asarray(tensor.numpy()) for tensor in actual]
