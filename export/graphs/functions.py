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
"""Constants of at most this number of values are not reported: shapes, axes and scalars."""
_ASSERTION = re.compile(r"AssertGuard(_\d+)?$")
"""The name of the condition that a `tf.Assert` becomes in a function."""
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
      name: The tower's name, for messages.
      function: The traced function, a TensorFlow WrappedFunction.
      feeds: Tensors of the function's graph that the new function takes, in their order.
      fetches: Tensors of the function's graph that the new function returns, by name.

    Returns:
      The new function, and the variables that it reads.

    Raises:
      NotConvertible: The new function reads a resource that is neither a variable nor a constant
        table.
    """
    graph = function.graph
    all_captures = graph.captures
    subgraph = needed(fetches.values(), feeds)
    captures = captures_of(graph, subgraph)
    # Custom gradients, as of tf.nn.silu, refer to what is pruned here.
    for operation in subgraph.operations:
        if operation.type == "IdentityN":
            without_gradient(operation)

    # prune() would pass every variable of the call to every tower.
    set_captures(graph, captures)
    try:
        pruned = function.prune(list(feeds), dict(fetches))
        if any(output.shape.rank is None for output in pruned.structured_outputs.values()):
            # Static shapes that code sets, as Keras does for lookup tables, are lost unless the
            # graph has them.
            with graph.as_default():
                shaped_fetches = {
                    output_name: tf.ensure_shape(tensor, tensor.shape)
                    for output_name, tensor in fetches.items()
                }
            pruned = function.prune(list(feeds), shaped_fetches)
    finally:
        # The other towers are extracted from the same function.
        set_captures(graph, all_captures)
    if any(feed.op.inputs for feed in feeds):
        # prune() also copied what a feed is computed from, such as reads of variables that the new
        # function does not have. From the copies of the feeds, which are placeholders, it does not.
        pruned = pruned.prune(pruned.graph.inputs[: len(feeds)], pruned.structured_outputs)

    return pruned, variables_of(f"tower {name!r}", graph, subgraph)


def captures_of(graph: Any, subgraph: Needed) -> list[tuple[Any, Any]]:
    """Returns the captures that a part of a traced graph needs: the outer variable or constant of
    each, and its inner placeholder.
    """
    reached_names = {placeholder.name for placeholder in subgraph.placeholders}
    return [
        (outer, placeholder)
        for outer, placeholder in graph.captures
        if placeholder.name in reached_names
    ]


def tables_of(function: Any) -> list[Any]:
    """Returns the `tf.lookup` tables that a traced function reads."""
    tables = [table_of(outer) for outer, _ in function.graph.captures]
    # A function may capture one table more than once.
    tables_by_id = {id(table): table for table in tables if table is not None}
    return list(tables_by_id.values())


def constants_of(function: Any) -> list[Any]:
    """Returns the constants of a traced function, as tensors of its graph: the constants that it
    captured and its constant operations, without constants of a few values, such as shapes.
    """
    captured = [
        inner
        for outer, inner in function.graph.captures
        if outer.dtype not in (tf.resource, tf.variant)
    ]
    operations = function.graph.get_operations()
    literals = [operation.outputs[0] for operation in operations if operation.type == "Const"]
    return [
        constant
        for constant in captured + literals
        if (constant.shape.num_elements() or 0) > _FEW_VALUES
    ]


def asserts_without(tensor: Any, value: int) -> bool:
    """Returns whether the graph fails, by a `tf.Assert`, where a tensor of integers has a value:
    the assertion begins with a comparison of the tensor that distinguishes the value from 0.
    """
    visited = set()
    queue = [user for user in tensor.consumers() if _distinguishes(user, tensor, value)]
    # The queue grows while it is walked.
    for operation in queue:
        if operation.name in visited:
            continue
        visited.add(operation.name)
        if operation.type == "Assert" or _ASSERTION.search(operation.name):
            return True
        if operation.type in _OF_ALL_VALUES or keeps_values(operation):
            for result in operation.outputs:
                queue += result.consumers()
    return False


def _distinguishes(operation: Any, tensor: Any, value: int) -> bool:
    """Returns whether an operation compares a tensor with a constant, and distinguishes a value
    from 0.
    """
    compare = _COMPARE.get(operation.type)
    if compare is None or operation.inputs[0] is not tensor:
        return False
    constant = tf.get_static_value(operation.inputs[1])
    if constant is None:
        return False
    return bool(np.any(compare(value, constant) != compare(0, constant)))


def bytes_of(values: Any) -> int:
    """Returns the bytes of a variable or of a constant; 0 for strings."""
    return int(values.shape.num_elements() * values.dtype.size)


def type_of(tensor: Any) -> dict[str, Any]:
    """Returns dtype and shape of a tensor in the manifest's form."""
    return {"dtype": tensor.dtype.name, "shape": tuple(tensor.shape.as_list())}


def variables_of(subject: str, graph: Any, subgraph: Needed) -> tuple[Any, ...]:
    """Returns the variables that a part of a traced graph reads.

    Args:
      subject: What is computed by that part, for messages.
      graph: The whole graph.
      subgraph: The part.

    Raises:
      NotConvertible: It reads a resource that is neither a variable nor a constant table.
    """
    variables = {resource(variable.handle): variable for variable in graph.variables}
    captured_variables = []
    for outer, inner in captures_of(graph, subgraph):
        # A capture that is no resource is a constant of the model's code.
        if outer.dtype.name != "resource":
            continue
        if table_of(outer) is not None:
            continue
        variable = variables.get(resource(outer))
        if variable is None:
            raise unknown_resource(subject, line_of_reader(inner, subgraph))
        captured_variables.append(variable)
    return tuple(captured_variables)


def unknown_resource(subject: str, line: str) -> NotConvertible:
    """Returns the error about a resource that is neither a variable nor a constant table.

    Args:
      subject: What reads it.
      line: The user's line that reads it, as part of a sentence.
    """
    return NotConvertible(
        f"{subject} reads a resource that is not a variable (a mutable hash table?){line}; let the "
        "factory make a tf.lookup.StaticHashTable of what it holds after training, or look up "
        "before the model and pass the result as an input"
    )


def line_of_reader(tensor: Any, subgraph: Needed) -> str:
    """Returns the user's line that first reads a tensor, as part of a sentence."""
    for operation in subgraph.operations:
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
            values = random.normal(0, 0.1, variable.shape.as_list())
            variable.assign(values.astype(variable.dtype.as_numpy_dtype))
