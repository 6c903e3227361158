"""Intercepts the lookups of keras-rs: off TPUs, a DistributedEmbedding is an EmbedReduce for each
table.

With dense ids, an EmbedReduce is a gather whose rows the tower combines; with ragged and sparse ids
it is a bag.
Source: keras-rs 0.4.0, src/layers/embedding/embed_reduce.py and base_distributed_embedding.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class, table_of_layer
from export.tensorflow_models.frameworks.hook_points import EMBED_REDUCE
from export.tensorflow_models.lookups.records import ActivationOf, of_table


def intercept_keras_rs(hooks: Hooks, activation_of: ActivationOf) -> None:
    """Replaces the bags of EmbedReduce layers."""

    def combine(call: Callable[..., Any], layer: Any, inputs: Any, weights: Any = None) -> Any:
        table = table_of_layer(layer)
        is_bag = isinstance(inputs, tf.RaggedTensor | tf.SparseTensor) and inputs.shape.rank == 2
        are_alike = weights is None or type(weights) is type(inputs)
        if not (is_bag and are_alike and isinstance(table, placeholder_class())):
            return call(layer, inputs, weights)
        lookup = of_table(
            table,
            inputs,
            path=layer.name,
            kind="bag",
            # Nothing is pruned: the divisor is the sum of the weights.
            encoding="ragged",
            weights=weights,
            combiner=layer.combiner,
        )
        return tf.cast(activation_of(lookup), layer.compute_dtype)

    hooks.replace(EMBED_REDUCE, combine)
