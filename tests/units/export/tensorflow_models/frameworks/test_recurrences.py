"""Recurrent layers of both generations of Keras, unrolled: they compute what their loops do."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tf_keras

from export.graphs.hooks import Hooks
from export.graphs.loading import load_tensorflow
from export.tensorflow_models.frameworks.recurrences import unroll_recurrences

tf = load_tensorflow()
STEPS = 4
NUMBERS = np.random.default_rng(3).normal(size=(5, STEPS, 2)).astype(np.float32)
MASK = np.array([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]], bool)
KERAS = pytest.mark.parametrize("library", [keras, tf_keras], ids=["3", "2"])


def traced(layer: Any, mask: bool = False) -> Any:
    """Returns the function of a layer as an export traces it: its batch is open."""
    specs = [tf.TensorSpec([None, STEPS, 2])]
    if mask:
        specs.append(tf.TensorSpec([None, STEPS], tf.bool))

    def call(numbers: Any, mask: Any = None) -> Any:
        return layer(numbers, mask=mask)

    with Hooks() as hooks:
        unroll_recurrences(hooks)
        return tf.function(call).get_concrete_function(*specs)


def has_loop(function: Any) -> bool:
    """Returns whether a graph runs a loop."""
    graph = function.graph.as_graph_def()
    called = {
        node.attr["f"].func.name for node in graph.node if node.op.endswith("PartitionedCall")
    }
    nodes = list(graph.node)
    for definition in graph.library.function:
        if definition.signature.name in called:
            nodes += definition.node_def
    return any(node.op in ("While", "StatelessWhile") for node in nodes)


@KERAS
@pytest.mark.parametrize("mask", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("GRU", {}),
        ("GRU", {"reset_after": False, "return_sequences": True}),
        ("LSTM", {"return_sequences": True}),
        ("SimpleRNN", {"go_backwards": True, "return_sequences": True}),
        ("LSTM", {"go_backwards": True, "zero_output_for_mask": True, "return_sequences": True}),
    ],
    ids=["last", "own_bias", "sequences", "backwards", "backwards_with_zeros"],
)
def test_unrolled_layer_computes_what_its_loop_does(
    library: Any, kind: str, options: dict[str, Any], mask: bool
) -> None:
    layer = getattr(library.layers, kind)(3, **options)
    arguments = [tf.constant(NUMBERS)]
    expected = layer(arguments[0], mask=tf.constant(MASK) if mask else None)
    if mask:
        arguments.append(tf.constant(MASK))
    unrolled = traced(layer, mask)
    assert not has_loop(unrolled)
    np.testing.assert_allclose(unrolled(*arguments), expected, rtol=1e-6, atol=1e-6)
