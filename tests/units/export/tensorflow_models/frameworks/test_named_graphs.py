"""Model code of TF1: the variables that it makes."""

from __future__ import annotations

from typing import Any

import pytest

from export.errors import UsageError
from export.front_end.calls import Call
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.named_graphs import load_named
from tests.models.tf1_graph import Ranker

v1 = tf.compat.v1
CODE = "model.py:build"
NUMBERS = tf.TensorSpec([None, 4], tf.float32)


class Steps:
    """An object whose methods build graphs."""

    def first(self, inputs: dict[str, Any]) -> Any:
        return inputs["numbers"] @ v1.get_variable("w", [4, 2])

    def second(self, inputs: dict[str, Any]) -> Any:
        return self.first(inputs) + v1.get_variable("b", [2])


def test_methods_of_an_object_share_its_variables() -> None:
    root = load_named(CODE, lambda: Steps, averages=True)
    for step in (root.first, root.second):
        v1.wrap_function(step, [{"numbers": NUMBERS}])
    assert list(root.variables) == ["w", "b"]
    assert root.second.averages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"nobody": "numbers"},
            r"no placeholder 'nobody'; it has iterator.user, iterator.seen, .*, keep, is_training",
        ),
        ({"rate": "numbers"}, r"takes 'rate' of shape \(\), and its call gives \(None, 4\)"),
        (["numbers"], r"name these in its 'arguments'"),
    ],
)
def test_values_that_are_no_placeholders_are_refused(arguments: Any, message: str) -> None:
    root = load_named(CODE, lambda: Ranker)
    call = Call("scores", ("numbers",), arguments)
    with pytest.raises(UsageError, match=message):
        v1.wrap_function(root.scores.with_call(call), [{"numbers": NUMBERS}])
