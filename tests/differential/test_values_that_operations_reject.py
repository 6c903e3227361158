"""Models that take ids apart: no value that a service invents is one of theirs. They are loaded all
the same, by the export before it publishes them, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.storage.catalog import read_manifest
from export.errors import VerificationFailed
from export.graphs.loading import load_tensorflow
from export.jobs import bundle_job
from export.jobs.load_trial import try_loading
from export.jobs.progress import Progress
from export.model_code.factories import load_factory
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.units.service.changes.making import responds
from tests.units.service.running import RunningService

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't:DeprecationWarning"  # Keras
)
tf = load_tensorflow()

MODEL = """
import keras
import tensorflow as tf

class Fares(keras.Model):
    def __init__(self):
        super().__init__()
        self.months = keras.layers.Embedding(13, 3, name="months")
        self.eras = keras.layers.Embedding(4, 3, name="eras")
        self.dense = keras.layers.Dense(3, name="dense")

    def call(self, x):
        month = tf.strings.to_number(tf.strings.substr(x["day"], 5, 2), tf.int32)
        era = tf.gather(tf.constant([0, 0, 1, 1, 2, 3]), x["year"] - 2019)
        return self.dense(tf.concat([self.months(month), self.eras(era)], axis=1))

def build():
    model = Fares()
    model({"day": tf.constant(["2026-01-02"]), "year": tf.constant([2020])})
    return model
"""
RECIPE = """
model = "movies"
checkpoint.path = "fares.weights.h5"
code = { factory = "fares.py:build", table_threshold = 0 }
output.root = "bundles"
inputs.day = { dtype = "string" }
inputs.year = { dtype = "int32" }
towers.query = { role = "query" }
verify.examples = "examples.jsonl"
"""
REQUESTS: list[dict[str, Any]] = [
    {"day": f"20{number + 10}-{number % 12 + 1:02}-05", "year": 2019 + number % 6}
    for number in range(24)
]


def test_model_that_rejects_every_invented_value_is_loaded_and_served(tmp_path: Path) -> None:
    (tmp_path / "fares.py").write_text(MODEL)
    model = load_factory("fares.py:build", tmp_path)()
    model.save_weights(tmp_path / "fares.weights.h5")
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, REQUESTS)))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    settings = ExportSettings(load=True)
    prepared = bundle_job.prepare(read_recipe(recipe), tmp_path, settings)
    published = bundle_job.run(prepared, settings, Progress(Console(quiet=True)))
    assert not [note for note in published.notes if "that a service loads" in note]
    expected = model(
        {
            "day": tf.constant([request["day"] for request in REQUESTS]),
            "year": tf.constant([request["year"] for request in REQUESTS]),
        }
    )

    service = RunningService(tmp_path / "bundles")
    try:
        sent = [{"features": request} for request in REQUESTS]
        results = responds(service, "embed", tower="query", requests=sent)["results"]
    finally:
        service.close()
    vectors = [result["vector"] for result in results]
    np.testing.assert_allclose(vectors, np.asarray(expected), atol=1e-5)

    bundle = tmp_path / "bundles/movies/1"
    next(bundle.glob("tables/*/*")).unlink()
    with pytest.raises(VerificationFailed, match=r"a service does not load the bundle: .* missing"):
        try_loading(bundle, read_manifest(bundle))
