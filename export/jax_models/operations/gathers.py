"""Gathers and scatters. A gather of rows of a parameter is a lookup, which the exporter cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.outside_ids import Outcome, OutsideIds
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class, with_outside_ids
from export.jax_models.equations import Equation, Handler
from export.jax_models.operations.shapes import AxisSlice, replace_slice, window
from export.jax_models.values import Parameter, Size, Value, constant, is_same_size, is_static

_AS_IS = "use jnp.take, indexing by whole rows, or jnp.take_along_axis"
"""The remedy for indexing that has no counterpart."""
_OTHER_MODES = 'use fill_value=0, or mode="clip", or make rows of ids before the lookup'
"""The remedy for a mode of a lookup that has no counterpart."""
_MOVES_INSIDE = {
    "gather": ("CLIP", "PROMISE_IN_BOUNDS"),
    "scatter": ("CLIP",),
    "scatter-add": ("CLIP",),
}
"""Modes in which JAX moves a position outside an array to its edge, by primitive. In any other
mode, a gather reads the filling there, and a scatter changes nothing.
"""


def _gather(equation: Equation, operand: Value, indices: Value) -> Any:
    needed_indices, indexed_axes = _without_whole_axes(equation, operand, indices)
    if _is_row_lookup(equation, operand, indexed_axes):
        rows = _look_up(operand, needed_indices, equation)
        if equation.params["dimension_numbers"].collapsed_slice_dims:
            return rows
        return tf.expand_dims(rows, -2)
    if len(indices.shape) == 1:
        return _one_window(equation, operand, indices)
    return _gather_slices(equation, operand, needed_indices, indexed_axes)


def _without_whole_axes(
    equation: Equation, operand: Value, indices: Value
) -> tuple[Value, tuple[int, ...]]:
    """Leaves out indices of axes that are read whole, which `lax.dynamic_slice` has for all axes:
    where JAX moves slices inside, a whole axis begins at 0, whatever its index.

    Returns:
      The indices of the remaining axes, and these axes; one axis at least remains.
    """
    axes = equation.params["dimension_numbers"].start_index_map
    if equation.params["mode"].name not in _MOVES_INSIDE["gather"]:
        return indices, axes
    sizes = equation.params["slice_sizes"]
    collapsed_axes = equation.params["dimension_numbers"].collapsed_slice_dims
    remaining = [
        position
        for position, axis in enumerate(axes)
        if axis in collapsed_axes or not is_same_size(sizes[axis], operand.shape[axis])
    ]
    remaining = remaining or [0]
    if len(remaining) == len(axes):
        return indices, axes
    remaining_axes = tuple(axes[position] for position in remaining)
    return _columns(equation, indices, remaining), remaining_axes


def _columns(equation: Equation, indices: Value, positions: list[int]) -> Value:
    """Returns some columns of indices. One that was joined to the others is returned as it was
    before, since a lookup follows its computation.
    """
    columns = indices.arguments_of("concatenate")
    is_joined_of_columns = all(column.shape[-1] == 1 for column in columns)
    if len(positions) == 1 and len(columns) == indices.shape[-1] and is_joined_of_columns:
        return columns[positions[0]]
    if indices.constant is not None:
        return constant(indices.constant[..., positions])
    tensor = tf.gather(equation.sizes.full(indices), positions, axis=-1)
    return Value((*indices.shape[:-1], len(positions)), tensor)


def _is_row_lookup(equation: Equation, operand: Value, indexed_axes: tuple[int, ...]) -> bool:
    """Returns whether a gather reads whole rows of a parameter whose lookups are intercepted."""
    if not isinstance(operand, Parameter) or not isinstance(operand.variable, placeholder_class()):
        return False
    numbers = equation.params["dimension_numbers"]
    row_axes = [axis for axis in (0, 1) if axis not in numbers.collapsed_slice_dims]
    rank = len(equation.shape)
    return (
        indexed_axes == (0,)
        and numbers.collapsed_slice_dims in ((0,), ())
        and not numbers.operand_batching_dims
        and numbers.offset_dims == tuple(range(rank - len(row_axes), rank))
        and equation.params["slice_sizes"] == (1, operand.shape[1])
    )


def _look_up(table: Any, indices: Value, equation: Equation) -> Any:
    """Looks rows of a parameter up, by a function of TensorFlow whose calls the exporter
    intercepts.
    """
    # The feature itself counts negative ids from the end: JAX's own addition would hide the ids
    # that callers send.
    ids = _ids_before_wrapping(indices, table.shape[0])
    outside = OutsideIds(ids is not None, _outcome(equation))
    if ids is None:
        ids_tensor = tf.squeeze(_positions(equation, indices), -1)
    else:
        ids_tensor = equation.sizes.full(ids)
    with with_outside_ids(table.variable, outside):
        return tf.nn.embedding_lookup(table.variable, ids_tensor)


def _outcome(equation: Equation) -> Outcome:
    """Returns the outcome of indices outside of a table.

    Source: JAX 0.10, jax.lax.GatherScatterMode. Where a program promises that all indices are
    inside, JAX moves the others inside, on CPUs and TPUs alike.
    """
    mode = equation.params["mode"].name
    if mode in _MOVES_INSIDE["gather"]:
        return "nearest"
    if mode != "FILL_OR_DROP":
        raise equation.rejected(f"mode {mode} of a lookup is not known; {_OTHER_MODES}")
    filling = equation.params["fill_value"]
    if filling is None or np.isnan(filling):
        return "nan"
    if filling == 0:
        return "zeros"
    raise equation.rejected(
        f'mode="fill" with fill_value={filling} reads vectors of that number for ids outside of '
        f"the table, which a table of the bundle cannot; {_OTHER_MODES}"
    )


def _ids_before_wrapping(indices: Value, rows: int) -> Value | None:
    """Returns ids as they were before `where(ids < 0, ids + rows, ids)`, by which JAX's functions
    let negative ids count from the end; None if indices are computed in another way.
    """
    value = indices
    while value.computation is not None:
        if value.computation.primitive not in ("broadcast_in_dim", "reshape"):
            break
        (value,) = value.computation.arguments
    selection = value.arguments_of("select_n")
    if value.shape != indices.shape[:-1] or not selection:
        return None

    is_negative, ids, shifted = selection
    comparison = is_negative.arguments_of("lt")
    addition = shifted.arguments_of("add")
    if not (comparison and addition):
        return None
    compared, zero = comparison
    summand, distance = addition
    wraps = compared is ids and summand is ids
    if wraps and _is_constant(zero, 0) and _is_constant(distance, rows):
        return ids
    return None


def _is_constant(value: Value, number: int) -> bool:
    return value.constant is not None and bool(np.all(value.constant == number))


def _one_window(equation: Equation, operand: Value, start: Value) -> Any:
    """Reads one window, as `x[:, 3]` and `x[:, -4:]` do."""
    sizes = equation.params["slice_sizes"]
    axes = equation.params["dimension_numbers"].start_index_map
    limits = [operand.shape[axis] - sizes[axis] + 1 for axis in axes]
    _, is_inside = _move_inside(equation, start, _positions(equation, start), limits)
    values = _window_moved_inside(equation, operand, start)
    if is_inside is None:
        return values
    return tf.where(is_inside, values, _filling(equation, values.dtype))


def _window_moved_inside(equation: Equation, operand: Value, start: Value) -> Any:
    if start.constant is not None:
        return _constant_window(equation, operand, start.constant)
    numbers = equation.params["dimension_numbers"]
    starts: list[Any] = [tf.constant(0)] * len(operand.shape)
    for position, axis in enumerate(numbers.start_index_map):
        starts[axis] = start.tensor[position]
    values = window(equation, operand, starts, equation.params["slice_sizes"])
    if not numbers.collapsed_slice_dims:
        return values
    return tf.squeeze(values, numbers.collapsed_slice_dims)


def _constant_window(equation: Equation, operand: Value, start: NDArray[Any]) -> Any:
    """Reads a window that begins at a constant position as a slice, a plain operation."""
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    index: list[Any] = [slice(None)] * len(operand.shape)
    # An axis without a start is read whole, or is of size 1 and left out.
    for axis in numbers.collapsed_slice_dims:
        index[axis] = 0
    for position, axis in enumerate(numbers.start_index_map):
        last = operand.shape[axis] - sizes[axis]
        first = int(start[position])
        if is_static(last):
            first = int(np.clip(first, 0, last))
        end = equation.sizes.size(first + sizes[axis])
        is_collapsed = axis in numbers.collapsed_slice_dims
        index[axis] = first if is_collapsed else slice(first, end)
    return equation.sizes.full(operand)[tuple(index)]


def _gather_slices(
    equation: Equation, operand: Value, indices: Value, indexed_axes: tuple[int, ...]
) -> Any:
    """Reads whole slices: indices select positions on some axes, and every other axis is read
    whole.
    """
    numbers = equation.params["dimension_numbers"]
    operand, indices, indexed_axes = _without_windows(equation, operand, indices, indexed_axes)
    batch_axes = numbers.operand_batching_dims
    whole_axes = [
        axis for axis in range(len(operand.shape)) if axis not in (*indexed_axes, *batch_axes)
    ]
    unit_axes = [axis for axis in indexed_axes if axis not in numbers.collapsed_slice_dims]
    _check_slices(equation, operand, whole_axes, unit_axes)

    # The axes of the result, first without the axes of size 1 that indices keep: these are added
    # in the end. Each comes from the indices, or from the slices.
    sliced_axes = sorted([*whole_axes, *unit_axes])
    added_axes = [numbers.offset_dims[sliced_axes.index(axis)] for axis in unit_axes]
    result_axes = [axis for axis in range(len(equation.shape)) if axis not in added_axes]
    is_slice = [axis in numbers.offset_dims for axis in result_axes]
    index_axes = [axis for axis, from_slice in enumerate(is_slice) if not from_slice]
    slice_axes = [axis for axis, from_slice in enumerate(is_slice) if from_slice]

    values = equation.sizes.full(operand)
    limits = [operand.shape[axis] for axis in indexed_axes]
    inside, is_inside = _move_inside(equation, indices, _positions(equation, indices), limits)
    # With one axis of indices, the usual case, the array needs no transposition.
    if len(indexed_axes) == 1 and not batch_axes:
        axis = indexed_axes[0]
        result = tf.gather(values, tf.squeeze(inside, -1), axis=axis)
        order = slice_axes[:axis] + index_axes + slice_axes[axis:]
    else:
        values = _transpose(values, [*batch_axes, *indexed_axes, *whole_axes])
        result = tf.gather_nd(values, inside, batch_dims=len(batch_axes))
        order = index_axes + slice_axes
    result = _transpose(result, [order.index(axis) for axis in range(len(order))])

    if is_inside is not None:
        mask = _expand(is_inside, is_slice)
        result = tf.where(mask, result, _filling(equation, result.dtype))
    for axis in sorted(added_axes):
        result = tf.expand_dims(result, axis)
    return result


def _positions(equation: Equation, indices: Value) -> Any:
    """Returns indices in a dtype that TensorFlow accepts."""
    tensor = equation.sizes.full(indices)
    if tensor.dtype in (tf.int32, tf.int64):
        return tensor
    return tf.cast(tensor, tf.int64)


def _check_slices(
    equation: Equation, operand: Value, whole_axes: list[int], unit_axes: list[int]
) -> None:
    """Checks that slices are as large as the array along all axes but those of the indices.

    Args:
      equation: The gather.
      operand: The array.
      whole_axes: Axes without indices.
      unit_axes: Axes of indices that the result keeps, with size 1.
    """
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    reads_whole_axes = all(is_same_size(sizes[axis], operand.shape[axis]) for axis in whole_axes)
    reads_one_entry = all(is_same_size(sizes[axis], 1) for axis in unit_axes)
    collapses_whole_axes = not set(numbers.collapsed_slice_dims).isdisjoint(whole_axes)
    if not reads_whole_axes or not reads_one_entry or collapses_whole_axes:
        raise equation.rejected(
            f"it reads parts of rows by ids, slices of shape {tuple(sizes)} of an array of shape "
            f"{operand.shape}; {_AS_IS}"
        )
    batch_axes = numbers.operand_batching_dims
    if numbers.start_indices_batching_dims != tuple(range(len(batch_axes))):
        raise equation.rejected(f"the batch is not the first axis of its indices; {_AS_IS}")


def _transpose(tensor: Any, order: list[int]) -> Any:
    if order == sorted(order):
        return tensor
    return tf.transpose(tensor, order)


def _without_windows(
    equation: Equation, operand: Value, indices: Value, indexed_axes: tuple[int, ...]
) -> tuple[Value, Value, tuple[int, ...]]:
    """Slices the axes of which all indices read the same window, as in `x[:, 1:, [0, 2]]`.

    Returns:
      The sliced array, the indices of the remaining axes, and these axes.
    """
    numbers = equation.params["dimension_numbers"]
    window_axes = [axis for axis in indexed_axes if axis not in numbers.collapsed_slice_dims]
    if indices.constant is None or not window_axes:
        return operand, indices, indexed_axes

    slices: list[Any] = [slice(None)] * len(operand.shape)
    shape = list(operand.shape)
    remaining = []
    for position, axis in enumerate(indexed_axes):
        starts = np.unique(indices.constant[..., position])
        if axis not in window_axes or len(starts) != 1:
            remaining.append(position)
            continue
        size = equation.params["slice_sizes"][axis]
        first = int(np.clip(starts[0], 0, operand.shape[axis] - size))
        slices[axis] = slice(first, first + size)
        shape[axis] = size
    sliced = Value(shape, equation.sizes.full(operand)[tuple(slices)])
    remaining_axes = tuple(indexed_axes[position] for position in remaining)
    return sliced, constant(indices.constant[..., remaining]), remaining_axes


def _move_inside(
    equation: Equation, indices: Value, positions: Any, limits: list[Size]
) -> tuple[Any, Any]:
    """Moves positions inside an array.

    Args:
      equation: The gather or scatter.
      indices: The positions in JAX.
      positions: The positions in TensorFlow.
      limits: The first position outside, along each axis.

    Returns:
      The positions, and a mask of those that were inside before; None as the mask if all were, or
      if JAX moves positions inside, too.
    """
    has_static_limits = all(is_static(limit) for limit in limits)
    if indices.constant is not None and has_static_limits:
        was_inside = (indices.constant >= 0) & (indices.constant < np.array(limits))
        if was_inside.all():
            return positions, None
    last = tf.cast(tf.stack(equation.sizes.vector(limits)) - 1, positions.dtype)
    inside = tf.clip_by_value(positions, tf.zeros_like(last), last)
    if equation.params["mode"].name in _MOVES_INSIDE[equation.primitive]:
        return inside, None
    return inside, tf.reduce_all(tf.equal(positions, inside), -1)


def _expand(mask: Any, is_slice: list[bool]) -> Any:
    """Returns a mask with axes of size 1 along the axes of slices."""
    for axis, from_slice in enumerate(is_slice):
        if from_slice:
            mask = tf.expand_dims(mask, axis)
    return mask


def _filling(equation: Equation, dtype: Any) -> Any:
    """Returns the value that JAX reads outside the array: `lax.gather` states it for each dtype."""
    fill_value = equation.params["fill_value"]
    return tf.constant(np.asarray(fill_value).astype(dtype.as_numpy_dtype))


def _scatter_add(equation: Equation, operand: Value, indices: Value, updates: Value) -> Any:
    """Adds rows to an array, as `x.at[ids].add(rows)` and `jax.ops.segment_sum` do."""
    rows = _scattered_rows(equation, operand, indices, updates)
    array = equation.sizes.full(operand)
    return array + tf.scatter_nd(rows.positions, rows.values, tf.shape(array))


def _scatter(equation: Equation, operand: Value, indices: Value, updates: Value) -> Any:
    """Replaces rows of an array, as `x.at[ids].set(rows)` does."""
    numbers = equation.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    has_one_position = len(indices.shape) == 1 and len(axes) == 1
    if has_one_position and numbers.inserted_window_dims == axes:
        return _replace_one(equation, operand, indices, updates)

    rows = _scattered_rows(equation, operand, indices, updates)
    if not _are_distinct(equation, operand, indices):
        raise equation.rejected(
            "ids that may be equal replace rows, and JAX does not say which of them stays; "
            "pass unique_indices=True, or use jnp.where"
        )
    # A scatter of ones marks the replaced values: a replacement may be 0 itself.
    array = equation.sizes.full(operand)
    shape = tf.shape(array)
    replacements = tf.scatter_nd(rows.positions, rows.values, shape)
    ones = tf.where(rows.is_inside, tf.ones_like(rows.values), tf.zeros_like(rows.values))
    marks = tf.scatter_nd(rows.positions, ones, shape)
    is_replaced = tf.not_equal(marks, tf.zeros_like(array))
    return tf.where(is_replaced, replacements, array)


def _replace_one(equation: Equation, operand: Value, indices: Value, updates: Value) -> Any:
    """Replaces the values at one position along an axis, as `x.at[:, 3].set(values)` does."""
    (axis,) = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
    update = tf.expand_dims(equation.sizes.full(updates), axis)
    start = indices.tensor[0]
    if indices.constant is not None:
        start = int(indices.constant[0])
    axis_slice = AxisSlice(update, axis, start, 1)
    replaced = replace_slice(equation, operand, axis_slice)
    limits = [operand.shape[axis]]
    _, is_inside = _move_inside(equation, indices, _positions(equation, indices), limits)
    if is_inside is None:
        return replaced
    return tf.where(is_inside, replaced, equation.sizes.full(operand))


def _are_distinct(equation: Equation, operand: Value, indices: Value) -> bool:
    if indices.constant is None:
        return bool(equation.params["unique_indices"])
    positions = indices.constant
    # This mode makes distinct positions outside the array equal.
    if equation.params["mode"].name == "CLIP":
        axes = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
        positions = positions.clip(0, [operand.shape[axis] - 1 for axis in axes])
    position_rows = positions.reshape(-1, positions.shape[-1])
    return len(np.unique(position_rows, axis=0)) == len(position_rows)


@dataclass(frozen=True)
class _ScatteredRows:
    """Rows that change an array. Rows outside it that change nothing are at its edge, as zeros.

    Attributes:
      positions: [..., axes] integers, the positions of the rows.
      values: [..., *shape of a row], the values of the rows.
      is_inside: A mask of the rows that change the array, which repeats to the shape of `values`.
    """

    positions: Any
    values: Any
    is_inside: Any


def _scattered_rows(
    equation: Equation, operand: Value, indices: Value, updates: Value
) -> _ScatteredRows:
    """Returns the rows that a scatter changes.

    Raises:
      NotConvertible: The scatter changes parts of rows, or rows of the batch.
    """
    numbers = equation.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    ids_rank = len(indices.shape) - 1
    row_axes = tuple(range(ids_rank, len(updates.shape)))
    has_first_axes = axes == tuple(range(len(axes))) and numbers.inserted_window_dims == axes
    has_whole_rows = numbers.update_window_dims == row_axes and not numbers.operand_batching_dims
    if not (has_first_axes and has_whole_rows):
        raise equation.rejected("it changes parts of rows; change whole rows of the first axis")
    limits = [operand.shape[axis] for axis in axes]
    if not all(is_static(limit) for limit in limits):
        raise equation.rejected("it changes rows of the batch; change an axis of a fixed size")

    positions, is_inside = _move_inside(equation, indices, _positions(equation, indices), limits)
    if is_inside is None:
        is_inside = tf.constant(True)
    for _ in row_axes:
        is_inside = tf.expand_dims(is_inside, -1)
    rows = equation.sizes.full(updates)
    rows = tf.where(is_inside, rows, tf.zeros_like(rows))
    # One row, as `x.at[3, 1].set(row)` changes: TensorFlow scatters a list of rows.
    if not ids_rank:
        positions = tf.expand_dims(positions, 0)
        rows = tf.expand_dims(rows, 0)
    return _ScatteredRows(positions, rows, is_inside)


OPERATIONS: dict[str, Handler] = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter_add,
}
