"""Gathers and scatters. A gather of rows of a parameter is a lookup, which the exporter cuts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from export.front_end.outside_ids import Outcome, OutsideIds
from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.operations.shapes import Part, replace_part, window
from export.jax_models.values import Parameter, Size, Value, constant, is_static
from export.tensorflow_models.frameworks.placeholders import placeholder_class, with_outside_ids

_AS_IS = "use jnp.take, indexing by whole rows, or jnp.take_along_axis"
"""The remedy for indexing that has no counterpart."""
_OTHER_MODES = 'use fill_value=0, or mode="clip", or make rows of ids before the lookup'
"""The remedy for a mode of a lookup that has no counterpart."""
_MOVES_INSIDE = {
    "gather": ("CLIP", "PROMISE_IN_BOUNDS"),
    "scatter": ("CLIP",),
    "scatter-add": ("CLIP",),
}
"""Modes in which JAX moves a place outside an array to its edge. In the others, a gather reads the
filling there, and a scatter changes nothing.
"""


def _gather(equation: Equation, operand: Value, indices: Value) -> Any:
    if _is_row_lookup(equation, operand):
        return _look_up(operand, indices, equation)
    if len(indices.shape) == 1:
        return _one_window(equation, operand, indices)
    return _gather_slices(equation, operand, indices)


def _is_row_lookup(equation: Equation, operand: Value) -> bool:
    numbers = equation.params["dimension_numbers"]
    return (
        isinstance(operand, Parameter)
        and isinstance(operand.variable, placeholder_class())
        and numbers.start_index_map == (0,)
        and numbers.collapsed_slice_dims == (0,)
        and not numbers.operand_batching_dims
        and numbers.offset_dims == (len(equation.shape) - 1,)
        and equation.params["slice_sizes"][1] == operand.shape[1]
    )


def _look_up(table: Any, indices: Value, equation: Equation) -> Any:
    """Looks rows of a parameter up, by a function of TensorFlow whose calls the exporter
    intercepts.
    """
    ids = _ids_before_wrapping(indices, table.shape[0])
    outside = OutsideIds(ids is not None, _outcome(equation))
    if ids is None:
        ids_tensor = tf.squeeze(_places(equation, indices), -1)
    else:
        ids_tensor = equation.sizes.full(ids)
    with with_outside_ids(table.variable, outside):
        return tf.nn.embedding_lookup(table.variable, ids_tensor)


def _outcome(equation: Equation) -> Outcome:
    """Returns what JAX reads for indices outside of a table.

    Source: JAX 0.10, jax.lax.GatherScatterMode. Where a program promises that there are none, JAX
    moves them inside, on CPUs and TPUs alike.
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
    """Returns ids as they were before `where(ids < 0, ids + rows, ids)`; None where they are not
    written so.

    That is how JAX's functions write indices, since negative ones count from the end.
    """
    value = indices
    while value.made_by is not None and value.made_by.primitive in ("broadcast_in_dim", "reshape"):
        (value,) = value.made_by.arguments
    chosen = value.arguments_of("select_n")
    if value.shape != indices.shape[:-1] or not chosen:
        return None
    is_negative, ids, shifted = chosen
    comparison = is_negative.arguments_of("lt")
    addition = shifted.arguments_of("add")
    if not (comparison and addition):
        return None
    compared, zero = comparison
    moved, distance = addition
    wraps = compared is ids and moved is ids
    return ids if wraps and _is(zero, 0) and _is(distance, rows) else None


def _is(value: Value, number: int) -> bool:
    return value.known is not None and bool(np.all(value.known == number))


def _one_window(equation: Equation, operand: Value, start: Value) -> Any:
    """Reads one window, as `x[:, 3]` and `x[:, -4:]` do."""
    sizes = equation.params["slice_sizes"]
    axes = equation.params["dimension_numbers"].start_index_map
    limits = [operand.shape[axis] - sizes[axis] + 1 for axis in axes]
    _, is_inside = _inside(equation, start, _places(equation, start), limits)
    found = _window_moved_inside(equation, operand, start)
    if is_inside is None:
        return found
    return tf.where(is_inside, found, _filling(equation, found.dtype))


def _window_moved_inside(equation: Equation, operand: Value, start: Value) -> Any:
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    if start.known is not None:
        part: list[Any] = [slice(None)] * len(operand.shape)
        for position, axis in enumerate(numbers.start_index_map):
            last = operand.shape[axis] - sizes[axis]
            first = int(start.known[position])
            if is_static(last):
                first = int(np.clip(first, 0, last))
            end = equation.sizes.size(first + sizes[axis])
            collapsed = axis in numbers.collapsed_slice_dims
            part[axis] = first if collapsed else slice(first, end)
        rest = [
            axis for axis in numbers.collapsed_slice_dims if axis not in numbers.start_index_map
        ]
        for axis in rest:
            part[axis] = 0
        return equation.sizes.full(operand)[tuple(part)]

    starts: list[Any] = [tf.constant(0)] * len(operand.shape)
    for position, axis in enumerate(numbers.start_index_map):
        starts[axis] = start.tensor[position]
    found = window(equation, operand, starts, sizes)
    collapsed = numbers.collapsed_slice_dims
    return tf.squeeze(found, collapsed) if collapsed else found


