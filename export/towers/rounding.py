"""What the rounding of sums may do to a tower's outputs: a copy of the tower whose sums, and
products of matrices, are off by a little, at random.

Programs add in different orders, and each order rounds otherwise. For numbers of ordinary size that
stays within the parity rule. Of large numbers, a difference of two sums may be all rounding, and
only the sizes of their terms show it. So each sum is changed by a share of the sum of its terms'
absolute values, and the effect is seen at the outputs, whatever comes between. Operations on single
values round alike in every program, so nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bundle.format.manifest import Precision
from export.graphs.loading import tf
from export.towers.rewriting import GraphRewriter, Traced

_PRODUCTS = frozenset(
    {
        "MatMul",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        "Conv2D",
        "DepthwiseConv2dNative",
    }
)
"""Sums of products."""
_SUMS = frozenset({"Sum", "Mean", "AddN", "Cumsum"})
_ROUNDING = 2.0**-21
"""The change of a sum in float32, as a share of the sum of its terms' absolute values: about ten
times what an order of several hundred additions makes of it.
"""
_PRODUCT_ROUNDING: dict[Precision, float] = {"f32": _ROUNDING, "bf16": 2.0**-7, "int8": 2.0**-6}
"""The same for sums of products: the operands are rounded to 8 bits in bf16, and to 127 steps in
int8.
"""


def with_rounding(tower: Traced, precision: Precision) -> Traced:
    """Returns a tower, or a part of one, whose sums are off by as much as a form of this precision
    may round them. Each row of a batch is changed otherwise, and the same in every run.
    """
    rewriting = GraphRewriter(tower)
    for number, operation in enumerate(rewriting.graph.get_operations()):
        is_product = operation.type in _PRODUCTS
        if not is_product and operation.type not in _SUMS:
            continue
        if operation.outputs[0].dtype != tf.float32:
            continue
        share = _ROUNDING
        if is_product:
            share = _PRODUCT_ROUNDING[precision]
        with rewriting.graph.as_default():
            # int8 rounds every value of an example to a share of the largest one.
            is_coarse = is_product and precision == "int8"
            terms = [_magnitudes(tensor, is_coarse) for tensor in operation.inputs]
            total = _repeated(operation, operation.inputs)
            magnitude = _repeated(operation, terms)
            change = tf.random.stateless_uniform(tf.shape(total), [number, 0], -share, share)
            changed = total + magnitude * change
        rewriting.put(operation.outputs[0], changed)
    return rewriting.finished()


def _repeated(operation: Any, inputs: Sequence[Any]) -> Any:
    """Returns the result of an operation of the graph for other inputs."""
    attributes = {name: operation.node_def.attr[name] for name in operation.node_def.attr}
    copied = operation.graph.create_op(
        operation.type, list(inputs), [operation.outputs[0].dtype], attrs=attributes
    )
    return copied.outputs[0]


def _magnitudes(tensor: Any, is_coarse: bool) -> Any:
    """Returns the absolute values of a tensor, or for each of them the largest of its example."""
    if not tensor.dtype.is_floating:
        return tensor
    magnitudes = tf.abs(tensor)
    if not is_coarse:
        return magnitudes
    axes = list(range(tensor.shape.rank))
    if axes and tensor.shape[0] is None:
        del axes[0]
    largest = tf.reduce_max(magnitudes, axes, keepdims=True)
    return tf.ones_like(magnitudes) * largest
