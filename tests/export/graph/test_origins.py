from __future__ import annotations

from typing import Any

import pytest

from export.frameworks.loading import tf
from export.graph.origins import (
    Source,
    distinct_identifiers,
    identifier,
    keeps_values,
    needed,
    sources_of,
)
from tests.export.graph.traced_calls import ids, numbers, trace


def test_sources_of_ragged_and_sparse_inputs_names_each_part() -> None:
    traced = trace(
        lambda features: {"sum": tf.reduce_sum(features["bag"].values)},
        item=ids(),
        bag=tf.RaggedTensorSpec([None, None], tf.int64),
        tags=tf.SparseTensorSpec([None, None], tf.int64),
    )
    sources = sources_of(traced.inputs)
    assert sources[traced.inputs["item"].name] == Source("item", "dense")
    assert sources[traced.inputs["bag"].values.name] == Source("bag", "values")
    assert sources[traced.inputs["bag"].row_splits.name] == Source("bag", "splits")
    assert sources[traced.inputs["tags"].dense_shape.name] == Source("tags", "extent")


def test_sources_of_weights_with_the_splits_of_their_ids_belong_to_the_ids() -> None:
    traced = trace(
        lambda features: {"bag": features["bag"].values},
        bag=tf.RaggedTensorSpec([None, None], tf.int64),
    )
    bag = traced.inputs["bag"]
    with traced.function.graph.as_default():
        weights = bag.with_values(tf.cast(bag.values, tf.float32))
    sources = sources_of({"bag": bag, "weights": weights})
    assert sources[bag.row_splits.name] == Source("bag", "splits")
    assert sources[weights.values.name] == Source("weights", "values")


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        (lambda item: tf.reshape(item, [-1, 2]), True),
        (lambda item: tf.cast(item, tf.int32), True),
        (lambda item: tf.cast(item, tf.float32), False),
        (lambda item: item + 1, False),
    ],
    ids=["reshape", "integers", "floats", "sum"],
)
def test_keeps_values_of_operations_that_change_no_value(change: Any, keeps: bool) -> None:
    traced = trace(lambda features: {"result": change(features["item"])}, item=ids())
    assert keeps_values(traced.results["result"].op) is keeps


def test_needed_stops_at_the_stops_and_lists_the_other_placeholders() -> None:
    def call(features: Any) -> dict[str, Any]:
        hidden = tf.nn.relu(features["a"])
        return {"hidden": hidden, "score": hidden * features["b"], "other": features["c"] + 1.0}

    traced = trace(call, a=numbers(), b=numbers(), c=numbers())
    hidden = traced.results["hidden"]
    found = needed([traced.results["score"]], [hidden])
    assert found.stops == {hidden.name}
    assert [tensor.name for tensor in found.placeholders] == [traced.inputs["b"].name]
    assert "Relu" not in {operation.type for operation in found.operations}


def test_needed_follows_control_inputs() -> None:
    def call(features: Any) -> dict[str, Any]:
        check = tf.debugging.assert_non_negative(features["b"])
        with tf.control_dependencies([check]):
            return {"score": tf.identity(features["a"])}

    traced = trace(call, a=numbers(), b=numbers())
    placeholders = needed([traced.results["score"]], []).placeholders
    assert {tensor.name for tensor in placeholders} == {
        traced.inputs["a"].name,
        traced.inputs["b"].name,
    }


def test_identifiers_are_valid_and_distinct() -> None:
    assert [identifier(name) for name in ("a b", "7", "", "class", "_x")] == [
        "a_b",
        "input_7",
        "input_",
        "input_class",
        "input__x",
    ]
    assert distinct_identifiers(["a b", "a_b", "a-b"]) == {
        "a b": "a_b",
        "a_b": "a_b_",
        "a-b": "a_b__",
    }
