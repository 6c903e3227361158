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
from bundle.format.ids import CROSS_KEY
from bundle.format.manifest import CrossKey, GraphIds, LookupTable, Unknown
from export.errors import NotConvertible
from export.front_end.specs import Keys
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.columns import is_a, rows_of
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_graphs import buckets
from export.tensorflow_models.id_graphs.crosses import Key, cross_of
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds
from export.tensorflow_models.lookups.records import Tensors, table_name

Read = Callable[[str], Tensors]
"""Returns a raw input of the model by its key, of rank 2 or more."""


def column_rule(column: Any, read: Read) -> ResolvedIds:
    """Returns the inputs of a categorical column, by their keys, and its rule; also of one with
    weights or in sequence.

    Raises:
      NotConvertible: no rule of a manifest describes it; names the column and the cure.
    """
    if is_a(column, "SequenceCategorical", "WeightedCategorical"):
        return column_rule(column.categorical_column, read)
    if is_a(column, "Crossed"):
        return _crossed(column, read)
    if is_a(column, "VocabularyListCategorical", "VocabularyFileCategorical"):
        return _vocabulary(column)
    if is_a(column, "HashedCategorical"):
        return ResolvedIds(_input(column.key), _hashed(column))
    if is_a(column, "IdentityCategorical"):
        row = column.default_value
        return ResolvedIds(
            _input(column.key), unknown=None if row is None else Unknown(rule="row", row=int(row))
        )
    raise NotConvertible(
        f"column {column.name!r} is a {type(column).__name__}, whose rule from id to row is "
        "unknown; use one of TensorFlow's own categorical columns"
    )


def _input(key: str) -> Source:
    return Source(key, "dense")


def _hashed(column: Any) -> GraphIds:
    builder = GraphBuilder("int64" if column.dtype.is_integer else "string")
    texts = builder.texts(builder.last) if column.dtype.is_integer else builder.last
    builder.hashed(texts, int(column.hash_bucket_size))
    return builder.graph()


def _vocabulary(column: Any) -> ResolvedIds:
    keys = column.vocabulary_list if hasattr(column, "vocabulary_list") else _lines(column)
    known: Keys
    key_dtype: Literal["int64", "string"] = "int64" if column.dtype.is_integer else "string"
    if key_dtype == "int64":
        known = tuple(int(key) for key in keys)
    else:
        known = tuple(key.decode() if isinstance(key, bytes) else str(key) for key in keys)
    builder = GraphBuilder(key_dtype)
    table = LookupTable(vocabulary=table_name(column.key, "vocabulary"))
    oov = int(column.num_oov_buckets)
    if oov:
        builder.vocabulary(builder.last, key_dtype, table, oov, len(known))
    else:
        default = column.default_value
        builder.positions(builder.last, table, -1 if default is None else int(default))
    # TensorFlow leaves out what it finds no row for.
    return ResolvedIds(_input(column.key), builder.graph(), Unknown(), (known,))


def _lines(column: Any) -> list[str]:
    where = f"column {column.key!r}: vocabulary_file {column.vocabulary_file!r}"
    if getattr(column, "file_format", None) == "tfrecord_gzip":
        raise NotConvertible(f"{where} is a TFRecord file; write it as text, one key per line")
    try:
        with tf.io.gfile.GFile(column.vocabulary_file, "rb") as file:
            lines: list[str] = file.read().decode().removesuffix("\n").split("\n")
    except (tf.errors.OpError, UnicodeDecodeError) as problem:
        raise NotConvertible(f"{where} cannot be read: {problem}") from problem
    # TensorFlow counts the lines when the column is made without a size.
    size = column.vocabulary_size
    if len(lines) < size:
        raise NotConvertible(f"{where} has {len(lines)} lines; vocabulary_size is {size}")
    return lines[:size]


def bucket_rules(column: Any) -> list[GraphIds]:
    """Returns the rule of each number that a bucketized column has for an example.

    The buckets of each number follow those of the number before it.
    Raises:
      NotConvertible: no rule describes how they are normalized; names the column and the cure.
    """
    source = column.source_column
    numbers = math.prod(source.shape)
    boundaries = tuple(float(boundary) for boundary in column.boundaries)
    size = len(boundaries) + 1
    if source.normalizer_fn is None:
        return [_buckets(boundaries, number * size) for number in range(numbers)]
    steps = _normalized(source.normalizer_fn, list(source.shape), boundaries)
    if steps is None:
        raise NotConvertible(
            f"column {column.name!r} makes buckets of what normalizer_fn returns, which is not "
            "known to rise "
            "with the number; apply the inverse to its boundaries, and leave normalizer_fn out"
        )
    return [
        _buckets(one.boundaries, one.first_row + number * size, one.falling)
        for number, one in enumerate(steps)
    ]


