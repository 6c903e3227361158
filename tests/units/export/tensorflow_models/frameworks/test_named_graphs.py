"""Model code of TF1: the variables that it makes, and the behavior that it runs with."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.named_graphs import NamedGraph, load_named, without_memory
from export.tensorflow_models.frameworks.placeholders import placeholder_class

v1 = tf.compat.v1
CODE = "model.py:build"
NUMBERS = tf.TensorSpec([None, 4], tf.float32)


def traced(build: Any, **inputs: Any) -> NamedGraph:
    """Loads model code, and traces one call."""
    root = load_named(CODE, lambda: build)
    v1.wrap_function(root, [inputs or {"numbers": NUMBERS}])
    return root


@pytest.mark.parametrize(
    ("averages", "stored_names", "key"),
    [
        (False, ["w", "w/ExponentialMovingAverage"], "w"),
        (True, ["w", "w/ExponentialMovingAverage"], "w/ExponentialMovingAverage"),
        (True, ["w"], "w"),
        (True, ["other"], ""),
        (False, ["w/ExponentialMovingAverage"], ""),
    ],
)
def test_value_of_a_variable_may_be_its_moving_average(
    averages: bool, stored_names: list[str], key: str
) -> None:
    assert load_named(CODE, lambda: dict, averages).key("w", stored_names) == key


class Steps:
    """An object whose methods build graphs."""

    def first(self, inputs: dict[str, Any]) -> Any:
        return inputs["numbers"] @ v1.get_variable("w", [4, 2])

    def second(self, inputs: dict[str, Any]) -> Any:
        return self.first(inputs) + v1.get_variable("b", [2])


def test_methods_of_an_object_share_its_variables() -> None:
    root = load_named(CODE, Steps, averages=True)
    for step in (root.first, root.second):
        v1.wrap_function(step, [{"numbers": NUMBERS}])
    assert list(root.variables) == ["w", "b"]
    assert root.second.averages


@pytest.mark.parametrize("built", [len, Steps(), lambda inputs: inputs])
def test_function_or_object_with_methods_is_model_code(built: Any) -> None:
    assert isinstance(load_named(CODE, lambda: built), NamedGraph)


@pytest.mark.parametrize(("built", "kind"), [(7, "int"), (tf.Module(), "Module")])
def test_other_results_of_a_factory_are_rejected(built: Any, kind: str) -> None:
    message = (
        f"factory model.py:build returned a {kind}, but the checkpoint has only the names of "
        "variables; let it return a function of one dict of inputs that builds the graph, or load "
        "the checkpoint into the model and save that with tf.train.Checkpoint"
    )
    with pytest.raises(NotConvertible, match=f"^{message}$"):
        load_named(CODE, lambda: built)


def test_variables_have_the_names_shapes_and_types_that_the_code_states() -> None:
    def build(_: Any) -> Any:
        with v1.variable_scope("tower", partitioner=v1.fixed_size_partitioner(2)):
            v1.get_variable("table", [4, 2])
            v1.get_variable("bias", [4], trainable=False)
            v1.get_variable("codes", [4, 2], tf.int64)
        with tf.name_scope("step"):
            v1.Variable(3, name="count", trainable=False)
        return tf.constant(0.0)

    root = traced(build)
    facts = {
        name: (variable.shape.as_list(), variable.dtype.name, variable.trainable)
        for name, variable in root.variables.items()
    }
    assert facts == {
        "tower/table": ([4, 2], "float32", True),
        "tower/bias": ([4], "float32", False),
        "tower/codes": ([4, 2], "int64", True),
        "step/count": ([], "int32", False),
    }
    assert [variable.name for variable in root.variables.values()] == [
        f"{name}:0" for name in facts
    ]
    tables = [
        name
        for name, variable in root.variables.items()
        if isinstance(variable, placeholder_class())
    ]
    assert tables == ["tower/table"]


def test_variables_are_in_the_collections_that_the_code_reads() -> None:
    names: dict[str, list[str]] = {}

    def build(_: Any) -> Any:
        v1.get_variable("w", [2])
        v1.get_variable("mine", [2], collections=["own"])
        for name in (v1.GraphKeys.GLOBAL_VARIABLES, "own"):
            names[name] = [variable.name for variable in v1.get_collection(name)]
        return tf.constant(0.0)

    traced(build)
    assert names == {v1.GraphKeys.GLOBAL_VARIABLES: ["w:0"], "own": ["mine:0"]}


def test_code_reads_the_variables_of_an_earlier_call() -> None:
    root = load_named(CODE, lambda: lambda _: v1.get_variable("w", [2]))
    v1.wrap_function(root, [{}])
    variables = dict(root.variables)
    v1.wrap_function(root, [{}])
    assert root.variables["w"] is variables["w"]


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_strategy_of_a_lookup_is_remembered_with_its_table(strategy: str) -> None:
    def build(inputs: Any) -> Any:
        table = v1.get_variable("table", [4, 2])
        first = v1.nn.embedding_lookup(table, inputs["ids"], partition_strategy=strategy)
        second = v1.nn.embedding_lookup(tf.zeros([4, 2]), inputs["ids"])
        return first + second

    root = traced(build, ids=tf.TensorSpec([None], tf.int64))
    assert root.variables["table"].mod == (strategy == "mod")


def test_run_reads_only_the_variables_that_the_graph_needs() -> None:
    def build(inputs: Any) -> Any:
        v1.get_variable("unused", [4, 2])
        return inputs["numbers"] @ v1.get_variable("w", [4, 2])

    read: list[str] = []

    def values(name: str) -> Any:
        read.append(name)
        return np.arange(8, dtype=np.float32).reshape(4, 2)

    root = load_named(CODE, lambda: build)
    result = root.run({"numbers": tf.constant([[1.0, 0, 0, 1]])}, values)
    assert result.numpy().tolist() == [[6, 8]]
    assert read == ["w"]


def test_run_takes_ragged_inputs() -> None:
    root = load_named(CODE, lambda: lambda inputs: tf.reduce_sum(inputs["ids"], 1))
    result = root.run({"ids": tf.ragged.constant([[1, 2], [3]])}, lambda _: None)
    assert result.numpy().tolist() == [3, 3]


def test_run_leaves_tables_whose_rows_come_from_elsewhere() -> None:
    root = load_named(CODE, lambda: lambda _: v1.get_variable("w", [2]) * 2)
    v1.wrap_function(root, [{}])
    root.variables["w"].assign([5.0, 6.0])
    result = root.run({}, lambda _: None)
    assert result.numpy().tolist() == [10, 12]


def test_code_that_enables_the_behavior_of_tf1_runs_with_it_alone() -> None:
    seen: dict[str, Any] = {}

    def build(inputs: Any) -> Any:
        numbers = inputs["numbers"]
        seen["dimension"] = numbers.shape[1]
        seen["equal"] = numbers == numbers
        return numbers

    def load() -> Any:
        v1.disable_v2_behavior()
        v1.disable_eager_execution()
        return build

    root = load_named("behavior_of_tf1.py:build", load)
    assert tf.executing_eagerly()
    assert tf.__internal__.tf2.enabled()
    v1.wrap_function(root, [{"numbers": NUMBERS}])
    assert isinstance(seen["dimension"], v1.Dimension)
    assert seen["equal"] is True
    assert tf.TensorShape([4])[0] == 4
    assert not isinstance(tf.TensorShape([4])[0], v1.Dimension)
    assert (tf.constant([1]) == tf.constant([1])).numpy().tolist() == [True]

    traced(build)
    assert seen["dimension"] == 4
    assert not isinstance(seen["dimension"], v1.Dimension)
    assert tf.is_tensor(seen["equal"])


def test_warnings_that_tf1_is_deprecated_are_silenced() -> None:
    def warn(_: Any = None) -> Any:
        warnings.warn("`layer` is deprecated and will be removed.", UserWarning, stacklevel=1)
        return lambda inputs: (warn() if inputs else None, tf.constant(0.0))[1]

    root = load_named(CODE, warn)
    v1.wrap_function(root, [{"numbers": NUMBERS}])


@pytest.mark.parametrize(
    ("shape", "dtype", "table"),
    [
        ([4, 2], tf.float32, True),
        ([4, 2], tf.bfloat16, True),
        ([4, 2], tf.int32, False),
        ([4], tf.float32, False),
        ([4, 2, 2], tf.float32, False),
    ],
)
@pytest.mark.parametrize("trainable", [True, False])
def test_float_matrix_without_memory_may_be_a_table(
    shape: list[int], dtype: Any, table: bool, trainable: bool
) -> None:
    with tf.name_scope("elsewhere"):
        variable = without_memory("a/b", tf.TensorShape(shape), dtype, trainable)
    assert isinstance(variable, placeholder_class()) == table
    assert (variable.name, variable.trainable, variable.dtype) == ("a/b:0", trainable, dtype)
