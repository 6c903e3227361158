"""Walks TensorFlow graphs: what results need, and which operations keep values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ID_DTYPES = frozenset({"int32", "int64"})
"""The integers that ids are computed in."""
PYTHON_CODE = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
"""Operations that run Python code: tf.py_function, tf.numpy_function."""


_SAME_VALUES = frozenset(
    {
        "Identity",
        "Reshape",
        "ExpandDims",
        "Squeeze",
        "StopGradient",
        "EnsureShape",
        "PreventGradient",
    }
)
"""Operations that return all values of their first input, in order."""


def keeps_values(operation: Any) -> bool:
    """Returns whether an operation keeps all values of its first input; casts among floats, among
    int32 and int64, and to wider integers do.
    """
    if operation.type != "Cast":
        return operation.type in _SAME_VALUES
    before = operation.inputs[0].dtype
    after = operation.outputs[0].dtype
    if not (before.is_integer and after.is_integer):
        return bool(before.is_floating and after.is_floating)
    # Narrow and unsigned integers wrap around at values that ids have.
    both_hold_ids = {before.name, after.name} <= ID_DTYPES
    return both_hold_ids or np.can_cast(before.as_numpy_dtype, after.as_numpy_dtype)


@dataclass(frozen=True)
class Needed:
    """The part of a graph that results are computed from.

    Attributes:
      stops: Names of the stops that were reached.
      placeholders: The placeholders that are no stops: inputs and captures.
      operations: All operations between the results and the stops.
    """

    stops: frozenset[str]
    placeholders: tuple[Any, ...]
    operations: tuple[Any, ...]


def needed(results: Iterable[Any], stops: Iterable[Any]) -> Needed:
    """Walks back from `results` up to `stops` (both tensors of one graph)."""
    stop_names = {tensor.name for tensor in stops}
    reached_stops: set[str] = set()
    placeholders: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    queue = list(results)
    while queue:
        tensor = queue.pop()
        if tensor.name in stop_names:
            reached_stops.add(tensor.name)
            continue
        operation = tensor.op
        if operation.type == "Placeholder":
            placeholders[tensor.name] = tensor
            continue
        if operation.name in operations:
            continue
        operations[operation.name] = operation
        queue.extend(operation.inputs)
        # A control input is an operation: any of its outputs represents it; without outputs, its
        # inputs do.
        for control in operation.control_inputs:
            if control.outputs:
                queue.append(control.outputs[0])
            else:
                operations[control.name] = control
                queue.extend(control.inputs)
    return Needed(
        frozenset(reached_stops), tuple(placeholders.values()), tuple(operations.values())
    )


def operands_first(operation: Any, operands_of: Callable[[Any], Sequence[Any]]) -> Iterator[Any]:
    """Yields an operation and the operations that it is computed from, each once and after its
    operands.

    In a cycle, such as a loop of TF1, one operation comes before one of its operands.

    Args:
      operation: The operation to compute.
      operands_of: Returns the operations whose results an operation reads.
    """
    visited = {operation.name}
    # A stack instead of recursion: graphs are deeper than Python's limit.
    path = [(operation, iter(operands_of(operation)))]
    while path:
        current, operands = path[-1]
        following = next((operand for operand in operands if operand.name not in visited), None)
        if following is None:
            path.pop()
            yield current
        else:
            visited.add(following.name)
            path.append((following, iter(operands_of(following))))


def resource(handle: Any) -> str:
    """Returns a key that is unique among the resources of live variables."""
    return str(id(handle))
