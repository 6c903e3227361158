"""Intercepts gathers of one row per id: `tf.gather`, `tf.nn.embedding_lookup`, Embedding layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from export.front_end.outside_ids import UNDEFINED, OutsideIds
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import KERAS_3_EMBEDDING
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import (
    Gather,
    answer_gathers,
    early_rows,
    placeholder_class,
    table_of_layer,
    with_outside_ids,
)
from export.tensorflow_models.lookups.gathered_rows import read_rows
from export.tensorflow_models.lookups.records import Answer, Lookup, of_table

_FROM_END = OutsideIds(from_end=True)


def intercept_gathers(hooks: Hooks, answer: Answer, first: Gather, *, early: bool) -> None:
    """Replaces gathers from placeholder variables if each example has a fixed number of ids.

    Args:
      hooks: receives the replacements.
      answer: returns rows in the lookup's shape; None leaves the gather in the graph.
      first: tried before `answer`.
      early: whether the model is being built. What a factory computes with it, also in graphs of
        its own as `predict` does, matters only if it is kept.
    """

    def gather(variable: Any, ids: Any) -> Any:
        ids = tf.convert_to_tensor(ids)
        if early or tf.executing_eagerly():
            dim = variable.shape.as_list()[1]
            rows = early_rows(tf.concat([tf.shape(ids), [dim]], 0), variable.dtype)
            return tf.ensure_shape(rows, [*ids.shape, dim])
        found = first(variable, ids)
        if found is not None:
            return found
        lookup = describe_gather(variable, ids)
        found = answer(lookup) if lookup is not None else None
        if lookup is None or found is None:
            if variable.outside == UNDEFINED:
                return None
            return read_rows(variable, ids, variable.outside)
        shaped = (
            tf.reshape(found, [-1, *ids.shape.as_list()[1:], lookup.table.dim])
            if lookup.length
            else found
        )
        return tf.cast(shaped, variable.dtype)

    answer_gathers(hooks, gather)
    hooks.set_attribute(placeholder_class(), "early", early)
    gather_in_keras_3(hooks)


def describe_gather(variable: Any, ids: Any) -> Lookup | None:
    """Returns a gather as a lookup; None if its ids are not of a batch, such as positions in a
    sequence.
    """
    ids = tf.convert_to_tensor(ids)
    if not ids.shape.rank:
        return None
    batch, *others = ids.shape.as_list()
    if batch is not None or None in others:
        return None
    length = math.prod(others) if others else None
    return of_table(
        variable, ids, kind="single" if length in (None, 1) else "sequence", length=length
    )


def gather_in_keras_3(hooks: Hooks) -> None:
    """Makes the Embedding of Keras 3 gather from a placeholder; by itself it reads the whole table
    first.

    Source: Keras 3.15, src/layers/core/embedding.py and src/backend/tensorflow/numpy.py (`take`).
    """

    def looked_up(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        table = table_of_layer(layer)
        plain = isinstance(table, placeholder_class()) and not layer.lora_enabled
        if not plain or not tf.is_tensor(inputs):  # ragged and sparse ones are
            return call(layer, inputs)
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        if isinstance(ids, tf.SparseTensor):
            with with_outside_ids(table, _FROM_END):
                found = tf.nn.safe_embedding_lookup_sparse(
                    table, tf.sparse.expand_dims(ids, -1), default_id=0
                )
            return tf.cast(
                tf.ensure_shape(found, [*ids.shape.as_list(), table.shape.as_list()[1]]),
                layer.compute_dtype,
            )
        with with_outside_ids(table, _FROM_END):
            found = tf.nn.embedding_lookup(table, ids)
        return tf.cast(found, layer.compute_dtype)

    hooks.replace(KERAS_3_EMBEDDING, looked_up)
