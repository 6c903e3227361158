"""Makes a tower multiply matrices in bfloat16; weights and all other operations stay float32."""

from __future__ import annotations

from export.graphs.loading import tf
from export.towers.rewriting import GraphRewriter, Traced

_TRANSPOSED = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}


def in_bfloat16(tower: Traced) -> Traced:
    """Returns a tower, or a part of one, whose matrix products are in bfloat16."""
    rewriting = GraphRewriter(tower)
    for operation in rewriting.graph.get_operations():
        if operation.type not in _TRANSPOSED or operation.outputs[0].dtype != tf.float32:
            continue
        first, second = (operation.get_attr(key) for key in _TRANSPOSED[operation.type])
        with rewriting.graph.as_default():
            taken = [tf.cast(tensor, tf.bfloat16) for tensor in operation.inputs]
            product = tf.cast(tf.matmul(*taken, transpose_a=first, transpose_b=second), tf.float32)
        rewriting.put(operation.outputs[0], product)
    return rewriting.finished()
