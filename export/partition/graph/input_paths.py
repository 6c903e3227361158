"""Follows values of a traced graph back to inputs: all values of a tensor, or one per example.

Operations that select or join columns are resolved by running them on numbered values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf
from export.graphs.walks import keeps_values, operands_first
from export.partition.graph.origins import Source, Sources

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
TRACED_CALL = "traced_call"
"""The name of the graph that a call is traced in."""
_EXAMPLES = 2
"""Number of examples in a trial run: a column has the same source in each."""
_FOLDED_MAX = 1 << 20
"""Maximum number of values that a constant is computed from, which bounds time and memory."""
_LEAVES = frozenset({"Const", "LookupTableSizeV2", "Placeholder"})
"""Operations whose results are known, if at all, without those of their operands."""


ValuesKey = tuple[str, int, int]
"""What distinguishes values from all others of a call."""


@dataclass(frozen=True, eq=False)
class Values:
    """Values of a tensor.

    Attributes:
      tensor: The tensor that holds them.
      position, count: The position among the values of an example, and their number; 0 of 1: all
        values.
    """

    tensor: Any
    position: int = 0
    count: int = 1

    @property
    def type(self) -> str:
        """Type of the operation that computes them."""
        return str(self.tensor.op.type)

    @property
    def key(self) -> ValuesKey:
        """The key of these values, which other objects may stand for, too."""
        return self.tensor.name, self.position, self.count

    def of_tensor(self, tensor: Any) -> Values:
        """Returns the values at the same position of another tensor."""
        return Values(tensor, self.position, self.count)

    @cached_property
    def inputs(self) -> tuple[Values, ...]:
        """The operands of an element-wise operation at this position; () if they are not known."""
        operands = self.tensor.op.inputs
        if self.count == 1:
            return tuple(map(Values, operands))
        if per_example(self.tensor) == self.count:
            _, *sizes = self.tensor.shape.as_list()
            position = (0, *np.unravel_index(self.position, sizes))
            return tuple(_broadcast_value(tensor, position) for tensor in operands)
        # Flattened ids have another shape; operands of the same one have the same positions.
        values = []
        for tensor in operands:
            if tensor.shape.rank == 0:
                values.append(Values(tensor))
            elif str(tensor.shape) == str(self.tensor.shape):
                values.append(self.of_tensor(tensor))
            else:
                return ()
        return tuple(values)


def _broadcast_value(tensor: Any, position: tuple[Any, ...]) -> Values:
    """Returns the value of an operand that is broadcast to this position of a result.

    As in NumPy, the operand may lack the first axes, and has the one value of an axis of size 1.
    """
    if not tensor.shape.rank or tensor.shape.rank > len(position):
        return Values(tensor)
    sizes = tensor.shape.as_list()
    unknown = Values(tensor, 0, 0)
    if len(sizes) == len(position) and sizes[0] is None:
        # The batch is the same for operand and result.
        sizes = sizes[1:]
    elif len(sizes) == len(position) and sizes[0] != 1:
        return unknown

    indices = []
    last_axes = position[len(position) - len(sizes) :]
    for index, size in zip(last_axes, sizes, strict=True):
        if size == 1:
            indices.append(0)
        elif size is not None and index < size:
            indices.append(int(index))
        else:
            return unknown
    flat_index = int(np.ravel_multi_index(tuple(indices), sizes))
    return Values(tensor, flat_index, math.prod(sizes))


def per_example(tensor: Any) -> int | None:
    """Returns how many values each example has in a tensor whose first axis is the batch; None if
    unknown.
    """
    if not tensor.shape.rank:
        return None
    batch, *sizes = tensor.shape.as_list()
    if batch is not None or None in sizes:
        return None
    return int(math.prod(sizes))


_Result = TypeVar("_Result")
_ColumnSource = tuple[int, int]
"""The operand that a column of an output comes from, and the position among its values per example.
"""
_NumberedOperand = tuple[int, int, int]
"""An operand, the first of the numbers that stand for its values, and its values per example."""


@dataclass(frozen=True)
class CallGraph:
    """The graph of a traced call, in which values are followed.

    Attributes:
      sources: The inputs of the call.
      captured: The handles and constants that the graph captures, by the name of the inner tensor.
      from_end: Whether negative ids count from the table's end, as in Keras 3.
      rules: The results of `searched`.
    """

    sources: Sources
    captured: Mapping[str, Any]
    from_end: bool = False
    rules: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _moved: dict[str, list[list[_ColumnSource | None]]] = field(default_factory=dict)
    _folded: dict[str, list[NDArray[Any]] | None] = field(default_factory=dict)

    def searched(
        self, kind: str, values: Values, rows: int | None, search: Callable[[], _Result]
    ) -> _Result:
        """Returns what a search for a rule behind values finds; searches once.

        Computations meet again, as behind `tf.where(x < 0, x, x + 1)`: searched along each path to
        an input, their number would double with every such operation.

        Args:
          kind: The kind of rule that is searched for.
          values: The result of a computation.
          rows: The number of rows of the table that they are rows of.
          search: Searches this call.
        """
        key = (kind, values.tensor.name, values.position, values.count, rows, self.from_end)
        if key not in self.rules:
            self.rules[key] = search()
        result: _Result = self.rules[key]
        return result

    def treated_as_input(self, tensor: Any, source: Source) -> CallGraph:
        """Returns the call with one tensor more among its inputs."""
        return replace(self, sources={**self.sources, tensor.name: source}, rules={})

    def origin(self, values: Values) -> Source | Values:
        """Follows values back through operations that do not change them.

        Returns:
          The Source of the values, with a position if they are one of several, or the values that
          an operation computes.
        """
        while (before := self.before(values)) is not None:
            values = before
        source = self.sources.get(values.tensor.name)
        if source is None:
            return values
        if values.count == 1:
            return source
        if source.part != "dense" or per_example(values.tensor) != values.count:
            return values
        return Source(source.name, source.part, values.position)

    def followed(self, values: Values) -> Values:
        """Follows values back through operations that only pass them on; casts compute."""
        while values.type != "Cast" and (before := self.before(values)) is not None:
            values = before
        return values

    def before(self, values: Values) -> Values | None:
        """Returns what an operation passes on as these values; None if they are an input's or
        computed.
        """
        if values.tensor.name in self.sources:
            return None
        operation = values.tensor.op
        # A cast to shorter floats keeps each value in its position, but not the value itself.
        if keeps_values(operation) and not _rounds(operation):
            return values.of_tensor(operation.inputs[0])
        if operation.type not in _MOVES or per_example(values.tensor) != values.count:
            return None
        sources = self._column_sources(values.tensor)
        if not sources:
            return None
        source = sources[values.position]
        if source is None:
            return None
        operand, position = source
        tensor = operation.inputs[operand]
        return Values(tensor, position, per_example(tensor) or 0)

    def _column_sources(self, tensor: Any) -> list[_ColumnSource | None]:
        """Returns the source of each value of an example; [] if it depends on more than
        constants.
        """
        operation = tensor.op
        if operation.name not in self._moved:
            self._moved[operation.name] = self._run_on_numbers(operation)
        sources_of_outputs = self._moved[operation.name]
        if not sources_of_outputs:
            return []
        return sources_of_outputs[tensor.value_index]

    def _run_on_numbers(self, operation: Any) -> list[list[_ColumnSource | None]]:
        """Returns the source of each value of an example, for each output; [] if the operation does
        not run on numbered values.
        """
        # Every value of every operand has a number of its own, so that a number in the result shows
        # where the value in its position comes from.
        arguments: list[NDArray[Any]] = []
        numbered: list[_NumberedOperand] = []
        first = 0
        for position, operand in enumerate(operation.inputs):
            argument = self.constant(operand)
            if argument is None:
                # Which values a gather selects depends on those of an input.
                if operation.type == "GatherV2" and position > 0:
                    return []
                size = per_example(operand)
                if not size:
                    return []
                shape = [_EXAMPLES, *operand.shape.as_list()[1:]]
                argument = np.arange(first, first + _EXAMPLES * size).reshape(shape)
                numbered.append((position, first, size))
                first += _EXAMPLES * size
            arguments.append(np.asarray(argument))
        try:
            results = run(operation, arguments)
        # Any operation may fail, such as a gather by numbers out of range.
        except Exception:  # noqa: BLE001
            return []
        return [
            _sources_in(np.asarray(result), output, numbered)
            for result, output in zip(results, operation.outputs, strict=True)
        ]

    def constant(self, tensor: Any) -> NDArray[Any] | None:
        """Returns the value of a tensor that depends on no input; a single value may represent all
        elements.
        """
        if self._is_to_fold(tensor.op):
            # Operands first, without recursion: a graph may be deeper than Python's stack.
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
        follows = operation.type not in _LEAVES and not operation.op_def.is_stateful
        return follows and operation.name not in self._folded

    def _value(self, tensor: Any) -> NDArray[Any] | None:
        """Returns the value of a tensor whose operation was folded, or needs no folding."""
        operation = tensor.op
        if operation.type == "Const":
            return np.asarray(tf.get_static_value(tensor))
        if operation.type == "LookupTableSizeV2":
            return self._size_of_vocabulary(operation)
        if operation.type == "Placeholder":
            return self._captured_value(tensor)
        results = self._folded.get(operation.name)
        if results is None:
            return None
        value: NDArray[Any] = results[tensor.value_index]
        return value

    def _size_of_vocabulary(self, operation: Any) -> NDArray[Any] | None:
        table = self.resource(operation.inputs[0])
        if table is None:
            return None
        return np.asarray(tf.raw_ops.LookupTableSizeV2(table_handle=table))

    def _captured_value(self, placeholder: Any) -> NDArray[Any] | None:
        outer = self.captured.get(placeholder.name)
        if outer is None or _is_handle(outer):
            return None
        return np.asarray(outer.numpy())

    def _fold(self, operation: Any) -> list[NDArray[Any]] | None:
        """Returns the results of an operation whose operands are constants; None for any other."""
        # A single value may represent all elements, whose number may be unknown.
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
        name = next(name for name, candidate in self.sources.items() if candidate == source)
        return graph.get_tensor_by_name(name)

    def resource(self, handle: Any) -> Any:
        """Returns what a resource's tensor captures; None if that is not known."""
        while handle.op.type == "Identity":
            handle = handle.op.inputs[0]
        return self.captured.get(handle.name)

    def number(self, values: Values) -> Any:
        """Returns the number that all these values equal, if it is known."""
        constant = self.constant(values.tensor)
        if constant is None or constant.dtype.kind not in "iuf":
            return None
        if constant.size == 1:
            return constant.flat[0]
        if constant.size == values.count:
            return constant.flat[values.position]
        return None


