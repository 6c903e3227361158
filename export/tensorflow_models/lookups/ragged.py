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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from export.front_end.specs import Combiner
from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.graphs.placeholders import placeholder_class, placeholder_of
from export.partition.lookups.gathered_rows import dense_rows
from export.partition.lookups.gathers import describe_gather
from export.partition.lookups.records import ActivationOf, TracedLookup, of_table
from export.tensorflow_models.frameworks.hook_points import (
    RAGGED_GATHER,
    RAGGED_LOOKUP,
    RAGGED_MEAN,
    RAGGED_SUM,
    TO_TENSOR,
)

Pad = Callable[[Any, int | None, Any, Any], Any]
"""(ragged ids, length or None, default value, padded ids) -> the padded ids to use."""
Original = Callable[..., Any]


def intercept_ragged(
    hooks: Hooks, activation_of: ActivationOf, activation_of_gather: ActivationOf, pad: Pad
) -> None:
    """Replaces ragged lookups in placeholder variables where their rows are made dense.

    Args:
      hooks: Receives the replacements.
      activation_of: Returns the placeholder of a lookup.
      activation_of_gather: Returns the placeholder of the ragged rows of a lookup.
      pad: Replaces ids that were padded.
    """
    lookups = _PendingRaggedLookups(activation_of, activation_of_gather, pad)
    hooks.replace(RAGGED_LOOKUP, lookups.look_up)
    hooks.replace(RAGGED_GATHER, lookups.gather)
    hooks.replace(RAGGED_SUM, partial(lookups.reduce, "sum"))
    hooks.replace(RAGGED_MEAN, partial(lookups.reduce, "mean"))
    hooks.replace(TO_TENSOR, lookups.to_tensor)


def look_up_ragged_by_row(hooks: Hooks) -> None:
    """Makes TensorFlow's ragged lookups read single rows instead of whole tables.

    The mean of an empty bag is zeros, as in a bundle; TensorFlow divides zero by zero.
    """
    # The values of all ragged rows that were looked up, by which `mean` recognizes them.
    flat_rows: list[Any] = []

    def look_up(original: Original, **arguments: Any) -> Any:
        rows = original(**arguments)
        flat_rows.append(rows.flat_values)
        return rows

    def mean(original: Original, **arguments: Any) -> Any:
        means = original(**arguments)
        values = arguments["input_tensor"].flat_values
        # Means of other numbers stay NaN where there are none, as in training.
        is_of_rows = any(rows is values for rows in flat_rows)
        if not is_of_rows or isinstance(means, tf.RaggedTensor):
            return means
        return tf.where(tf.math.is_nan(means), tf.zeros_like(means), means)

    def gather(original: Original, **arguments: Any) -> Any:
        params = arguments["params"]
        if isinstance(params, placeholder_class()) and _reads_whole_rows(arguments):
            return tf.nn.embedding_lookup(params, arguments["indices"])
        return original(**arguments)

    hooks.replace(RAGGED_LOOKUP, look_up)
    hooks.replace(RAGGED_GATHER, gather)
    hooks.replace(RAGGED_MEAN, mean)


def _reads_whole_rows(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a call of `tf.gather` reads a row of the table for each id."""
    return not arguments["axis"] and not arguments["batch_dims"]


class _PendingRaggedLookups:
    """Ragged lookups whose rows are not dense yet."""

    def __init__(
        self, activation_of: ActivationOf, activation_of_gather: ActivationOf, pad: Pad
    ) -> None:
        self._activation_of = activation_of
        self._activation_of_gather = activation_of_gather
        self._pad = pad
        self._pending: dict[str, tuple[Any, Any]] = {}
        """Table and ids of each lookup, by the name of its flat rows."""

    def look_up(self, original: Original, **arguments: Any) -> Any:
        """Replaces `tf.nn.embedding_lookup`."""
        rows = None
        if arguments["max_norm"] is None:
            rows = self._rows(arguments["params"], arguments["ids"])
        if rows is None:
            return original(**arguments)
        return rows

    def gather(self, original: Original, **arguments: Any) -> Any:
        """Replaces `tf.gather`."""
        rows = None
        if _reads_whole_rows(arguments):
            rows = self._rows(arguments["params"], arguments["indices"])
        if rows is None:
            return original(**arguments)
        return rows

    def reduce(self, combiner: Combiner, original: Original, **arguments: Any) -> Any:
        """Replaces `tf.reduce_sum` or `tf.reduce_mean` of each example's rows."""
        lookup = None
        if arguments["axis"] in (1, -2, [1], (1,)):
            lookup = self._lookup(arguments["input_tensor"], kind="bag", combiner=combiner)
        if lookup is None:
            return original(**arguments)
        activation = self._activation_of(lookup)
        if arguments["keepdims"]:
            return tf.expand_dims(activation, 1)
        return activation

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
        if hasattr(shape, "as_list"):
            sizes = shape.as_list()
        elif shape is not None:
            sizes = list(shape)
        length = sizes[1] if len(sizes) > 1 else None
        if isinstance(length, int) and default_value in (None, 0):
            lookup = self._lookup(rows, kind="sequence", length=length)
            if lookup is not None:
                return self._activation_of(lookup)

        # Ragged ids, and rows that no lookup returned, become dense by operations of LiteRT.
        inner = rows.shape.as_list()[2:]
        is_plain = not tf.executing_eagerly() and rows.ragged_rank == 1 and None not in inner
        keeps_batch = not sizes or sizes[0] is None
        if is_plain and keeps_batch and sizes[2:] in ([], inner):
            padded = dense_rows(rows, length, default_value)
            return self._pad(rows, length, default_value, padded)
        return original(rows, default_value, name, shape)

    def _rows(self, params: Any, ids: Any) -> Any:
        """Returns the ragged rows of a lookup, which is pending until they are made dense; None if
        it is no lookup of ragged ids in a placeholder variable.
        """
        table = placeholder_of(params)
        if table is None or table.dtype != tf.float32:
            return None
        is_ragged = isinstance(ids, tf.RaggedTensor) and ids.ragged_rank == 1
        if not is_ragged or ids.values.shape.rank != 1:
            return None
        # None outside a graph: a batch of a known size is no batch to `describe_gather`.
        lookup = describe_gather(table, ids.values)
        if lookup is None:
            return None
        rows = self._activation_of_gather(lookup)
        if rows is None:
            return None
        self._pending[rows.name] = table, ids
        return ids.with_values(rows)

    def _lookup(self, rows: Any, **fields: Any) -> TracedLookup | None:
        """Returns the pending lookup of rows, with these fields; None for all other rows."""
        # Tensors have names in graphs only.
        if not isinstance(rows, tf.RaggedTensor) or hasattr(rows.flat_values, "numpy"):
            return None
        if rows.flat_values.name not in self._pending:
            return None
        table, ids = self._pending[rows.flat_values.name]
        return of_table(table, ids, encoding="ragged", **fields)
