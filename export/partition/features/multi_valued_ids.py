"""Lookups of multi-valued ids: one of all ids of an example becomes a sequence, or a lookup of each
position.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bundle.format.identifiers import identifier
from export.graphs.internals import join
from export.graphs.loading import tf
from export.graphs.walks import needed
from export.partition.graph.input_paths import per_example
from export.partition.lookups.records import TracedLookup


def flattened_from(ids: Any) -> int:
    """Guesses how many values per example there were before the model flattened its ids."""
    for operation in needed([ids], []).operations:
        if operation.type != "Reshape":
            continue
        size = max(per_example(tensor) or 1 for tensor in operation.inputs)
        if size > 1:
            return size
    return 1


def by_example(lookup: TracedLookup, size: int) -> TracedLookup:
    """Converts a lookup of flattened ids, `tf.reshape(ids, [-1])`, into one of `size` ids per
    example.
    """
    dim = lookup.table.dim
    with lookup.activation.graph.as_default():
        # The tower gets rows by example, and what follows the lookup takes them one after another.
        activation = _placeholder(lookup, [None, size, dim])
        join(lookup.activation, tf.reshape(activation, [-1, dim]))
    return replace(lookup, kind="sequence", length=size, activation=activation)


def columns_of(lookup: TracedLookup, size: int) -> list[TracedLookup]:
    """Splits a lookup of `size` ids per example into one for each; their rows together are its
    result.
    """
    _, *sizes = lookup.activation.shape.as_list()
    with lookup.activation.graph.as_default():
        activations = [_placeholder(lookup, [None, lookup.table.dim]) for _ in range(size)]
        # The rows of an example lie one after another, as in the result of the lookup of all ids.
        rows = tf.concat(activations, 1)
        join(lookup.activation, tf.reshape(rows, [-1, *sizes]))
    column = replace(lookup, kind="single", length=None, positions=size)
    return [
        replace(column, activation=activation, position=position)
        for position, activation in enumerate(activations)
    ]


def _placeholder(lookup: TracedLookup, shape: list[int | None]) -> Any:
    name = identifier(lookup.path)
    return tf.compat.v1.placeholder(tf.float32, shape, name=name)
