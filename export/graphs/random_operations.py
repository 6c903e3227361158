"""Finds operations of a traced call that draw other random numbers in each call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from export.graphs.internals import functions_of
from export.graphs.loading import tf
from export.graphs.walks import operands_first

_SEED_OF_HARDWARE = "NonDeterministicInts"
"""The random operation that takes neither a seed nor the state of a generator."""
_CONDITIONS = ("If", "StatelessIf")
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def find_random_operation(results: Iterable[Any], stops: Iterable[Any] = ()) -> Any:
    """Returns an operation that draws other numbers in each call, and that tensors are computed
    from; None if there is none.

    What is drawn with a constant seed, and what is in a branch that is never taken, such as dropout
    for training, is no such operation.

    Args:
      results: The tensors, all of one graph.
      stops: Tensors whose operations are not looked at.
    """
    stop_names = {tensor.name for tensor in stops}

    def operands_of(operation: Any) -> list[Any]:
        # Control inputs give no values: they bring in what another tower draws.
        return [tensor.op for tensor in operation.inputs if tensor.name not in stop_names]

    visited: set[str] = set()
    for result in results:
        if result.name in stop_names or result.op.name in visited:
            continue
        for operation in operands_first(result.op, operands_of):
            if operation.name in visited:
                continue
            visited.add(operation.name)
            if _is_random(operation) and not _never_runs(operation):
                return operation
            for graph in _called_graphs(operation):
                inner = find_random_operation(graph.outputs)
                if inner is not None:
                    return inner
    return None


def _is_random(operation: Any) -> bool:
    definition = operation.op_def
    inputs = {argument.name for argument in definition.input_arg}
    if not definition.is_stateful:
        # `stateless` operations draw what their seed says; Keras 3 changes it in each call.
        return "seed" in inputs and _changes(operation)
    # The dropout of this operation has a switch of its own, and it runs on GPUs alone.
    if operation.type.startswith("CudnnRNN"):
        return False
    has_seed = any(attribute.name == "seed" for attribute in definition.attr)
    # Operations of tf.random.Generator take its state and the name of its algorithm.
    has_generator = not inputs.isdisjoint({"algorithm", "alg"})
    return has_seed or has_generator or operation.type == _SEED_OF_HARDWARE


def _changes(operation: Any) -> bool:
    """Returns whether the seed of an operation comes from a variable that the call assigns."""
    positions = [argument.name for argument in operation.op_def.input_arg]
    seed = operation.inputs[positions.index("seed")]
    for operand in operands_first(seed.op, _operands):
        if operand.type != "ReadVariableOp":
            continue
        readers = operand.inputs[0].consumers()
        if any(reader.type in _ASSIGNMENTS for reader in readers):
            return True
    return False


def _operands(operation: Any) -> list[Any]:
    return [tensor.op for tensor in operation.inputs]


def _called_graphs(operation: Any) -> Iterator[Any]:
    """Yields the graphs of the functions that an operation calls, but the branch of a condition
    that is never taken.
    """
    graphs = functions_of(operation)
    if operation.type in _CONDITIONS:
        condition = _constant(operation.inputs[0])
        if condition is not None and condition:
            del graphs["else_branch"]
        elif condition is not None:
            del graphs["then_branch"]
    for group in graphs.values():
        yield from group


def _never_runs(operation: Any) -> bool:
    """Returns whether an operation is in a branch of a TF1 condition that is never taken."""
    visited = set()
    queue = [operation]
    while queue:
        current = queue.pop()
        # Behind a Merge, both branches meet.
        if current.name in visited or current.type == "Merge":
            continue
        visited.add(current.name)
        queue += current.control_inputs
        for tensor in current.inputs:
            if tensor.op.type == "Switch":
                condition = _constant(tensor.op.inputs[1])
                if condition is not None and tensor.value_index != int(condition):
                    return True
            queue.append(tensor.op)
    return False


def _constant(tensor: Any) -> Any:
    """Returns the value of a tensor that is the same in each call; None if it is another one."""
    while tensor.op.type in ("Identity", "PlaceholderWithDefault"):
        tensor = tensor.op.inputs[0]
    return tf.get_static_value(tensor)
