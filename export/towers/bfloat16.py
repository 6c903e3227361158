"""Makes a tower multiply matrices in bfloat16; weights and all other operations stay float32."""

from __future__ import annotations

from export.graphs.loading import tf
from export.towers.rewriting import GraphRewriter, Traced

_TRANSPOSED = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}
"""The attributes of matrix products that say whether each operand is transposed."""


def in_bfloat16(tower: Traced) -> Traced:
    """Returns a tower, or a part of one, whose matrix products are in bfloat16."""
    rewriting = GraphRewriter(tower)
    for operation in rewriting.graph.get_operations():
        if operation.type not in _TRANSPOSED or operation.outputs[0].dtype != tf.float32:
            continue
        # The first operand, and the second one, may be transposed while they are multiplied.
        key_a, key_b = _TRANSPOSED[operation.type]
        with rewriting.graph.as_default():
            operands = [tf.cast(tensor, tf.bfloat16) for tensor in operation.inputs]
            product = tf.matmul(
                *operands,
                transpose_a=operation.get_attr(key_a),
                transpose_b=operation.get_attr(key_b),
            )
            rounded = tf.cast(product, tf.float32)
        rewriting.put(operation.outputs[0], rounded)
    return rewriting.finished()