def _gather_slices(equation: Equation, operand: Value, indices: Value) -> Any:
    """Reads whole slices: indices choose places on some axes, and all others are read whole."""
    numbers = equation.params["dimension_numbers"]
    operand, indices, indexed = _without_windows(equation, operand, indices)
    batch = numbers.operand_batching_dims
    whole = [axis for axis in range(len(operand.shape)) if axis not in (*indexed, *batch)]
    kept = [axis for axis in indexed if axis not in numbers.collapsed_slice_dims]
    _check_slices(equation, operand, whole, kept)

    # Without the axes of size 1 that indices keep, which are added in the end.
    sliced = sorted([*whole, *kept])
    added = [numbers.offset_dims[sliced.index(axis)] for axis in kept]
    axes = [axis for axis in range(len(equation.shape)) if axis not in added]
    is_slice = [axis in numbers.offset_dims for axis in axes]
    ids_axes = [place for place, of_slice in enumerate(is_slice) if not of_slice]
    slice_axes = [place for place, of_slice in enumerate(is_slice) if of_slice]

    data = equation.sizes.full(operand)
    limits = [operand.shape[axis] for axis in indexed]
    inside, is_inside = _inside(equation, indices, _places(equation, indices), limits)
    if len(indexed) == 1 and not batch:  # the usual case, which needs no transposition
        first = indexed[0]
        found = tf.gather(data, tf.squeeze(inside, -1), axis=first)
        order = slice_axes[:first] + ids_axes + slice_axes[first:]
    else:
        data = _transposed(data, [*batch, *indexed, *whole])
        found = tf.gather_nd(data, inside, batch_dims=len(batch))
        order = ids_axes + slice_axes
    found = _transposed(found, [order.index(place) for place in range(len(order))])

    if is_inside is not None:
        mask = _expanded(is_inside, is_slice)
        found = tf.where(mask, found, _filling(equation, found.dtype))
    for axis in sorted(added):
        found = tf.expand_dims(found, axis)
    return found


def _places(equation: Equation, indices: Value) -> Any:
    """Returns indices in a dtype that TensorFlow takes."""
    tensor = equation.sizes.full(indices)
    return tensor if tensor.dtype in (tf.int32, tf.int64) else tf.cast(tensor, tf.int64)


def _check_slices(equation: Equation, operand: Value, whole: list[int], kept: list[int]) -> None:
    """Checks that slices are as large as the array on all axes but those of the indices."""
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    is_whole = all(_equal(sizes[axis], operand.shape[axis]) for axis in whole)
    is_one = all(_equal(sizes[axis], 1) for axis in kept)
    collapses_others = not set(numbers.collapsed_slice_dims).isdisjoint(whole)
    if not is_whole or not is_one or collapses_others:
        raise equation.rejected(f"it reads parts of rows by ids; {_AS_IS}")
    batch = numbers.operand_batching_dims
    if numbers.start_indices_batching_dims != tuple(range(len(batch))):
        raise equation.rejected(f"the batch is not the first axis of its indices; {_AS_IS}")


def _transposed(tensor: Any, order: list[int]) -> Any:
    return tensor if order == sorted(order) else tf.transpose(tensor, order)


def _without_windows(
    equation: Equation, operand: Value, indices: Value
) -> tuple[Value, Value, tuple[int, ...]]:
    """Slices the axes of which all indices read the same window, as in `x[:, 1:, [0, 2]]`.

    Returns:
      The array, the indices of the other axes, and which these are.
    """
    numbers = equation.params["dimension_numbers"]
    indexed = numbers.start_index_map
    windows = [axis for axis in indexed if axis not in numbers.collapsed_slice_dims]
    if indices.known is None or not windows:
        return operand, indices, indexed

    part: list[Any] = [slice(None)] * len(operand.shape)
    shape = list(operand.shape)
    kept = []
    for position, axis in enumerate(indexed):
        starts = np.unique(indices.known[..., position])
        if axis not in windows or len(starts) != 1:
            kept.append(position)
            continue
        size = equation.params["slice_sizes"][axis]
        first = int(np.clip(starts[0], 0, operand.shape[axis] - size))
        part[axis] = slice(first, first + size)
        shape[axis] = size
    sliced = Value(shape, equation.sizes.full(operand)[tuple(part)])
    return sliced, constant(indices.known[..., kept]), tuple(indexed[place] for place in kept)


def _equal(left: Any, right: Any) -> bool:
    return is_static(left) == is_static(right) and bool(left == right)


def _inside(equation: Equation, indices: Value, places: Any, limits: list[Size]) -> tuple[Any, Any]:
    """Returns places inside an array, and a mask of those that were; None where all are or where
    JAX moves them inside.
    """
    static = all(is_static(limit) for limit in limits)
    if indices.known is not None and static:
        known = (indices.known >= 0) & (indices.known < np.array(limits))
        if known.all():
            return places, None
    last = tf.cast(tf.stack(equation.sizes.vector(limits)) - 1, places.dtype)
    inside = tf.clip_by_value(places, tf.zeros_like(last), last)
    if equation.params["mode"].name in _MOVES_INSIDE[equation.primitive]:
        return inside, None
    return inside, tf.reduce_all(tf.equal(places, inside), -1)


