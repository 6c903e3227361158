"""Data flow of a traced tower: the inputs of each tensor, the cost of operations, and which tensors
hold rows.

A tensor may be passed from one part of a tower to another if it holds a row for each example,
computed from that example alone. No list of operations covers all of TensorFlow, so this is tested:
the tower runs on synthetic examples, then on the same examples in another order and number, and the
rows of such a tensor change likewise. The proof is the parity check with the trained weights, which
runs contexts once and repeats them (export/verify/parity.py). See
docs/adr/0010-properties-found-by-running-the-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.bounds import ABSOLUTE, ANOTHER_ORDER
from export.front_end.interface import TracedTower
from export.graphs.functions import fill, narrowed
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.towers.parts import TracedPart

CONTEXT = 1
CANDIDATE = 2
"""The sides that a tensor may depend on, as bits."""

_MOVING = frozenset(
    {
        "BroadcastTo",
        "Cast",
        "ConcatV2",
        "Const",
        "EnsureShape",
        "ExpandDims",
        "Fill",
        "GatherV2",
        "Identity",
        "IdentityN",
        "NoOp",
        "OnesLike",
        "Pack",
        "Placeholder",
        "Prod",
        "Range",
        "Rank",
        "ReadVariableOp",
        "Reshape",
        "ResourceGather",
        "Shape",
        "Size",
        "Slice",
        "Split",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
        "ZerosLike",
    }
)
"""Operations with negligible cost."""
_LOOPING = frozenset(
    {"While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf"}
)
_LOOP_COST = 100_000
"""The multiply-adds of a loop or a call, whose own graph is not looked into: more than enough for a
part of its own.
"""
_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_PASSED_DTYPES = ("float32", "int32", "int64")
"""The types of tensors that parts may pass on."""
_EXAMPLES = 6
"""The number of synthetic examples."""
_REORDERED = ((4, 1, 1, 5), (3, 0, 2, 3, 3))
"""The positions of the examples of each further run, in their order: some twice, so that the number
of rows changes, too. No example is in both: the largest one of a batch is missing in one run, which
shows that rows depend on it.
"""


@dataclass(frozen=True)
class ExampleCost:
    """What a graph computes for one example.

    Attributes:
      products: The multiply-adds, estimated.
      widest_bytes: The bytes of its largest tensor.
    """

    products: int
    widest_bytes: int


def graph_cost(graph: Any) -> ExampleCost:
    """Estimates what the graph of a tower, or of a part of one, computes for one example."""
    operations = [
        operation
        for operation in graph.get_operations()
        # Weights are read, not computed, however large they are.
        if operation.type not in ("Const", "ReadVariableOp", "Placeholder")
    ]
    tensors = [tensor for operation in operations for tensor in operation.outputs]
    return ExampleCost(
        sum(_cost(operation) for operation in operations if operation.outputs),
        max((_value_count(tensor) * tensor.dtype.size for tensor in tensors), default=0),
    )


class DataFlow:
    """The data flow of one tower, whose inputs belong to a context or a candidate."""

    def __init__(self, tower: TracedTower | TracedPart, per: Mapping[str, int]) -> None:
        """Takes a tower or a part of one, and CONTEXT, CANDIDATE or both for each input by name."""
        self.tower = tower
        self.graph = tower.function.graph
        # The inputs of the graph behind those of the tower are captured variables.
        names = (tensor.name for tensor in self.graph.inputs)
        self.inputs = dict(zip(names, tower.spec.inputs, strict=False))
        self.outputs: dict[str, Any] = dict(tower.function.structured_outputs)
        self._per: dict[str, int] = {name: per[spec.name] for name, spec in self.inputs.items()}
        # Operations come in the order of their creation, inputs first.
        for operation in self.graph.get_operations():
            bits = 0
            tensors = list(operation.inputs)
            for control in operation.control_inputs:
                tensors += control.outputs
            for tensor in tensors:
                bits |= self._per.get(tensor.name, 0)
            for tensor in operation.outputs:
                self._per.setdefault(tensor.name, bits)

    def per(self, tensor: Any) -> int:
        """Returns what a tensor depends on: 0, CONTEXT, CANDIDATE or both."""
        return self._per[tensor.name]

    def upstream(
        self, tensors: Iterable[Any], stops: Collection[str], values: bool = False
    ) -> tuple[list[Any], set[str]]:
        """Walks back from tensors.

        Args:
          tensors: The tensors to begin with.
          stops: The names of tensors at which the walk ends.
          values: Whether tensors that only determine shapes are left out.

        Returns:
          The operations on the way that depend on an input, and the stops and inputs that were
          reached.
        """
        operations: dict[str, Any] = {}
        reached: set[str] = set()
        queue = list(tensors)
        while queue:
            tensor = queue.pop()
            if tensor.name in stops or tensor.name in self.inputs:
                reached.add(tensor.name)
            elif self.per(tensor) and tensor.op.name not in operations:
                operations[tensor.op.name] = tensor.op
                if not (values and tensor.op.type == "Shape"):
                    queue.extend(tensor.op.inputs)
        return list(operations.values()), reached

    def cost(self, operations: Iterable[Any]) -> int:
        """Estimates the multiply-adds of operations for one example."""
        return sum(_cost(operation) for operation in operations)

    @property
    def loops(self) -> bool:
        """Whether the graph has a TF1 loop, in which an operation may depend on later ones."""
        return any(
            operation.type in ("Enter", "NextIteration")
            for operation in self.graph.get_operations()
        )

    @cached_property
    def rows(self) -> set[str]:
        """Names of the tensors that hold a row for each example, computed from that
        example alone.
        """
        fill(self.tower.variables)
        # One function returns all of them, so that the tower runs thrice, not for each tensor.
        candidates: dict[str, Any] = {}
        for operation in self.graph.get_operations():
            for tensor in operation.outputs:
                if self.per(tensor) and _may_hold_rows(tensor):
                    candidates[str(len(candidates))] = tensor
        feeds = list(self.graph.inputs[: len(self.inputs)])
        function, _ = narrowed(self.tower.spec.name, self.tower.function, feeds, candidates)

        examples = [random_values(tensor, seed, _EXAMPLES) for seed, tensor in enumerate(feeds)]
        results = run_flat(function, [tf.constant(values) for values in examples])
        names = {key: tensor.name for key, tensor in candidates.items()}
        for positions in map(list, _REORDERED):
            reordered = run_flat(function, [tf.constant(values[positions]) for values in examples])
            for key in list(names):
                if not _same_rows(results[key].numpy(), reordered[key].numpy(), positions):
                    del names[key]
        return set(names.values())


def _may_hold_rows(tensor: Any) -> bool:
    """Returns whether a tensor has a type and a shape that a part may pass on."""
    if tensor.dtype.name not in _PASSED_DTYPES or not tensor.shape.rank:
        return False
    batch, *sizes = tensor.shape.as_list()
    return batch is None and None not in sizes


def random_values(tensor: Any, seed: int, n: int) -> NDArray[Any]:
    """Returns values of n examples for an input of a tower, the same for the same seed."""
    random = np.random.default_rng(seed)
    shape = [n, *(size or 1 for size in tensor.shape.as_list()[1:])]
    if tensor.dtype.is_floating:
        return random.standard_normal(shape).astype(tensor.dtype.as_numpy_dtype)
    # Integers may be positions or ids: 0 and 1 are valid for most models.
    if tensor.dtype.name == "string":
        return random.integers(0, 2, shape).astype(str).astype(object)
    return random.integers(0, 2, shape).astype(tensor.dtype.as_numpy_dtype)


def _same_rows(results: NDArray[Any], reordered: NDArray[Any], positions: list[int]) -> bool:
    """Returns whether the rows of results follow the examples."""
    if results.shape[0] != _EXAMPLES or reordered.shape[0] != len(positions):
        return False
    expected = results[positions]
    # Random weights may lead to NaN or infinities, which follow their examples, too.
    scale = np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max(initial=1.0)
    tolerance = ABSOLUTE * float(scale)
    return bool(
        np.allclose(expected, reordered, rtol=ANOTHER_ORDER, atol=tolerance, equal_nan=True)
    )


def _cost(operation: Any) -> int:
    """Estimates the multiply-adds of an operation for one example."""
    if operation.type in _LOOPING:
        return _LOOP_COST
    if operation.type in _MOVING:
        return 0
    if operation.type == "Einsum":
        return _einsum_cost(operation)
    output_values = max(_value_count(tensor) for tensor in operation.outputs)
    if operation.type.startswith(("Conv", "DepthwiseConv")):
        # Each output value adds the products of a filter, whose last axis counts outputs.
        return output_values * math.prod(_sizes(operation.inputs[1])[:-1])
    if operation.type in _PRODUCTS:
        key = "transpose_a" if operation.type == "MatMul" else "adj_x"
        axis = -2 if operation.get_attr(key) else -1
        return output_values * (operation.inputs[0].shape[axis] or 1)
    # Element by element, or a reduction, which reads more values than it returns.
    input_values = [_value_count(tensor) for tensor in operation.inputs if tensor.dtype.is_floating]
    return max([output_values, *input_values])


def _einsum_cost(operation: Any) -> int:
    """Returns the product of the sizes of all axes in an equation, such as `bij,jk->bik`."""
    equation = operation.get_attr("equation").decode()
    terms = equation.partition("->")[0].replace("...", "").split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, operation.inputs, strict=True):
        # From the last axis on, since "..." stands for axes before them.
        sizes.update(zip(reversed(term), reversed(_sizes(tensor)), strict=False))
    return int(math.prod(sizes.values()))


def _value_count(tensor: Any) -> int:
    """Returns the number of values of a tensor per example; an unknown size counts as 1."""
    return math.prod(_sizes(tensor))


def _sizes(tensor: Any) -> list[int]:
    """Returns the sizes of a tensor's axes, 1 for one that is unknown; [] without a known rank."""
    if tensor.shape.rank is None:
        return []
    return [size or 1 for size in tensor.shape.as_list()]


def operation_text(operation: Any) -> str:
    """Returns the name and type of an operation for a message."""
    return f"{operation.name!r} ({operation.type})"
