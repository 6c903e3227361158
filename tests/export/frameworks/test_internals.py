"""What is taken of TensorFlow that is not public: that the installed release has it, and that it does its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from export.frameworks import internals
from export.frameworks.loading import load_tensorflow

tf = load_tensorflow()


@pytest.fixture
def doubled() -> Any:
    """A traced function of one input that reads a variable, with the variable beside it."""
    variable = tf.Variable(2.0)
    function = tf.compat.v1.wrap_function(lambda x: tf.identity(x * variable) + 1.0, [tf.TensorSpec([None])])
    function.variable = variable
    return function


def test_variable_without_memory_takes_its_value_later() -> None:
    variable = internals.variable_without_memory(shape=(1 << 40, 4), dtype=tf.float32, name="huge")
    assert isinstance(variable, internals.variable_class())
    small = internals.variable_without_memory(shape=(2,), dtype=tf.float32, name="small")
    small.assign([1.0, 2.0])
    assert small.numpy().tolist() == [1.0, 2.0]


def test_untracked_variable_is_no_part_of_the_object_graph() -> None:
    module = tf.Module()
    module.held = internals.untracked({"table": tf.Variable(1.0)})
    assert set(tf.train.TrackableView(module).children(module)) == set()


def test_leaves_have_their_paths_in_the_order_of_flatten() -> None:
    assert internals.with_paths({"b": [1, 2], "a": 3}) == [("a", 3), ("b/0", 1), ("b/1", 2)]


def test_readers_of_a_tensor_read_another_one_instead(doubled: Any) -> None:
    with doubled.graph.as_default():
        (product,) = [each for each in doubled.graph.get_operations() if each.type == "Mul"]
        internals.join(product.outputs[0], tf.identity(doubled.inputs[0]))
    assert doubled.prune(doubled.inputs[0], doubled.outputs[0])(tf.constant([3.0])).numpy().tolist() == [4.0]


def test_traced_function_runs_by_a_list_of_arguments(doubled: Any) -> None:
    assert internals.run_flat(doubled, [tf.constant([3.0])]).numpy().tolist() == [7.0]


def test_captures_of_a_graph_are_those_that_were_set(doubled: Any) -> None:
    pairs = list(doubled.graph.captures)
    internals.set_captures(doubled.graph, [])
    assert list(doubled.graph.captures) == []
    internals.set_captures(doubled.graph, pairs)
    assert [inner.name for _, inner in doubled.graph.captures] == [inner.name for _, inner in pairs]


def test_gradient_of_an_operation_s_own_is_taken_away() -> None:
    function = tf.compat.v1.wrap_function(tf.nn.silu, [tf.TensorSpec([None])])
    marked = [each for each in function.graph.get_operations() if "_gradient_op_type" in each.node_def.attr]
    assert marked
    for operation in marked:
        internals.without_gradient(operation)
        assert "_gradient_op_type" not in operation.node_def.attr


def test_table_of_its_resource_is_found() -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), -1)
    assert internals.table_of(table.resource_handle) is table
    assert internals.table_of(tf.Variable(1.0).handle) is None


def test_saved_graph_holds_no_variable(tmp_path: Path) -> None:
    module = tf.Module()
    module.held = tf.Variable(1.0)
    function = tf.function(lambda x: {"y": x + module.held}, input_signature=[tf.TensorSpec([None])])
    internals.save_without_variables(module, str(tmp_path), {"serving_default": function})
    assert (tmp_path / "saved_model.pb").exists()
    assert not list(tmp_path.glob("variables/*"))


def test_deprecations_are_silenced() -> None:
    with internals.deprecations_silenced():
        tf.feature_column.numeric_column("age")


def test_line_of_the_user_s_code_is_found_behind_autograph() -> None:
    lines = []

    def called(x: Any) -> Any:
        if x > 0:
            lines.append(internals.current_line())
        return x

    tf.function(called)(tf.constant(1.0))
    assert lines
    assert all(line.startswith("test_internals.py:") for line in lines)
