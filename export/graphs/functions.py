"""Traced functions of TensorFlow, as towers are: smaller ones taken out of larger ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from export.errors import NotConvertible
from export.graphs.internals import set_captures, table_of, without_gradient
from export.graphs.loading import tf
from export.graphs.walks import Needed, keeps_values, needed, resource
from export.user_lines import at_line, line_of_operation

_FEW_VALUES = 64
_ASSERTION = re.compile(r"AssertGuard(_\d+)?$")
"""What a `tf.Assert` is in a function: a condition."""
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
}
_OF_ALL_VALUES = frozenset(
    {*_COMPARE, "All", "Any", "LogicalNot", "Where", "Shape", "Size", "StridedSlice"}
)
"""Operations between a tensor and an assertion about all of its values."""


def narrowed(
    name: str, function: Any, feeds: Sequence[Any], fetches: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """Extracts a smaller function from a traced one.

    Args:
      name: name of the tower, for messages.
      function: a TensorFlow WrappedFunction.
      feeds: tensors of its graph that the new function takes, in their order.
      fetches: tensors of its graph that it returns, by name.
    Returns:
      The function, and the variables that it reads.
    Raises:
      NotConvertible: it reads a resource that is not a variable.
    """
    graph = function.graph
    everything = function.graph.captures
    found = needed(fetches.values(), feeds)
    captures = captures_of(function, found)
    # Custom gradients, as of tf.nn.silu, refer to what is pruned here.
    for operation in found.operations:
        if operation.type == "IdentityN":
            without_gradient(operation)

    # prune() would pass every variable of the call to every tower.
    set_captures(graph, captures)
    try:
        part = function.prune(list(feeds), dict(fetches))
        if any(each.shape.rank is None for each in part.structured_outputs.values()):
            # Static shapes that code sets, as Keras does for lookup tables, are lost unless the
            # graph has them.
            with graph.as_default():
                shaped = {
                    which: tf.ensure_shape(tensor, tensor.shape)
                    for which, tensor in fetches.items()
                }
            part = function.prune(list(feeds), shaped)
    finally:
        set_captures(graph, everything)
    known = {resource(variable.handle): variable for variable in graph.variables}
    return part, _variables(name, known, found, captures)


def captures_of(function: Any, found: Needed) -> list[tuple[Any, Any]]:
    """Returns the captures that results need: the outer variable or constant, and its inner
    placeholder.
    """
    reached = {placeholder.name for placeholder in found.placeholders}
    return [pair for pair in function.graph.captures if pair[1].name in reached]


def tables_of(function: Any) -> list[Any]:
    """Returns the `tf.lookup` tables that a traced function reads."""
    tables = [table_of(outer) for outer, _ in function.graph.captures]
    distinct = {id(table): table for table in tables if table is not None}
    return list(distinct.values())


def constants_of(function: Any) -> list[Any]:
    """Returns the constants that a traced function holds, as tensors of its graph: those that it
    captured, and those that are operations; not those of a few values, such as shapes.
    """
    captured = [
        inner
        for outer, inner in function.graph.captures
        if outer.dtype not in (tf.resource, tf.variant)
    ]
    operations = function.graph.get_operations()
    constants = captured + [each.outputs[0] for each in operations if each.type == "Const"]
    return [each for each in constants if (each.shape.num_elements() or 0) > _FEW_VALUES]


def asserts_without(tensor: Any, value: int) -> bool:
    """Returns whether the graph fails, by a `tf.Assert`, where a tensor of integers has a value:
    what is asserted begins with a comparison of the tensor that tells the value from 0.
    """
    seen = set()
    queue = [user for user in tensor.consumers() if _distinguishes(user, tensor, value)]
    for operation in queue:  # grows while it is walked
        if operation.name in seen:
            continue
        seen.add(operation.name)
        if operation.type == "Assert" or _ASSERTION.search(operation.name):
            return True
        if operation.type in _OF_ALL_VALUES or keeps_values(operation):
            queue += [user for result in operation.outputs for user in result.consumers()]
    return False


def _distinguishes(operation: Any, tensor: Any, value: int) -> bool:
    """Returns whether an operation compares a tensor with a constant, and tells a value from 0."""
    compare = _COMPARE.get(operation.type)
    if compare is None or operation.inputs[0] is not tensor:
        return False
    constant = tf.get_static_value(operation.inputs[1])
    return constant is not None and bool(np.any(compare(value, constant) != compare(0, constant)))


def bytes_of(values: Any) -> int:
    """Returns the bytes of a variable or of a constant; 0 of texts."""
    return int(values.shape.num_elements() * values.dtype.size)


def type_of(tensor: Any) -> dict[str, Any]:
    """Returns dtype and shape of a tensor in the manifest's form."""
    return {"dtype": tensor.dtype.name, "shape": tuple(tensor.shape.as_list())}


def _variables(
    name: str, variables: Mapping[str, Any], found: Needed, captures: list[tuple[Any, Any]]
) -> tuple[Any, ...]:
    read = []
    for outer, inner in captures:
        if outer.dtype.name != "resource":
            continue  # a constant of the model's code
        if table_of(outer) is not None:
            continue
        variable = variables.get(resource(outer))
        if variable is None:
            line = line_of_reader(inner, found)
            raise NotConvertible(
                f"tower {name!r} reads a resource that is not a variable (a mutable hash "
                f"table?){line}; do that before the model and pass the result as an input"
            )
        read.append(variable)
    return tuple(read)


def line_of_reader(tensor: Any, found: Needed) -> str:
    """Returns the user's line that first reads a tensor, as part of a sentence."""
    for operation in found.operations:
        if any(read is tensor for read in operation.inputs):
            line = line_of_operation(operation)
            if line:
                return at_line(line)
    return at_line("")


def fill(variables: Iterable[Any]) -> None:
    """Assigns random values to variables without any, until they are restored from the
    checkpoint.
    """
    random = np.random.default_rng(0)
    for variable in variables:
        if not variable.is_initialized():
            made = random.normal(0, 0.1, variable.shape.as_list())
            variable.assign(made.astype(variable.dtype.as_numpy_dtype))
