"""Intercepts embedding columns where column, table and raw inputs are known: before the id rule, after the combiner.

What a column does to ids (hash, vocabulary, buckets, cross) becomes data; none of its operations enter the graph.
Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, feature_column.py (TF1's), python/tpu/
feature_column.py and feature_column_v2.py, which call the former on a CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from export.cuts.column_rules import ColumnRule, Read, column_rule, is_a
from export.cuts.gathers import facts_of
from export.cuts.hooks import hooked
from export.cuts.lookups import Answer, Lookup, Tensors, refusals_freed, with_line
from export.errors import ExportError, NotConvertible
from export.frameworks import load_tensorflow
from export.towers import Combiner, Encoding, Kind

Lengths = Callable[[Tensors], Any]
"""(dense ids [n, length]) -> [n] int64 how many of each example's places are taken."""


def no_lengths(ids: Tensors) -> Any:
    """Answers lengths with zeros: while the model is built, nobody reads them."""
    tf = load_tensorflow()
    return tf.zeros(tf.shape(ids)[:1], tf.int64)


@contextlib.contextmanager
def columns_intercepted(answer: Answer, lengths: Lengths) -> Iterator[None]:
    """Answers lookups of embedding columns by `answer` within the `with`, and lengths of sequences by `lengths`."""
    load_tensorflow()
    from tensorflow.python.feature_column import feature_column as v1
    from tensorflow.python.feature_column import feature_column_v2 as v2
    from tensorflow.python.util import deprecation

    columns = _Columns(answer, lengths)
    replaced: dict[type, dict[str, Callable[..., Any]]] = {
        v2.EmbeddingColumn: {
            "get_dense_tensor": columns.own,
            "get_sequence_dense_tensor": columns.sequence_of_own,
            "_get_dense_tensor": columns.own_by_name,
            "_get_sequence_dense_tensor": columns.sequence_by_name,
            "_get_dense_tensor_internal_helper": columns.looked_up,
        },
        v2.SharedEmbeddingColumn: {
            "_get_dense_tensor_internal": columns.shared,
            "get_sequence_dense_tensor": columns.sequence_of_shared,
        },
        v2.IndicatorColumn: {"transform_feature": columns.indicator, "_transform_feature": columns.old_indicator},
        v1._IndicatorColumn: {"_transform_feature": columns.old_indicator},
        v1._EmbeddingColumn: {
            "_get_dense_tensor_internal": columns.own_of_old,
            "_get_sequence_dense_tensor": columns.sequence_of_old,
        },
        v1._SharedEmbeddingColumn: {
            "_get_dense_tensor_internal": columns.shared_of_old,
            "_get_sequence_dense_tensor": columns.sequence_of_old,
        },
    }
    originals = [(kind, name, kind.__dict__[name]) for kind, methods in replaced.items() for name in methods]
    try:
        with refusals_freed() as refusals:
            for kind, methods in replaced.items():
                for name, method in methods.items():
                    setattr(kind, name, _method(method, refusals))
            weighted_sum = _method(columns.weighted_sum, refusals)
            # Feature columns are deprecated in TensorFlow 2.20, and every call of each says so.
            with deprecation.silence(), hooked(v1._create_categorical_column_weighted_sum, weighted_sum):
                yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _method(bound: Callable[..., Any], refusals: list[ExportError]) -> Callable[..., Any]:
    def method(asked: Any, /, *arguments: Any, **how: Any) -> Any:
        try:
            return bound(asked, *arguments, **how)
        except ExportError as problem:
            told = with_line(problem)
            refusals.append(told)
            raise told from problem

    return method


