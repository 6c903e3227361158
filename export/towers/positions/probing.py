"""Shapes and constants of a traced tower, found by running it.

Static shapes are lost where code computes them, and masks are computed from shapes. So the tower
runs on two numbers of examples: an axis that has as many, or a multiple, belongs to the examples,
and what no value of an input leads to, and is the same in both runs, is constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.functions import fill, narrowed
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.towers.data_flow import DataFlow, random_values
from export.towers.positions.grids import Shape

_EXAMPLES = (6, 5)
"""The numbers of examples of the two runs."""
_CONSTANT_MAX = 1 << 22
"""Maximum number of values of a constant that is looked at."""


@dataclass(frozen=True, eq=False)
class Probe:
    """What was found.

    Attributes:
      shapes: The shape of each tensor by name.
      constants: The values of tensors that do not depend on the values of inputs, by name; of one
        that has a row for each example, the row, [1, ...].
    """

    shapes: dict[str, Shape]
    constants: dict[str, NDArray[Any]]

    def constant(self, tensor: Any) -> NDArray[Any] | None:
        """Returns the values of a tensor; None: they are not constant."""
        values = self.constants.get(tensor.name)
        if values is None:
            values = tf.get_static_value(tensor)
        if values is None:
            return None
        return np.asarray(values)


def probe(flow: DataFlow) -> Probe:
    """Returns the shapes of all tensors that depend on inputs, and the constants among the others.

    Raises:
      Exception: An operation cannot compute with the examples.
    """
    graph = flow.graph
    fill(flow.tower.variables)
    constant_names = _without_values(flow)
    shaped: dict[str, Any] = {}
    valued: dict[str, Any] = {}
    for operation in graph.get_operations():
        for tensor in operation.outputs:
            if tensor.dtype in (tf.resource, tf.variant):
                continue
            if flow.per(tensor) or tensor.name in constant_names:
                shaped[f"shape_{len(shaped)}"] = tensor
            if tensor.name in constant_names:
                valued[f"value_{len(valued)}"] = tensor
    with graph.as_default():
        fetches = {key: tf.shape(tensor) for key, tensor in shaped.items()}
    feeds = list(graph.inputs[: len(flow.inputs)])
    function, _ = narrowed(flow.tower.spec.name, flow.tower.function, feeds, fetches | valued)
    first, second = (
        run_flat(
            function,
            [tf.constant(random_values(tensor, seed, n)) for seed, tensor in enumerate(feeds)],
        )
        for n in _EXAMPLES
    )
    shapes = {
        tensor.name: _shape(first[key].numpy().tolist(), second[key].numpy().tolist())
        for key, tensor in shaped.items()
    }
    constants = {}
    for key, tensor in valued.items():
        values = _constant(first[key].numpy(), second[key].numpy(), shapes[tensor.name])
        if values is not None:
            constants[tensor.name] = values
    return Probe(shapes, constants)


def _shape(first: list[int], second: list[int]) -> Shape:
    sizes = []
    for one, other in zip(first, second, strict=True):
        size = one
        if one != other:
            size = -(one // _EXAMPLES[0])
        sizes.append(size)
    return tuple(sizes)


def _constant(first: NDArray[Any], second: NDArray[Any], shape: Shape) -> NDArray[Any] | None:
    """Returns the values that two runs share; None: they differ, or are many."""
    if first.size > _CONSTANT_MAX:
        return None
    if any(size < 0 for size in shape):
        if shape[0] != -1 or any(size < 0 for size in shape[1:]):
            return None
        first = first[:1]
        if not (second == first).all():
            return None
        return first
    if not np.array_equal(first, second):
        return None
    return first


def _without_values(flow: DataFlow) -> set[str]:
    """Returns the names of the tensors that no value of an input or a variable leads to."""
    names: set[str] = set()
    for operation in flow.graph.get_operations():
        if operation.type in ("Placeholder", "ReadVariableOp", "ResourceGather"):
            continue
        if operation.type == "Shape" or all(tensor.name in names for tensor in operation.inputs):
            names.update(tensor.name for tensor in operation.outputs)
    return names
