"""Intercepts lookups of ragged ids, and the operation that makes their rows dense: a sum, a mean or
`to_tensor`.

A bundle has no ragged activation. `tf.nn.embedding_lookup`, `tf.gather` and Embedding layers of
ragged ids become gathers of flat ids; `tf.reduce_sum`, `tf.reduce_mean` and `to_tensor` of these
rows become a bag or a sequence. A tower that reads the rows in another way has to gather them
itself.
Source: TensorFlow 2.20, python/ops/ragged/: ragged_embedding_ops.py, ragged_gather_ops.py,
ragged_math_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from export.front_end.specs import Combiner
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import (
    RAGGED_GATHER,
    RAGGED_LOOKUP,
    RAGGED_MEAN,
    RAGGED_SUM,
    TO_TENSOR,
)
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.placeholders import placeholder_class, placeholder_of
from export.tensorflow_models.lookups.gathers import describe_gather
from export.tensorflow_models.lookups.records import Answer, Lookup, of_table

Pad = Callable[[Any, int | None, Any, Any], Any]
"""(ragged ids, length or None, default value, padded ids) -> the padded ids to use."""
Original = Callable[..., Any]


def intercept_ragged(hooks: Hooks, answer: Answer, gather: Answer, pad: Pad) -> None:
    """Replaces ragged lookups in placeholder variables where their rows are made dense.

    Args:
      hooks: receives the replacements.
      answer, gather: return the placeholders of lookups, and of their ragged rows.
      pad: replaces ids that were padded.
    """
    lookups = _RaggedLookups(answer, gather, pad)
    hooks.replace(RAGGED_LOOKUP, lookups.look_up)
    hooks.replace(RAGGED_GATHER, lookups.gather)
    hooks.replace(RAGGED_SUM, partial(lookups.reduce, "sum"))
    hooks.replace(RAGGED_MEAN, partial(lookups.reduce, "mean"))
    hooks.replace(TO_TENSOR, lookups.to_tensor)


def look_up_ragged_by_row(hooks: Hooks) -> None:
    """Makes TensorFlow's ragged lookups read single rows instead of whole tables.

    The mean of an empty bag is zeros, as in a bundle; TensorFlow divides zero by zero.
    """
    held: list[Any] = []

    def look_up(original: Original, **how: Any) -> Any:
        found = original(**how)
        held.append(found.flat_values)
        return found

    def mean(original: Original, **how: Any) -> Any:
        found = original(**how)
        rows = how["input_tensor"]
        if not any(each is rows.flat_values for each in held) or isinstance(found, tf.RaggedTensor):
            return found
        return tf.where(tf.math.is_nan(found), tf.zeros_like(found), found)

    def gather(original: Original, **how: Any) -> Any:
        if (
            isinstance(how["params"], placeholder_class())
            and not how["axis"]
            and not how["batch_dims"]
        ):
            return tf.nn.embedding_lookup(how["params"], how["indices"])
        return original(**how)

    hooks.replace(RAGGED_LOOKUP, look_up)
    hooks.replace(RAGGED_GATHER, gather)
    hooks.replace(RAGGED_MEAN, mean)


def dense_rows(rows: Any, length: int | None, default: Any = None) -> Any:
    """Returns `rows.to_tensor()`, computed by operations that LiteRT has.

    Args:
      rows: a RaggedTensor of a graph.
      length: of the result; None: that of the longest row.
      default: the padding, of any shape that broadcasts to a value; None: zeros.
    """
    lengths = rows.row_lengths()
    width = (
        tf.reduce_max(tf.concat([[0], lengths], 0))
        if length is None
        else tf.constant(length, tf.int64)
    )
    filler = tf.cast(0 if default is None else default, rows.dtype)
    batch, _, *inner = rows.shape.as_list()
    values = tf.concat([tf.broadcast_to(filler, [1, *inner]), rows.values], 0)
    places = tf.range(width)
    taken = tf.expand_dims(rows.row_starts() + 1, 1) + places
    within = places < tf.expand_dims(lengths, 1)
    found = tf.gather(values, tf.where(within, taken, tf.zeros_like(taken)))
    return tf.ensure_shape(found, [batch, length, *inner])


class _RaggedLookups:
    """Ragged lookups whose rows are not dense yet."""

    def __init__(self, answer: Answer, gather: Answer, pad: Pad) -> None:
        self._answer = answer
        self._gather = gather
        self._pad = pad
        self._waiting: dict[str, tuple[Any, Any]] = {}

    def look_up(self, original: Original, **how: Any) -> Any:
        """Replaces `tf.nn.embedding_lookup`."""
        rows = self._rows(how["params"], how["ids"]) if how["max_norm"] is None else None
        return original(**how) if rows is None else rows

    def gather(self, original: Original, **how: Any) -> Any:
        """Replaces `tf.gather`."""
        rows = (
            self._rows(how["params"], how["indices"])
            if not how["axis"] and not how["batch_dims"]
            else None
        )
        return original(**how) if rows is None else rows

    def reduce(self, combiner: Combiner, original: Original, **how: Any) -> Any:
        """Replaces `tf.reduce_sum` or `tf.reduce_mean` of each example's rows."""
        each = how["axis"] in (1, -2, [1], (1,))
        lookup = self._lookup(how["input_tensor"], kind="bag", combiner=combiner) if each else None
        if lookup is None:
            return original(**how)
        found = self._answer(lookup)
        return tf.expand_dims(found, 1) if how["keepdims"] else found

    def to_tensor(
        self,
        original: Original,
        rows: Any,
        default_value: Any = None,
        name: str | None = None,
        shape: Any = None,
    ) -> Any:
        """Replaces `to_tensor`; with a length, by a sequence."""
        sizes: list[Any] = []
        if shape is not None:
            sizes = shape.as_list() if hasattr(shape, "as_list") else list(shape)
        length = sizes[1] if len(sizes) > 1 else None
        if isinstance(length, int) and default_value in (None, 0):
            lookup = self._lookup(rows, kind="sequence", length=length)
            if lookup is not None:
                return self._answer(lookup)
        inner = rows.shape.as_list()[2:]
        plain = not tf.executing_eagerly() and rows.ragged_rank == 1 and None not in inner
        if plain and (not sizes or sizes[0] is None) and sizes[2:] in ([], inner):
            return self._pad(rows, length, default_value, dense_rows(rows, length, default_value))
        return original(rows, default_value, name, shape)

    def _rows(self, params: Any, ids: Any) -> Any:
        table = placeholder_of(params)
        ragged = (
            isinstance(ids, tf.RaggedTensor) and ids.ragged_rank == 1 and ids.values.shape.rank == 1
        )
        if not ragged or table is None or table.dtype != tf.float32:
            return None
        lookup = describe_gather(table, ids.values)  # None outside a graph, where sizes are known
        rows = self._gather(lookup) if lookup is not None else None
        if rows is None:
            return None
        self._waiting[rows.name] = table, ids
        return ids.with_values(rows)

    def _lookup(self, rows: Any, **how: Any) -> Lookup | None:
        symbolic = isinstance(rows, tf.RaggedTensor) and not hasattr(rows.flat_values, "numpy")
        table, ids = (
            self._waiting.get(rows.flat_values.name, (None, None)) if symbolic else (None, None)
        )
        return None if table is None else of_table(table, ids, encoding="ragged", **how)