class _Columns:
    """What stands for the columns' methods. Those of a name take `inputs`, TF1's cache of raw and transformed ones."""

    def __init__(self, answer: Answer, lengths: Lengths) -> None:
        self._answer, self._lengths = answer, lengths

    def looked_up(self, column: Any, read: Read, variable: Any) -> Any:
        return self._answer(describe_column(column, read, variable))

    def own(self, column: Any, cache: Any, state: Any) -> Any:
        return column._get_dense_tensor_internal(partial(cache.get, state_manager=state), state)

    def sequence_of_own(self, column: Any, cache: Any, state: Any) -> Any:
        return self._sequence(column, partial(cache.get, state_manager=state), self.own(column, cache, state))

    def own_by_name(self, column: Any, inputs: Any, weight_collections: Any = None, trainable: Any = None) -> Any:
        return column._old_get_dense_tensor_internal(inputs.get, weight_collections, trainable)

    def sequence_by_name(self, column: Any, inputs: Any, *how: Any) -> Any:
        return self._sequence(column, inputs.get, self.own_by_name(column, inputs, *how))

    def shared(self, column: Any, cache: Any, state: Any) -> Any:
        weights = column.shared_embedding_column_creator.embedding_weights
        return self.looked_up(column, partial(cache.get, state_manager=state), weights)

    def sequence_of_shared(self, column: Any, cache: Any, state: Any) -> Any:
        return self._sequence(column, partial(cache.get, state_manager=state), self.shared(column, cache, state))

    def own_of_old(self, column: Any, inputs: Any, weight_collections: Any = None, **_how: Any) -> Any:
        scope = load_tensorflow().compat.v1.get_variable_scope()
        return self.looked_up(column, inputs.get, column.layer_creator(weight_collections, scope))

    def shared_of_old(self, column: Any, inputs: Any, *_how: Any, **_named: Any) -> Any:
        v1, name = load_tensorflow().compat.v1, column.shared_embedding_collection_name
        if not v1.get_collection(name):
            shape = (column.categorical_column._num_buckets, column.dimension)
            v1.add_to_collection(name, v1.get_variable("embedding_weights", shape))
        return self.looked_up(column, inputs.get, v1.get_collection(name)[0])

    def sequence_of_old(self, column: Any, inputs: Any, *how: Any, **named: Any) -> Any:
        dense = column._get_dense_tensor_internal(inputs, *how, **named)
        return self._sequence(column, inputs.get, dense)

    def weighted_sum(self, original: Callable[..., Any], **how: Any) -> Any:
        """A column of TF1's linear_model: a table with a row of weights for each id."""
        del original
        column, variable = how["column"], how["weight_var"]
        if variable is None:
            shape = (column._num_buckets, how["units"])
            variable = load_tensorflow().compat.v1.get_variable("weights", shape)
        return self._answer(describe_ids(column.name, column, how["sparse_combiner"], how["builder"].get, variable))

    def indicator(self, column: Any, cache: Any, state: Any) -> Any:
        return multi_hot(column, partial(cache.get, state_manager=state))

    def old_indicator(self, column: Any, inputs: Any) -> Any:
        return multi_hot(column, inputs.get)

    def _sequence(self, column: Any, read: Read, dense: Any) -> Any:
        from tensorflow.python.feature_column import feature_column_v2 as v2

        (key,) = column_rule(column.categorical_column, read).inputs
        return v2.SequenceDenseColumn.TensorSequenceLengthPair(dense, self._lengths(read(key)))