def _sources_in(
    result: NDArray[Any], output: Any, numbered: list[_NumberedOperand]
) -> list[_ColumnSource | None]:
    """Returns the source of each value of an example; [] if not each example has its own values."""
    if per_example(output) is None:
        return []
    _, *sizes = output.shape.as_list()
    if result.shape != (_EXAMPLES, *sizes):
        return []
    columns = result.reshape(_EXAMPLES, -1).astype(np.int64)
    return [_source_of(first, second, numbered) for first, second in columns.T.tolist()]


def _source_of(first: int, second: int, numbered: list[_NumberedOperand]) -> _ColumnSource | None:
    """Returns the source of a column by its numbers in both examples."""
    for operand, start, size in numbered:
        if start <= first < start + size and second == first + size:
            return operand, first - start
    # Examples were selected, or this is a constant.
    return None


def _rounds(operation: Any) -> bool:
    """Returns whether an operation is a cast to floats that cannot hold all those before it."""
    before = operation.inputs[0].dtype
    after = operation.outputs[0].dtype
    holds_all = np.can_cast(before.as_numpy_dtype, after.as_numpy_dtype)
    return operation.type == "Cast" and before.is_floating and not holds_all


def _is_handle(value: Any) -> bool:
    return str(value.dtype.name) in ("resource", "variant")


