"""Id rules of categorical feature columns.

Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, and feature_column.py for the
classes of TF1, which have the same fields under the same names with a leading underscore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import CROSS_KEY
from bundle.format.manifest import GraphIds, LookupTable, Unknown
from export.errors import NotConvertible
from export.front_end.specs import Keys
from export.graphs.loading import tf
from export.partition.graph.input_paths import CallGraph, Values
from export.partition.graph.origins import Source
from export.partition.ids import buckets
from export.partition.ids.crosses import cross_of, sent_key
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.lookups.records import Tensors, table_name
from export.tensorflow_models.frameworks.columns import is_a, rows_of

Read = Callable[[str], Tensors]
"""Returns a raw input of the model by its key, of rank 2 or more."""


def column_rule(column: Any, read: Read) -> ResolvedIds:
    """Returns the inputs of a categorical column, by their keys, and its rule; the column may have
    weights, or be a sequence.

    Raises:
      NotConvertible: No rule of a manifest describes the column; names it and the cure.
    """
    if is_a(column, "SequenceCategorical", "WeightedCategorical"):
        return column_rule(column.categorical_column, read)
    if is_a(column, "Crossed"):
        return _cross_rule(column, read)
    if is_a(column, "VocabularyListCategorical", "VocabularyFileCategorical"):
        return _vocabulary(column)
    if is_a(column, "HashedCategorical"):
        return ResolvedIds(_input(column.key), _hash_graph(column))
    if is_a(column, "IdentityCategorical"):
        unknown = None
        if column.default_value is not None:
            unknown = Unknown(rule="row", row=int(column.default_value))
        return ResolvedIds(_input(column.key), unknown=unknown)
    raise NotConvertible(
        f"column {column.name!r} is a {type(column).__name__}, whose rule from id to row is "
        "unknown; use one of TensorFlow's own categorical columns"
    )


def _input(key: str) -> Source:
    return Source(key, "dense")


def _hash_graph(column: Any) -> GraphIds:
    bucket_count = int(column.hash_bucket_size)
    # TensorFlow hashes integers as their decimal texts.
    if column.dtype.is_integer:
        builder = GraphBuilder("int64")
        builder.hashed(builder.texts(builder.last), bucket_count)
    else:
        builder = GraphBuilder("string")
        builder.hashed(builder.last, bucket_count)
    return builder.graph()


def _vocabulary(column: Any) -> ResolvedIds:
    if hasattr(column, "vocabulary_list"):
        listed = column.vocabulary_list
    else:
        listed = _vocabulary_lines(column)
    keys: Keys
    key_dtype: Literal["int64", "string"]
    if column.dtype.is_integer:
        key_dtype = "int64"
        keys = tuple(int(key) for key in listed)
    else:
        key_dtype = "string"
        keys = tuple(_text_key(key) for key in listed)

    builder = GraphBuilder(key_dtype)
    table = LookupTable(vocabulary=table_name(column.key, "vocabulary"))
    oov_count = int(column.num_oov_buckets)
    if oov_count:
        builder.vocabulary(builder.last, key_dtype, table, oov_count, len(keys))
    else:
        default = -1
        if column.default_value is not None:
            default = int(column.default_value)
        builder.positions(builder.last, table, default)
    # TensorFlow leaves out keys for which it finds no row.
    return ResolvedIds(_input(column.key), builder.graph(), Unknown(), (keys,))


def _text_key(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode()
    return str(key)


def _vocabulary_lines(column: Any) -> list[str]:
    """Returns the keys of a vocabulary file.

    Raises:
      NotConvertible: The file is no text, cannot be read, or is too short.
    """
    subject = f"column {column.key!r}: vocabulary_file {column.vocabulary_file!r}"
    if getattr(column, "file_format", None) == "tfrecord_gzip":
        raise NotConvertible(f"{subject} is a TFRecord file; write it as text, one key per line")
    try:
        with tf.io.gfile.GFile(column.vocabulary_file, "rb") as file:
            text: str = file.read().decode()
    except (tf.errors.OpError, UnicodeDecodeError) as problem:
        raise NotConvertible(f"{subject} cannot be read: {problem}") from problem
    lines = text.removesuffix("\n").split("\n")
    # TensorFlow counts the lines when the column is made without a size.
    size = column.vocabulary_size
    if len(lines) < size:
        raise NotConvertible(f"{subject} has {len(lines)} lines; vocabulary_size is {size}")
    return lines[:size]


def bucket_rules(column: Any) -> list[GraphIds]:
    """Returns the rule of each number that a bucketized column has for an example.

    The buckets of each number follow those of the number before it.

    Raises:
      NotConvertible: No rule describes how the numbers are normalized; names the column and the
        cure.
    """
    source = column.source_column
    boundaries = tuple(float(boundary) for boundary in column.boundaries)
    bucket_count = len(boundaries) + 1
    if source.normalizer_fn is None:
        first_rows = [position * bucket_count for position in range(math.prod(source.shape))]
        return [_buckets(boundaries, first_row) for first_row in first_rows]

    steps = _normalized_steps(source.normalizer_fn, list(source.shape), boundaries)
    if steps is None:
        raise NotConvertible(
            f"column {column.name!r} makes buckets of what normalizer_fn returns, which is not "
            "known to rise with the number; apply the inverse to its boundaries, and leave "
            "normalizer_fn out"
        )
    graphs = [step.function.graph(position * bucket_count) for position, step in enumerate(steps)]
    return [graph for graph in graphs if graph is not None]


def _buckets(boundaries: Sequence[float], first_row: int) -> GraphIds:
    """Returns the rule from a number to a row: `first_row` and the count of the boundaries that the
    number has reached.
    """
    builder = GraphBuilder("float32")
    builder.buckets(builder.last, boundaries, first_row)
    return builder.graph()


def _normalized_steps(
    normalizer: Callable[[Any], Any], shape: list[int], boundaries: tuple[float, ...]
) -> list[buckets.Steps] | None:
    """Returns the step function of each number after normalization; None if one of the functions
    is not known.
    """

    def bucket(number: Any) -> Any:
        return tf.raw_ops.Bucketize(input=normalizer(number), boundaries=list(boundaries))

    # Outside of the graph of the model, which the column's buckets never enter.
    number_spec = tf.TensorSpec([None, *shape], tf.float32)
    with tf.init_scope():
        function = tf.compat.v1.wrap_function(bucket, [number_spec])
    number = function.inputs[0]
    captured = {inner.name: outer for outer, inner in function.graph.captures}
    call = CallGraph({number.name: Source("number", "dense")}, captured)
    counts = function.outputs[0]
    size = math.prod(shape)
    steps = []
    for position in range(size):
        step = buckets.find(Values(counts, position, size), call)
        # A normalizer may mix the numbers of an example.
        if step is None:
            return None
        source = call.origin(step.values)
        if not isinstance(source, Source) or (source.position or 0) != position:
            return None
        steps.append(step)
    return steps


def _cross_rule(column: Any, read: Read) -> ResolvedIds:
    # TensorFlow's operation takes sparse inputs first; ids of columns are sparse.
    leaves = sorted(
        _leaves(column), key=lambda leaf: isinstance(leaf, str) and _is_dense(read(leaf))
    )
    hash_key = CROSS_KEY if column.hash_key is None else int(column.hash_key)
    keys = [_key_of(column, leaf, read) for leaf in leaves]
    paddings = tuple(_padding_of(leaf, read) for leaf in leaves)
    cross = cross_of(keys, int(column.hash_bucket_size), hash_key)
    return replace(cross, paddings=paddings)


def _padding_of(leaf: Any, read: Read) -> int | str | None:
    """Returns the value that a crossed column takes for no id; None: an input or buckets, or ids
    that are sparse.
    """
    if isinstance(leaf, str) or is_a(leaf, "Bucketized") or not _is_dense(read(leaf.key)):
        return None
    return padding_of(read(leaf.key))


def _key_of(column: Any, leaf: Any, read: Read) -> ResolvedIds:
    """Returns the input of crossed values, and the rule that computes them.

    Args:
      column: The crossed column.
      leaf: The key of a raw input, or a column.
      read: Returns raw inputs.

    Raises:
      NotConvertible: No cross of a manifest can have this input.
    """
    if isinstance(leaf, str):
        values = read(leaf)
        if _is_dense(values) and values.shape.as_list()[1:] != [1]:
            raise NotConvertible(
                f"column {column.name!r} crosses dense input {leaf!r} of shape {values.shape}; one "
                "value per example was expected: declare it as sparse in the recipe"
            )
        return sent_key(_input(leaf), values.dtype.name)
    if is_a(leaf, "Bucketized"):
        rules = bucket_rules(leaf)
        if len(rules) > 1:
            raise NotConvertible(
                f"column {leaf.name!r} makes buckets of {len(rules)} numbers per example; give "
                "each its own column"
            )
        return ResolvedIds(_input(leaf.source_column.key), rules[0])
    if not is_a(
        leaf, "IdentityCategorical", "VocabularyListCategorical", "VocabularyFileCategorical"
    ):
        raise NotConvertible(
            f"column {column.name!r} crosses column {leaf.name!r}, a {type(leaf).__name__}; only "
            "inputs and columns of buckets, identities and vocabularies can be crossed"
        )

    resolved_ids = column_rule(leaf, read)
    unknown = resolved_ids.unknown
    # An identity column replaces ids outside of its rows by its default.
    if unknown is not None and unknown.row is not None:
        builder = GraphBuilder("int64")
        builder.replaced(builder.last, rows_of(leaf), unknown.row)
        return ResolvedIds(resolved_ids.source, builder.graph())
    if resolved_ids.rule is None:
        return sent_key(resolved_ids.source, read(leaf.key).dtype.name)
    return replace(resolved_ids, unknown=None)


def _is_dense(values: Tensors) -> bool:
    return not isinstance(values, tf.SparseTensor)


def padding_of(ids: Any) -> int | str:
    """Returns the value that marks a missing id in a dense tensor.

    Source: TensorFlow 2.20, feature_column_v2.py, _to_sparse_input_and_drop_ignore_values.
    """
    if ids.dtype.name == "string":
        return ""
    return -1


def _leaves(column: Any) -> list[Any]:
    """Returns the crossed columns and inputs; nested crosses are flattened, as in TensorFlow."""
    leaves: list[Any] = []
    for key in column.keys:
        if is_a(key, "Crossed"):
            leaves += _leaves(key)
        else:
            leaves.append(key)
    return leaves
