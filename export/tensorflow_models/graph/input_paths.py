"""Follows values of a traced graph back to inputs: all values of a tensor, or one per example.

Operations that select or join columns are resolved by running them on numbered values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf
from export.graphs.walks import keeps_values, operands_first
from export.tensorflow_models.graph.origins import Source, Sources

_MOVES = frozenset(
    {
        "StridedSlice",
        "Slice",
        "Split",
        "SplitV",
        "Unpack",
        "GatherV2",
        "Pack",
        "ConcatV2",
        "Transpose",
        "ReverseV2",
    }
)
"""Operations that select values of a tensor, or join those of several."""
_EXAMPLES = 2
"""Examples of a trial run: a column has the same source in each."""
_FOLDED_MAX = 1 << 20
"""Limit of the values of a constant that is computed in the graph."""
_LEAVES = frozenset({"Const", "LookupTableSizeV2", "Placeholder"})
"""Operations whose results are known, if at all, without those of their operands."""


@dataclass(frozen=True, eq=False)
class Values:
    """Values of a tensor.

    Attributes:
      tensor: the tensor that holds them.
      at, of: position among the values of an example, and their number; 0 of 1: all values.
    """

    tensor: Any
    at: int = 0
    of: int = 1

    @property
    def type(self) -> str:
        """Type of the operation that computes them."""
        return str(self.tensor.op.type)

    def of_tensor(self, tensor: Any) -> Values:
        """Returns the values at the same position of another tensor."""
        return Values(tensor, self.at, self.of)

    @cached_property
    def inputs(self) -> tuple[Values, ...]:
        """The operands of an element-wise operation at this position; () if they are not known."""
        operands = self.tensor.op.inputs
        if self.of == 1:
            return tuple(map(Values, operands))
        if per_example(self.tensor) == self.of:
            place = (0, *np.unravel_index(self.at, self.tensor.shape.as_list()[1:]))
            return tuple(_beside(tensor, place) for tensor in operands)
        alike = [
            tensor.shape.rank == 0 or str(tensor.shape) == str(self.tensor.shape)
            for tensor in operands
        ]
        return tuple(
            self.of_tensor(each) if each.shape.rank else Values(each)
            for each in operands
            if all(alike)
        )


def _beside(tensor: Any, place: tuple[Any, ...]) -> Values:
    """Returns the value of an operand that is broadcast to this position."""
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
    if not sizes or len(sizes) > len(place):
        return Values(tensor)
    batch = sizes[0] is None and len(sizes) == len(place)
    own = sizes[1:] if batch else sizes
    last = place[len(place) - len(own) :]
    spread = all(
        size is not None and (size == 1 or each < size)
        for each, size in zip(last, own, strict=True)
    )
    if not spread or (not batch and len(sizes) == len(place) and sizes[0] != 1):
        return Values(tensor, 0, 0)  # none that is known
    index = tuple(int(each) if size > 1 else 0 for each, size in zip(last, own, strict=True))
    return Values(tensor, int(np.ravel_multi_index(index, own)), math.prod(own))


def per_example(tensor: Any) -> int | None:
    """Returns how many values each example has in a tensor whose first axis is the batch; None if
    unknown.
    """
    if not tensor.shape.rank:
        return None
    sizes = tensor.shape.as_list()
    return None if sizes[0] is not None or None in sizes[1:] else math.prod(sizes[1:])


_Found = TypeVar("_Found")
_Taken = tuple[int, int]
"""An operand, and the position among its values per example."""


@dataclass(frozen=True)
class CallGraph:
    """The graph of a traced call, in which values are followed.

    Attributes:
      sources: its inputs.
      captured: handles and constants that the graph captures, by the name of the inner tensor.
      from_end: whether negative ids count from the table's end, as in Keras 3.
      rules: what `searched` has found.
    """

    sources: Sources
    captured: Mapping[str, Any]
    from_end: bool = False
    rules: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _moved: dict[str, list[list[_Taken | None]]] = field(default_factory=dict)
    _folded: dict[str, list[NDArray[Any]] | None] = field(default_factory=dict)

    def searched(
        self, what: str, values: Values, rows: int | None, search: Callable[[], _Found]
    ) -> _Found:
        """Returns what a search for a rule behind values finds; searches once.

        Computations meet again, as behind `tf.where(x < 0, x, x + 1)`: searched along each path to
        an input, their number would double with every such operation.

        Args:
          what: what is searched for.
          values: the result of a computation.
          rows: of the table that they are rows of.
          search: searches this call.
        """
        key = (what, values.tensor.name, values.at, values.of, rows, self.from_end)
        if key not in self.rules:
            self.rules[key] = search()
        found: _Found = self.rules[key]
        return found

    def treated_as_input(self, tensor: Any, source: Source) -> CallGraph:
        """Returns the call with one tensor more among its inputs."""
        return replace(self, sources={**self.sources, tensor.name: source}, rules={})

    def origin(self, values: Values) -> Source | Values:
        """Follows values back through operations that do not change them.

        Returns:
          The Source of the values, with a place if they are one of several, or the values that an
          operation computes.
        """
        while (before := self.before(values)) is not None:
            values = before
        source = self.sources.get(values.tensor.name)
        if source is None:
            return values
        if values.of == 1:
            return source
        plain = source.part == "dense" and per_example(values.tensor) == values.of
        return Source(source.name, source.part, values.at) if plain else values

    def before(self, values: Values) -> Values | None:
        """Returns what an operation passes on as these values; None if they are an input's or
        computed.
        """
        if values.tensor.name in self.sources:
            return None
        operation = values.tensor.op
        if keeps_values(operation) and not _rounds(operation):
            return values.of_tensor(operation.inputs[0])
        if operation.type not in _MOVES or per_example(values.tensor) != values.of:
            return None
        taken = self._taken(values.tensor)
        found = taken[values.at] if taken else None
        if found is None:
            return None
        operand, at = found
        tensor = operation.inputs[operand]
        return Values(tensor, at, per_example(tensor) or 0)

    def _taken(self, tensor: Any) -> list[_Taken | None]:
        """Returns the source of each value of an example; [] if it depends on more than
        constants.
        """
        operation = tensor.op
        if operation.name not in self._moved:
            self._moved[operation.name] = self._try(operation)
        taken = self._moved[operation.name]
        return taken[tensor.value_index] if taken else []

    def _try(self, operation: Any) -> list[list[_Taken | None]]:
        """Returns the source of each value of an example, for each output; [] if the operation does
        not run on numbered values.
        """
        given: list[NDArray[Any]] = []
        operands: list[tuple[int, int, int]] = []
        first = 0
        for place, operand in enumerate(operation.inputs):
            known = self.constant(operand)
            if known is None:
                size = per_example(operand)
                if not size:
                    return []
                shape = [_EXAMPLES, *operand.shape.as_list()[1:]]
                known = np.arange(first, first + _EXAMPLES * size).reshape(shape)
                operands.append((place, first, size))
                first += _EXAMPLES * size
            given.append(np.asarray(known))
        try:
            results = run(operation, given)
        # any operation may fail, such as a gather by numbers out of range
        except Exception:  # noqa: BLE001
            return []
        return [
            _places_of(np.asarray(result), output, operands)
            for result, output in zip(results, operation.outputs, strict=True)
        ]

    def constant(self, tensor: Any) -> NDArray[Any] | None:
        """Returns the value of a tensor that depends on no input; a single value may represent all
        elements.
        """
        if self._is_to_fold(tensor.op):
            for operation in operands_first(tensor.op, self._operands_to_fold):
                self._folded[operation.name] = self._fold(operation)
        return self._value(tensor)

    def _operands_to_fold(self, operation: Any) -> list[Any]:
        """Returns the operations whose results an operation reads and that were not folded yet."""
        operands = [tensor.op for tensor in operation.inputs]
        return [operand for operand in operands if self._is_to_fold(operand)]

    def _is_to_fold(self, operation: Any) -> bool:
        """Returns whether the results of an operation follow from those of its operands, and were
        not computed yet.
        """
        follow = operation.type not in _LEAVES and not operation.op_def.is_stateful
        return follow and operation.name not in self._folded

    def _value(self, tensor: Any) -> NDArray[Any] | None:
        """Returns the value of a tensor whose operation was folded, or needs no folding."""
        operation = tensor.op
        if operation.type == "Const":
            return np.asarray(tf.get_static_value(tensor))
        if operation.type == "LookupTableSizeV2":
            table = self.resource(operation.inputs[0])
            return (
                None
                if table is None
                else np.asarray(tf.raw_ops.LookupTableSizeV2(table_handle=table))
            )
        if operation.type == "Placeholder":
            outer = self.captured.get(tensor.name)
            return None if outer is None or _is_handle(outer) else np.asarray(outer.numpy())
        results = self._folded.get(operation.name)
        return None if results is None else results[tensor.value_index]

    def _fold(self, operation: Any) -> list[NDArray[Any]] | None:
        """Returns the results of an operation whose operands are constants; None for any other."""
        if operation.type in ("ZerosLike", "OnesLike"):
            return [np.asarray(int(operation.type == "OnesLike"))]
        if operation.type in ("Fill", "BroadcastTo"):
            filling = self._value(operation.inputs[operation.type == "Fill"])
            if filling is not None and filling.size == 1:
                return [filling.reshape(())]
        operands = []
        for tensor in operation.inputs:
            operand = self._value(tensor)
            if operand is None:
                return None
            operands.append(operand)
        if sum(operand.size for operand in operands) > _FOLDED_MAX:
            return None
        try:
            return [np.asarray(result) for result in run(operation, operands)]
        except Exception:  # noqa: BLE001 - any operation may fail; then this is no constant
            return None

    def tensor_of(self, source: Source, graph: Any) -> Any:
        """Returns the tensor of one of its inputs."""
        return graph.get_tensor_by_name(
            next(name for name, each in self.sources.items() if each == source)
        )

    def resource(self, handle: Any) -> Any:
        """Returns what a resource's tensor captures; None if that is not known."""
        while handle.op.type == "Identity":
            handle = handle.op.inputs[0]
        return self.captured.get(handle.name)

    def number(self, values: Values) -> Any:
        """Returns the number that all these values equal, if it is known."""
        held = self.constant(values.tensor)
        if held is None or held.dtype.kind not in "iuf":
            return None
        if held.size == 1:
            return held.flat[0]
        return held.flat[values.at] if held.size == values.of else None


