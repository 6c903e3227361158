"""Lookups that run inside a tower: it holds the table, computes the ids and combines rows as a
service does.

They use operations that LiteRT has, and keep empty bags at the end of a batch; TensorFlow's own
lookups do neither.
Source: TensorFlow 2.20, python/ops/embedding_ops.py (what is pruned, how weights count).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bundle.format.manifest import GraphIds
from export.front_end.outside_ids import OutsideIds
from export.graphs.internals import join
from export.graphs.loading import tf
from export.id_graphs.tensorflow_operations import rows_of
from export.tensorflow_models.frameworks.placeholders import placeholder_class
from export.tensorflow_models.lookups.gathered_rows import counted_from_end, read_rows
from export.tensorflow_models.lookups.ragged import dense_rows
from export.tensorflow_models.lookups.records import Lookup


def can_be_inlined(lookup: Lookup) -> bool:
    """Returns whether a lookup can run inside a tower: in a plain variable, by ids that its graph
    computes.
    """
    plain = isinstance(lookup.variable, placeholder_class()) and not lookup.variable.mod
    return plain and len(lookup.ids) == 1 and not lookup.keys


def insert_lookups(lookups: Iterable[Lookup], graph: Any) -> None:
    """Adds lookups to the graph of a call, in place of their placeholders."""
    for lookup in lookups:
        with graph.as_default():
            values = tf.reshape(look_up(lookup), [-1, *lookup.activation.shape.as_list()[1:]])
        if not any(each is lookup.variable for each in graph.variables):
            graph.variables = (*graph.variables, lookup.variable)
        join(lookup.activation, values)


def look_up(lookup: Lookup) -> Any:
    """Returns the result of a lookup within its graph, [batch or ids, ..., dim] float32."""
    (ids,) = lookup.ids
    if lookup.encoding == "dense" and lookup.kind != "bag":
        if (lookup.rule, lookup.unknown, lookup.padding) == (None, None, None):
            vectors = read_rows(lookup.variable, ids, outside_ids_of(lookup))
            return tf.cast(vectors, tf.float32)
        rows, kept = _rows(lookup, ids)
        vectors = _vectors(lookup, tf.where(kept, rows, tf.zeros_like(rows)))
        return vectors * tf.expand_dims(tf.cast(kept, tf.float32), -1)
    if lookup.kind == "sequence":
        return dense_rows(
            ids.with_values(_vectors(lookup, _rows(lookup, ids.values)[0])), lookup.length
        )
    return _combined(lookup, *_flat(ids))


def outside_ids_of(lookup: Lookup) -> OutsideIds:
    """Returns what a lookup inside a tower does with ids that are no rows.

    Ids that callers send read what they would if the table were extracted: zeros where the model
    defines nothing, and those that would read NaN are rejected before. Ids that the model computes
    read what they do in the model.
    """
    outside = lookup.outside
    if lookup.feature is not None and outside.outcome == "undefined":
        return outside._replace(outcome="zeros")
    if lookup.feature is not None and outside.outcome == "nan":
        return outside._replace(outcome="undefined")
    return outside


def _rows(lookup: Lookup, ids: Any) -> tuple[Any, Any]:
    """Returns the rows of ids by the lookup's rule, and which of them are no padding."""
    rows = rows_of(lookup.rule, ids, {}) if isinstance(lookup.rule, GraphIds) else ids
    if lookup.outside.from_end:
        rows = counted_from_end(rows, lookup.table.rows)
    if lookup.unknown is not None and lookup.unknown.row is not None:
        known = (rows >= 0) & (rows < lookup.table.rows)
        rows = tf.where(known, rows, tf.constant(lookup.unknown.row, rows.dtype))
    if lookup.padding is None:
        return rows, rows >= 0
    return rows, (rows >= 0) & (ids != tf.constant(lookup.padding, ids.dtype))


def _vectors(lookup: Lookup, rows: Any) -> Any:
    return tf.cast(lookup.variable.sparse_read(rows), tf.float32)


def _flat(ids: Any) -> tuple[Any, Any, Any]:
    """Returns the [m] ids of a batch, the [m] numbers of their examples, and the number of
    examples.
    """
    if isinstance(ids, tf.RaggedTensor):
        return ids.values, ids.value_rowids(), ids.nrows()
    if isinstance(ids, tf.SparseTensor):
        return ids.values, ids.indices[:, 0], ids.dense_shape[0]
    n = tf.shape(ids, tf.int64)[0]
    length = ids.shape[1]
    return (
        tf.reshape(ids, [-1]),
        tf.reshape(tf.tile(tf.expand_dims(tf.range(n), 1), [1, length]), [-1]),
        n,
    )


def _combined(lookup: Lookup, ids: Any, examples: Any, n: Any) -> Any:
    (rows, kept) = _rows(lookup, ids)
    weights = tf.ones(tf.shape(ids))
    if lookup.weights is not None:
        weights = tf.cast(getattr(lookup.weights, "values", lookup.weights), tf.float32)
    if lookup.encoding != "ragged":  # pruned ids have weight zero, whatever row they read
        if lookup.weights is not None and lookup.combiner != "sum":
            kept &= weights > 0
        rows = tf.where(kept, rows, tf.zeros_like(rows))
        weights = tf.where(kept, weights, tf.zeros_like(weights))
    else:
        kept = tf.ones_like(rows, tf.bool)
    of = tf.cast(examples, tf.int32)
    n = tf.cast(n, tf.int32)

    def added(values: Any) -> Any:
        return tf.math.unsorted_segment_sum(values, of, n)

    found = added(_read(lookup, rows) * weights[:, tf.newaxis])
    if lookup.combiner != "sum":
        squared = lookup.combiner == "sqrtn"
        divisor = added((weights * weights if squared else weights)[:, tf.newaxis])
        found = tf.math.divide_no_nan(found, tf.sqrt(divisor) if squared else divisor)
    if lookup.empty_row is None:
        return found
    empty = added(tf.cast(kept, tf.float32)[:, tf.newaxis]) <= 0
    return tf.where(empty, _read(lookup, tf.constant([lookup.empty_row], rows.dtype)), found)


def _read(lookup: Lookup, rows: Any) -> Any:
    vectors = _vectors(lookup, rows)
    return (
        vectors if lookup.max_norm is None else tf.clip_by_norm(vectors, lookup.max_norm, axes=[1])
    )
