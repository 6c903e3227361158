"""Operations that change shape and order: no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import (
    Computation,
    Shape,
    Value,
    is_same_size,
    is_static,
    with_shape,
)


def _broadcast_in_dim(equation: Equation, operand: Value, *_dynamic_sizes: Value) -> Value:
    """Adds axes of size 1; operations that need the repetitions make them."""
    axes = equation.params["broadcast_dimensions"]
    rank = len(equation.params["shape"])
    computation = Computation(equation.primitive, (operand,))
    tensor = operand.tensor
    added_axes = [axis for axis in range(rank) if axis not in axes]
    if added_axes:
        size_of = dict(zip(axes, tensor.shape.as_list(), strict=True))
        sizes: list[Any] = [size_of.get(axis, 1) for axis in range(rank)]
        # A reshape, one operation for all axes, can compute one open size.
        if sizes.count(None) > 1:
            for axis in added_axes:
                tensor = tf.expand_dims(tensor, axis)
        else:
            tensor = tf.reshape(tensor, [-1 if size is None else size for size in sizes])
    return Value(equation.shape, tensor, computation=computation)


def _reshape(equation: Equation, operand: Value, *_dynamic_sizes: Value) -> Value:
    tensor = equation.sizes.reshape(equation.sizes.full(operand), equation.shape)
    return Value(equation.shape, tensor, computation=Computation(equation.primitive, (operand,)))


def _squeeze(equation: Equation, operand: Value) -> Value:
    axes = equation.params["dimensions"]
    if not axes:
        return operand
    return Value(equation.shape, tf.squeeze(operand.tensor, axes))


def _transpose(equation: Equation, operand: Value) -> Value:
    return Value(equation.shape, tf.transpose(operand.tensor, equation.params["permutation"]))


def _concatenate(equation: Equation, *operands: Value) -> Value:
    tensors = [equation.sizes.full(operand) for operand in operands]
    tensor = tf.concat(tensors, equation.params["dimension"])
    return Value(equation.shape, tensor, computation=Computation(equation.primitive, operands))


def _slice(equation: Equation, operand: Value) -> Any:
    sizes = equation.sizes
    steps = equation.params["strides"] or (1,) * len(operand.shape)
    bounds = zip(
        equation.params["start_indices"],
        equation.params["limit_indices"],
        steps,
        operand.shape,
        strict=True,
    )
    slices = []
    for start, limit, step, size in bounds:
        begins_at_zero = is_static(start) and start == 0
        if begins_at_zero and step == 1 and is_same_size(limit, size):
            slices.append(slice(None))
        else:
            slices.append(slice(sizes.size(start), sizes.size(limit), step))
    return sizes.full(operand)[tuple(slices)]


def _dynamic_slice(equation: Equation, operand: Value, *starts: Value) -> Any:
    count = len(operand.shape)
    return window(equation, operand, [start.tensor for start in starts[:count]], equation.shape)


def window(equation: Equation, operand: Value, starts: list[Any], shape: Shape) -> Any:
    """Returns the window of an array that has a shape and begins at `starts`; as in JAX, a window
    that reaches beyond the array is moved inside.
    """
    sizes = equation.sizes
    first_positions = []
    for start, size, array_size in zip(starts, shape, operand.shape, strict=True):
        if is_same_size(size, array_size):
            first_positions.append(tf.constant(0, tf.int32))
            continue
        last = sizes.size(array_size) - sizes.size(size)
        first_positions.append(tf.clip_by_value(tf.cast(start, tf.int32), 0, last))
    return tf.slice(sizes.full(operand), tf.stack(first_positions), sizes.vector(shape))


def _dynamic_update_slice(equation: Equation, operand: Value, update: Value, *starts: Value) -> Any:
    """Replaces a slice along one axis, whole along every other axis."""
    axes = [
        axis
        for axis, size in enumerate(operand.shape)
        if not is_same_size(size, update.shape[axis])
    ]
    if not axes:
        return equation.sizes.full(update)
    if len(axes) > 1:
        raise equation.rejected(
            "it replaces part of a row of an array; replace whole rows, or use jnp.where"
        )
    (axis,) = axes
    axis_slice = AxisSlice(
        equation.sizes.full(update),
        axis,
        tf.cast(starts[axis].tensor, tf.int32),
        equation.sizes.size(update.shape[axis]),
    )
    return replace_slice(equation, operand, axis_slice)


@dataclass(frozen=True)
class AxisSlice:
    """A slice of an array along one axis.

    Attributes:
      tensor: The values of the slice.
      axis: The axis of the array.
      start: The first position; as in JAX, a slice that reaches beyond the array is moved inside.
      size: The number of positions.
    """

    tensor: Any
    axis: int
    start: Any
    size: Any


def replace_slice(equation: Equation, operand: Value, axis_slice: AxisSlice) -> Any:
    """Returns an array in which a slice is replaced."""
    axis = axis_slice.axis
    last = equation.sizes.size(operand.shape[axis]) - axis_slice.size
    is_known = isinstance(axis_slice.start, int) and isinstance(last, int)
    if is_known:
        start = min(max(axis_slice.start, 0), last)
    else:
        start = tf.clip_by_value(axis_slice.start, 0, last)
    array = equation.sizes.full(operand)
    outer_axes = (slice(None),) * axis
    parts = [axis_slice.tensor]
    # LiteRT reads the whole array as a slice that ends at 0: no empty slice is made.
    if not is_known or start > 0:
        parts.insert(0, array[(*outer_axes, slice(None, start))])
    if not is_known or start < last:
        parts.append(array[(*outer_axes, slice(start + axis_slice.size, None))])
    return tf.concat(parts, axis)


def _stack(equation: Equation, *operands: Value) -> Any:
    tensors = [equation.sizes.full(operand) for operand in operands]
    return tf.stack(tensors, equation.params["axis"])


def _unstack(equation: Equation, operand: Value) -> list[Any]:
    tensor = equation.sizes.full(operand)
    return list(tf.unstack(tensor, axis=equation.params["axis"]))


def _split(equation: Equation, operand: Value) -> list[Any]:
    axis = equation.params["axis"]
    return list(tf.split(equation.sizes.full(operand), equation.params["sizes"], axis))


def _pad(equation: Equation, operand: Value, filling: Value) -> Any:
    """Pads an array at the ends of its axes and between its values; a negative number cuts it."""
    config = equation.params["padding_config"]
    tensor = equation.sizes.full(operand)
    for axis, (_, _, gap) in enumerate(config):
        if gap:
            tensor = _spread(tensor, axis, gap, filling.tensor)

    cuts = []
    paddings = []
    for low, high, _ in config:
        end = high if high < 0 else None
        cuts.append(slice(max(-low, 0), end))
        paddings.append((max(low, 0), max(high, 0)))
    if any(cut != slice(0, None) for cut in cuts):
        tensor = tensor[tuple(cuts)]
    padded = tf.pad(tensor, paddings, constant_values=filling.tensor)
    return with_shape(padded, equation.shape)


def _spread(tensor: Any, axis: int, gap: int, filling: Any) -> Any:
    """Puts `gap` fillings between the values along an axis."""
    # Each value and the gap after it become an axis of their own, which is then joined with the
    # axis. The gap after the last value is cut off.
    paddings = [(0, 0)] * (tensor.shape.rank + 1)
    paddings[axis + 1] = (0, gap)
    padded = tf.pad(tf.expand_dims(tensor, axis + 1), paddings, constant_values=filling)
    shape = tf.shape(tensor)
    size = shape[axis] * (1 + gap)
    spread = tf.reshape(padded, tf.concat([shape[:axis], [size], shape[axis + 1 :]], 0))
    outer_axes = [slice(None)] * axis
    return spread[(*outer_axes, slice(0, size - gap))]


def _reverse(equation: Equation, operand: Value) -> Any:
    return tf.reverse(equation.sizes.full(operand), equation.params["dimensions"])


def _tile(equation: Equation, operand: Value) -> Any:
    # Code may repeat a constant for each example of the batch.
    repetitions = equation.sizes.vector(equation.params["reps"])
    return tf.tile(equation.sizes.full(operand), repetitions)


def _iota(equation: Equation, *_dynamic_sizes: Value) -> Value:
    axis = equation.params["dimension"]
    # One axis has the numbers; repetitions along the other axes wait.
    numbers = tf.range(equation.sizes.size(equation.shape[axis]), dtype=tf.int32)
    shape = [1] * len(equation.shape)
    shape[axis] = -1
    return Value(equation.shape, tf.cast(tf.reshape(numbers, shape), equation.dtype))


def _size_as_value(equation: Equation) -> Any:
    return tf.cast(equation.sizes.size(equation.params["dim"]), equation.dtype)


OPERATIONS: dict[str, Handler] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "dim_as_value": _size_as_value,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "transpose": _transpose,
    "unstack": _unstack,
}
