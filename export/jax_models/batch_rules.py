"""Where the examples of a batch lie in what an operation of JAX computes, if it computes each from
its own values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.jax_models.loading import jax
from export.jax_models.operations import elementwise
from export.jax_models.tracing import SIZES_FROM_INPUTS, FixedBatch
from export.jax_models.values import Shape, Size, is_static
from export.user_lines import at_line


@dataclass(frozen=True)
class OpenSizes:
    """Sizes in a batch of any size.

    Attributes:
      batch: the number of examples in the fixed batch.
      open_batch: the symbolic size in its place.
    """

    batch: int
    open_batch: Size

    def opened(self, shape: Sequence[int], axis: int) -> Shape:
        """Returns a shape of the fixed batch with the open size along the examples' axis."""
        sizes: list[Size] = list(shape)
        sizes[axis] = shape[axis] // self.batch * self.open_batch
        return tuple(sizes)


@dataclass(frozen=True)
class Followed:
    """A value, and where the examples lie in it.

    Attributes:
      array: the value in the open batch; of size 1 along the axes of `alike`.
      shape: in the fixed batch.
      axis: the examples lie along it, one after the other; None: the value depends on no input.
      alike: axes along which all entries are the same; known only without `axis`.
    """

    array: Any
    shape: tuple[int, ...]
    axis: int | None = None
    alike: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Step:
    """One equation, and what it takes.

    Attributes:
      sizes: of the open batch.
      eqn: the equation in the fixed batch.
      arguments: its arguments.
      line: the user's line.
    """

    sizes: OpenSizes
    eqn: Any
    arguments: list[Followed]
    line: str

    @property
    def name(self) -> str:
        """The name of the primitive."""
        return str(self.eqn.primitive.name)

    @property
    def params(self) -> Mapping[str, Any]:
        """The primitive's parameters in the fixed batch."""
        params: Mapping[str, Any] = self.eqn.params
        return params

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the results in the fixed batch."""
        return [getattr(variable.aval, "shape", ()) for variable in self.eqn.outvars]

    @property
    def axis(self) -> int | None:
        """Where the examples lie in the first argument that has some; None: in no argument."""
        return next((value.axis for value in self.arguments if value.axis is not None), None)

    def operand(self) -> tuple[Followed, int]:
        """Returns the first argument, and its axis of examples.

        Raises:
          FixedBatch: the examples lie in other arguments.
        """
        operand = self.arguments[0]
        if operand.axis is None:
            raise self.joins()
        return operand, operand.axis

    def rejected(self, why: str) -> FixedBatch:
        """Returns the error that the batch cannot be opened."""
        return FixedBatch(
            f"JAX operation {self.name}{at_line(self.line)}: {why}, and the model runs in no other "
            f"batch than that of {self.sizes.batch} examples, which feature_specs state: compute "
            f"each example from its own values, and {SIZES_FROM_INPUTS}"
        )

    def joins(self) -> FixedBatch:
        """Returns the error that what is computed for an example depends on others."""
        return self.rejected("it joins the examples of a batch")

    def pairs(self) -> FixedBatch:
        """Returns the error that every example meets every other."""
        return self.rejected("it combines each example with every other")

    def along(self, value: Followed, axis: int | None) -> Any:
        """Returns an argument whose examples must lie along an axis."""
        if value.axis == axis or not value.shape:
            return repeated(value)
        if value.axis is not None or axis is None:
            raise self.pairs()
        if value.shape[axis] == 1:
            return repeated(value)
        if axis not in value.alike:
            raise self.rejected(
                f"it takes an array of {list(value.shape)} that holds something else for each "
                f"place in the batch of {self.sizes.batch}"
            )
        return repeated(value, {axis: self.sizes.opened(value.shape, axis)[axis]})

    def bind(self, arrays: Sequence[Any], **changes: Any) -> list[Followed]:
        """Traces the operation in the open batch, and finds the examples in its results.

        Args:
          arrays: its arguments.
          changes: parameters that are other than in the fixed batch.
        """
        return [
            Followed(array, shape, self._axis_of(array, shape))
            for array, shape in zip(self._bound(arrays, changes), self.shapes, strict=True)
        ]

    def bind_apart(
        self, arrays: Sequence[Any], alike: Collection[int] = (), **changes: Any
    ) -> list[Followed]:
        """Traces the operation on values that depend on no input.

        Args:
          arrays: its arguments.
          alike: axes of the results along which all entries are the same, and whose size is 1.
          changes: parameters that are other than in the fixed batch.
        """
        return [
            Followed(array, shape, alike=frozenset(alike))
            for array, shape in zip(self._bound(arrays, changes), self.shapes, strict=True)
        ]

    def _bound(self, arrays: Sequence[Any], changes: Mapping[str, Any]) -> list[Any]:
        primitive = self.eqn.primitive
        # Source: JAX 0.10, jax/_src/core.py, eval_jaxpr.
        results = primitive.bind(*arrays, **primitive.get_bind_params({**self.params, **changes}))
        return list(results) if primitive.multiple_results else [results]

    def _axis_of(self, array: Any, shape: tuple[int, ...]) -> int:
        axes = [axis for axis, size in enumerate(array.shape) if not is_static(size)]
        if len(axes) != 1 or array.shape != self.sizes.opened(shape, axes[0]):
            raise self.joins()
        return axes[0]


Rule = Callable[[Step], list[Followed]]


def rule_of(step: Step) -> Rule:
    """Returns what traces an equation again.

    Raises:
      FixedBatch: it takes examples, and is not known to compute each from its own values.
    """
    if step.axis is None:
        return _APART.get(step.name, _apart)
    rule = _WITH_EXAMPLES.get(step.name)
    if rule is None:
        raise step.rejected("it is not known to compute each example from its own values")
    return rule


def repeated(value: Followed, sizes: Mapping[int, Size] | None = None) -> Any:
    """Returns the array of a value with its repetitions: of other sizes along some axes, and of the
    sizes in the fixed batch along all others.
    """
    if not value.alike:
        return value.array
    shape = {**dict(enumerate(value.shape)), **(sizes or {})}
    return jax.numpy.broadcast_to(value.array, tuple(shape.values()))


def _kept(value: Followed, axes: Collection[int]) -> Any:
    """Returns the array of a value that stays of size 1 along some of the axes of `alike`."""
    return repeated(value, dict.fromkeys(axes, 1))


def _ones(shape: Sequence[int], axes: Collection[int]) -> tuple[int, ...]:
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def _apart(step: Step) -> list[Followed]:
    return step.bind_apart([repeated(value) for value in step.arguments])


def _elementwise_apart(step: Step) -> list[Followed]:
    """Keeps the repetitions that all arguments have."""
    if len(step.shapes) != 1:
        return _apart(step)
    arrays = [value for value in step.arguments if value.shape]
    alike = {
        axis
        for axis, size in enumerate(step.shapes[0])
        if size > 1 and all(axis in value.alike or value.shape[axis] == 1 for value in arrays)
    }
    return step.bind_apart([_kept(value, value.alike & alike) for value in step.arguments], alike)


def _broadcast_apart(step: Step) -> list[Followed]:
    """Repeats along new axes, and along those of size 1."""
    value = step.arguments[0]
    (shape,) = step.shapes
    axes = step.params["broadcast_dimensions"]
    kept = {
        target
        for axis, target in enumerate(axes)
        if axis not in value.alike and value.shape[axis] == shape[target]
    }
    alike = {axis for axis, size in enumerate(shape) if size > 1 and axis not in kept}
    return step.bind_apart([value.array], alike, shape=_ones(shape, alike))


def _reshape_apart(step: Step) -> list[Followed]:
    """Keeps the repetition along an axis that stays as it is."""
    value = step.arguments[0]
    (shape,) = step.shapes
    target_of = {}
    for axis in value.alike:
        target = _reshaped_axis(value.shape, axis, shape, value.shape[axis])
        if target is not None and shape[target] == value.shape[axis]:
            target_of[axis] = target
    alike = set(target_of.values())
    return step.bind_apart([_kept(value, target_of)], alike, new_sizes=_ones(shape, alike))


def _tile_apart(step: Step) -> list[Followed]:
    """Keeps the repetition of what is of size 1."""
    (value,) = step.arguments
    (shape,) = step.shapes
    alike = {
        axis
        for axis, size in enumerate(shape)
        if size > 1 and (axis in value.alike or value.shape[axis] == 1)
    }
    return step.bind_apart([value.array], alike, reps=_ones(step.params["reps"], alike))


def _iota_apart(step: Step) -> list[Followed]:
    """Counts along one axis: all entries are the same along the others."""
    (shape,) = step.shapes
    counted = step.params["dimension"]
    alike = {axis for axis, size in enumerate(shape) if size > 1 and axis != counted}
    return step.bind_apart([], alike, shape=_ones(shape, alike))


def _example_by_example(step: Step) -> list[Followed]:
    return step.bind([step.along(value, step.axis) for value in step.arguments])


def _whole_call(step: Step) -> list[Followed]:
    """Calls a function of `jax.numpy` again that the evaluator takes as one operation."""
    function = getattr(jax.numpy, step.params["name"])
    array = function(*(step.along(value, step.axis) for value in step.arguments))
    return [Followed(array, step.shapes[0], step.axis)]


def _same(step: Step) -> list[Followed]:
    return step.arguments


def _not_along(parameter: str) -> Rule:
    """Returns the rule of an operation that joins or orders the values along the axes that a
    parameter names.
    """

    def rule(step: Step) -> list[Followed]:
        axes = step.params[parameter]
        if step.axis in (axes if isinstance(axes, Sequence) else (axes,)):
            raise step.joins()
        return _example_by_example(step)

    return rule


def _dot_general(step: Step) -> list[Followed]:
    summed, paired = step.params["dimension_numbers"]
    left, right = step.arguments
    if left.axis in summed[0] or right.axis in summed[1]:
        raise step.joins()
    # Axes may be multiplied pair by pair: then the examples of both lie along such axes.
    if left.axis in paired[0]:
        axis = paired[1][paired[0].index(left.axis)]
        return step.bind([left.array, step.along(right, axis)])
    if right.axis in paired[1]:
        axis = paired[0][paired[1].index(right.axis)]
        return step.bind([step.along(left, axis), right.array])
    if left.axis is not None and right.axis is not None:
        raise step.pairs()
    return step.bind([repeated(left), repeated(right)])


def _reshaped_axis(
    shape: Sequence[int], axis: int, reshaped: Sequence[int], unit: int
) -> int | None:
    """Returns the axis of a reshaped array along which the parts lie that lay along an axis, one
    after the other; None: there is none.

    Args:
      shape, axis: before.
      reshaped: the shape after.
      unit: the number of parts, of which the axis has a multiple.
    """
    before = math.prod(shape[:axis])
    for target, size in enumerate(reshaped):
        # As many values precede it, so that the parts begin at the same places.
        if math.prod(reshaped[:target]) == before and size > 1 and size % unit == 0:
            return target
    return None


def _reshape(step: Step) -> list[Followed]:
    value, axis = step.operand()
    (shape,) = step.shapes
    batch = step.sizes.batch
    target = _reshaped_axis(value.shape, axis, shape, batch)
    if target is None or step.params["dimensions"] is not None:
        raise step.rejected(
            f"it makes {list(shape)} of {list(value.shape)}, in which the {batch} examples of a "
            "batch do not lie along one axis, one after the other"
        )
    return step.bind([value.array], new_sizes=step.sizes.opened(shape, target))


def _broadcast_in_dim(step: Step) -> list[Followed]:
    value, axis = step.operand()
    target = step.params["broadcast_dimensions"][axis]
    return step.bind([value.array], shape=step.sizes.opened(step.shapes[0], target))


def _tile(step: Step) -> list[Followed]:
    if step.params["reps"][step.axis] != 1:
        raise step.rejected("it repeats the batch")
    return _example_by_example(step)


def _slice(step: Step) -> list[Followed]:
    value, axis = step.operand()
    limits = step.params["limit_indices"]
    strides = step.params["strides"] or (1,) * len(value.shape)
    taken = (step.params["start_indices"][axis], limits[axis], strides[axis])
    if taken != (0, value.shape[axis], 1):
        raise step.rejected("it takes some of the examples of a batch")
    return step.bind([value.array], limit_indices=step.sizes.opened(limits, axis))


def _dynamic_slice(step: Step) -> list[Followed]:
    value, axis = step.operand()
    taken = step.params["slice_sizes"]
    if taken[axis] != value.shape[axis]:
        raise step.rejected("it takes some of the examples of a batch")
    arrays = [argument.array for argument in step.arguments]
    return step.bind(arrays, slice_sizes=step.sizes.opened(taken, axis))


def _pad(step: Step) -> list[Followed]:
    _, axis = step.operand()
    if any(step.params["padding_config"][axis]):
        raise step.rejected("it adds examples to a batch, or leaves some out")
    return step.bind([argument.array for argument in step.arguments])


def _gather(step: Step) -> list[Followed]:
    operand, indices = step.arguments
    numbers = step.params["dimension_numbers"]
    taken = step.params["slice_sizes"]
    by_place = step.rejected(
        "it finds entries by the places of examples in a batch; take one of each example by "
        "jnp.take_along_axis"
    )
    own_indices = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    if operand.axis is None:
        if indices.axis in own_indices.values() or indices.axis == len(indices.shape) - 1:
            raise by_place
        return step.bind([repeated(operand), indices.array])
    if operand.axis in own_indices:
        return step.bind([operand.array, step.along(indices, own_indices[operand.axis])])
    indexed = {*numbers.collapsed_slice_dims, *numbers.start_index_map}
    if operand.axis in indexed or taken[operand.axis] != operand.shape[operand.axis]:
        raise by_place
    if indices.axis is not None:
        raise step.pairs()
    slice_sizes = step.sizes.opened(taken, operand.axis)
    return step.bind([operand.array, repeated(indices)], slice_sizes=slice_sizes)


_APART: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, _elementwise_apart),
    "broadcast_in_dim": _broadcast_apart,
    "iota": _iota_apart,
    "pvary": _same,
    "reshape": _reshape_apart,
    "tile": _tile_apart,
}
"""Operations on values that depend on no input, which keep repetitions; others make them."""

_WITH_EXAMPLES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.OPERATIONS, _example_by_example),
    **dict.fromkeys(("optimization_barrier", "pvary", "sharding_constraint"), _same),
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
    "slice": _slice,
    "tile": _tile,
}
"""Operations on examples that compute each from its own values, where their rule says so."""