def _places_of(
    result: NDArray[Any], output: Any, operands: list[tuple[int, int, int]]
) -> list[_Taken | None]:
    """Returns the source of each value of an example; [] if not each example has its own values."""
    if per_example(output) is None or result.shape != (_EXAMPLES, *output.shape.as_list()[1:]):
        return []
    columns = result.reshape(_EXAMPLES, -1).astype(np.int64)
    return [_place_of(int(one), int(other), operands) for one, other in columns.T]


def _place_of(one: int, other: int, operands: list[tuple[int, int, int]]) -> _Taken | None:
    for place, first, size in operands:
        if first <= one < first + size:
            return (place, one - first) if other == one + size else None
    return None  # the examples were selected, or this is a constant


def _rounds(operation: Any) -> bool:
    """Returns whether an operation is a cast to floats that cannot hold all those before it."""
    before = operation.inputs[0].dtype
    after = operation.outputs[0].dtype
    held = np.can_cast(before.as_numpy_dtype, after.as_numpy_dtype)
    return operation.type == "Cast" and before.is_floating and not held


def _is_handle(value: Any) -> bool:
    return str(value.dtype.name) in ("resource", "variant")


def run(operation: Any, given: list[NDArray[Any]]) -> list[Any]:
    """Runs an operation of a graph eagerly on these values."""
    arguments: dict[str, Any] = {}
    inferred = set()
    left = iter(given)
    with tf.init_scope():
        for argument in operation.op_def.input_arg:
            name = "axis" if argument.name == "split_dim" else argument.name
            inferred |= {argument.type_attr, argument.type_list_attr, argument.number_attr}
            if argument.number_attr:
                arguments[name] = [
                    tf.constant(next(left)) for _ in range(operation.get_attr(argument.number_attr))
                ]
            else:
                arguments[name] = tf.constant(next(left))
        for attribute in operation.op_def.attr:
            if attribute.name not in inferred:
                arguments[attribute.name] = operation.get_attr(attribute.name)
        result = getattr(tf.raw_ops, operation.type)(**arguments)
    return [part.numpy() for part in (result if isinstance(result, list | tuple) else [result])]
