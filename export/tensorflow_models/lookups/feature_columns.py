"""Intercepts embedding columns where column, table and raw inputs are known: before the id rule,
after the combiner.

A column's rule for ids (hash, vocabulary, buckets, cross) becomes data; none of its operations
enter the graph.
Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, feature_column.py (TF1's),
python/tpu/ feature_column.py and feature_column_v2.py, which call the former on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from export.errors import NotConvertible
from export.front_end.specs import Combiner, Encoding
from export.graphs.hooks import HookPoint, Hooks, Replacement
from export.graphs.internals import deprecations_silenced
from export.graphs.loading import tf
from export.partition.lookups.records import (
    ActivationOf,
    Tensors,
    TracedLookup,
    of_indicator,
    of_table,
)
from export.tensorflow_models.frameworks.columns import (
    buckets_of,
    is_a,
    reader_of,
    rows_and_lengths,
    rows_of,
    table_of_column,
)
from export.tensorflow_models.frameworks.hook_points import (
    COLUMN_ROWS,
    COLUMN_SEQUENCES,
    INDICATOR_SEQUENCES,
    INDICATORS,
    LINEAR_COLUMN,
)
from export.tensorflow_models.lookups.column_rules import (
    Read,
    bucket_rules,
    column_rule,
    padding_of,
)

WIDTH_MAX = 1 << 16
"""Maximum number of values that an indicator has for an example: the limit of `indicator` in the
manifest.
"""

Lengths = Callable[[Tensors], Any]
"""(dense ids [n, length]) -> [n] int64, the number of positions that each example uses."""


def no_lengths(ids: Tensors) -> Any:
    """Returns zero lengths: while the model is built, nothing reads them."""
    return tf.zeros(tf.shape(ids)[:1], tf.int64)


def intercept_columns(hooks: Hooks, activation_of: ActivationOf, lengths: Lengths) -> None:
    """Replaces lookups of embedding and indicator columns by `activation_of`, and lengths of
    sequences by `lengths`.

    The methods of columns that are replaced take the inputs, and then what differs between TF1 and
    TF2, by position or by name; these arguments are passed on to `frameworks.columns`, which knows
    both versions.
    """

    def embed(_: Any, column: Any, inputs: Any, *state: Any, **options: Any) -> Any:
        read = reader_of(inputs, *state, **options)
        table = table_of_column(column, *state, **options)
        lookups = describe_column(
            column.name, column.categorical_column, column.combiner, read, table
        )
        check_weights(column, lookups)
        clipped_lookups = [replace(lookup, max_norm=column.max_norm) for lookup in lookups]
        return combine(clipped_lookups, column.combiner)

    def indicate(_: Any, column: Any, inputs: Any, *state: Any, **options: Any) -> Any:
        check_width(column)
        ids = column.categorical_column
        if is_a(ids, "Bucketized"):
            # The tower computes buckets of numbers itself.
            return buckets_of(ids, inputs, *state, **options)
        read = reader_of(inputs, *state, **options)
        return combine(describe_column(column.name, ids, "sum", read, None), "sum")

    def sequence(
        rows: Callable[..., Any],
        original: Any,
        column: Any,
        inputs: Any,
        *state: Any,
        **options: Any,
    ) -> Any:
        read = reader_of(inputs, *state, **options)
        ids = read(column_rule(column.categorical_column, read).source.name)
        vectors = rows(original, column, inputs, *state, **options)
        return rows_and_lengths(vectors, lengths(ids))

    def linear(_: Any, **arguments: Any) -> Any:
        column = arguments["column"]
        combiner = arguments["sparse_combiner"]
        # A linear column is a table with a row of weights for each id.
        table = arguments["weight_var"]
        if table is None:
            shape = (rows_of(column), arguments["units"])
            table = tf.compat.v1.get_variable("weights", shape)
        read = arguments["builder"].get
        return combine(describe_column(column.name, column, combiner, read, table), combiner)

    def combine(lookups: list[TracedLookup], combiner: Combiner) -> Any:
        return _combine([activation_of(lookup) for lookup in lookups], combiner)

    replacements: dict[tuple[HookPoint, ...], Replacement] = {
        COLUMN_ROWS: embed,
        COLUMN_SEQUENCES: partial(sequence, embed),
        INDICATORS: indicate,
        INDICATOR_SEQUENCES: partial(sequence, indicate),
        (LINEAR_COLUMN,): linear,
    }
    # Every call of a feature column warns that it is deprecated.
    hooks.enter_context(deprecations_silenced())
    for points, replacement in replacements.items():
        for point in points:
            hooks.replace(point, replacement)


def _combine(activations: list[Any], combiner: Combiner) -> Any:
    """Returns the activation of a column: the numbers of a bucketized one are a bag, whose rows are
    looked up one by one.
    """
    if len(activations) == 1:
        return activations[0]
    count = len(activations)
    divisor = {"sum": 1.0, "mean": count, "sqrtn": math.sqrt(count)}[combiner]
    return tf.add_n(activations) / divisor


def check_weights(column: Any, lookups: list[TracedLookup]) -> None:
    """Rejects a weighted column whose lookup is not the safe one.

    Raises:
      NotConvertible: The column is weighted and not looked up safely; names it and the cure.
    """
    if lookups[0].weights is not None and not column.use_safe_embedding_lookup:
        raise NotConvertible(
            f"column {column.name!r} is weighted with use_safe_embedding_lookup=False, whose "
            "treatment of weights <= 0 no bundle supports; leave it out"
        )


def check_width(column: Any) -> None:
    """Rejects an indicator column that is wider than a service supports.

    Raises:
      NotConvertible: The column is too wide; names it and the cure.
    """
    rows = rows_of(column.categorical_column)
    if rows > WIDTH_MAX:
        raise NotConvertible(
            f"column {column.name!r} is an indicator of {rows} numbers per example; at most "
            f"{WIDTH_MAX} are supported: train an embedding_column instead; if a single dense "
            "layer reads it, as in the wide part of a model, one with combiner='sum' and that "
            "layer's kernel as its table is equivalent"
        )


def describe_column(
    name: str, column: Any, combiner: Combiner, read: Read, table: Any
) -> list[TracedLookup]:
    """Returns the lookups of a categorical column: one, or one for each number of a bucketized
    column.

    Args:
      name: The name of the embedding or indicator column.
      column: The categorical column, of TF1 or TF2.
      combiner: The combiner of its rows.
      read: Returns the raw inputs.
      table: The variable of its table; None for an indicator.

    Raises:
      NotConvertible: No feature of a bundle computes the column; names it and the cure.
    """

    def lookup(ids: Tensors, **fields: Any) -> TracedLookup:
        if table is None:
            return of_indicator(name, rows_of(column), ids, **fields)
        return of_table(table, ids, path=name, **fields)

    if is_a(column, "Bucketized"):
        source = column.source_column
        count = math.prod(source.shape)
        numbers = tf.reshape(read(source.key), [-1, count])
        rules = bucket_rules(column)
        return [lookup(numbers[:, position], rule=rule) for position, rule in enumerate(rules)]

    resolved = column_rule(column, read)
    ids = tuple(read(source.name) for source in resolved.sources)
    encoding, width = _encoding(name, ids)
    weights = None
    if is_a(column, "WeightedCategorical"):
        weights = read(column.weight_feature_key)
    # A cross leaves out what its keys leave out.
    padding = None
    if encoding == "dense" and len(ids) == 1:
        padding = padding_of(ids[0])

    layout: dict[str, Any] = {"kind": "bag", "combiner": combiner}
    if is_a(column, "SequenceCategorical"):
        if width is None:
            raise NotConvertible(
                f"column {name!r} is a sequence of any length; declare input "
                f"{resolved.source.name!r} as dense in the recipe, with the length that it is "
                "padded to as its shape"
            )
        layout = {"kind": "sequence", "length": width}
    elif len(ids) == 1 and weights is None and width == 1:
        # A bag of one id is a single lookup, which needs no combiner.
        layout = {}
    column_lookup = lookup(
        ids[0],
        weights=weights,
        encoding=encoding,
        rule=resolved.rule,
        unknown=resolved.unknown,
        keys=resolved.keys,
        padding=padding,
        paddings=resolved.paddings,
        **layout,
    )
    return [replace(column_lookup, ids=ids)]


def _encoding(name: str, ids: tuple[Tensors, ...]) -> tuple[Encoding, int | None]:
    """Returns the encoding of ids, and the length of dense ones.

    Raises:
      NotConvertible: Dense ids have no fixed length.
    """
    if any(isinstance(tensor, tf.SparseTensor) for tensor in ids):
        return "sparse", None
    lengths = []
    for tensor in ids:
        shape = None
        if tensor.shape.rank is not None:
            # TF1's shapes have no integers as their elements, but this list has.
            shape = tensor.shape.as_list()
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise NotConvertible(
                f"column {name!r} was given a dense tensor of shape {shape}; [batch] or [batch, "
                "length] was expected"
            )
        lengths.append(shape[1])
    return "dense", lengths[0]
