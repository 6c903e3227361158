"""Intercepts gathers of one row per id: `tf.gather`, `tf.nn.embedding_lookup`, Embedding layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from export.front_end.outside_ids import UNDEFINED, OutsideIds
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import (
    Gather,
    early_rows,
    placeholder_class,
    redirect_gathers,
    table_of_layer,
    with_outside_ids,
)
from export.tensorflow_models.frameworks.hook_points import KERAS_3_EMBEDDING
from export.tensorflow_models.lookups.gathered_rows import read_rows
from export.tensorflow_models.lookups.records import ActivationOf, TracedLookup, of_table

_FROM_END = OutsideIds(from_end=True)


def intercept_gathers(
    hooks: Hooks, activation_of: ActivationOf, first: Gather, *, early: bool
) -> None:
    """Replaces gathers from placeholder variables if each example has a fixed number of ids.

    Args:
      hooks: Receives the replacements.
      activation_of: Returns rows in the lookup's shape; None leaves the gather in the graph.
      first: Called before `activation_of`: returns rows, or None for ids that it does not know.
      early: Whether the model is being built. What a factory then computes with the rows, also in
        graphs of its own as `predict` does, matters only if the model keeps it.
    """

    def gather(variable: Any, ids: Any) -> Any:
        ids = tf.convert_to_tensor(ids)
        if early or tf.executing_eagerly():
            dim = variable.shape.as_list()[1]
            shape = tf.concat([tf.shape(ids), [dim]], 0)
            rows = early_rows(shape, variable.dtype)
            return tf.ensure_shape(rows, [*ids.shape, dim])
        rows = first(variable, ids)
        if rows is not None:
            return rows

        lookup = describe_gather(variable, ids)
        if lookup is not None:
            rows = activation_of(lookup)
        if lookup is None or rows is None:
            # TensorFlow's own gather rejects ids outside of the table on a CPU.
            if variable.outside == UNDEFINED:
                return None
            return read_rows(variable, ids, variable.outside)
        # A sequence has one axis of ids, whatever axes the model's ids have.
        if lookup.length:
            _, *sizes = ids.shape.as_list()
            rows = tf.reshape(rows, [-1, *sizes, lookup.table.dim])
        return tf.cast(rows, variable.dtype)

    redirect_gathers(hooks, gather)
    hooks.set_attribute(placeholder_class(), "early", early)
    gather_in_keras_3(hooks)


def describe_gather(variable: Any, ids: Any) -> TracedLookup | None:
    """Returns a gather as a lookup; None if its ids are not of a batch, such as positions in a
    sequence.
    """
    ids = tf.convert_to_tensor(ids)
    if not ids.shape.rank:
        return None
    batch, *sizes = ids.shape.as_list()
    if batch is not None or None in sizes:
        return None
    length = math.prod(sizes) if sizes else None
    kind = "single" if length in (None, 1) else "sequence"
    return of_table(variable, ids, kind=kind, length=length)


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