def _buckets(boundaries: Sequence[float], first_row: int, falling: bool = False) -> GraphIds:
    """Returns rows of a number: `first_row` + how many boundaries are at most as large, or above
    it.
    """
    builder = GraphBuilder("float32")
    if falling:
        counts = builder.buckets(builder.last, boundaries)
        last_row = builder.constant(first_row + len(boundaries))
        builder.compute("Sub", last_row, counts)
    else:
        builder.buckets(builder.last, boundaries, first_row)
    return builder.graph()


def _normalized(
    normalizer: Callable[[Any], Any], shape: list[int], boundaries: tuple[float, ...]
) -> list[buckets.Steps] | None:
    """Returns the step function of each number after normalization; None if they are not all
    known.
    """

    def bucket(number: Any) -> Any:
        return tf.raw_ops.Bucketize(input=normalizer(number), boundaries=list(boundaries))

    with tf.init_scope():
        function = tf.compat.v1.wrap_function(bucket, [tf.TensorSpec([None, *shape], tf.float32)])
    number = function.inputs[0]
    captured = {inner.name: outer for outer, inner in function.graph.captures}
    call = CallGraph({number.name: Source("number", "dense")}, captured)
    counts = function.outputs[0]
    size = math.prod(shape)
    steps = [buckets.find(Values(counts, at, size), call) for at in range(size)]
    known = [one for one in steps if one is not None]
    places = [one.source.place or 0 for one in known]
    return known if places == list(range(size)) else None


def _crossed(column: Any, read: Read) -> ResolvedIds:
    # TensorFlow's operation takes sparse inputs first; ids of columns are sparse.
    leaves = sorted(
        _leaves(column), key=lambda leaf: isinstance(leaf, str) and _is_dense(read(leaf))
    )
    hash_key = CROSS_KEY if column.hash_key is None else int(column.hash_key)
    return cross_of(
        [_key_of(column, leaf, read) for leaf in leaves], int(column.hash_bucket_size), hash_key
    )


def _key_of(column: Any, leaf: Any, read: Read) -> Key:
    if isinstance(leaf, str):
        values = read(leaf)
        if _is_dense(values) and values.shape.as_list()[1:] != [1]:
            raise NotConvertible(
                f"column {column.name!r} crosses dense input {leaf!r} of shape {values.shape}; one "
                "value per example was expected: declare it as sparse in the recipe"
            )
        return Key(ResolvedIds(_input(leaf)), CrossKey(dtype=_key_dtype(values)))
    if is_a(leaf, "Bucketized"):
        rule, *others = bucket_rules(leaf)
        if others:
            raise NotConvertible(
                f"column {leaf.name!r} makes buckets of {1 + len(others)} numbers per example; "
                "give each its own column"
            )
        return Key(ResolvedIds(_input(leaf.source_column.key)), CrossKey(dtype="float32", ids=rule))
    if not is_a(
        leaf, "IdentityCategorical", "VocabularyListCategorical", "VocabularyFileCategorical"
    ):
        raise NotConvertible(
            f"column {column.name!r} crosses column {leaf.name!r}, a {type(leaf).__name__}; only "
            "inputs and columns of buckets, identities and vocabularies can be crossed"
        )
    found = column_rule(leaf, read)
    values = read(leaf.key)
    padding = padding_of(values) if _is_dense(values) else None
    graph = found.rule
    if found.unknown is not None and found.unknown.row is not None:  # of an identity column
        builder = GraphBuilder("int64")
        builder.replaced(builder.last, rows_of(leaf), found.unknown.row)
        graph = builder.graph()
    entry = CrossKey(dtype=_key_dtype(values), ids=graph, padding=padding)
    return Key(replace(found, rule=graph, unknown=None), entry)


def _is_dense(values: Tensors) -> bool:
    return not isinstance(values, tf.SparseTensor)


def _key_dtype(values: Tensors) -> Literal["int64", "string"]:
    return "string" if values.dtype.name == "string" else "int64"


def padding_of(ids: Any) -> int | str:
    """Returns the value that marks a missing id in a dense tensor.

    Source: TensorFlow 2.20, feature_column_v2.py, _to_sparse_input_and_drop_ignore_values.
    """
    return "" if ids.dtype.name == "string" else -1


def _leaves(column: Any) -> list[Any]:
    """Returns the crossed columns and inputs; nested crosses are flattened, as in TensorFlow."""
    return [
        leaf for key in column.keys for leaf in (_leaves(key) if is_a(key, "Crossed") else [key])
    ]
