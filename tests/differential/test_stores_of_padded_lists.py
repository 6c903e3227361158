"""Candidates and contexts whose lists the recipe pads and cuts: they are exported, verified with
their recipe, changed while they are served, and exported again with the changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.model_code.factories import load_factory
from export.recipe.schema import read_recipe
from export.verify.published import verify_against_recipe
from tests.units.export.movies_job import export
from tests.units.service.changes.making import change, file_of, responds
from tests.units.service.running import RunningService

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
)

MODEL = """
import keras
from keras import layers, ops

class Shop(keras.Model):
    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(9, 4)
        self.tags = layers.Embedding(20, 4)

    def query(self, x):
        return ops.mean(self.words(x["words"]), axis=1)

    def item(self, x):
        return ops.sum(self.tags(x["tags"]), axis=1) * ops.sum(x["sizes"], axis=1, keepdims=True)

    def call(self, x):
        return ops.sum(self.query(x) * self.item(x), axis=1)

def build():
    model = Shop()
    model({"words": ops.zeros((1, 2), "int32"), "tags": ops.zeros((1, 3), "int32"),
           "sizes": ops.zeros((1, 2))})
    return model
"""
RECIPE = """
model = "movies"
checkpoint.path = "shop.weights.h5"
code = { factory = "shop.py:build", table_threshold = 0 }
output.root = "bundles"
[inputs]
words = { dtype = "int64", shape = [2], pad = 0, pad_side = "start" }
tags = { dtype = "int64", shape = [3], pad = 7, keep = "last" }
sizes = { dtype = "float32", shape = [2], pad = 0.1 }
[towers]
query = { role = "query", call = "query", inputs = ["words"] }
item = { role = "candidate", call = "item", inputs = ["tags", "sizes"] }
[corpora.items]
file = "items.jsonl"
id = "id"
features = { tags = "tags", sizes = "sizes" }
[contexts.users]
file = "users.jsonl"
id = "id"
features = { words = "words" }
[indexes.items]
corpus = "items"
query_tower = "query"
candidate_tower = "item"
"""


ITEMS = {number: ([*range(number % 6)], [0.5, -2.0][: number % 3]) for number in range(12)}
USERS = {0: [3, 1], 1: [8], 2: []}


def lines_of(entries: dict[int, Any], *names: str) -> str:
    lines = []
    for key, values in entries.items():
        lines.append(json.dumps({"id": key, **dict(zip(names, values, strict=True))}) + "\n")
    return "".join(lines)


def scores_of(model: Any, words: list[int], items: dict[int, Any]) -> dict[int, float]:
    """Returns what the model gives for a user and each item, as training pads and cuts lists."""
    tags = [([*tags] + [7] * 3)[:3] if len(tags) < 3 else tags[-3:] for tags, _ in items.values()]
    sizes = [(sizes + [0.1] * 2)[:2] for _, sizes in items.values()]
    scores = model(
        {
            "words": np.array([[0] * (2 - len(words)) + words] * len(items)),
            "tags": np.array(tags),
            "sizes": np.array(sizes, np.float32),
        }
    )
    return dict(zip(items, np.asarray(scores).tolist(), strict=True))


def assert_served(service: RunningService, model: Any, users: Any, items: Any) -> None:
    for key, words in users.items():
        expected = scores_of(model, words, items)
        for context in ({"context": {"words": words}}, {"context_id": key}):
            result = responds(service, "retrieve", k=len(items), index="items", **context)
            actual = dict(zip(result["ids"], result["scores"], strict=True))
            assert actual == pytest.approx(expected, abs=1e-5)


def test_stores_of_padded_lists_are_served_as_the_model_reads_them(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODEL)
    model = load_factory("shop.py:build", tmp_path)()
    model.save_weights(tmp_path / "shop.weights.h5")
    (tmp_path / "items.jsonl").write_text(lines_of(ITEMS, "tags", "sizes"))
    people = {key: [words] for key, words in USERS.items()}
    (tmp_path / "users.jsonl").write_text(lines_of(people, "words"))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    export(recipe)
    job = read_recipe(recipe)
    bundle = tmp_path / "bundles/movies"
    verify_against_recipe(bundle / "1", job, tmp_path)

    service = RunningService(tmp_path / "bundles")
    try:
        assert_served(service, model, USERS, ITEMS)
        items = {**ITEMS, 40: ([9, 8, 7, 6, 5], [3.0]), 5: ([2], [])}
        users = {**USERS, 1: [], 9: [4]}
        upserts = [
            {"id": key, "features": {"tags": items[key][0], "sizes": items[key][1]}}
            for key in (40, 5)
        ]
        change(service, "candidates/upsert", *upserts, corpus="items")
        people_sent = [{"id": key, "features": {"words": users[key]}} for key in (1, 9)]
        change(service, "contexts/upsert", *people_sent, store="users")
        assert_served(service, model, users, items)

        changes_file = file_of(service)
        export(recipe, 2, with_changes=changes_file)
        verify_against_recipe(bundle / "2", job, tmp_path, with_changes=changes_file)
        service.scan()
        assert service.current().version == 2
        assert_served(service, model, users, items)
    finally:
        service.close()
