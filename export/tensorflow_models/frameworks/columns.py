"""Tables and raw inputs of the embedding columns of TF1 and TF2.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py and feature_column.py (TF1's).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from export.graphs.loading import tf


def reader_of(inputs: Any, state: Any = None, *_: Any, **options: Any) -> Callable[[Any], Any]:
    """Returns the function that reads a raw input by its key; takes the arguments of any column's
    method.
    """
    from tensorflow.python.feature_column import feature_column_v2

    if not isinstance(inputs, feature_column_v2.FeatureTransformationCache):
        # The cache of TF1, which takes the key alone.
        read: Callable[[Any], Any] = inputs.get
        return read
    return partial(inputs.get, state_manager=options.get("state_manager", state))


def table_of_column(column: Any, state: Any = None, *_: Any, **options: Any) -> Any:
    """Returns the variable of an embedding column's table; takes its method's arguments after the
    inputs.
    """
    v1 = tf.compat.v1
    # TF2 passes a state manager that has the variables, TF1 the collections to add them to.
    state = options.get("state_manager", options.get("weight_collections", state))
    if hasattr(column, "shared_embedding_column_creator"):
        return column.shared_embedding_column_creator.embedding_weights
    if hasattr(column, "layer_creator"):
        return column.layer_creator(state, v1.get_variable_scope())
    if hasattr(state, "get_variable"):
        return state.get_variable(column, name="embedding_weights")

    # Shared columns of TF1 find their table in a collection of the graph.
    shared_name = getattr(column, "shared_embedding_collection_name", "")
    if shared_name and v1.get_collection(shared_name):
        return v1.get_collection(shared_name)[0]
    shape = (rows_of(column.categorical_column), column.dimension)
    table = v1.get_variable(
        "embedding_weights", shape, initializer=column.initializer, collections=state
    )
    if shared_name:
        v1.add_to_collection(shared_name, table)
    return table


def buckets_of(column: Any, inputs: Any, *state: Any, **options: Any) -> Any:
    """Returns a bucketized column's result in TensorFlow, a number per bucket; takes its method's
    arguments.
    """
    # An indicator of TF1 passes the inputs alone.
    if not state and not options:
        return column._get_dense_tensor(inputs)
    return column.get_dense_tensor(inputs, *state, **options)


def rows_of(column: Any) -> int:
    """Returns how many ids a categorical column of TF1 or TF2 has."""
    if hasattr(column, "num_buckets"):
        return int(column.num_buckets)
    return int(column._num_buckets)


def is_a(column: Any, *kinds: str) -> bool:
    """Returns whether a column is, or derives from, one of these kinds of TF1 or TF2."""
    names = {name for kind in kinds for name in (f"{kind}Column", f"_{kind}Column")}
    for base in type(column).__mro__:
        # A class of the user's may have the same name.
        is_of_tensorflow = base.__module__.startswith("tensorflow.python.feature_column")
        if is_of_tensorflow and base.__name__ in names:
            return True
    return False


def rows_and_lengths(rows: Any, lengths: Any) -> Any:
    """Returns the result type of a sequence column."""
    from tensorflow.python.feature_column import feature_column_v2

    return feature_column_v2.SequenceDenseColumn.TensorSequenceLengthPair(rows, lengths)