def _expanded(mask: Any, is_slice: list[bool]) -> Any:
    for axis, added in enumerate(is_slice):
        if added:
            mask = tf.expand_dims(mask, axis)
    return mask


def _filling(equation: Equation, dtype: Any) -> Any:
    """Returns what JAX gives for a place outside the array: `lax.gather` states it for each
    dtype.
    """
    given = equation.params["fill_value"]
    return tf.constant(np.asarray(given).astype(dtype.as_numpy_dtype))


def _scatter_add(equation: Equation, operand: Value, indices: Value, updates: Value) -> Any:
    """Adds rows to an array, as `x.at[ids].add(rows)` and `jax.ops.segment_sum` do."""
    rows = _scattered_rows(equation, operand, indices, updates)
    whole = equation.sizes.full(operand)
    return whole + tf.scatter_nd(rows.places, rows.values, tf.shape(whole))


def _scatter(equation: Equation, operand: Value, indices: Value, updates: Value) -> Any:
    """Replaces rows of an array, as `x.at[ids].set(rows)` does."""
    numbers = equation.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    one_place = len(indices.shape) == 1 and len(axes) == 1 and numbers.inserted_window_dims == axes
    if one_place:
        update = tf.expand_dims(equation.sizes.full(updates), axes[0])
        start = indices.tensor[0]
        replaced = replace_part(equation, operand, Part(update, axes[0], start, 1))
        limits = [operand.shape[axes[0]]]
        _, is_inside = _inside(equation, indices, _places(equation, indices), limits)
        if is_inside is None:
            return replaced
        return tf.where(is_inside, replaced, equation.sizes.full(operand))
    rows = _scattered_rows(equation, operand, indices, updates)
    if not _are_distinct(equation, operand, indices):
        raise equation.rejected(
            "ids that may be equal replace rows, and JAX does not say which of them stays; "
            "pass unique_indices=True, or use jnp.where"
        )
    whole = equation.sizes.full(operand)
    shape = tf.shape(whole)
    replacements = tf.scatter_nd(rows.places, rows.values, shape)
    ones = tf.where(rows.is_inside, tf.ones_like(rows.values), tf.zeros_like(rows.values))
    is_replaced = tf.not_equal(tf.scatter_nd(rows.places, ones, shape), tf.zeros_like(whole))
    return tf.where(is_replaced, replacements, whole)


def _are_distinct(equation: Equation, operand: Value, indices: Value) -> bool:
    if indices.known is None:
        return bool(equation.params["unique_indices"])
    places = indices.known
    if equation.params["mode"].name == "CLIP":  # which makes places outside equal
        axes = equation.params["dimension_numbers"].scatter_dims_to_operand_dims
        places = places.clip(0, [operand.shape[axis] - 1 for axis in axes])
    rows = places.reshape(-1, places.shape[-1])
    return len(np.unique(rows, axis=0)) == len(rows)


@dataclass(frozen=True)
class _ScatteredRows:
    """Rows that change an array; those outside it that change nothing are at its edge, as zeros.

    Attributes:
      places: [..., axes] integers.
      values: [..., *shape of a row].
      is_inside: a mask of the rows that change it, which repeats to the shape of `values`.
    """

    places: Any
    values: Any
    is_inside: Any


def _scattered_rows(
    equation: Equation, operand: Value, indices: Value, updates: Value
) -> _ScatteredRows:
    numbers = equation.params["dimension_numbers"]
    axes = numbers.scatter_dims_to_operand_dims
    ids_rank = len(indices.shape) - 1
    row_axes = tuple(range(ids_rank, len(updates.shape)))
    first_axes = axes == tuple(range(len(axes))) and numbers.inserted_window_dims == axes
    whole_rows = numbers.update_window_dims == row_axes and not numbers.operand_batching_dims
    if not (first_axes and whole_rows):
        raise equation.rejected("it changes parts of rows; change whole rows of the first axis")
    limits = [operand.shape[axis] for axis in axes]
    if not all(is_static(limit) for limit in limits):
        raise equation.rejected("it changes rows of the batch; change an axis of a fixed size")

    places, is_inside = _inside(equation, indices, _places(equation, indices), limits)
    if is_inside is None:
        is_inside = tf.constant(True)
    for _ in row_axes:
        is_inside = tf.expand_dims(is_inside, -1)
    rows = equation.sizes.full(updates)
    rows = tf.where(is_inside, rows, tf.zeros_like(rows))
    if not ids_rank:  # one row, as `x.at[3, 1].set(row)` changes; TensorFlow takes a list of them
        places = tf.expand_dims(places, 0)
        rows = tf.expand_dims(rows, 0)
    return _ScatteredRows(places, rows, is_inside)


OPERATIONS: dict[str, Handler] = {
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter_add,
}
