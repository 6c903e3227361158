"""Which results of a call are the outputs of a tower."""

from __future__ import annotations

from typing import Any

import pytest

from export.errors import NotConvertible, UsageError
from export.graphs.loading import tf
from export.recipe.schema import TowerSection
from export.tensorflow_models.graph.tower_results import Returned, tower_results
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, trace


def part(**keys: Any) -> TowerSection:
    return TowerSection(role="query", **keys)


def test_vector_of_a_query_is_what_a_retrieval_layer_compares() -> None:
    traced = trace(lambda features: {"a": features["x"], "b": features["x"] * 2.0}, x=numbers(3))
    a = traced.results["a"]
    b = traced.results["b"]
    returned = Returned({"ids": a}, queries=[b])
    results = tower_results("query", part(), returned)
    assert (results.tensors, results.is_query) == ({"result": b}, True)
    results = tower_results("query", part(outputs={"vector": "ids"}), returned)
    assert (results.tensors, results.is_query) == ({"vector": a}, False)
    results = tower_results("query", TowerSection(role="candidate"), Returned(a, queries=[b]))
    assert (results.tensors, results.is_query) == ({"result": a}, False)
    with pytest.raises(UsageError, match="has 2 retrieval layers; name the result"):
        tower_results("query", part(), Returned({"ids": a}, queries=[a, b]))


def test_only_result_needs_no_name() -> None:
    traced = trace(lambda features: {"a": features["x"]}, x=numbers(3))
    results = tower_results("query", part(), Returned({"a": [traced.results["a"]]}))
    assert results.tensors == {"result": traced.results["a"]}
    assert results.paths == {"result": ("a", 0)}


def test_position_of_joined_tensors_is_that_of_one_of_them() -> None:
    def call(features: Any) -> dict[str, Any]:
        parts = [features["x"], features["y"]]
        return {"a": tf.sigmoid(tf.concat(parts, axis=-1)), "b": tf.stack(parts, axis=2)}

    traced = trace(call, x=numbers(3), y=numbers(3))
    section = part(outputs={"c": ("a", 4), "d": ("b", 0, 1), "e": ("b", 1)}, result="c")
    tensors = tower_results("query", section, Returned(traced.results)).tensors
    x, y = traced.inputs.values()
    assert tensors["c"].op.inputs[0].op.inputs[0] is y
    assert tensors["d"].op.inputs[0] is x
    assert tensors["e"] is y


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
        (
            {"v": "a"},
            "a",
            UsageError,
            r"one tensor of shape \(None, 3\); .* names 'a'; leave .* out, or .*, from 0 to 2",
        ),
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
        tower_results("query", part(outputs=outputs), Returned(value))
