from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from export.graphs.functions import fill
from export.graphs.internals import variable_class
from export.graphs.loading import load_tensorflow, tf
from export.towers.data_flow import CANDIDATE, CONTEXT, DataFlow, operation_text
from tests.units.export.tensorflow_models.graph.traced_calls import (
    ids,
    numbers,
    texts,
    tower_of,
    trace,
)

load_tensorflow()
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


Call = Callable[[Mapping[str, Any]], Any]


def flow_of(call: Call, **inputs: Any) -> DataFlow:
    """Returns the flow of a call whose inputs are the user's, but for those of an item."""
    traced = trace(lambda inputs: {"score": call(inputs)}, **inputs)
    return DataFlow(
        tower_of(traced), {name: SIDES.get(name.partition("_")[0], CONTEXT) for name in inputs}
    )


def test_per_of_constants_is_nothing_and_control_inputs_count() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        checked = tf.debugging.Assert(tf.reduce_all(inputs["item"] < 9), ["too large"])
        with tf.control_dependencies([checked]):
            return tf.identity(inputs["user"], name="after") + tf.constant([1.0], name="one")

    flow = flow_of(call, user=numbers(2), item=numbers(2))
    assert flow.per(tensor(flow, "one")) == 0
    assert flow.per(tensor(flow, "after")) == CONTEXT

    def guarded(inputs: Mapping[str, Any]) -> Any:
        with tf.control_dependencies([inputs["item"] * 2]):
            return tf.identity(inputs["user"], name="after")

    flow = flow_of(guarded, user=numbers(2), item=numbers(2))
    assert flow.per(tensor(flow, "after")) == CONTEXT | CANDIDATE


def test_upstream_of_values_ends_at_shapes() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        hidden = tf.nn.relu(inputs["user"], name="hidden")
        rows = tf.shape(hidden, name="rows")[0]
        return tf.reshape(inputs["item"], [rows, 2]) * 2.0

    flow = flow_of(call, user=numbers(2), item=numbers(2))
    for values, expected in ((False, True), (True, False)):
        operations, reached = flow.upstream([flow.outputs["score"]], (), values=values)
        names = {operation.name for operation in operations}
        assert ("hidden" in names) is expected
        assert "rows" in names
        assert len(reached) == 1 + expected
    # What depends on no input is left out.
    assert not any(operation.type == "Const" for operation in operations)


def test_upstream_lists_each_operation_once() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        hidden = tf.nn.relu(inputs["user"], name="hidden")
        return tf.add(hidden * hidden, hidden)

    flow = flow_of(call, user=numbers(2))
    operations, _ = flow.upstream([flow.outputs["score"]], ())
    assert sorted(operation.type for operation in operations) == ["AddV2", "Mul", "Relu"]


IMAGE = (4, 6, 3)


