from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.functions import narrowed
from export.graphs.loading import tf
from export.recipe.schema import InputPart, TowerPart
from export.tensorflow_models.graph.pruning import TracedCall, prune, tower_results
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, trace


def part(**keys: Any) -> TowerPart:
    return TowerPart.model_validate({"role": "query", **keys})


def test_narrowed_function_reads_only_the_variables_of_its_fetches() -> None:
    kernel = tf.Variable([[2.0], [3.0]], name="kernel")
    other = tf.Variable([5.0], name="other")

    def call(features: Any) -> dict[str, Any]:
        return {"score": (features["x"] @ kernel)[:, 0], "rest": features["y"] * other}

    traced = trace(call, x=numbers(2), y=numbers())
    everything = list(traced.function.graph.captures)
    fetches = {"score": traced.results["score"]}
    function, variables = narrowed("tower", traced.function, [traced.inputs["x"]], fetches)
    assert variables == (kernel,)
    np.testing.assert_array_equal(function(tf.constant([[1.0, 1.0]]))["score"], [5.0])
    assert list(traced.function.graph.captures) == everything


def test_narrowed_function_takes_a_tensor_inside_the_graph() -> None:
    def call(features: Any) -> dict[str, Any]:
        hidden = features["x"] + 1.0
        return {"hidden": hidden, "score": hidden * 2.0}

    traced = trace(call, x=numbers())
    fetches = {"score": traced.results["score"]}
    function, _ = narrowed("tower", traced.function, [traced.results["hidden"]], fetches)
    np.testing.assert_array_equal(function(tf.constant([4.0]))["score"], [8.0])


def test_narrowed_function_that_reads_a_mutable_table_is_rejected() -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def call(features: Any) -> dict[str, Any]:
        doubled = features["x"] * 2
        found = table.lookup(doubled)
        return {"score": found + 1.0}

    traced = trace(call, x=ids())
    line = call.__code__.co_firstlineno + 2
    told = (
        r"tower 'tower' reads a resource that is not a variable \(a mutable hash table\?\) "
        rf"\(test_pruning\.py:{line}\)"
    )
    with pytest.raises(NotConvertible, match=told):
        narrowed("tower", traced.function, [traced.inputs["x"]], traced.results)


def test_tower_results_are_chosen_by_the_keys_of_the_recipe() -> None:
    traced = trace(lambda features: {"a": features["x"], "b": features["x"] * 2.0}, x=numbers(3))
    results, keys = tower_results("query", part(outputs={"vector": "b"}), traced.results)
    assert results == {"vector": traced.results["b"]}
    assert keys == {"vector": "b"}
    results, keys = tower_results("query", part(), traced.results["a"])
    assert (results, keys) == ({"result": traced.results["a"]}, {"result": None})


@pytest.mark.parametrize(
    ("outputs", "returned", "error", "message"),
    [
        (
            {},
            "dict",
            UsageError,
            r"returns several results \(a, integers, fixed, ragged\); name those",
        ),
        ({"v": "c"}, "dict", UsageError, "returns a, integers, fixed, ragged; .*outputs names 'c'"),
        ({"v": "a"}, "a", UsageError, "not a dict; leave towers.query.outputs out"),
        ({"v": "integers"}, "dict", NotConvertible, "a dense tensor of floats was expected"),
        ({"v": "ragged"}, "dict", NotConvertible, "a dense tensor of floats was expected"),
        ({"v": "fixed"}, "dict", NotConvertible, r"output 'v' has shape \(4,\)"),
    ],
)
def test_tower_results_that_do_not_fit_the_recipe_are_rejected(
    outputs: dict[str, str], returned: str, error: type[Exception], message: str
) -> None:
    def call(features: Any) -> dict[str, Any]:
        x = features["x"]
        return {
            "a": x,
            "integers": tf.cast(x, tf.int32),
            "fixed": tf.zeros([4]),
            "ragged": tf.RaggedTensor.from_tensor(x),
        }

    traced = trace(call, x=numbers(3))
    value = traced.results if returned == "dict" else traced.results[returned]
    with pytest.raises(error, match=message):
        tower_results("query", part(outputs=outputs), value)


def test_prune_bypasses_reshapes_that_change_nothing_and_keeps_all_others() -> None:
    def call(features: Any) -> Any:
        batch = tf.shape(features["x"])[0]
        halves = tf.reshape(features["x"], [-1, 2, 3])
        same = tf.reshape(halves, [-1, 2, 3])
        # TensorFlow knows neither size of these two, which differ.
        wide = tf.reshape(same, tf.stack([batch, batch * 0 + 6]))
        narrow = tf.reshape(wide, tf.stack([batch * 2, batch * 0 + 3]))
        return tf.reshape(tf.reduce_sum(narrow, axis=1), [-1, 2])

    traced = trace(lambda features: {"sums": call(features)}, x=numbers(6))
    parts = {"x": InputPart(dtype="float32", shape=(6,))}
    whole = TracedCall(traced.function, traced.inputs, {}, traced.results["sums"], parts, [])

    function = prune("query", part(), whole, {}).function

    reshapes = [each for each in function.graph.get_operations() if each.type == "Reshape"]
    sizes = [each.outputs[0].shape.as_list() for each in reshapes]
    assert sizes == [[None, 2, 3], [None, None], [None, None], [None, 2]]
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    (found,) = function(tf.constant(x)).values()
    np.testing.assert_array_equal(found, x.reshape(2, 2, 3).sum(axis=2))


@pytest.mark.parametrize(("columns", "largest_bytes"), [(None, 0), (2, 24), (5, 60)])
def test_prune_measures_the_largest_variable_of_a_tower(
    columns: int | None, largest_bytes: int
) -> None:
    kernels = [tf.Variable(tf.ones([3, size])) for size in (1, columns) if columns is not None]

    def call(features: Any) -> Any:
        sides = [features["x"] @ kernel for kernel in kernels]
        return tf.concat([features["x"], *sides], axis=1)

    traced = trace(lambda features: {"made": call(features)}, x=numbers(3))
    parts = {"x": InputPart(dtype="float32", shape=(3,))}
    whole = TracedCall(traced.function, traced.inputs, {}, traced.results["made"], parts, [])
    assert prune("query", part(), whole, {}).spec.largest_bytes == largest_bytes
