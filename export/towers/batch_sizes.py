"""Takes the batch size from the context where only the context is computed.

All inputs of a tower have one batch size, and a model reads it from any of them: a function of JAX
from whichever input is first by name. Where that input belongs to the candidate, whatever starts
from zeros or is repeated to the batch, such as a recurrent network over a history, would count as
the candidate's, and run once for each candidate instead of once for each context.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow
from export.towers.rewriting import GraphRewriter


def take_sizes_from_context(tower: TracedTower, per: Mapping[str, int]) -> TracedTower:
    """Returns a tower whose computations on the context take no size from a candidate's tensor.

    Args:
      tower: The traced tower, with one input for each feature.
      per: CONTEXT, CANDIDATE or both for each input by name.
    """
    # A copy takes much longer than a look, and most towers have none.
    if not _misplaced_shapes(DataFlow(tower, per)):
        return tower
    rewriting = GraphRewriter(tower)
    flow = DataFlow(rewriting.tower, per)
    # The context part must read the input whose size it takes, so the smallest one is taken.
    smallest_input = min(
        (tensor for tensor in rewriting.inputs if flow.per(tensor) == CONTEXT),
        key=lambda tensor: math.prod(size or 1 for size in tensor.shape[1:]),
    )
    for operation in _misplaced_shapes(flow):
        old_shape = operation.outputs[0]
        with rewriting.graph.as_default():
            batch_size = tf.shape(smallest_input, out_type=old_shape.dtype)[:1]
            further_sizes = tf.constant(operation.inputs[0].shape.as_list()[1:], old_shape.dtype)
            new_shape = tf.concat([batch_size, further_sizes], axis=0)
        rewriting.put(old_shape, new_shape)
    return rewriting.finished()


def _misplaced_shapes(flow: DataFlow) -> list[Any]:
    """Returns the shapes of the candidate's tensors that computations on the context alone need."""
    misplaced: dict[str, Any] = {}
    # By tensor: the side that its values come from, and if there is none, the shapes that it needs.
    sides: dict[str, int] = {}
    shapes_of: dict[str, dict[str, Any]] = {}
    # Operations come in the order of their creation, so inputs are known before their readers.
    for operation in flow.graph.get_operations():
        side = 0
        shapes: dict[str, Any] = {}
        if operation.type == "Shape":
            if flow.per(operation.inputs[0]) == CANDIDATE:
                shapes[operation.name] = operation
        else:
            for tensor in operation.inputs:
                side |= sides.get(tensor.name, 0)
                shapes |= shapes_of.get(tensor.name, {})
        if side == CONTEXT:
            misplaced |= shapes
        for tensor in operation.outputs:
            sides[tensor.name] = flow.per(tensor) if tensor.name in flow.inputs else side
            if not sides[tensor.name]:
                shapes_of[tensor.name] = shapes
    if not misplaced:
        return []
    # Only a tensor with a row for each example has the size of the batch. `rows` runs the tower, so
    # it comes last.
    return [operation for operation in misplaced.values() if operation.inputs[0].name in flow.rows]
