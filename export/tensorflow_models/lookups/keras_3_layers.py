"""Intercepts the lookups of layers of Keras 3 and keras-rs.

Off TPUs, a DistributedEmbedding of keras-rs is an EmbedReduce for each table. With dense ids, that
is a gather whose rows the tower combines; with ragged and sparse ids it is a bag.
Source: keras-rs 0.4.0, src/layers/embedding/embed_reduce.py and base_distributed_embedding.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.front_end.outside_ids import OutsideIds
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class, table_of_layer, with_outside_ids
from export.partition.lookups.records import ActivationOf, of_table
from export.tensorflow_models.frameworks.hook_points import EMBED_REDUCE, KERAS_3_EMBEDDING

_FROM_END = OutsideIds(from_end=True)


def gather_in_keras_3(hooks: Hooks) -> None:
    """Makes the Embedding of Keras 3 gather from a placeholder; by itself it reads the whole table
    first.

    Source: Keras 3.15, src/layers/core/embedding.py and src/backend/tensorflow/numpy.py (`take`).
    """

    def look_up(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        table = table_of_layer(layer)
        is_plain = isinstance(table, placeholder_class()) and not layer.lora_enabled
        # Ragged and sparse ids are tensors, too.
        if not is_plain or not tf.is_tensor(inputs):
            return call(layer, inputs)
        ids = inputs
        if inputs.dtype not in (tf.int32, tf.int64):
            ids = tf.cast(inputs, tf.int32)
        with with_outside_ids(table, _FROM_END):
            if isinstance(ids, tf.SparseTensor):
                # As Keras does: a bag of each id, and row 0 where there is none.
                bags = tf.sparse.expand_dims(ids, -1)
                rows = tf.nn.safe_embedding_lookup_sparse(table, bags, default_id=0)
                dim = table.shape.as_list()[1]
                rows = tf.ensure_shape(rows, [*ids.shape.as_list(), dim])
            else:
                rows = tf.nn.embedding_lookup(table, ids)
        return tf.cast(rows, layer.compute_dtype)

    hooks.replace(KERAS_3_EMBEDDING, look_up)


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
