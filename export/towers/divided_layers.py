"""Divides layers over a context's and a candidate's activations side by side: [c, x] W = c W_c + x
W_x.

The first term belongs to the context and is computed once; what parts pass on is as wide as the
layer instead of the context. A context of thousands of features is thus not repeated for every
candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.data_flow import CONTEXT, DataFlow
from export.towers.rewriting import GraphRewriter

COLUMNS_MIN = 64
"""Columns of the context in the input of a layer; with fewer, dividing the layer costs more than it
saves.
"""


def divide_layers(tower: TracedTower, per: Mapping[str, int]) -> TracedTower:
    """Returns a tower whose layers over both sides become sums of one layer over each.

    Args:
      tower: as traced, with one input for each feature.
      per: CONTEXT, CANDIDATE or both for each input by name.
    """
    rewriting = GraphRewriter(tower)
    flow = DataFlow(rewriting.tower, per)
    found = [
        each
        for operation in rewriting.graph.get_operations()
        if (each := _layer(operation, flow)) is not None
    ]
    for product, join, once in found:
        with rewriting.graph.as_default():
            total = _total(product, join, once)
        rewriting.put(product.outputs[0], total)
    return rewriting.finished() if found else tower


def _layer(operation: Any, flow: DataFlow) -> tuple[Any, Any, list[bool]] | None:
    """Returns a product to divide, its input's concatenation, and which of its parts are of the
    context only.
    """
    if (
        operation.type != "MatMul"
        or operation.get_attr("transpose_a")
        or flow.per(operation.inputs[1])
    ):
        return None
    if operation.outputs[0].dtype.name != "float32":
        return None
    join = operation.inputs[0].op
    while join.type == "Identity":
        join = join.inputs[0].op
    if join.type != "ConcatV2" or join.outputs[0].shape.rank != 2:
        return None
    if tf.get_static_value(join.inputs[len(join.inputs) - 1]) not in (1, -1):
        return None
    pieces = list(join.inputs)[:-1]
    once = [flow.per(piece) == CONTEXT for piece in pieces]
    if any(piece.shape[1] is None for piece in pieces) or all(once):
        return None
    columns = sum(piece.shape[1] for piece, held in zip(pieces, once, strict=True) if held)
    return (operation, join, once) if columns >= COLUMNS_MIN else None


def _total(product: Any, join: Any, once: list[bool]) -> Any:
    transposed = product.get_attr("transpose_b")
    pieces = list(join.inputs)[:-1]
    weights = tf.split(
        product.inputs[1], [piece.shape[1] for piece in pieces], axis=1 if transposed else 0
    )
    halves = []
    for wanted in (True, False):
        taken = [piece for piece, held in zip(pieces, once, strict=True) if held == wanted]
        rows = [part for part, held in zip(weights, once, strict=True) if held == wanted]
        joined = taken[0] if len(taken) == 1 else tf.concat(taken, 1)
        axis = 1 if transposed else 0
        kernel = rows[0] if len(rows) == 1 else tf.concat(rows, axis)
        halves.append(tf.matmul(joined, kernel, transpose_b=transposed))
    return halves[0] + halves[1]
