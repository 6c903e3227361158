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
from export.graphs.internals import deprecations_silenced
from export.graphs.loading import tf
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
from export.tensorflow_models.frameworks.hooks import Answer as Replacement
from export.tensorflow_models.frameworks.hooks import HookPoint, Hooks
from export.tensorflow_models.lookups.column_rules import (
    Read,
    bucket_rules,
    column_rule,
    padding_of,
)
from export.tensorflow_models.lookups.records import Answer, Lookup, Tensors, of_indicator, of_table

WIDTH_MAX = 1 << 16
"""The limit of `indicator` in the manifest: numbers per example."""

Lengths = Callable[[Tensors], Any]
"""(dense ids [n, length]) -> [n] int64, the number of positions that each example uses."""


def no_lengths(ids: Tensors) -> Any:
    """Returns zero lengths: while the model is built, nothing reads them."""
    return tf.zeros(tf.shape(ids)[:1], tf.int64)


def intercept_columns(hooks: Hooks, answer: Answer, lengths: Lengths) -> None:
    """Replaces lookups of embedding and indicator columns by `answer`, and lengths of sequences by
    `lengths`.
    """

    def embedded(_: Any, column: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        read = reader_of(inputs, *how, **named)
        table = table_of_column(column, *how, **named)
        lookups = describe_column(
            column.name, column.categorical_column, column.combiner, read, table
        )
        check_weights(column, lookups)
        return combined(
            [replace(each, max_norm=column.max_norm) for each in lookups], column.combiner
        )

    def indicated(_: Any, column: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        check_width(column)
        ids = column.categorical_column
        if is_a(ids, "Bucketized"):  # of numbers: the tower computes it itself
            return buckets_of(ids, inputs, *how, **named)
        return combined(
            describe_column(column.name, ids, "sum", reader_of(inputs, *how, **named), None), "sum"
        )

    def sequence(
        rows: Callable[..., Any], original: Any, column: Any, inputs: Any, *how: Any, **named: Any
    ) -> Any:
        read = reader_of(inputs, *how, **named)
        ids = read(column_rule(column.categorical_column, read).source.name)
        return rows_and_lengths(rows(original, column, inputs, *how, **named), lengths(ids))

    def linear(_: Any, **how: Any) -> Any:  # a table with a row of weights for each id
        column = how["column"]
        table = how["weight_var"]
        combiner = how["sparse_combiner"]
        if table is None:
            table = tf.compat.v1.get_variable("weights", (rows_of(column), how["units"]))
        return combined(
            describe_column(column.name, column, combiner, how["builder"].get, table), combiner
        )

    def combined(lookups: list[Lookup], combiner: Combiner) -> Any:
        found = [answer(lookup) for lookup in lookups]
        divisor = {"sum": 1.0, "mean": len(found), "sqrtn": math.sqrt(len(found))}[combiner]
        return found[0] if len(found) == 1 else tf.add_n(found) / divisor

    replacements: dict[tuple[HookPoint, ...], Replacement] = {
        COLUMN_ROWS: embedded,
        COLUMN_SEQUENCES: partial(sequence, embedded),
        INDICATORS: indicated,
        INDICATOR_SEQUENCES: partial(sequence, indicated),
        (LINEAR_COLUMN,): linear,
    }
    # Every call of a feature column warns that it is deprecated.
    hooks.enter_context(deprecations_silenced())
    for points, replacement in replacements.items():
        for point in points:
            hooks.replace(point, replacement)


def check_weights(column: Any, lookups: list[Lookup]) -> None:
    """Rejects a weighted column whose lookup is not the safe one.

    Raises:
      NotConvertible: it is such a column; names it and the cure.
    """
    if lookups[0].weights is not None and not column.use_safe_embedding_lookup:
        raise NotConvertible(
            f"column {column.name!r} is weighted with use_safe_embedding_lookup=False, whose "
            "treatment of weights <= 0 no bundle supports; leave it out"
        )


def check_width(column: Any) -> None:
    """Rejects an indicator column that is wider than a service supports.

    Raises:
      NotConvertible: it is too wide; names the column and the cure.
    """
    rows = rows_of(column.categorical_column)
    if rows > WIDTH_MAX:
        raise NotConvertible(
            f"column {column.name!r} is an indicator of {rows} numbers per example; at most "
            f"{WIDTH_MAX} are supported: "
            "train an embedding_column instead; if a single dense layer reads it, as in the wide "
            "part of a model, one "
            "with combiner='sum' and that layer's kernel as its table is equivalent"
        )


def describe_column(
    name: str, column: Any, combiner: Combiner, read: Read, table: Any
) -> list[Lookup]:
    """Returns the lookups of a categorical column: one, or one for each number of a bucketized
    column.

    Args:
      name: name of the embedding or indicator column.
      column: the categorical column, of TF1 or TF2.
      combiner: of its rows.
      read: returns the raw inputs.
      table: its variable; None for an indicator.
    Raises:
      NotConvertible: no feature of a bundle can do it; names the column and the cure.
    """

    def lookup(ids: Tensors, **how: Any) -> Lookup:
        if table is None:
            return of_indicator(name, rows_of(column), ids, **how)
        return of_table(table, ids, path=name, **how)

    if is_a(column, "Bucketized"):
        source = column.source_column
        numbers = tf.reshape(read(source.key), [-1, math.prod(source.shape)])
        return [lookup(numbers[:, at], rule=rule) for at, rule in enumerate(bucket_rules(column))]
    found = column_rule(column, read)
    sequence = is_a(column, "SequenceCategorical")
    ids = tuple(read(each.name) for each in found.sources)
    weights = read(column.weight_feature_key) if is_a(column, "WeightedCategorical") else None
    encoding, width = _encoding(name, ids)
    how: dict[str, Any] = {"kind": "bag", "combiner": combiner}
    if sequence and width is None:
        raise NotConvertible(
            f"column {name!r} is a sequence of any length; declare input {found.source.name!r} as "
            "dense in the recipe, with the length that it is padded to as its shape"
        )
    if sequence:
        how = {"kind": "sequence", "length": width}
    elif len(ids) == 1 and weights is None and width == 1:
        how = {}
    made = lookup(
        ids[0],
        weights=weights,
        encoding=encoding,
        rule=found.rule,
        unknown=found.unknown,
        keys=found.keys,
        padding=padding_of(ids[0]) if encoding == "dense" and len(ids) == 1 else None,
        **how,
    )
    return [replace(made, ids=ids)]


def _encoding(name: str, ids: tuple[Tensors, ...]) -> tuple[Encoding, int | None]:
    """Returns the encoding of ids, and the length of dense ones."""
    if any(isinstance(each, tf.SparseTensor) for each in ids):
        return "sparse", None
    shapes = [each.shape.as_list() if each.shape.rank is not None else None for each in ids]
    for shape in shapes:
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise NotConvertible(
                f"column {name!r} was given a dense tensor of shape {shape}; [batch] or [batch, "
                "length] was expected"
            )
    return "dense", shapes[0][1] if shapes[0] else None
