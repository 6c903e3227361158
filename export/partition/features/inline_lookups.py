"""Lookups that run inside a tower: it holds the table, computes the ids and combines rows as a
service does.

They use operations that LiteRT has, and keep empty bags at the end of a batch; TensorFlow's own
lookups do neither.
Source: TensorFlow 2.20, python/ops/embedding_ops.py (what is pruned, how weights count).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from export.front_end.outside_ids import OutsideIds
from export.graphs.internals import join
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class
from export.id_graphs.tensorflow_operations import rows_of
from export.partition.lookups.gathered_rows import counted_from_end, dense_rows, read_rows
from export.partition.lookups.records import TracedLookup


def can_be_inlined(lookup: TracedLookup) -> bool:
    """Returns whether a lookup can run inside a tower: in a plain variable, by ids that its graph
    computes.
    """
    # A tower would read partitions of the `mod` strategy as one table, whose rows are others.
    plain = isinstance(lookup.variable, placeholder_class()) and not lookup.variable.mod
    return plain and len(lookup.ids) == 1 and not lookup.keys


def insert_lookups(lookups: Iterable[TracedLookup], graph: Any) -> None:
    """Adds lookups to the graph of a call, in place of their placeholders."""
    for lookup in lookups:
        _, *sizes = lookup.activation.shape.as_list()
        with graph.as_default():
            values = tf.reshape(look_up(lookup), [-1, *sizes])
        # Compared by identity: variables of TensorFlow define `==` as an operation on values.
        if not any(variable is lookup.variable for variable in graph.variables):
            graph.variables = (*graph.variables, lookup.variable)
        join(lookup.activation, values)


def look_up(lookup: TracedLookup) -> Any:
    """Returns the result of a lookup within its graph, [batch or ids, ..., dim] float32."""
    (ids,) = lookup.ids
    if lookup.position is not None:
        ids = tf.reshape(ids, [-1, lookup.positions])[:, lookup.position]
    if lookup.encoding == "dense" and lookup.kind != "bag":
        if (lookup.rule, lookup.unknown, lookup.padding) == (None, None, None):
            vectors = read_rows(lookup.variable, ids, outside_ids_of(lookup))
            return tf.cast(vectors, tf.float32)
        rows, has_row = _rows(lookup, ids)
        # Row 0 is read for ids without a row, and then multiplied by zero.
        rows = tf.where(has_row, rows, tf.zeros_like(rows))
        factor = tf.cast(has_row, tf.float32)
        return _vectors(lookup, rows) * tf.expand_dims(factor, -1)
    if lookup.kind == "sequence":
        rows, _ = _rows(lookup, ids.values)
        return dense_rows(ids.with_values(_vectors(lookup, rows)), lookup.length)
    return _combined(lookup, *_flattened(ids))


def outside_ids_of(lookup: TracedLookup) -> OutsideIds:
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


def _rows(lookup: TracedLookup, ids: Any) -> tuple[Any, Any]:
    """Returns the rows of ids by the lookup's rule, and which ids have a row and are no padding."""
    rows = ids
    if lookup.rule is not None:
        rows = rows_of(lookup.rule, {}, ids)
    if lookup.outside.from_end:
        rows = counted_from_end(rows, lookup.table.rows)
    if lookup.unknown is not None and lookup.unknown.row is not None:
        is_row = (rows >= 0) & (rows < lookup.table.rows)
        unknown_row = tf.constant(lookup.unknown.row, rows.dtype)
        rows = tf.where(is_row, rows, unknown_row)
    has_row = rows >= 0
    if lookup.padding is not None:
        has_row &= ids != tf.constant(lookup.padding, ids.dtype)
    return rows, has_row


def _vectors(lookup: TracedLookup, rows: Any) -> Any:
    return tf.cast(lookup.variable.sparse_read(rows), tf.float32)


def _flattened(ids: Any) -> tuple[Any, Any, Any]:
    """Returns the [m] ids of a batch, the [m] numbers of their examples, and the number of
    examples.
    """
    if isinstance(ids, tf.RaggedTensor):
        return ids.values, ids.value_rowids(), ids.nrows()
    if isinstance(ids, tf.SparseTensor):
        return ids.values, ids.indices[:, 0], ids.dense_shape[0]
    n = tf.shape(ids, tf.int64)[0]
    examples = tf.expand_dims(tf.range(n), 1)
    examples_of_ids = tf.tile(examples, [1, ids.shape[1]])
    return tf.reshape(ids, [-1]), tf.reshape(examples_of_ids, [-1]), n


def _combined(lookup: TracedLookup, ids: Any, examples: Any, n: Any) -> Any:
    """Returns the vector of each bag, [n, dim].

    Args:
      lookup: The lookup of bags.
      ids: [m] ids of all bags.
      examples: [m] integers, the example of each id.
      n: The number of examples.
    """
    rows, is_used = _rows(lookup, ids)
    weights = tf.ones(tf.shape(ids))
    if lookup.weights is not None:
        weights = tf.cast(getattr(lookup.weights, "values", lookup.weights), tf.float32)
    if lookup.encoding == "ragged":
        # TensorFlow prunes nothing of ragged ids.
        is_used = tf.ones_like(rows, tf.bool)
    else:
        # TensorFlow prunes ids whose weights are not positive, but not those of a sum.
        if lookup.weights is not None and lookup.combiner != "sum":
            is_used &= weights > 0
        # Pruned ids have weight zero, whatever row they read.
        rows = tf.where(is_used, rows, tf.zeros_like(rows))
        weights = tf.where(is_used, weights, tf.zeros_like(weights))

    segments = tf.cast(examples, tf.int32)
    segment_count = tf.cast(n, tf.int32)

    def added(values: Any) -> Any:
        return tf.math.unsorted_segment_sum(values, segments, segment_count)

    combined = added(_read(lookup, rows) * weights[:, tf.newaxis])
    if lookup.combiner == "sqrtn":
        divisor = added((weights * weights)[:, tf.newaxis])
        combined = tf.math.divide_no_nan(combined, tf.sqrt(divisor))
    elif lookup.combiner != "sum":
        divisor = added(weights[:, tf.newaxis])
        # Empty bags have a divisor of 0, and become zeros.
        combined = tf.math.divide_no_nan(combined, divisor)
    if lookup.empty_row is None:
        return combined

    counts = tf.cast(is_used, tf.float32)[:, tf.newaxis]
    is_empty = added(counts) <= 0
    empty_row = tf.constant([lookup.empty_row], rows.dtype)
    return tf.where(is_empty, _read(lookup, empty_row), combined)


def _read(lookup: TracedLookup, rows: Any) -> Any:
    """Returns the vectors of rows, scaled to the lookup's largest norm."""
    vectors = _vectors(lookup, rows)
    if lookup.max_norm is None:
        return vectors
    return tf.clip_by_norm(vectors, lookup.max_norm, axes=[1])