@pytest.mark.parametrize(
    ("call", "inputs", "cost"),
    [
        pytest.param(
            lambda inputs: tf.matmul(inputs["user"], tf.ones([3, 5])),
            [numbers(3)],
            15,
            id="product",
        ),
        pytest.param(
            lambda inputs: tf.matmul(inputs["user"], tf.ones([2, 5]), transpose_a=True),
            [tf.TensorSpec([2, None], tf.float32)],
            2 * 5,
            id="product of a transposed matrix",
        ),
        pytest.param(
            lambda inputs: tf.matmul(inputs["user"], inputs["user_1"]),
            [numbers(2, 3), numbers(3, 5)],
            2 * 3 * 5,
            id="products of batches",
        ),
        pytest.param(
            lambda inputs: tf.matmul(inputs["user"], inputs["user_1"], transpose_a=True),
            [numbers(3, 2), numbers(3, 5)],
            2 * 3 * 5,
            id="products of transposed batches",
        ),
        pytest.param(
            lambda inputs: tf.einsum("bij,bjk->bik", inputs["user"], inputs["user_1"]),
            [numbers(2, 3), numbers(3, 5)],
            2 * 3 * 5,
            id="einsum",
        ),
        pytest.param(
            lambda inputs: tf.einsum("...ij,jk->...ik", inputs["user"], tf.ones([3, 5])),
            [numbers(7, 2, 3)],
            2 * 3 * 5,
            id="einsum without the names of its first axes",
        ),
        pytest.param(
            lambda inputs: tf.nn.conv2d(inputs["user"], tf.ones([2, 2, 3, 5]), 1, "VALID"),
            [numbers(*IMAGE)],
            3 * 5 * 5 * (2 * 2 * 3),
            id="convolution",
        ),
        pytest.param(
            lambda inputs: tf.nn.depthwise_conv2d(
                inputs["user"], tf.ones([2, 2, 3, 1]), [1, 1, 1, 1], "VALID"
            ),
            [numbers(*IMAGE)],
            3 * 5 * 3 * (2 * 2 * 3),
            id="convolution of each channel",
        ),
        pytest.param(
            lambda inputs: tf.matmul(
                tf.reshape(inputs["user"], [tf.shape(inputs["user"])[0], -1]), tf.ones([3, 5])
            ),
            [numbers(3)],
            5,
            id="product of an unknown width",
        ),
        pytest.param(lambda inputs: tf.nn.relu(inputs["user"]), [numbers(7)], 7, id="elements"),
        pytest.param(lambda inputs: tf.reduce_sum(inputs["user"], 1), [numbers(7)], 7, id="sum"),
        pytest.param(lambda inputs: tf.reduce_sum(inputs["user"], 1), [ids(7)], 1, id="integers"),
        pytest.param(lambda inputs: tf.nn.relu(inputs["user"]), [numbers()], 1, id="one number"),
    ],
)
def test_cost_is_the_multiply_adds_of_an_example(call: Call, inputs: list[Any], cost: int) -> None:
    flow = flow_of(call, **dict(zip(("user", "user_1"), inputs, strict=False)))
    operations, _ = flow.upstream([flow.outputs["score"]], ())
    # The last one; the others only move values.
    assert flow.cost(operations[:1]) == cost


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tf.broadcast_to(x, [5, 4]),
        lambda x: tf.cast(x, "int32"),
        lambda x: tf.concat([x, x], 1),
        lambda x: tf.ensure_shape(x, [None, 4]),
        lambda x: tf.expand_dims(x, 1),
        lambda x: tf.fill([2, 2], x[0, 0]),
        lambda x: tf.gather(x, [0, 1], axis=1),
        tf.identity,
        tf.ones_like,
        lambda x: tf.stack([x, x]),
        lambda x: tf.range(tf.shape(x)[0]),
        lambda x: tf.reshape(x, [-1, 2]),
        tf.shape,
        lambda x: tf.slice(x, [0, 0], [-1, 2]),
        lambda x: tf.split(x, 2, axis=1)[0],
        lambda x: tf.split(x, [1, 3], axis=1)[0],
        lambda x: tf.squeeze(x[:, :1], 1),
        tf.stop_gradient,
        lambda x: x[:, 1:],
        lambda x: tf.tile(x, [1, 2]),
        tf.transpose,
        lambda x: tf.unstack(x, axis=1)[0],
        tf.zeros_like,
        tf.size,
        lambda x: tf.reduce_prod(tf.shape(x)),
    ],
)
def test_operations_that_only_move_values_cost_nothing(call: Callable[[Any], Any]) -> None:
    flow = flow_of(lambda inputs: call(inputs["user"]), user=numbers(4))
    operations, _ = flow.upstream([flow.outputs["score"]], ())
    assert flow.cost(operations) == 0


def test_loop_costs_more_than_any_layer() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        return tf.while_loop(
            lambda number, _: number < 3,
            lambda number, values: (number + 1, values * 2),
            (0, inputs["user"]),
        )[1]

    flow = flow_of(call, user=numbers(4))
    operations, _ = flow.upstream([flow.outputs["score"]], ())
    assert flow.cost(operations) == 100_000
    assert not flow.loops


def test_loop_of_tf1_is_told() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        frame = tf.raw_ops.Enter(data=inputs["user"], frame_name="loop")
        return tf.ensure_shape(tf.raw_ops.Exit(data=frame), [None, 4])

    assert flow_of(call, user=numbers(4)).loops


def test_rows_are_of_dtypes_and_shapes_that_can_be_handed_over() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        user = inputs["user"]
        results = {
            "float": tf.nn.relu(user, name="float"),
            "int32": tf.cast(user, "int32", name="int32"),
            "int64": tf.cast(user, "int64", name="int64"),
            "number": tf.reduce_sum(user, 1, name="number"),
            "double": tf.cast(user, "float64", name="double"),
            "bool": tf.greater(user, 0.0, name="bool"),
            "text": tf.strings.as_string(user, name="text"),
            "scalar": tf.reduce_sum(user, name="scalar"),
            "fixed": tf.slice(user, [0, 0], [2, 2], name="fixed"),
            "turned": tf.transpose(user, name="turned"),
            "open": tf.reshape(user, [tf.shape(user)[0], -1], name="open"),
            "parameter": tf.constant([[1.0]], name="parameter"),
        }
        with tf.control_dependencies(list(results.values())):
            return tf.identity(user)

    flow = flow_of(call, user=numbers(2))
    names = ("float", "int32", "int64", "number", "double", "bool", "text", "scalar", "fixed")
    row_names = {
        name
        for name in (*names, "turned", "open", "parameter")
        if tensor(flow, name).name in flow.rows
    }
    assert row_names == {"float", "int32", "int64", "number"}


