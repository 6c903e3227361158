"""Tables and raw inputs of the embedding columns of TF1 and TF2.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py and feature_column.py (TF1's).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from export.graphs.loading import tf


def reader_of(inputs: Any, state: Any = None, *_how: Any, **named: Any) -> Callable[[Any], Any]:
    """Returns the function that reads a raw input by its key; takes the arguments of any column's
    method.
    """
    from tensorflow.python.feature_column import feature_column_v2

    if not isinstance(inputs, feature_column_v2.FeatureTransformationCache):
        read: Callable[[Any], Any] = inputs.get  # TF1's
        return read
    return partial(inputs.get, state_manager=named.get("state_manager", state))


def table_of_column(column: Any, state: Any = None, *_how: Any, **named: Any) -> Any:
    """Returns the variable of an embedding column's table; takes its method's arguments after the
    inputs.
    """
    v1 = tf.compat.v1
    state = named.get("state_manager", named.get("weight_collections", state))
    if hasattr(column, "shared_embedding_column_creator"):
        return column.shared_embedding_column_creator.embedding_weights
    if hasattr(column, "layer_creator"):
        return column.layer_creator(state, v1.get_variable_scope())
    if hasattr(state, "get_variable"):
        return state.get_variable(column, name="embedding_weights")
    name = getattr(column, "shared_embedding_collection_name", "")
    if not name or not v1.get_collection(name):
        shape = (rows_of(column.categorical_column), column.dimension)
        made = v1.get_variable(
            "embedding_weights", shape, initializer=column.initializer, collections=state
        )
        if not name:
            return made
        v1.add_to_collection(name, made)
    return v1.get_collection(name)[0]


def buckets_of(column: Any, inputs: Any, *how: Any, **named: Any) -> Any:
    """Returns a bucketized column's result in TensorFlow, a number per bucket; takes its method's
    arguments.
    """
    return (column.get_dense_tensor if how or named else column._get_dense_tensor)(
        inputs, *how, **named
    )


def rows_of(column: Any) -> int:
    """Returns how many ids a categorical column of TF1 or TF2 has."""
    return int(column.num_buckets if hasattr(column, "num_buckets") else column._num_buckets)


def is_a(column: Any, *kinds: str) -> bool:
    """Returns whether a column is, or derives from, one of these kinds of TF1 or TF2."""
    names = {name for kind in kinds for name in (f"{kind}Column", f"_{kind}Column")}
    return any(
        each.__name__ in names and each.__module__.startswith("tensorflow.python.feature_column")
        for each in type(column).__mro__
    )


def rows_and_lengths(rows: Any, lengths: Any) -> Any:
    """Returns the result type of a sequence column."""
    from tensorflow.python.feature_column import feature_column_v2

    return feature_column_v2.SequenceDenseColumn.TensorSequenceLengthPair(rows, lengths)
