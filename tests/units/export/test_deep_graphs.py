"""Plans of deep models end.

A graph of n operations has up to 2^n paths, since each operation may read the one before it twice,
as a residual connection does: a walk that follows paths never ends on a model of usual depth. And
Python allows 1,000 calls around each other. Add what a new walk goes through as another model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from export.errors import ExportError
from export.graphs.loading import load_tensorflow, tf
from export.tensorflow_models.model.built_model import trace_model
from export.towers.division import split_tower
from tests.units.export.traced_models import recipe

pytestmark = pytest.mark.slow

load_tensorflow()
ROWS = 100
DEPTH = 350


def repeated(value: Any, step: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    for _ in range(depth):
        value = step(value)
    return value


def hashed(text: Any) -> Any:
    return tf.strings.to_hash_bucket_fast(text, ROWS)


def logarithm(inputs: Any) -> Any:
    return tf.cast(tf.math.log1p(tf.nn.relu(inputs["number"])), tf.int64)


def unstacked(inputs: Any) -> Any:
    columns = tf.split(tf.tile(inputs["item"][:, None], [1, DEPTH]), DEPTH, axis=1)
    return tf.concat(columns, 1)[:, 7]


IDS: dict[str, Callable[[Any], Any]] = {
    "selects": lambda x: repeated(x["item"], lambda ids: tf.where(ids == -1, ids * 2, ids)),
    "arithmetic": lambda x: repeated(x["item"] ** 3, lambda ids: tf.abs(ids * 3 + 1)),
    "logarithm": lambda x: repeated(logarithm(x), lambda ids: ids * ids),
    "hash": lambda x: repeated(hashed(x["text"]), lambda ids: ids + 1),
    "joins": lambda x: hashed(repeated(x["text"], lambda text: tf.strings.join([text, "a"]))),
    "columns": unstacked,
}
INPUTS: dict[str, Any] = {
    "history": {"dtype": "int64", "shape": [5]},
    "item": {"dtype": "int64"},
    "text": {"dtype": "string"},
    "number": {"dtype": "float32"},
}


class Deep(tf.Module):  # type: ignore[misc]
    """A ranker with residual layers of attention, crosses and products, over ids that are computed
    in as many steps.
    """

    def __init__(self, ids: Callable[[Any], Any], depth: int) -> None:
        super().__init__()
        self.ids = ids
        self.depth = depth
        self.users = tf.Variable(lambda: tf.ones([ROWS, 16]))
        self.items = tf.Variable(lambda: tf.ones([ROWS, 16]))
        self.kernel = tf.Variable(tf.ones([16, 16]))

    def __call__(self, inputs: Any) -> Any:
        history = tf.gather(self.users, inputs["history"])
        for _ in range(self.depth):
            scores = tf.nn.softmax(history @ tf.transpose(history, [0, 2, 1]))
            history = history + tf.nn.gelu(scores @ history)
        first = tf.reduce_sum(history, 1) + tf.gather(self.items, self.ids(inputs))
        crossed = first
        for _ in range(self.depth):
            crossed = first * (crossed @ self.kernel) + crossed
        mixed = crossed - tf.reduce_mean(crossed, 0, keepdims=True)
        return {"click": crossed[:, 0], "like": tf.reduce_sum(tf.nn.relu(mixed), 1)}


@pytest.mark.parametrize(
    ("ids", "depth"),
    [*((name, 2) for name in IDS), (lambda x: x["item"], 64)],
)
def test_plan_of_a_deep_model_ends(ids: Any, depth: int) -> None:
    tower = {"role": "ranking", "outputs": {"click": "click", "like": "like"}, "result": "click"}
    code = {"factory": "model.py:build", "table_threshold": 10}
    job = recipe("model.py:build", INPUTS, {"ranker": tower}, {"code": code})
    model = Deep(IDS.get(ids, ids), depth)
    # What ids compute may be rejected; the plan ends all the same.
    with suppress(ExportError):
        traced = trace_model(job, Path(), False, build=lambda _job, _base: model)
        roles: Any = {
            name: "context" if "history" in name else "candidate" for name in traced.spec.features
        }
        assert split_tower(traced.towers[0], roles) is not None
