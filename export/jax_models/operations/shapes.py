"""Operations that change shape and order: no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import MadeBy, Shape, Value, is_static, with_shape


def _broadcast_in_dim(equation: Equation, operand: Value, *_dynamic_sizes: Value) -> Value:
    """Adds axes of size 1; repetitions are left to who needs them."""
    axes = equation.params["broadcast_dimensions"]
    rank = len(equation.params["shape"])
    made_by = MadeBy(equation.primitive, (operand,))
    tensor = operand.tensor
    added = [axis for axis in range(rank) if axis not in axes]
    if added:
        held = tensor.shape.as_list()
        size_of = dict(zip(axes, held, strict=True))
        sizes: list[Any] = [size_of.get(axis, 1) for axis in range(rank)]
        if sizes.count(None) > 1:
            for axis in added:
                tensor = tf.expand_dims(tensor, axis)
        else:
            tensor = tf.reshape(tensor, [-1 if size is None else size for size in sizes])
    return Value(equation.shape, tensor, made_by=made_by)


def _reshape(equation: Equation, operand: Value, *_dynamic_sizes: Value) -> Value:
    tensor = equation.sizes.reshape(equation.sizes.full(operand), equation.shape)
    return Value(equation.shape, tensor, made_by=MadeBy(equation.primitive, (operand,)))


def _squeeze(equation: Equation, operand: Value) -> Value:
    axes = equation.params["dimensions"]
    if not axes:
        return operand
    return Value(equation.shape, tf.squeeze(operand.tensor, axes))


def _transpose(equation: Equation, operand: Value) -> Value:
    return Value(equation.shape, tf.transpose(operand.tensor, equation.params["permutation"]))


def _concatenate(equation: Equation, *operands: Value) -> Any:
    return tf.concat(
        [equation.sizes.full(operand) for operand in operands], equation.params["dimension"]
    )


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
    parts = []
    for start, limit, step, size in bounds:
        whole = is_static(start) and start == 0 and step == 1 and _same_size(limit, size)
        parts.append(slice(None) if whole else slice(sizes.size(start), sizes.size(limit), step))
    return sizes.full(operand)[tuple(parts)]


def _same_size(left: Any, right: Any) -> bool:
    return is_static(left) == is_static(right) and bool(left == right)


def _dynamic_slice(equation: Equation, operand: Value, *starts: Value) -> Any:
    count = len(operand.shape)
    return window(equation, operand, [start.tensor for start in starts[:count]], equation.shape)


def window(equation: Equation, operand: Value, starts: list[Any], shape: Shape) -> Any:
    """Returns the part of a shape that begins at `starts`, moved inside as JAX does."""
    sizes = equation.sizes
    inside = []
    for start, size, whole in zip(starts, shape, operand.shape, strict=True):
        if _same_size(size, whole):
            inside.append(tf.constant(0, tf.int32))
            continue
        last = sizes.size(whole) - sizes.size(size)
        inside.append(tf.clip_by_value(tf.cast(start, tf.int32), 0, last))
    return tf.slice(sizes.full(operand), tf.stack(inside), sizes.vector(shape))


def _dynamic_update_slice(equation: Equation, operand: Value, update: Value, *starts: Value) -> Any:
    """Replaces a part along one axis; the others are whole."""
    axes = [
        axis for axis, size in enumerate(operand.shape) if not _same_size(size, update.shape[axis])
    ]
    if not axes:
        return equation.sizes.full(update)
    if len(axes) > 1:
        raise equation.rejected(
            "it replaces part of a row of an array; replace whole rows, or use jnp.where"
        )
    (axis,) = axes
    part = Part(
        equation.sizes.full(update),
        axis,
        tf.cast(starts[axis].tensor, tf.int32),
        equation.sizes.size(update.shape[axis]),
    )
    return replace_part(equation, operand, part)


@dataclass(frozen=True)
class Part:
    """A part of an array along one axis: `size` values from `start`, moved inside as JAX does."""

    tensor: Any
    axis: int
    start: Any
    size: Any


def replace_part(equation: Equation, operand: Value, part: Part) -> Any:
    """Returns an array with another part."""
    last = equation.sizes.size(operand.shape[part.axis]) - part.size
    start = tf.clip_by_value(part.start, 0, last)
    whole = equation.sizes.full(operand)
    ahead = (slice(None),) * part.axis
    before = whole[(*ahead, slice(None, start))]
    after = whole[(*ahead, slice(start + part.size, None))]
    return tf.concat([before, part.tensor, after], part.axis)


def _stack(equation: Equation, *operands: Value) -> Any:
    tensors = [equation.sizes.full(operand) for operand in operands]
    return tf.stack(tensors, equation.params.get("axis", 0))


def _unstack(equation: Equation, operand: Value) -> list[Any]:
    tensor = equation.sizes.full(operand)
    return list(tf.unstack(tensor, axis=equation.params.get("axis", 0)))


def _split(equation: Equation, operand: Value) -> list[Any]:
    axis = equation.params["axis"]
    return list(tf.split(equation.sizes.full(operand), equation.params["sizes"], axis))


def _pad(equation: Equation, operand: Value, filling: Value) -> Any:
    config = equation.params["padding_config"]
    tensor = equation.sizes.full(operand)
    for axis, (_, _, between) in enumerate(config):
        if between:
            tensor = _spread(tensor, axis, between, filling.tensor)
    cut = []
    added = []
    for low, high, _ in config:
        cut.append(slice(max(-low, 0), high if high < 0 else None))
        added.append((max(low, 0), max(high, 0)))
    if any(part != slice(0, None) for part in cut):
        tensor = tensor[tuple(cut)]
    padded = tf.pad(tensor, added, constant_values=filling.tensor)
    return with_shape(padded, equation.shape)


def _spread(tensor: Any, axis: int, between: int, filling: Any) -> Any:
    """Puts `between` values after each one along an axis, but the last."""
    added = [(0, 0)] * (tensor.shape.rank + 1)
    added[axis + 1] = (0, between)
    pairs = tf.pad(tf.expand_dims(tensor, axis + 1), added, constant_values=filling)
    shape = tf.shape(tensor)
    count = shape[axis] * (1 + between)
    spread = tf.reshape(pairs, tf.concat([shape[:axis], [count], shape[axis + 1 :]], 0))
    return spread[(*([slice(None)] * axis), slice(0, count - between))]


def _reverse(equation: Equation, operand: Value) -> Any:
    return tf.reverse(equation.sizes.full(operand), equation.params["dimensions"])


def _tile(equation: Equation, operand: Value) -> Any:
    return tf.tile(equation.sizes.full(operand), equation.params["reps"])


def _iota(equation: Equation, *_dynamic_sizes: Value) -> Value:
    axis = equation.params["dimension"]
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
