"""Divides layers over a context's and a candidate's activations side by side: [c, x] W = c W_c + x
W_x.

The first term belongs to the context and is computed once; the tensor that parts pass on is as wide
as the layer, not as the context. A context of thousands of features is thus not repeated for every
candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.data_flow import CONTEXT, DataFlow
from export.towers.rewriting import GraphRewriter

COLUMNS_MIN = 64
"""The number of the context's columns in the input of a layer below which dividing the layer costs
more than it saves.
"""


class DividedLayer(NamedTuple):
    """A layer over both sides.

    Attributes:
      product: The matrix product.
      pieces: The tensors that are concatenated to form the input of the product.
      is_of_context: Whether each piece depends on the context alone.
    """

    product: Any
    pieces: list[Any]
    is_of_context: list[bool]


def divide_layers(tower: TracedTower, per: Mapping[str, int]) -> TracedTower:
    """Returns a tower whose layers over both sides become sums of one layer over each.

    Args:
      tower: The traced tower, with one input for each feature.
      per: CONTEXT, CANDIDATE or both for each input by name.
    """
    # A copy takes much longer than a look, and most towers have none.
    if not _layers(DataFlow(tower, per)):
        return tower
    rewriting = GraphRewriter(tower)
    # All layers are found before the first is divided: the flow does not know new operations.
    for layer in _layers(DataFlow(rewriting.tower, per)):
        with rewriting.graph.as_default():
            total = _sum_of_both_sides(layer)
        rewriting.put(layer.product.outputs[0], total)
    return rewriting.finished()


def _layers(flow: DataFlow) -> list[DividedLayer]:
    """Returns the layers to divide."""
    layers = [_layer(operation, flow) for operation in flow.graph.get_operations()]
    return [layer for layer in layers if layer is not None]


def _layer(operation: Any, flow: DataFlow) -> DividedLayer | None:
    """Returns the layer to divide if an operation is its product; None if the operation is no such
    product, or the layer is not worth dividing.
    """
    if operation.type != "MatMul" or operation.outputs[0].dtype.name != "float32":
        return None
    # The second operand must be weights, which depend on no input.
    if operation.get_attr("transpose_a") or flow.per(operation.inputs[1]):
        return None
    pieces = _concatenated_tensors(operation.inputs[0])
    is_of_context = [flow.per(piece) == CONTEXT for piece in pieces]
    # A layer over the context alone runs once per context anyway. Without pieces, all() is true.
    if all(is_of_context) or any(piece.shape[1] is None for piece in pieces):
        return None
    layer = DividedLayer(operation, pieces, is_of_context)
    context_columns = sum(piece.shape[1] for piece in _of_side(pieces, layer, is_context=True))
    if context_columns < COLUMNS_MIN:
        return None
    return layer


def _concatenated_tensors(tensor: Any) -> list[Any]:
    """Returns the tensors that are concatenated side by side to a matrix; [] if the tensor is no
    concatenation.
    """
    operation = tensor.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    if operation.type != "ConcatV2" or operation.outputs[0].shape.rank != 2:
        return []
    pieces: list[Any]
    *pieces, axis = operation.inputs
    if tf.get_static_value(axis) not in (1, -1):
        return []
    return pieces


def _of_side(tensors: Sequence[Any], layer: DividedLayer, *, is_context: bool) -> list[Any]:
    """Returns the tensors, one for each piece of a layer's input, that belong to one side."""
    return [
        tensor
        for tensor, is_of_context in zip(tensors, layer.is_of_context, strict=True)
        if is_of_context == is_context
    ]


def _sum_of_both_sides(layer: DividedLayer) -> Any:
    """Returns the sum of a layer over the context and one over the candidate."""
    is_transposed = layer.product.get_attr("transpose_b")
    # The axis of the weights that belongs to the columns of the input.
    axis = 1 if is_transposed else 0
    sizes = [piece.shape[1] for piece in layer.pieces]
    weights = tf.split(layer.product.inputs[1], sizes, axis=axis)
    products = []
    for is_context in (True, False):
        inputs = _concatenate(_of_side(layer.pieces, layer, is_context=is_context), 1)
        kernel = _concatenate(_of_side(weights, layer, is_context=is_context), axis)
        products.append(tf.matmul(inputs, kernel, transpose_b=is_transposed))
    return products[0] + products[1]


def _concatenate(tensors: Sequence[Any], axis: int) -> Any:
    if len(tensors) == 1:
        return tensors[0]
    return tf.concat(tensors, axis)
