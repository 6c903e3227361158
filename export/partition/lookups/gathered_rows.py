"""Rows that a lookup reads, in operations of TensorFlow that LiteRT has: also by ids outside of the
table, and by ragged ids.
"""

from __future__ import annotations

import math
from typing import Any

from export.front_end.outside_ids import OutsideIds
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class
from export.partition.ids.texts import PADDED


def read_rows(variable: Any, ids: Any, outside: OutsideIds) -> Any:
    """Returns [*shape of ids, dim] rows of a placeholder variable, in its dtype.

    Args:
      variable: The table, whose gather stays in the graph.
      ids: The ids, int32 or int64 of any shape.
      outside: What ids become that are no rows. Ids to be rejected are left to TensorFlow.
    """
    count = variable.shape.as_list()[0]
    rows = ids
    if outside.from_end:
        rows = counted_from_end(ids, count)
    if outside.outcome == "undefined":
        return _gather(variable, rows)
    nearest = _nearest(rows, count)
    vectors = _gather(variable, nearest)
    if outside.outcome == "nearest":
        return vectors
    # Where the nearest row is another one, the id is outside of the table.
    filler = 0.0 if outside.outcome == "zeros" else math.nan
    is_row = tf.expand_dims(tf.equal(rows, nearest), -1)
    return tf.where(is_row, vectors, tf.constant(filler, vectors.dtype))


def _nearest(rows: Any, count: int) -> Any:
    # Limits of 0 and 6 become a Relu6 in LiteRT's converter, which takes no integers.
    last = tf.constant(count - 1, rows.dtype)
    low = tf.where(rows < 0, tf.zeros_like(rows), rows)
    return tf.where(low > last, last, low)


def counted_from_end(ids: Any, count: int) -> Any:
    """Returns ids, of which those below 0 are counted from the end of `count` rows."""
    return tf.where(ids < 0, ids + tf.constant(count, ids.dtype), ids)


def _gather(variable: Any, rows: Any) -> Any:
    # Past the hook for gathers, which may be what calls this.
    return super(placeholder_class(), variable).sparse_read(rows)


def dense_rows(rows: Any, length: int | None, default: Any = None) -> Any:
    """Returns `rows.to_tensor()`, computed by operations that LiteRT has.

    Args:
      rows: A RaggedTensor of a graph.
      length: The length of the result; None: that of the longest row.
      default: The padding, of any shape that broadcasts to a value; None: zeros.
    """
    lengths = rows.row_lengths()
    if length is None:
        # With a zero, since a batch may have no rows.
        width = tf.reduce_max(tf.concat([[0], lengths], 0))
    else:
        width = tf.constant(length, tf.int64)
    filler = tf.zeros([], rows.dtype)
    if default is not None:
        filler = tf.cast(default, rows.dtype)
    batch, _, *inner = rows.shape.as_list()

    # The padding is value 0, and all others follow it: one gather reads both.
    padding = tf.broadcast_to(filler, [1, *inner])
    values = tf.concat([padding, rows.values], 0)
    positions = tf.range(width)
    starts = rows.row_starts() + 1
    indices = tf.expand_dims(starts, 1) + positions
    is_inside = positions < tf.expand_dims(lengths, 1)
    indices = tf.where(is_inside, indices, tf.zeros_like(indices))
    padded = tf.gather(values, indices, name=PADDED)
    return tf.ensure_shape(padded, [batch, length, *inner])
