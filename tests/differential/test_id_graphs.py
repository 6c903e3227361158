"""Ids by the model's own operations: the integers of TensorFlow, bit for bit, and within the limits
that the exporter derives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from bundle.errors import UnknownRejected
from bundle.features.ids.expressions import expression
from bundle.features.ids.operations import OPERATIONS
from bundle.features.ids.rules import rule_of
from bundle.format.manifest import GraphIds
from bundle.tables.vocabularies import IntegerKeys, StringKeys, Vocabulary
from export.id_graphs import tensorflow_operations
from export.id_graphs.limits import limits_of
from export.partition.graph.input_paths import CallGraph, Values
from export.partition.graph.origins import Source
from export.partition.ids.capture import find_graph, find_rule
from export.partition.ids.resolved_ids import ResolvedIds
from tests.differential.id_programs import Program, tf

PROGRAMS = 300
NEVER_DRAWN = {"OnesLike", "ZerosLike"}
"""Operations that the exporter takes for constants."""


def test_random_programs_of_every_operation_give_the_integers_of_tensorflow() -> None:
    differing = {}
    drawn: set[str] = set()
    for seed in range(PROGRAMS):
        program = Program(seed)
        actual = find_graph(program.ids, program.call)
        differing[seed] = _difference(program, actual)
        if isinstance(actual, ResolvedIds) and isinstance(actual.rule, GraphIds):
            drawn |= {node.op for node in actual.rule.nodes}
            differing[seed] += _beyond_limits(program, actual)
    assert {seed: text for seed, text in differing.items() if text} == {}
    assert OPERATIONS.keys() - drawn == NEVER_DRAWN


def difference(program: Program) -> str:
    """Returns how the rows of a program differ from what TensorFlow computes; "": not at all."""
    return _difference(program, find_graph(program.ids, program.call))


def _difference(program: Program, actual: ResolvedIds | Values) -> str:
    if not isinstance(actual, ResolvedIds):
        return f"operation {actual.type} is not computed"
    rule = GraphIds.model_validate_json(named(actual.rule).model_dump_json())
    rows = rule_of(rule, opened(rule, actual)).resolve("x", program.sent)
    inside = tensorflow_operations.rows_of(
        rule, tables(rule, actual), tf.constant(program.sent)
    ).numpy()
    for ids in (rows, inside):
        wrong = np.flatnonzero(ids != program.computed)
        if wrong.size:
            first = wrong[0]
            text = f"{expression(rule, 'x')} of {program.sent[first]!r} is {ids[first]}"
            return f"{text}, in TensorFlow {program.computed[first]}"
    return ""


def _beyond_limits(program: Program, actual: ResolvedIds) -> str:
    """Returns which rows of a program are beyond the limits of its graph; "": none."""
    limits = limits_of(named(actual.rule), [len(keys) for keys in actual.keys])
    beyond = [
        row
        for row in np.unique(program.computed).tolist()
        if not (limits.low <= row <= limits.high and limits.may_be(row))
    ]
    return f"{beyond[:3]} are beyond {limits}" if beyond else ""


def named(rule: Any) -> GraphIds:
    """Returns a graph whose vocabularies have distinct names."""
    assert isinstance(rule, GraphIds)
    tables = [
        table.model_copy(update={"vocabulary": f"v{number}"})
        for number, table in enumerate(rule.tables)
    ]
    return rule.model_copy(update={"tables": tuple(tables)})


def opened(rule: GraphIds, actual: ResolvedIds) -> dict[str, Vocabulary]:
    """Returns the vocabularies of a graph as a service opens them."""
    vocabularies = {}
    for entry, keys in zip(rule.tables, actual.keys, strict=True):
        texts = [key for key in keys if isinstance(key, str)]
        listed: Any = StringKeys(texts) if texts else IntegerKeys(np.array(keys))
        vocabularies[entry.vocabulary] = Vocabulary(listed)
    return vocabularies


def tables(rule: GraphIds, actual: ResolvedIds) -> dict[str, Any]:
    """Returns the vocabularies of a graph as TensorFlow's tables."""
    named = {}
    for entry, keys in zip(rule.tables, actual.keys, strict=True):
        known = tf.constant(keys, tf.string if isinstance(keys[0], str) else tf.int64)
        positions = tf.range(len(keys), dtype=tf.int64)
        initial = tf.lookup.KeyValueTensorInitializer(known, positions)
        named[entry.vocabulary] = tf.lookup.StaticHashTable(initial, -1)
    return named


def test_keys_that_a_layer_rejects_are_rejected() -> None:
    layer = tf.keras.layers.StringLookup(vocabulary=["red", "blue"], num_oov_indices=0)
    actual = computed_by(lambda texts: layer(texts) * 7, tf.string)
    assert isinstance(actual, ResolvedIds)
    rule = named(actual.rule)
    rows = rule_of(rule, opened(rule, actual))
    assert rows.resolve("x", np.array(["blue", "red"], object)).tolist() == [7, 0]
    with pytest.raises(UnknownRejected, match="id green is not in vocabulary"):
        rows.resolve("x", np.array(["blue", "green"], object))


def test_buckets_may_have_boundaries_that_are_not_finite() -> None:
    """A manifest holds none: no number that is sent is beyond them."""
    boundaries = [-np.inf, 0.0, np.inf]
    actual = computed_by(
        lambda numbers: tf.raw_ops.Bucketize(input=numbers, boundaries=boundaries), tf.float32
    )
    assert isinstance(actual, ResolvedIds)
    assert isinstance(actual.rule, GraphIds)
    stored = GraphIds.model_validate_json(actual.rule.model_dump_json())
    numbers = np.array([-3e38, -1.0, 0.0, 3e38], np.float32)
    assert rule_of(stored, {}).resolve("x", numbers).tolist() == [1, 1, 2, 2]


def test_ids_that_a_gather_maps_are_not_taken_for_its_positions() -> None:
    mapped = computed_by(
        lambda ids: tf.gather(tf.constant([0, 1, 5, 5], tf.int64), ids),
        tf.int64,
        partial(find_rule, rows=None),
    )
    assert isinstance(mapped, ResolvedIds)
    assert isinstance(mapped.rule, GraphIds)
    assert rule_of(mapped.rule, {}).resolve("x", np.arange(4)).tolist() == [0, 1, 5, 5]


def computed_by(
    function: Any,
    dtype: Any,
    find: Callable[..., ResolvedIds | Values] = find_graph,
    shape: Sequence[int | None] = (None,),
) -> ResolvedIds | Values:
    """Returns the ids that a function computes of one input of a shape."""
    traced = tf.compat.v1.wrap_function(function, [tf.TensorSpec(shape, dtype)])
    captured = {inner.name: outer for outer, inner in traced.graph.captures}
    (sent,) = [tensor for tensor in traced.inputs if tensor.name not in captured]
    call = CallGraph({sent.name: Source("x", "dense")}, captured)
    return find(Values(traced.outputs[0]), call)
