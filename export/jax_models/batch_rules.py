"""The axis that the examples of a batch lie along in the result of an operation of JAX, if the
operation computes each example from its own values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.jax_models.loading import jax
from export.jax_models.operations import elementwise
from export.jax_models.primitives import Parameters
from export.jax_models.tracing import SIZES_FROM_INPUTS, FixedBatch
from export.jax_models.values import Shape, Size, is_static
from export.user_lines import at_line


@dataclass(frozen=True)
class OpenSizes:
    """Sizes in a batch of any size.

    Attributes:
      batch: The number of examples in the fixed batch.
      open_batch: The symbolic size that replaces it.
    """

    batch: int
    open_batch: Size

    def opened(self, shape: Sequence[int], axis: int) -> Shape:
        """Returns a shape of the fixed batch with the open size along the examples' axis."""
        sizes: list[Size] = list(shape)
        # An axis may hold several entries of each example, one after the other.
        sizes[axis] = shape[axis] // self.batch * self.open_batch
        return tuple(sizes)


@dataclass(frozen=True)
class BatchedValue:
    """A value, and the axis of its examples.

    Attributes:
      array: The value in the open batch, of size 1 along `repeated_axes`.
      shape: Its shape in the fixed batch.
      axis: The axis that the examples lie along, one after the other; None if the value depends on
        no input.
      repeated_axes: Axes along which all entries are the same; empty for values with an `axis`.
    """

    array: Any
    shape: tuple[int, ...]
    axis: int | None = None
    repeated_axes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Step:
    """One equation and its arguments.

    Attributes:
      sizes: Sizes of the open batch.
      eqn: The equation in the fixed batch.
      arguments: The equation's arguments.
      line: The user's line.
    """

    sizes: OpenSizes
    eqn: Any
    arguments: list[BatchedValue]
    line: str

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.eqn.primitive.name)

    @property
    def params(self) -> Parameters:
        """The primitive's parameters in the fixed batch."""
        return Parameters(self.name, self.eqn.params, self.line)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the results in the fixed batch."""
        return [getattr(variable.aval, "shape", ()) for variable in self.eqn.outvars]

    @property
    def axis(self) -> int | None:
        """The axis of examples of the first argument that has one; None if no argument has."""
        return next((value.axis for value in self.arguments if value.axis is not None), None)

    def operand(self) -> tuple[BatchedValue, int]:
        """Returns the first argument, and its axis of examples.

        Raises:
          FixedBatch: The examples lie in other arguments.
        """
        operand = self.arguments[0]
        if operand.axis is None:
            raise self.joined_examples()
        return operand, operand.axis

    def rejected(self, reason: str) -> FixedBatch:
        """Returns the error that the batch cannot be opened."""
        return FixedBatch(
            f"JAX operation {self.name}{at_line(self.line)}: {reason}, and the model runs in no "
            f"other batch than that of {self.sizes.batch} examples, which feature_specs state: "
            f"compute each example from its own values, and {SIZES_FROM_INPUTS}"
        )

    def joined_examples(self) -> FixedBatch:
        """Returns the error that the result for an example depends on other examples."""
        return self.rejected("it joins the examples of a batch")

    def paired_examples(self) -> FixedBatch:
        """Returns the error that every example meets every other."""
        return self.rejected("it combines each example with every other")

    def along(self, value: BatchedValue, axis: int | None) -> Any:
        """Returns an argument whose examples must lie along an axis."""
        if value.axis == axis or not value.shape:
            return repeated(value)
        if value.axis is not None or axis is None:
            raise self.paired_examples()
        # JAX repeats an axis of size 1 by itself. A longer one is as long as the fixed batch: an
        # array of it can be extended only if all its entries are the same.
        if value.shape[axis] == 1:
            return repeated(value)
        if axis not in value.repeated_axes:
            raise self.rejected(
                f"it takes an array of {list(value.shape)} that holds something else for each "
                f"position in the batch of {self.sizes.batch}"
            )
        return repeated(value, {axis: self.sizes.opened(value.shape, axis)[axis]})

    def bind(self, arrays: Sequence[Any], **changes: Any) -> list[BatchedValue]:
        """Traces the operation in the open batch, and finds the examples in its results.

        Args:
          arrays: The arguments of the operation.
          changes: Parameters that differ from those of the fixed batch.
        """
        return [
            BatchedValue(array, shape, self._axis_of(array, shape))
            for array, shape in zip(self._bind_primitive(arrays, changes), self.shapes, strict=True)
        ]

    def bind_without_examples(
        self, arrays: Sequence[Any], repeated_axes: Collection[int] = (), **changes: Any
    ) -> list[BatchedValue]:
        """Traces the operation on values that depend on no input.

        Args:
          arrays: The arguments of the operation.
          repeated_axes: Axes of the results along which all entries are the same, and whose size
            is 1.
          changes: Parameters that differ from those of the fixed batch.
        """
        return [
            BatchedValue(array, shape, repeated_axes=frozenset(repeated_axes))
            for array, shape in zip(self._bind_primitive(arrays, changes), self.shapes, strict=True)
        ]

    def _bind_primitive(self, arrays: Sequence[Any], changes: Mapping[str, Any]) -> list[Any]:
        primitive = self.eqn.primitive
        params = self.params
        for name, value in changes.items():
            if params[name] is not value:
                params[name] = value
        # Source: JAX 0.10, jax/_src/core.py, eval_jaxpr.
        results = primitive.bind(*arrays, **primitive.get_bind_params(params))
        if not primitive.multiple_results:
            return [results]
        return list(results)

    def _axis_of(self, array: Any, shape: tuple[int, ...]) -> int:
        # JAX itself computed the shape in the open batch: the axis that depends on the batch is
        # where the examples are now. Anything else has mixed them.
        axes = [axis for axis, size in enumerate(array.shape) if not is_static(size)]
        if len(axes) != 1 or array.shape != self.sizes.opened(shape, axes[0]):
            raise self.joined_examples()
        return axes[0]


Rule = Callable[[Step], list[BatchedValue]]


def rule_of(step: Step) -> Rule:
    """Returns the rule that traces an equation again.

    Raises:
      FixedBatch: The equation reads examples, and no rule says that it computes each from its own
        values.
    """
    if step.axis is None:
        return _WITHOUT_EXAMPLES.get(step.name, _without_examples)
    rule = _WITH_EXAMPLES.get(step.name)
    if rule is None:
        raise step.rejected("it is not known to compute each example from its own values")
    return rule


def repeated(value: BatchedValue, sizes: Mapping[int, Size] | None = None) -> Any:
    """Returns the array of a value with its repetitions.

    Args:
      value: The value.
      sizes: Sizes by axis where they differ from those of the fixed batch.
    """
    if not value.repeated_axes:
        return value.array
    shape = {**dict(enumerate(value.shape)), **(sizes or {})}
    return jax.numpy.broadcast_to(value.array, tuple(shape.values()))


def _with_unit_axes(value: BatchedValue, axes: Collection[int]) -> Any:
    """Returns the array of a value that stays of size 1 along some of its `repeated_axes`."""
    return repeated(value, dict.fromkeys(axes, 1))


def _unit_sizes(shape: Sequence[int], axes: Collection[int]) -> tuple[int, ...]:
    """Returns a shape with size 1 along some axes."""
    sizes = list(shape)
    for axis in axes:
        sizes[axis] = 1
    return tuple(sizes)


def _without_examples(step: Step) -> list[BatchedValue]:
    return step.bind_without_examples([repeated(value) for value in step.arguments])


def _elementwise_without_examples(step: Step) -> list[BatchedValue]:
    """Keeps the repetitions that all arguments have."""
    if len(step.shapes) != 1:
        return _without_examples(step)
    arrays = [value for value in step.arguments if value.shape]
    repeated_axes = set()
    for axis, size in enumerate(step.shapes[0]):
        is_repeated = all(axis in value.repeated_axes or value.shape[axis] == 1 for value in arrays)
        if size > 1 and is_repeated:
            repeated_axes.add(axis)
    arguments = [
        _with_unit_axes(value, value.repeated_axes & repeated_axes) for value in step.arguments
    ]
    return step.bind_without_examples(arguments, repeated_axes)


def _broadcast_without_examples(step: Step) -> list[BatchedValue]:
    """Repeats along new axes, and along those of size 1."""
    value = step.arguments[0]
    (shape,) = step.shapes
    axes = step.params["broadcast_dimensions"]
    unrepeated_axes = set()
    for axis, target in enumerate(axes):
        if axis not in value.repeated_axes and value.shape[axis] == shape[target]:
            unrepeated_axes.add(target)
    repeated_axes = {
        axis for axis, size in enumerate(shape) if size > 1 and axis not in unrepeated_axes
    }
    unit_shape = _unit_sizes(shape, repeated_axes)
    return step.bind_without_examples([value.array], repeated_axes, shape=unit_shape)


def _reshape_without_examples(step: Step) -> list[BatchedValue]:
    """Keeps the repetition along an axis that stays as it is."""
    value = step.arguments[0]
    (shape,) = step.shapes
    target_of = {}
    for axis in value.repeated_axes:
        target = _reshaped_axis(value.shape, axis, shape, value.shape[axis])
        if target is not None and shape[target] == value.shape[axis]:
            target_of[axis] = target
    repeated_axes = set(target_of.values())
    array = _with_unit_axes(value, target_of)
    unit_shape = _unit_sizes(shape, repeated_axes)
    return step.bind_without_examples([array], repeated_axes, new_sizes=unit_shape)


def _tile_without_examples(step: Step) -> list[BatchedValue]:
    """Keeps the repetition along axes of size 1."""
    (value,) = step.arguments
    (shape,) = step.shapes
    repeated_axes = set()
    for axis, size in enumerate(shape):
        is_repeated = axis in value.repeated_axes or value.shape[axis] == 1
        if size > 1 and is_repeated:
            repeated_axes.add(axis)
    repetitions = _unit_sizes(step.params["reps"], repeated_axes)
    return step.bind_without_examples([value.array], repeated_axes, reps=repetitions)


def _iota_without_examples(step: Step) -> list[BatchedValue]:
    """Counts along one axis: all entries are the same along every other axis."""
    (shape,) = step.shapes
    counted_axis = step.params["dimension"]
    repeated_axes = {axis for axis, size in enumerate(shape) if size > 1 and axis != counted_axis}
    unit_shape = _unit_sizes(shape, repeated_axes)
    return step.bind_without_examples([], repeated_axes, shape=unit_shape)


def _example_by_example(step: Step) -> list[BatchedValue]:
    return step.bind([step.along(value, step.axis) for value in step.arguments])


def _whole_call(step: Step) -> list[BatchedValue]:
    """Calls a function of `jax.numpy`, which the evaluator computes as one operation, again."""
    function = getattr(jax.numpy, step.params["name"])
    array = function(*(step.along(value, step.axis) for value in step.arguments))
    return [BatchedValue(array, step.shapes[0], step.axis)]


def _pass_on(step: Step) -> list[BatchedValue]:
    return step.arguments


def _not_along(parameter: str) -> Rule:
    """Returns the rule of an operation that joins or orders the values along the axes that a
    parameter names.
    """

    def rule(step: Step) -> list[BatchedValue]:
        axes = step.params[parameter]
        if not isinstance(axes, Sequence):
            axes = (axes,)
        if step.axis in axes:
            raise step.joined_examples()
        return _example_by_example(step)

    return rule


def _dot_general(step: Step) -> list[BatchedValue]:
    # The numbers of both operands' axes that are summed, and of those that are multiplied in pairs.
    summed_axes, paired_axes = step.params["dimension_numbers"]
    first, second = step.arguments
    if first.axis in summed_axes[0] or second.axis in summed_axes[1]:
        raise step.joined_examples()

    # If the examples of one operand lie along a paired axis, those of the other lie along its
    # partner.
    if first.axis in paired_axes[0]:
        axis = paired_axes[1][paired_axes[0].index(first.axis)]
        return step.bind([first.array, step.along(second, axis)])
    if second.axis in paired_axes[1]:
        axis = paired_axes[0][paired_axes[1].index(second.axis)]
        return step.bind([step.along(first, axis), second.array])
    if first.axis is not None and second.axis is not None:
        raise step.paired_examples()
    return step.bind([repeated(first), repeated(second)])


def _reshaped_axis(
    shape: Sequence[int], axis: int, reshaped_shape: Sequence[int], unit: int
) -> int | None:
    """Returns the axis of a reshaped array that holds the parts of an axis, one after the other;
    None if there is no such axis.

    Args:
      shape, axis: The shape and the axis before the reshape.
      reshaped_shape: The shape after it.
      unit: The number of parts, of which the axis has a multiple.
    """
    outer_size = math.prod(shape[:axis])
    for target, size in enumerate(reshaped_shape):
        # The axes before the target have as many values as those before the axis, so that the parts
        # begin at the same positions.
        if math.prod(reshaped_shape[:target]) == outer_size and size > 1 and size % unit == 0:
            return target
    return None


def _reshape(step: Step) -> list[BatchedValue]:
    value, axis = step.operand()
    (shape,) = step.shapes
    batch = step.sizes.batch
    target = _reshaped_axis(value.shape, axis, shape, batch)
    # With `dimensions`, JAX transposes the operand first, which moves the axis of the examples.
    if target is None or step.params["dimensions"] is not None:
        raise step.rejected(
            f"it makes {list(shape)} of {list(value.shape)}, in which the {batch} examples of a "
            "batch do not lie along one axis, one after the other"
        )
    return step.bind([value.array], new_sizes=step.sizes.opened(shape, target))


def _broadcast_in_dim(step: Step) -> list[BatchedValue]:
    value, axis = step.operand()
    target = step.params["broadcast_dimensions"][axis]
    return step.bind([value.array], shape=step.sizes.opened(step.shapes[0], target))


def _tile(step: Step) -> list[BatchedValue]:
    # Repetitions along this axis would be further examples.
    if step.params["reps"][step.axis] != 1:
        raise step.rejected("it repeats the batch")
    return _example_by_example(step)


def _slice(step: Step) -> list[BatchedValue]:
    value, axis = step.operand()
    limits = step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * len(value.shape)
    example_range = (step.params["start_indices"][axis], limits[axis], strides[axis])
    # Only the range of all examples means the same in a batch of another size.
    if example_range != (0, value.shape[axis], 1):
        raise step.rejected("it takes some of the examples of a batch")
    return step.bind([value.array], limit_indices=step.sizes.opened(limits, axis))


def _dynamic_slice(step: Step) -> list[BatchedValue]:
    value, axis = step.operand()
    slice_sizes = step.params["slice_sizes"]
    if slice_sizes[axis] != value.shape[axis]:
        raise step.rejected("it takes some of the examples of a batch")
    arrays = [argument.array for argument in step.arguments]
    return step.bind(arrays, slice_sizes=step.sizes.opened(slice_sizes, axis))


def _pad(step: Step) -> list[BatchedValue]:
    _, axis = step.operand()
    if any(step.params["padding_config"][axis]):
        raise step.rejected("it adds examples to a batch, or leaves some out")
    return step.bind([argument.array for argument in step.arguments])


def _gather(step: Step) -> list[BatchedValue]:
    operand, indices = step.arguments
    numbers = step.params["dimension_numbers"]
    slice_sizes = step.params["slice_sizes"]
    position_error = step.rejected(
        "it finds entries by the positions of examples in a batch; take one of each example by "
        "jnp.take_along_axis"
    )
    # Axes of the operand whose entries are read by the same entries of an axis of the indices.
    paired_axes = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )

    # A table without examples: each example reads rows by its own ids.
    if operand.axis is None:
        if indices.axis in paired_axes.values() or indices.axis == len(indices.shape) - 1:
            raise position_error
        return step.bind([repeated(operand), indices.array])

    if operand.axis in paired_axes:
        return step.bind([operand.array, step.along(indices, paired_axes[operand.axis])])

    # The same entries of all examples: the slices hold the whole batch.
    indexed_axes = {*numbers.collapsed_slice_dims, *numbers.start_index_map}
    is_whole_batch = slice_sizes[operand.axis] == operand.shape[operand.axis]
    if operand.axis in indexed_axes or not is_whole_batch:
        raise position_error
    if indices.axis is not None:
        raise step.paired_examples()
    open_sizes = step.sizes.opened(slice_sizes, operand.axis)
    return step.bind([operand.array, repeated(indices)], slice_sizes=open_sizes)


def _scatter(step: Step) -> list[BatchedValue]:
    """Writes to the same places of all examples, as `x.at[:, 3].set(values)` does."""
    operand, indices, updates = step.arguments
    numbers = step.params["dimension_numbers"]
    position_error = step.rejected(
        "it writes entries by the positions of examples in a batch; write the same entries of all "
        "examples, or use jnp.where"
    )
    if indices.axis is not None:
        raise position_error

    # An axis of the operand whose entries are written together is an axis of the updates, too.
    single_axes = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window_axes = [axis for axis in range(len(operand.shape)) if axis not in single_axes]
    axis_of_updates = dict(zip(window_axes, numbers.update_window_dims, strict=True))
    axis = operand.axis
    if axis is None:
        axis = next((axis for axis in window_axes if axis_of_updates[axis] == updates.axis), None)
    # Only the whole batch is the same in a batch of another size.
    if axis not in axis_of_updates or axis in numbers.scatter_dims_to_operand_dims:
        raise position_error
    if updates.shape[axis_of_updates[axis]] != operand.shape[axis]:
        raise position_error
    arrays = [
        step.along(operand, axis),
        repeated(indices),
        step.along(updates, axis_of_updates[axis]),
    ]
    return step.bind(arrays)


_WITHOUT_EXAMPLES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, _elementwise_without_examples),
    "broadcast_in_dim": _broadcast_without_examples,
    "iota": _iota_without_examples,
    "pvary": _pass_on,
    "reshape": _reshape_without_examples,
    "tile": _tile_without_examples,
}
"""Rules of operations on values that depend on no input and that keep repetitions; any other
operation computes the repeated values.
"""

_WITH_EXAMPLES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, _example_by_example),
    **dict.fromkeys(("optimization_barrier", "pvary", "sharding_constraint"), _pass_on),
    **dict.fromkeys(("squeeze", "stack", "transpose"), _example_by_example),
    **dict.fromkeys(("concatenate", "sort"), _not_along("dimension")),
    **dict.fromkeys(("rev",), _not_along("dimensions")),
    **dict.fromkeys(
        ("cumlogsumexp", "cumprod", "cumsum", "split", "top_k", "unstack"), _not_along("axis")
    ),
    **dict.fromkeys(
        ("argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod"),
        _not_along("axes"),
    ),
    "reduce_sum": _not_along("axes"),
    "broadcast_in_dim": _broadcast_in_dim,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "jit": _whole_call,
    "pad": _pad,
    "reshape": _reshape,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "slice": _slice,
    "tile": _tile,
}
"""Rules of operations on examples; a rule raises an error where its operation does not compute each
example from its own values.
"""
