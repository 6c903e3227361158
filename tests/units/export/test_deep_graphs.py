"""Walks of deep graphs end.

A graph of n operations has up to 2^n paths, since each operation may read the one before it twice,
as a residual connection does: a walk that follows paths never ends on a model of usual depth. And
Python allows 1,000 calls around each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from export.graphs.internals import set_input
from export.graphs.loading import load_tensorflow, tf
from export.graphs.walks import needed
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.id_graphs import crosses
from export.tensorflow_models.id_graphs.capture import find_rule
from export.tensorflow_models.model.tracing import trace_towers
from export.towers.division import split_tower
from tests.units.export.tensorflow_models.graph.traced_calls import (
    Traced,
    ids,
    numbers,
    texts,
    tower_of,
    trace,
)
from tests.units.export.traced_models import recipe

load_tensorflow()

ROWS = 100


def residual(features: Any, n: int) -> Any:
    x = tf.cast(features["x"], tf.float32)
    for _ in range(n):
        x = x + tf.nn.relu(x)
    return x


def computed_of_constants(_features: Any, n: int) -> Any:
    x = tf.identity(tf.constant([1.0, 2.0]))
    for _ in range(n):
        x = x + tf.nn.relu(x) * 0.5
    return x


def unstacked_constants(features: Any, n: int) -> Any:
    parts = tf.unstack(tf.range(n, dtype=tf.int64) * 2, n)
    return tf.stack([part + features["x"] for part in parts], 1)


def unstacked_columns(features: Any, n: int) -> Any:
    wide = tf.tile(features["x"][:, None], [1, n])
    return tf.concat(tf.split(wide, n, axis=1), 1)


def selects(features: Any, n: int) -> Any:
    x = features["x"]
    for _ in range(n):
        x = tf.where(x == -1, x * 2, x)
    return x


def arithmetic(features: Any, n: int) -> Any:
    x = features["x"] ** 3  # no function computes it
    for _ in range(n):
        x = tf.abs(x * 3 + 1)
    return x


def shifted_hash(features: Any, n: int) -> Any:
    x = tf.strings.to_hash_bucket_fast(features["text"], ROWS)
    for _ in range(n):
        x = x + 1
    return x


def changed_text(features: Any, n: int) -> Any:
    text = features["text"]
    for _ in range(n):
        text = tf.strings.lower(tf.strings.upper(text))
    return tf.strings.to_hash_bucket_fast(text, ROWS)


def squared_logarithms(features: Any, n: int) -> Any:
    x = tf.cast(tf.math.log1p(tf.maximum(features["number"], 0.0)), tf.int64)
    for _ in range(n):
        x = x * x
    return x


def joined_with_texts(features: Any, n: int) -> Any:
    text = features["text"]
    for _ in range(n):
        text = tf.strings.join([text, "a"])
    return tf.strings.to_hash_bucket_fast(text, ROWS)


def joined_with_itself(features: Any, n: int) -> Any:
    text = features["text"]
    for _ in range(n):
        text = tf.strings.join([text, text])
    return tf.strings.to_hash_bucket_fast(text, ROWS)


def ranked(features: Any, n: int) -> Any:
    user = features["user"]
    for _ in range(n):
        user = user + tf.nn.relu(user)
    joined = user + features["item"]
    for _ in range(n):
        joined = joined + tf.nn.relu(joined)
    return joined[:, 0]


def mixing_examples(features: Any, n: int) -> Any:
    user = features["user"]
    for _ in range(n):
        user = user + tf.nn.relu(user - tf.reduce_mean(user, 0, keepdims=True))
    return (user + features["item"])[:, 0]


def sums_of_columns(features: Any, n: int) -> Any:
    columns = [features["user"][:, number : number + 1] for number in range(8)]
    return (features["item"] + tf.add_n(columns * n))[:, 0]


def split(traced: Traced) -> object:
    tower = tower_of(traced)
    return split_tower(tower, {"user": "context", "item": "candidate"})


class Walk(NamedTuple):
    """A walk through a graph.

    Attributes:
      inputs: The types of the graph's inputs.
      graph: Returns a result of inputs, for a number of layers.
      walk: The walk, back from that result.
    """

    inputs: Mapping[str, Any]
    graph: Callable[[Any, int], Any]
    walk: Callable[[Traced], object]

    def traced(self, layers: int) -> Traced:
        """Returns the graph of a number of layers."""
        return trace(lambda features: {"result": self.graph(features, layers)}, **self.inputs)


def result(traced: Traced) -> Any:
    return traced.results["result"]


def rule(traced: Traced) -> object:
    return find_rule(Values(result(traced)), traced.calls, ROWS)


def several_inputs(traced: Traced) -> object:
    return crosses.find(result(traced), traced.calls)


def constant(traced: Traced) -> object:
    return traced.calls.constant(result(traced))


def origins(traced: Traced) -> object:
    columns = result(traced).shape[1]
    call = traced.calls
    return [call.origin(Values(result(traced), column, columns)) for column in range(columns)]


NUMBER = {"x": ids()}
TEXT = {"text": texts()}
SIDES = {"user": numbers(16), "item": numbers(16)}
WALKS = {
    "needed": Walk(NUMBER, residual, lambda traced: needed([result(traced)], [])),
    "constant, deep": Walk(NUMBER, residual, constant),
    "constant, folded": Walk(NUMBER, computed_of_constants, constant),
    "constant, wide": Walk(NUMBER, unstacked_constants, constant),
    "origins of columns": Walk(NUMBER, unstacked_columns, origins),
    "rule of selects": Walk(NUMBER, selects, rule),
    "rule of nothing known": Walk(NUMBER, arithmetic, rule),
    "rule of a logarithm": Walk({"number": numbers()}, squared_logarithms, rule),
    "rule of a hash": Walk(TEXT, shifted_hash, rule),
    "rule of a text": Walk(TEXT, changed_text, rule),
    "join": Walk(TEXT, joined_with_texts, several_inputs),
    "join of the same": Walk(TEXT, joined_with_itself, several_inputs),
    "parts of a ranker": Walk(SIDES, ranked, split),
    "parts of a ranker that mixes examples": Walk(SIDES, mixing_examples, split),
    "parts of a wide ranker": Walk(SIDES, sums_of_columns, split),
}


@pytest.mark.parametrize("walk", WALKS.values(), ids=WALKS)
def test_walk_of_a_deep_graph_ends(walk: Walk) -> None:
    walk.walk(walk.traced(350))


def test_tensor_of_a_loop_is_no_constant() -> None:
    # Functions of TensorFlow 1 loop by operations that read later ones.
    with tf.Graph().as_default():
        first = tf.raw_ops.Enter(data=tf.constant(1), frame_name="loop")
        merged = tf.raw_ops.Merge(inputs=[first, tf.raw_ops.Enter(data=2, frame_name="loop")])[0]
        second = tf.raw_ops.NextIteration(data=merged + 1)
        set_input(merged.op, 1, second)
        call = CallGraph({}, {})
        assert call.constant(second) is None
        assert call.constant(merged + 1) is None


class Layers(tf.Module):  # type: ignore[misc]
    """A ranker with residual layers of attention, crosses and products."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.users = tf.Variable(lambda: tf.ones([ROWS, 16]))
        self.items = tf.Variable(lambda: tf.ones([ROWS, 16]))
        self.kernel = tf.Variable(tf.ones([16, 16]))

    def __call__(self, inputs: Any) -> Any:
        history = tf.gather(self.users, inputs["history"])
        for _ in range(self.layers):
            scores = tf.nn.softmax(history @ tf.transpose(history, [0, 2, 1]))
            history = history + tf.nn.gelu(scores @ history)
        first = tf.reduce_sum(history, 1) + tf.gather(self.items, inputs["item"])
        crossed = first
        for _ in range(self.layers):
            crossed = first * (crossed @ self.kernel) + crossed
        return {"click": crossed[:, 0], "like": tf.reduce_sum(tf.nn.relu(crossed @ self.kernel), 1)}


def plan(layers: int) -> None:
    inputs = {"history": {"dtype": "int64", "shape": [5]}, "item": {"dtype": "int64"}}
    tower = {
        "role": "ranking",
        "outputs": {"click": "click", "like": "like"},
        "result": "click",
    }
    code = {"factory": "model.py:build", "table_threshold": 10}
    job = recipe("model.py:build", inputs, {"ranker": tower}, {"code": code})
    model = trace_towers(job, Path(), False, build=lambda _job, _base: Layers(layers))
    roles = {name: "context" if "history" in name else "candidate" for name in model.spec.features}
    actual = split_tower(model.towers[0], roles)  # type: ignore[arg-type]
    assert [part.spec.name for part in actual.parts] == ["context", "trunk", "head-like"]


def test_plan_of_a_deep_model_ends() -> None:
    plan(64)
