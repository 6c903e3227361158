"""Reductions, cumulative operations, sorting and the largest values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.elementwise import function_of
from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Value


def _reduction(operation: Callable[..., Any]) -> Handler:
    def handle(equation: Equation, operand: Value) -> Value:
        axes = equation.params["axes"]
        tensor = operand.tensor
        sizes = tensor.shape.as_list()
        # A sum over an axis that is not yet repeated would count its entry once. Repetitions along
        # any other axis may wait.
        is_repeated = any(sizes[axis] == 1 and operand.shape[axis] != 1 for axis in axes)
        if is_repeated:
            tensor = equation.sizes.full(operand)
        return Value(equation.shape, operation(tensor, axis=list(axes)))

    return handle


def _position_of_extreme(operation: Callable[..., Any]) -> Handler:
    def handle(equation: Equation, operand: Value) -> Any:
        (axis,) = equation.params["axes"]
        return operation(equation.sizes.full(operand), axis, output_type=equation.dtype)

    return handle


def _cumulative(operation: Callable[..., Any]) -> Handler:
    def handle(equation: Equation, operand: Value) -> Any:
        tensor = equation.sizes.full(operand)
        return operation(tensor, equation.params["axis"], reverse=equation.params["reverse"])

    return handle


def _top_k(equation: Equation, operand: Value) -> list[Any]:
    axis = equation.params["axis"] % len(operand.shape)
    k = equation.params["k"]
    tensor = equation.sizes.full(operand)
    # TensorFlow finds the largest values along the last axis only.
    values, indices = tf.math.top_k(_swap_with_last(tensor, axis), k, index_type=equation.dtypes[1])
    return [_swap_with_last(values, axis), _swap_with_last(indices, axis)]


def _swap_with_last(tensor: Any, axis: int) -> Any:
    """Swaps an axis and the last one."""
    last = tensor.shape.rank - 1
    if axis == last:
        return tensor
    order = list(range(last + 1))
    order[axis] = last
    order[last] = axis
    return tf.transpose(tensor, order)


def _sort(equation: Equation, *operands: Value) -> list[Any]:
    axis = equation.params["dimension"]
    if equation.params["num_keys"] != 1:
        raise equation.rejected("it sorts by several keys; sort by one key at a time")
    tensors = [equation.sizes.full(operand) for operand in operands]
    if len(tensors) == 1:
        return [tf.sort(tensors[0], axis)]
    # The first operand is the key, and the order of its values is that of all operands.
    rows = [_swap_with_last(tensor, axis) for tensor in tensors]
    order = tf.argsort(rows[0], -1, stable=True)
    batch_dims = len(equation.shape) - 1
    return [_swap_with_last(tf.gather(row, order, batch_dims=batch_dims), axis) for row in rows]


OPERATIONS: dict[str, Handler] = {
    "argmax": _position_of_extreme(function_of("math.argmax")),
    "argmin": _position_of_extreme(function_of("math.argmin")),
    "cumlogsumexp": _cumulative(function_of("math.cumulative_logsumexp")),
    "cumprod": _cumulative(function_of("math.cumprod")),
    "cumsum": _cumulative(function_of("math.cumsum")),
    "reduce_and": _reduction(function_of("math.reduce_all")),
    "reduce_max": _reduction(function_of("math.reduce_max")),
    "reduce_min": _reduction(function_of("math.reduce_min")),
    "reduce_or": _reduction(function_of("math.reduce_any")),
    "reduce_prod": _reduction(function_of("math.reduce_prod")),
    "reduce_sum": _reduction(function_of("math.reduce_sum")),
    "sort": _sort,
    "top_k": _top_k,
}
