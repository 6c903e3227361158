"""Writes a tower's sigmoids and softplus functions so that LiteRT computes them for every number.

LiteRT makes NaN of the sigmoid of numbers beyond 1e26, and an infinity of softplus beyond 88, where
its exponential overflows. An input without a bound, such as a time in seconds that a model
multiplies, gets there. The values stay those of TensorFlow: those of sigmoid to the bit.
"""

from __future__ import annotations

from typing import Any

from export.graphs.loading import tf
from export.towers.rewriting import GraphRewriter, Traced

_SATURATED = 1024.0
"""A number from which on sigmoid is 0 or 1 exactly in float32, and far below LiteRT's limit."""


def with_saturating_functions(tower: Traced) -> Traced:
    """Returns a tower whose sigmoids and softplus functions in float32 LiteRT computes for every
    number.
    """
    # A copy takes much longer than a look, and most towers have none.
    operations = tower.function.graph.get_operations()
    if not any(operation.type in _REWRITTEN for operation in operations):
        return tower
    rewriting = GraphRewriter(tower)
    for operation in rewriting.graph.get_operations():
        rewritten = _REWRITTEN.get(operation.type)
        if rewritten is None or operation.outputs[0].dtype != tf.float32:
            continue
        with rewriting.graph.as_default():
            result = rewritten(operation.inputs[0])
        rewriting.put(operation.outputs[0], result)
    return rewriting.finished()


def _sigmoid(logits: Any) -> Any:
    return tf.sigmoid(tf.clip_by_value(logits, -_SATURATED, _SATURATED))


def _softplus(logits: Any) -> Any:
    # The exponential is at most 1.
    return tf.maximum(logits, 0.0) + tf.math.log1p(tf.exp(-tf.abs(logits)))


_REWRITTEN = {"Sigmoid": _sigmoid, "Softplus": _softplus}
