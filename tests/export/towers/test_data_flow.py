from __future__ import annotations

from typing import Any

import pytest

from export.graphs.functions import fill
from export.graphs.internals import variable_class
from export.graphs.loading import tf
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow
from tests.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace

SIDES = {"user": CONTEXT, "item": CANDIDATE}


def ranker(features: Any) -> dict[str, Any]:
    user = tf.nn.relu(features["user"] @ tf.ones([3, 5]), name="user_layer")
    item = tf.nn.tanh(features["item"], name="item_layer")
    return {"score": tf.reduce_sum(user[:, :2] * item, 1)}


@pytest.fixture
def flow() -> DataFlow:
    return DataFlow(tower_of(trace(ranker, user=numbers(3), item=numbers(2))), SIDES)


def tensor(flow: DataFlow, operation: str) -> Any:
    return flow.graph.get_operation_by_name(operation).outputs[0]


def test_per_of_each_tensor_is_the_sides_that_it_depends_on(flow: DataFlow) -> None:
    assert flow.per(tensor(flow, "user_layer")) == CONTEXT
    assert flow.per(tensor(flow, "item_layer")) == CANDIDATE
    assert flow.per(flow.outputs["score"]) == CONTEXT | CANDIDATE


def test_upstream_ends_at_stops_and_inputs(flow: DataFlow) -> None:
    user = tensor(flow, "user_layer")
    operations, reached = flow.upstream([flow.outputs["score"]], {user.name})
    types = {operation.type for operation in operations}
    assert {"Mul", "Tanh"} <= types
    assert not {"Relu", "MatMul"} & types
    (item,) = (name for name, spec in flow.inputs.items() if spec.name == "item")
    assert reached == {user.name, item}


def test_cost_of_a_product_counts_multiply_adds_and_moves_are_free(flow: DataFlow) -> None:
    operations = {operation.type: operation for operation in flow.graph.get_operations()}
    assert flow.cost([operations["MatMul"]]) == 3 * 5
    assert flow.cost([operations["Relu"]]) == 5
    assert flow.cost([operations["StridedSlice"]]) == 0


def test_rows_leaves_out_what_mixes_examples() -> None:
    def call(features: Any) -> dict[str, Any]:
        alone = tf.nn.softmax(features["user"], name="alone")
        mixed = tf.subtract(alone, tf.reduce_mean(alone, 0, keepdims=True), name="mixed")
        return {"score": tf.reduce_sum(mixed * features["item"], 1)}

    flow = DataFlow(tower_of(trace(call, user=numbers(2), item=numbers(2))), SIDES)
    assert tensor(flow, "alone").name in flow.rows
    assert tensor(flow, "mixed").name not in flow.rows


def test_fill_gives_values_to_uninitialized_variables_only() -> None:
    trained = tf.Variable([7.0])
    empty = variable_class()(shape=[2, 3], dtype=tf.float32)
    fill([trained, empty])
    assert trained.numpy().tolist() == [7.0]
    assert empty.numpy().shape == (2, 3)
