"""Which towers are split into parts, and what is packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bundle.format import manifest
from export.front_end.interface import PartitionedModel, TracedTower
from export.front_end.specs import ModelSpec
from export.graphs.loading import load_tensorflow, tf
from export.towers.prepared_towers import arrange_towers
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_features import dense
from tests.units.export.traced_models import recipe

load_tensorflow()
USERS = [f"u{number}" for number in range(9)]


def tower(role: Any) -> TracedTower:
    """Returns a tower with a layer over nine features of the context."""
    kernel = tf.Variable(tf.random.normal([36, 16], seed=1))

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        user = tf.nn.relu(tf.concat([inputs[name] for name in USERS], 1) @ kernel)
        return {"score": tf.reduce_sum(user * inputs["item"], 1)}

    ranker = tower_of(trace(call, **dict.fromkeys(USERS, numbers(4)), item=numbers(16)))
    return replace(ranker, spec=replace(ranker.spec, role=role))


@pytest.mark.parametrize(
    ("role", "split", "parts"),
    [
        ("ranking", True, ["context", "candidate"]),
        ("ranking", False, None),
        ("query", True, None),
    ],
)
def test_ranking_towers_are_split_unless_the_recipe_says_otherwise(
    role: str, split: bool, parts: list[str] | None
) -> None:
    ranker = tower(role)
    specs = {name: dense(name, "float32", (4,)) for name in [*USERS, "item"]}
    features: dict[str, manifest.Feature] = {name: spec.entry for name, spec in specs.items()}
    features["item"] = features["item"].model_copy(update={"role": "candidate"})
    original: Any = None
    model = PartitionedModel(ModelSpec({}, specs, {"tower": ranker.spec}), (ranker,), original)
    job = recipe("model.py:build", {}, {"tower": {"role": role, "split": split}})
    arranged, splits = arrange_towers(model, job, features)
    (packed,) = arranged.towers
    input_names = [tensor.name for tensor in packed.spec.inputs]
    assert input_names == ["packed_float32"]
    assert arranged.spec.towers == {"tower": packed.spec}
    if parts is None:
        assert splits == {}
        return
    split_parts = splits["tower"].parts
    assert [part.spec.name for part in split_parts] == parts
    assert [tensor.name for tensor in split_parts[0].spec.inputs] == ["packed_float32"]
    assert splits["tower"].notes == ()