def test_rows_are_told_for_inputs_of_any_dtype() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        number = tf.strings.to_number(inputs["user_text"], name="known")
        added = tf.add(inputs["user_id"], 1, name="added")
        part = tf.reduce_sum(inputs["user_open"], 1, name="part")
        return number + tf.cast(added, "float32") + part

    flow = flow_of(
        call, user_text=texts(), user_id=ids(), user_open=tf.TensorSpec([None, None], tf.float32)
    )
    assert {tensor(flow, name).name for name in ("known", "added", "part")} <= flow.rows


@pytest.mark.parametrize(
    ("call", "holds"),
    [
        pytest.param(lambda x: x + 1.0, True, id="numbers of each example"),
        pytest.param(lambda x: x / 0.0, True, id="no numbers"),
        pytest.param(lambda x: tf.cumsum(x, 0), False, id="numbers of those before"),
        pytest.param(lambda x: x[::-1], False, id="another order"),
        pytest.param(lambda x: tf.concat([x, x], 0), False, id="twice as many"),
        pytest.param(lambda x: x[1:], False, id="one less"),
        pytest.param(tf.sqrt, True, id="roots, some of them no numbers"),
        pytest.param(lambda x: x[:6], False, id="the first six"),
        pytest.param(
            lambda x: tf.concat([x * 1e5, tf.zeros_like(x) + tf.reduce_mean(x)], 1),
            True,
            id="others in what is small beside the rest",
        ),
        pytest.param(lambda x: tf.range(tf.shape(x)[0]), False, id="numbers of places"),
        pytest.param(lambda x: x + tf.cast(tf.shape(x)[0], "float32"), False, id="how many"),
        pytest.param(lambda x: x * 1e6 + tf.reduce_mean(x), True, id="almost the same"),
        pytest.param(lambda x: x * 1e2 + tf.reduce_mean(x), False, id="not the same"),
    ],
)
def test_tensor_holds_rows_where_each_example_alone_makes_its_row(
    call: Callable[[Any], Any], holds: bool
) -> None:
    flow = flow_of(lambda inputs: call(inputs["user"]), user=numbers(3))
    assert (flow.outputs["score"].name in flow.rows) is holds


def test_synthetic_ids_are_two_different_ones() -> None:
    """The rows of a table of two rows are read, and another order of them is recognized."""

    def call(inputs: Mapping[str, Any]) -> Any:
        table = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        named_id = tf.strings.to_number(inputs["user_text"], tf.int64)
        rows = [
            tf.gather(table, ids_tensor, name=name)
            for name, ids_tensor in (("by_id", inputs["user_id"]), ("by_text", named_id))
        ]
        turned = [
            tf.reverse(tensor, [0], name=f"turned_{position}")
            for position, tensor in enumerate(rows)
        ]
        return tf.add_n([*rows, *turned])

    flow = flow_of(call, user_id=ids(), user_text=texts())
    names = ("by_id", "by_text", "turned_0", "turned_1")
    row_names = {name for name in names if tensor(flow, name).name in flow.rows}
    assert row_names == {"by_id", "by_text"}


def test_rows_are_told_before_the_weights_are_read() -> None:
    kernel = variable_class()(shape=[3, 2], dtype=tf.float32, name="kernel")
    flow = flow_of(lambda inputs: inputs["user"] @ kernel, user=numbers(3))
    assert flow.outputs["score"].name in flow.rows
    assert kernel.is_initialized()


@pytest.mark.parametrize("disabled", [False, True])
def test_rows_leave_the_optimizer_of_graphs_as_it_was(flow: DataFlow, disabled: bool) -> None:
    optimizer = tf.config.optimizer
    optimizer.set_experimental_options({"disable_meta_optimizer": disabled})
    try:
        assert flow.rows
        assert optimizer.get_experimental_options()["disable_meta_optimizer"] is disabled
    finally:
        optimizer.set_experimental_options({"disable_meta_optimizer": False})


def test_operation_is_named_with_its_type(flow: DataFlow) -> None:
    assert operation_text(flow.graph.get_operation_by_name("user_layer")) == "'user_layer' (Relu)"


def test_fill_takes_values_of_a_tenth() -> None:
    large = variable_class()(shape=[1000], dtype=tf.float32)
    fill([large])
    assert 0.08 < np.std(large.numpy()) < 0.12
