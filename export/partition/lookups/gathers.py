"""Intercepts gathers of one row per id: `tf.gather`, `tf.nn.embedding_lookup`."""

from __future__ import annotations

from typing import Any

from export.front_end.outside_ids import UNDEFINED
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import (
    Gather,
    early_rows,
    placeholder_class,
    redirect_gathers,
)
from export.partition.graph.input_paths import per_example
from export.partition.lookups.gathered_rows import read_rows
from export.partition.lookups.records import ActivationOf, TracedLookup, of_table


def intercept_gathers(
    hooks: Hooks, activation_of: ActivationOf, first: Gather | None = None, *, early: bool = False
) -> None:
    """Replaces gathers from placeholder variables if each example has a fixed number of ids.

    Args:
      hooks: Receives the replacements.
      activation_of: Returns rows in the lookup's shape; None leaves the gather in the graph.
      first: Called before `activation_of`: returns rows, or None for ids that it does not know;
        None: nothing is.
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
        rows = None
        if first is not None:
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


def describe_gather(variable: Any, ids: Any) -> TracedLookup | None:
    """Returns a gather as a lookup; None if its ids are not of a batch, such as positions in a
    sequence.
    """
    ids = tf.convert_to_tensor(ids)
    count = per_example(ids)
    if count is None:
        return None
    length = None if ids.shape.rank == 1 else count
    kind = "single" if count == 1 else "sequence"
    return of_table(variable, ids, kind=kind, length=length)
