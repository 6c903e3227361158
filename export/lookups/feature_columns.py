"""Intercepts embedding columns where column, table and raw inputs are known: before the id rule, after the combiner.

What a column does to ids (hash, vocabulary, buckets, cross) becomes data; none of its operations enter the graph.
Source: TensorFlow 2.20, python/feature_column/feature_column_v2.py, feature_column.py (TF1's), python/tpu/
feature_column.py and feature_column_v2.py, which call the former on a CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from export.errors import ExportError, NotConvertible
from export.frameworks.hooks import hooked
from export.frameworks.loading import load_tensorflow
from export.graph.specs import Combiner, Encoding, Kind, TableFacts
from export.lookups.column_rules import Read, bucket_rules, column_rule, is_a, padding_of
from export.lookups.gathers import facts_of
from export.lookups.indicator_columns import check_width, multi_hot
from export.lookups.records import Answer, Lookup, Tensors, refusals_freed, with_line

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
        v2.IndicatorColumn: {
            "transform_feature": columns.indicator,
            "_transform_feature": columns.old_indicator,
            "get_sequence_dense_tensor": columns.sequence_of_indicator,
            "_get_sequence_dense_tensor": columns.sequence_of_old_indicator,
        },
        v1._IndicatorColumn: {
            "_transform_feature": columns.old_indicator,
            "_get_sequence_dense_tensor": columns.sequence_of_old_indicator,
        },
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
        several = of_several_numbers(column.name, column.categorical_column, read, variable, column.max_norm)
        if several is None:
            return self._answer(describe_column(column, read, variable))
        return self._combined(several, column.combiner)

    def _combined(self, several: list[Lookup], combiner: Combiner) -> Any:
        whole = load_tensorflow().add_n([self._answer(lookup) for lookup in several])
        return whole / {"sum": 1, "mean": len(several), "sqrtn": math.sqrt(len(several))}[combiner]

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
        read, combiner = how["builder"].get, how["sparse_combiner"]
        several = of_several_numbers(column.name, column, read, variable)
        if several is None:
            return self._answer(describe_ids(column.name, column, combiner, read, variable))
        return self._combined(several, combiner)

    def indicator(self, column: Any, cache: Any, state: Any) -> Any:
        return self._indicated(column, partial(cache.get, state_manager=state))

    def old_indicator(self, column: Any, inputs: Any) -> Any:
        return self._indicated(column, inputs.get)

    def sequence_of_indicator(self, column: Any, cache: Any, state: Any) -> Any:
        read = partial(cache.get, state_manager=state)
        return self._sequence(column, read, read(column))

    def sequence_of_old_indicator(self, column: Any, inputs: Any, *_how: Any, **_named: Any) -> Any:
        return self._sequence(column, inputs.get, inputs.get(column))

    def _indicated(self, column: Any, read: Read) -> Any:
        found = multi_hot(column, read)
        if found is not None:
            return found
        rows = check_width(column)
        table = TableFacts("", column.name, rows, rows)
        return self._answer(_described(column.name, column.categorical_column, "sum", read, table, None))

    def _sequence(self, column: Any, read: Read, dense: Any) -> Any:
        from tensorflow.python.feature_column import feature_column_v2 as v2

        (key,) = column_rule(column.categorical_column, read).inputs
        return v2.SequenceDenseColumn.TensorSequenceLengthPair(dense, self._lengths(read(key)))


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


def of_several_numbers(
    name: str, buckets: Any, read: Read, variable: Any, max_norm: float | None = None
) -> list[Lookup] | None:
    """Returns what a column of several numbers' buckets looks up, a row of each number; None of other columns.

    Args:
      name: of the column that looks up, for messages.
      buckets: a categorical column.
      read, variable: as of `describe_column`.
      max_norm: as in Lookup.
    Raises:
      NotConvertible: as `describe_column`.
    """
    shape = tuple(buckets.source_column.shape) if is_a(buckets, "Bucketized") else ()
    if shape in ((), (1,)):
        return None
    tf, numbers = load_tensorflow(), math.prod(shape)
    flat = tf.reshape(read(buckets.source_column.key), [-1, numbers])
    return [
        Lookup(
            path=name,
            table=facts_of(variable),
            variable=variable,
            ids=(flat[:, at],),
            weights=None,
            kind="single",
            encoding="dense",
            combiner=None,
            length=None,
            rule=rule,
            max_norm=max_norm,
        )
        for at, rule in enumerate(bucket_rules(buckets))
    ]


def describe_ids(name: str, column: Any, combiner: Combiner, read: Read, variable: Any) -> Lookup:
    """Returns what a categorical column looks up in a table; arguments and errors as of `describe_column`."""
    return _described(name, column, combiner, read, facts_of(variable), variable)


def _described(name: str, column: Any, combiner: Combiner, read: Read, table: TableFacts, variable: Any) -> Lookup:
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
        table=table,
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
        padding=padding_of(ids[0]) if encoding == "dense" and not found.one and len(ids) == 1 else None,
    )


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
    return "dense", shapes[0][1] if shapes[0] else None
