"""Model code of TF1: the variables that it makes, and the behavior that it runs with."""

from __future__ import annotations

import warnings
from typing import Any

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.named_graphs import NamedGraph, load_named

v1 = tf.compat.v1
CODE = "model.py:build"
NUMBERS = tf.TensorSpec([None, 4], tf.float32)


def traced(build: Any, **inputs: Any) -> NamedGraph:
    """Loads model code, and traces one call."""
    root = load_named(CODE, lambda: build)
    v1.wrap_function(root, [inputs or {"numbers": NUMBERS}])
    return root


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
