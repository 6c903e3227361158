from __future__ import annotations

from typing import Any

import pytest

from export.graphs.loading import tf
from export.graphs.walks import keeps_values, needed
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers, trace


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
    subgraph = needed([traced.results["score"]], [hidden])
    assert subgraph.stops == {hidden.name}
    assert [tensor.name for tensor in subgraph.placeholders] == [traced.inputs["b"].name]
    assert "Relu" not in {operation.type for operation in subgraph.operations}


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


def test_needed_follows_control_inputs_without_outputs() -> None:
    def call(features: Any) -> dict[str, Any]:
        check = tf.raw_ops.Assert(condition=features["b"][0] > 0, data=[features["c"]])
        with tf.control_dependencies([check]):
            return {"score": tf.identity(features["a"])}

    traced = trace(call, a=numbers(), b=numbers(), c=numbers())
    subgraph = needed([traced.results["score"]], [])
    names = {tensor.name for tensor in subgraph.placeholders}
    assert names == {tensor.name for tensor in traced.inputs.values()}
    assert "Assert" in {operation.type for operation in subgraph.operations}