def run(operation: Any, operands: Sequence[NDArray[Any]]) -> list[Any]:
    """Runs an operation of a graph eagerly on these values."""
    # Outside of the graph that is being traced.
    with tf.init_scope():
        return [output.numpy() for output in applied(operation, operands)]


def applied(operation: Any, operands: Sequence[Any]) -> list[Any]:
    """Applies an operation of a graph to other operands, arrays or tensors."""
    arguments: dict[str, Any] = {}
    inferred = set()
    remaining = iter(map(tf.convert_to_tensor, operands))
    for argument in operation.op_def.input_arg:
        name = argument.name
        # `tf.raw_ops` calls this one operand otherwise than the operation does.
        if name == "split_dim":
            name = "axis"
        # TensorFlow infers these attributes from the operands.
        inferred |= {argument.type_attr, argument.type_list_attr, argument.number_attr}
        if argument.number_attr:
            count = operation.get_attr(argument.number_attr)
            arguments[name] = [next(remaining) for _ in range(count)]
        else:
            arguments[name] = next(remaining)
    for attribute in operation.op_def.attr:
        if attribute.name not in inferred:
            arguments[attribute.name] = operation.get_attr(attribute.name)
    result = getattr(tf.raw_ops, operation.type)(**arguments)
    if isinstance(result, list | tuple):
        return list(result)
    return [result]
