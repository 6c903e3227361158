from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.frameworks.loading import tf
from export.frameworks.named_graphs import load_named
from export.frameworks.placeholders import placeholder_class

v1 = tf.compat.v1
INPUTS = {"ids": tf.constant([3, 0, 6]), "numbers": tf.constant([[1.0, 2.0], [0.5, 0.0], [3.0, 1.0]])}


def build() -> Any:
    def ranker(features: dict[str, Any]) -> Any:
        with v1.variable_scope("ranker", partitioner=v1.fixed_size_partitioner(3)):
            table = v1.get_variable("table", [8, 4])
            kernel = v1.get_variable("kernel", [6, 2])
        joined = tf.concat([tf.nn.embedding_lookup(table, features["ids"]), features["numbers"]], 1)
        shift = tf.Variable(tf.ones([2]), name="shift")
        again = tf.Variable(tf.zeros([2]), name="shift")
        v1.train.get_or_create_global_step()
        return {"score": tf.sigmoid(tf.matmul(joined, kernel) * shift + again)}

    return ranker


def test_named_graph_traced_twice_makes_each_variable_once_and_whole() -> None:
    root = load_named("model.py:build", build)
    specs = [{name: tf.type_spec_from_value(value) for name, value in INPUTS.items()}]
    v1.wrap_function(root, specs)
    first = dict(root.variables)
    v1.wrap_function(root, specs)
    assert first == root.variables
    assert set(first) == {"ranker/table", "ranker/kernel", "shift", "shift_1", "global_step"}
    assert isinstance(first["ranker/table"], placeholder_class())
    assert first["ranker/table"].shape == (8, 4)


def test_load_named_code_that_switches_to_tf1_gets_its_shapes_and_restores_ours() -> None:
    def switching() -> Any:
        v1.disable_v2_behavior()

        def model(features: dict[str, Any]) -> Any:
            return features["numbers"] * features["numbers"].shape[1].value

        return model

    root = load_named("model.py:switching", switching)
    assert tf.executing_eagerly()
    np.testing.assert_array_equal(root.run(INPUTS, lambda name: None), INPUTS["numbers"] * 2)
    assert tf.constant([[1]]).shape[1] == 1


def test_load_named_without_a_function_is_refused() -> None:
    with pytest.raises(NotConvertible, match=r"model\.py:wrong returned a Sequential, but the checkpoint has only"):
        load_named("model.py:wrong", tf.keras.Sequential)
