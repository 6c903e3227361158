"""Lets a tower multiply matrices in bfloat16: weights stay float32 in its file, all but the products is float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from export.frameworks.loading import load_tensorflow
from export.graph.pruning import TracedTower, narrowed
from export.towers.parts import TracedPart

_TRANSPOSED = {
    "MatMul": ("transpose_a", "transpose_b"),
    "BatchMatMulV2": ("adj_x", "adj_y"),
    "BatchMatMulV3": ("adj_x", "adj_y"),
}


def in_bfloat16(cut: TracedTower | TracedPart) -> TracedTower | TracedPart:
    """Returns a tower, or a part of one, whose matrix products are in bfloat16."""
    tf = load_tensorflow()
    name, outputs = cut.spec.name, cut.function.structured_outputs
    feeds = cut.function.graph.inputs[: len(cut.spec.inputs)]
    function, _ = narrowed(name, cut.function, feeds, outputs)  # a copy of its own, which is changed in place
    outputs = dict(function.structured_outputs)
    for operation in function.graph.get_operations():
        if operation.type not in _TRANSPOSED or operation.outputs[0].dtype != tf.float32:
            continue
        first, second = (operation.get_attr(key) for key in _TRANSPOSED[operation.type])
        with function.graph.as_default():
            taken = [tf.cast(tensor, tf.bfloat16) for tensor in operation.inputs]
            product = tf.cast(tf.matmul(*taken, transpose_a=first, transpose_b=second), tf.float32)
        _replace(operation.outputs[0], product)
        outputs = {key: product if each.name == operation.outputs[0].name else each for key, each in outputs.items()}
    feeds = function.graph.inputs[: len(cut.spec.inputs)]
    function, variables = narrowed(name, function, feeds, outputs)
    return replace(cut, function=function, variables=variables)


def _replace(old: Any, new: Any) -> None:
    for operation in old.consumers():
        for position, tensor in enumerate(operation.inputs):
            if tensor.name == old.name:
                operation._update_input(position, new)
