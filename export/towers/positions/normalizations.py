"""Layer normalizations of tf_keras as plain arithmetic.

tf_keras normalizes the last axis by a batch normalization of one image whose rows are all positions
of all examples, which no rule could divide.

Source: tf_keras 2.20, `layers/normalization/layer_normalization.py`.
"""

from __future__ import annotations

from typing import Any

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.rewriting import GraphRewriter


def without_fused_normalizations(tower: TracedTower) -> TracedTower:
    """Returns a tower whose normalizations of the last axis are plain arithmetic."""
    # A copy takes much longer than a look, and most towers have none.
    if not any(map(_is_normalization, tower.function.graph.get_operations())):
        return tower
    rewriting = GraphRewriter(tower)
    for operation in list(rewriting.graph.get_operations()):
        if not _is_normalization(operation):
            continue
        values = operation.inputs[0].op.inputs[0]
        with rewriting.graph.as_default():
            mean = tf.reduce_mean(values, -1, keepdims=True)
            variance = tf.reduce_mean(tf.square(values - mean), -1, keepdims=True)
            normal = (values - mean) * tf.math.rsqrt(variance + operation.get_attr("epsilon"))
        rewriting.put(operation.outputs[0].consumers()[0].outputs[0], normal)
    return rewriting.finished()


def _is_normalization(operation: Any) -> bool:
    """Returns whether an operation normalizes the last axis of a tensor that was put into another
    shape for it.
    """
    if operation.type != "FusedBatchNormV3" or not operation.get_attr("is_training"):
        return False
    rows = operation.inputs[0].op
    readers = operation.outputs[0].consumers()
    if rows.type != "Reshape" or [reader.type for reader in readers] != ["Reshape"]:
        return False
    return (
        operation.get_attr("data_format") == b"NCHW"
        and _is_filled(operation.inputs[1], 1.0)
        and _is_filled(operation.inputs[2], 0.0)
        and not any(output.consumers() for output in operation.outputs[1:])
        and rows.inputs[0].shape.is_compatible_with(readers[0].outputs[0].shape)
    )


def _is_filled(tensor: Any, value: float) -> bool:
    """Returns whether a tensor has one number everywhere."""
    if tensor.op.type != "Fill":
        return False
    return bool(tf.get_static_value(tensor.op.inputs[1]) == value)
