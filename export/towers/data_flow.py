"""Data flow of a traced tower: the inputs of each tensor, the cost of operations, and which tensors
hold rows.

A tensor may be passed from one part of a tower to another if it holds a row for each example,
computed from that example alone. No list of operations covers all of TensorFlow, so this is tested:
the tower runs on synthetic examples, then on the same ones in another order and number, and the
rows of such a tensor change likewise. The proof is the parity check with the trained weights, which
runs contexts once and repeats them (export/verify/parity.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.interface import TracedTower
from export.graphs.functions import fill, narrowed
from export.graphs.internals import run_flat
from export.graphs.loading import tf

CONTEXT = 1
CANDIDATE = 2
"""Bits: what a tensor depends on."""

_MOVING = frozenset(
    {
        *(
            "BroadcastTo",
            "Cast",
            "ConcatV2",
            "Const",
            "EnsureShape",
            "ExpandDims",
            "Fill",
            "GatherV2",
            "Identity",
        ),
        *(
            "IdentityN",
            "OnesLike",
            "Pack",
            "Placeholder",
            "Range",
            "ReadVariableOp",
            "Reshape",
            "ResourceGather",
        ),
        *(
            "Shape",
            "Slice",
            "Split",
            "SplitV",
            "Squeeze",
            "StopGradient",
            "StridedSlice",
            "Tile",
            "Transpose",
        ),
        *("Unpack", "ZerosLike", "NoOp", "Size", "Rank", "Prod"),
    }
)
"""Operations with negligible cost."""
_LOOPING = frozenset(
    {"While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf"}
)
_LOOP_COST = 100_000
_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_HANDED = ("float32", "int32", "int64")
_EXAMPLES = 6
_REORDERED = (4, 1, 1, 5, 0, 2, 3, 3)
"""Number of synthetic examples, and which of them run again, in order."""


class DataFlow:
    """The data flow of one tower, whose inputs belong to a context or a candidate."""

    def __init__(self, tower: TracedTower, per: Mapping[str, int]) -> None:
        """Takes a tower, and CONTEXT, CANDIDATE or both for each input by name."""
        self.tower = tower
        self.graph = tower.function.graph
        # What follows the inputs are captures.
        self.inputs = dict(
            zip((tensor.name for tensor in self.graph.inputs), tower.spec.inputs, strict=False)
        )
        self.outputs: dict[str, Any] = dict(tower.function.structured_outputs)
        self._per: dict[str, int] = {name: per[spec.name] for name, spec in self.inputs.items()}
        for operation in self.graph.get_operations():  # in the order of creation, inputs first
            bits = 0
            controls = (
                tensor for control in operation.control_inputs for tensor in control.outputs
            )
            for tensor in (*operation.inputs, *controls):
                bits |= self._per.get(tensor.name, 0)
            for tensor in operation.outputs:
                self._per.setdefault(tensor.name, bits)

    def per(self, tensor: Any) -> int:
        """Returns what a tensor depends on: 0, CONTEXT, CANDIDATE or both."""
        return self._per[tensor.name]

    def upstream(
        self, tensors: Iterable[Any], stops: Collection[str], values: bool = False
    ) -> tuple[list[Any], set[str]]:
        """Walks back from tensors up to `stops` (names of tensors); with `values`, ignores what
        only determines shapes.

        Returns:
          The operations on the way that depend on an input, and the stops and inputs that were
          reached.
        """
        found: dict[str, Any] = {}
        reached: set[str] = set()
        queue = list(tensors)
        while queue:
            tensor = queue.pop()
            if tensor.name in stops or tensor.name in self.inputs:
                reached.add(tensor.name)
            elif self.per(tensor) and tensor.op.name not in found:
                found[tensor.op.name] = tensor.op
                if not (values and tensor.op.type == "Shape"):
                    queue.extend(tensor.op.inputs)
        return list(found.values()), reached

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
        tensors = [
            tensor for operation in self.graph.get_operations() for tensor in operation.outputs
        ]
        known = {
            str(place): each
            for place, each in enumerate(tensors)
            if self.per(each) and _may_hold_rows(each)
        }
        feeds = list(self.graph.inputs[: len(self.inputs)])
        function, _ = narrowed(self.tower.spec.name, self.tower.function, feeds, known)
        made = [_random_values(tensor, place) for place, tensor in enumerate(feeds)]
        once, again = (
            run_flat(function, [tf.constant(array) for array in arrays])
            for arrays in (made, [array[list(_REORDERED)] for array in made])
        )
        return {
            tensor.name
            for place, tensor in known.items()
            if _same_rows(once[place].numpy(), again[place].numpy())
        }


def _may_hold_rows(tensor: Any) -> bool:
    shape = tensor.shape
    return (
        tensor.dtype.name in _HANDED
        and bool(shape.rank)
        and shape[0] is None
        and None not in shape.as_list()[1:]
    )


def _random_values(tensor: Any, seed: int) -> NDArray[Any]:
    random = np.random.default_rng(seed)
    shape = [_EXAMPLES, *(size or 1 for size in tensor.shape.as_list()[1:])]
    if tensor.dtype.is_floating:
        return random.standard_normal(shape).astype(tensor.dtype.as_numpy_dtype)
    if tensor.dtype.name == "string":
        return random.integers(0, 2, shape).astype(str).astype(object)
    return random.integers(0, 2, shape).astype(tensor.dtype.as_numpy_dtype)


def _same_rows(once: NDArray[Any], again: NDArray[Any]) -> bool:
    if once.shape[0] != _EXAMPLES or again.shape[0] != len(_REORDERED):
        return False
    expected = once[list(_REORDERED)]
    scale = np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max(initial=1.0)
    return bool(np.allclose(expected, again, rtol=1e-4, atol=1e-5 * float(scale), equal_nan=True))


def _cost(operation: Any) -> int:
    if operation.type in _LOOPING:
        return _LOOP_COST
    if operation.type in _MOVING:
        return 0
    made = max(_numbers(tensor) for tensor in operation.outputs)
    if operation.type == "Einsum":
        return _einsum_cost(operation)
    if operation.type.startswith(("Conv", "DepthwiseConv")):
        return made * math.prod(_sizes(operation.inputs[1])[:-1])
    if operation.type in _PRODUCTS:
        transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        inner = operation.inputs[0].shape[-2 if transposed else -1]
        return made * (inner or 1)
    taken = max(
        (_numbers(tensor) for tensor in operation.inputs if tensor.dtype.is_floating), default=0
    )
    return max(made, taken)


def _einsum_cost(operation: Any) -> int:
    sizes: dict[str, int] = {}
    terms = operation.get_attr("equation").decode().partition("->")[0].replace("...", "").split(",")
    for term, tensor in zip(terms, operation.inputs, strict=True):
        sizes.update(zip(reversed(term), reversed(_sizes(tensor)), strict=False))
    return int(math.prod(sizes.values()))


def _numbers(tensor: Any) -> int:
    """Returns how many values a tensor holds per example; an unknown size counts as 1."""
    return math.prod(_sizes(tensor))


def _sizes(tensor: Any) -> list[int]:
    """Returns the sizes of a tensor's axes, 1 for one that is unknown; [] without a known rank."""
    if tensor.shape.rank is None:
        return []
    return [size or 1 for size in tensor.shape.as_list()]


def named(operation: Any) -> str:
    """Names an operation in a message."""
    return f"{operation.name!r} ({operation.type})"