def multi_hot(column: Any, read: Read) -> Any:
    """Returns what an indicator column gives, computed of dense ids as numbers: TensorFlow's own way is sparse.

    Raises:
      NotConvertible: its ids are not whole numbers of a dense input, or are hashed.
    """
    tf = load_tensorflow()
    ids_of = column.categorical_column
    rows = int(ids_of.num_buckets if hasattr(ids_of, "num_buckets") else ids_of._num_buckets)
    if is_a(ids_of, "Bucketized"):
        buckets = tf.cast(read(ids_of), tf.int32)
        numbers = buckets.shape[-1]
        return tf.reduce_sum(tf.one_hot(buckets + tf.range(numbers) * (rows // numbers), rows), axis=-2)
    listed = is_a(ids_of, "VocabularyListCategorical", "VocabularyFileCategorical")
    ids = read(ids_of.key) if listed or is_a(ids_of, "IdentityCategorical") else None
    whole = ids is not None and not isinstance(ids, tf.SparseTensor) and ids.dtype.is_integer
    if ids is None or not whole or (listed and ids_of.num_oov_buckets):
        raise NotConvertible(
            f"column {column.name!r} is an indicator of {type(ids_of).__name__}; a tower computes one of buckets, and "
            "of a dense input's integers by an identity column or a vocabulary without oov buckets: give the model a "
            f"numeric_column of shape ({rows},) instead, and send the indicator, or train an embedding_column"
        )
    if listed:
        return _listed(ids, column_rule(ids_of, read), rows)
    if ids_of.default_value is not None:
        outside = ((ids < 0) | (ids >= rows)) & tf.not_equal(ids, -1)
        ids = tf.where(outside, tf.constant(ids_of.default_value, ids.dtype), ids)
    return tf.reduce_sum(tf.one_hot(ids, rows), axis=-2)


def _listed(ids: Any, told: ColumnRule, rows: int) -> Any:
    tf = load_tensorflow()
    given = tf.not_equal(ids, tf.constant(-1, ids.dtype))
    hits = tf.equal(tf.cast(ids, tf.int64)[..., tf.newaxis], tf.constant(told.keys, tf.int64))
    found = tf.cast(hits & given[..., tf.newaxis], tf.float32)
    if told.unknown is not None and told.unknown.row is not None:
        missing = tf.cast(given & ~tf.reduce_any(hits, axis=-1), tf.float32)
        found += missing[..., tf.newaxis] * tf.one_hot(told.unknown.row, rows)
    return tf.reduce_sum(found, axis=-2)


def describe_column(column: Any, read: Read, variable: Any) -> Lookup:
    """Returns what an embedding column looks up.

    Args:
      column: of TF1 or TF2.
      read: returns the raw inputs.
      variable: its table's.
    Raises:
      NotConvertible: a combination that no feature of a bundle does; names the column, and the cure.
    """
    lookup = describe_ids(column.name, column.categorical_column, column.combiner, read, variable)
    if lookup.weights is not None and not column.use_safe_embedding_lookup:
        raise NotConvertible(
            f"column {column.name!r} is weighted with use_safe_embedding_lookup=False, whose treatment of weights <= 0 "
            "is not carried over; leave it out"
        )
    return replace(lookup, max_norm=column.max_norm)


def describe_ids(name: str, column: Any, combiner: Combiner, read: Read, variable: Any) -> Lookup:
    """Returns what a categorical column looks up in a table; arguments and errors as of `describe_column`."""
    found = column_rule(column, read)
    ids = tuple(read(key) for key in found.inputs)
    encoding, width = _encoding(name, ids)
    kind: Kind = "bag"
    if found.sequence:
        kind = "sequence"
        if width is None:
            raise NotConvertible(
                f"column {name!r} is a sequence of any length; declare input {found.inputs[0]!r} as dense in "
                "the recipe, with the length that it is padded to as its shape"
            )
    elif len(ids) == 1 and found.weights is None and (found.one or width == 1):
        kind = "single"
    return Lookup(
        path=name,
        table=facts_of(variable),
        variable=variable,
        ids=ids,
        weights=read(found.weights) if found.weights is not None else None,
        kind=kind,
        encoding=encoding,
        combiner=combiner if kind == "bag" else None,
        length=width if kind == "sequence" else None,
        rule=found.rule,
        unknown=found.unknown,
        keys=found.keys,
        padding=_padding(ids[0]) if encoding == "dense" and not found.one and len(ids) == 1 else None,
    )


def _padding(ids: Any) -> int | str:
    """Returns what stands in a dense tensor where there is no id.

    Source: TensorFlow 2.20, feature_column_v2.py, _to_sparse_input_and_drop_ignore_values.
    """
    return "" if ids.dtype.name == "string" else -1


def _encoding(name: str, ids: tuple[Tensors, ...]) -> tuple[Encoding, int | None]:
    """Returns how ids come, and how many places each example of dense ones has."""
    tf = load_tensorflow()
    if any(isinstance(each, tf.SparseTensor) for each in ids):
        return "sparse", None
    shapes = [each.shape.as_list() if each.shape.rank is not None else None for each in ids]
    for shape in shapes:
        if shape is None or len(shape) != 2 or shape[1] is None:
            raise NotConvertible(
                f"column {name!r} was given a dense tensor of shape {shape}; [batch] or [batch, length] was expected"
            )
        if len(ids) > 1 and shape[1] != 1:
            raise NotConvertible(
                f"column {name!r} crosses a dense input of {shape[1]} values an example; declare it as sparse in the "
                "recipe"
            )
    return "dense", shapes[0][1] if shapes[0] else None
