"""Models that take ids apart: no value that a service invents is one of theirs. They are loaded all
the same, by the export before it publishes them, too; requests of the bundle that they reject keep
it from being published.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.storage.catalog import read_manifest
from bundle.storage.tfrecords import read_records
from export.errors import VerificationFailed
from export.graphs.loading import load_tensorflow
from export.jobs import bundle_job
from export.jobs.load_trial import try_loading
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.model_code.factories import load_factory
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tensors.stubs import tensorflow_serving_pb2 as pb
from tests.bundles.tfrecords import write_records
from tests.cases.raw_requests import tensor
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
        rows = tf.concat([self.months(month), self.eras(era)], axis=1)
        # Rows of zeros have no finite result.
        return self.dense(rows / tf.norm(rows, axis=1, keepdims=True))

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


class Fares:
    """A trained model with its recipe, in a folder.

    Attributes:
      model: The model.
      recipe: The recipe.
    """

    def __init__(self, folder: Path) -> None:
        self.recipe = folder / "recipe.toml"
        (folder / "fares.py").write_text(MODEL)
        self.model = load_factory("fares.py:build", folder)()
        self.model.save_weights(folder / "fares.weights.h5")
        (folder / "examples.jsonl").write_text("\n".join(map(json.dumps, REQUESTS)))
        self.recipe.write_text(RECIPE)

    def publish(self, root: str) -> Published:
        folder = self.recipe.parent
        settings = ExportSettings(load=True, scratch=folder / "scratch")
        job = read_recipe(self.recipe)
        job = job.model_copy(update={"output": job.output.model_copy(update={"root": root})})
        prepared = bundle_job.prepare(job, folder, settings)
        return bundle_job.run(prepared, settings, Progress(Console(quiet=True)))


@pytest.fixture
def fares(tmp_path: Path) -> Fares:
    return Fares(tmp_path)


def test_model_that_rejects_every_invented_value_is_loaded_and_served(
    fares: Fares, tmp_path: Path
) -> None:
    published = fares.publish("bundles")
    assert not [note for note in published.notes if "that a service loads" in note]
    # Examples may be what users sent: without the user's word, a bundle has none of them.
    assert published.manifest.warm_up is None
    expected = fares.model(
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


def test_bundle_with_a_request_that_the_model_rejects_is_not_published_in_a_store(
    fares: Fares, tmp_path: Path
) -> None:
    fares.recipe.write_text(f'{RECIPE}warm_up.requests = "warm_up.tfrecord"\n')
    write_records(tmp_path / "warm_up.tfrecord", [recorded("2026-xx-02")])
    with pytest.raises(
        VerificationFailed, match=r"record 1 of .* the predict request fails: .*day"
    ):
        fares.publish(f"local://{tmp_path}/store")
    version = tmp_path / "store/movies/1"
    assert not (version / "objects.json").exists()

    write_records(tmp_path / "warm_up.tfrecord", [recorded("2026-11-02")])
    published = fares.publish(f"local://{tmp_path}/store")
    assert (version / "objects.json").exists()
    assert not [note for note in published.notes if "that a service loads" in note]


def test_examples_are_requests_of_the_warm_up_where_the_recipe_says_so(fares: Fares) -> None:
    fares.recipe.write_text(f"{RECIPE}warm_up.examples = 3\n")
    published = fares.publish("bundles")
    assert not [note for note in published.notes if "that a service loads" in note]
    file = published.manifest.warm_up
    assert file is not None
    assert isinstance(published.directory, Path)
    (record,) = read_records(published.directory / file.file)
    inputs = pb.PredictionLog.FromString(record).predict_log.request.inputs
    days = [day.decode() for day in inputs["day"].string_val]
    assert days == [request["day"] for request in REQUESTS[:3]]


def recorded(day: str) -> bytes:
    """Returns a recorded request with a day."""
    inputs = {
        "day": tensor(pb.DT_STRING, 1, string_val=[day.encode()]),
        "year": tensor(pb.DT_INT32, 1, int_val=[2022]),
    }
    log = pb.PredictionLog(predict_log=pb.PredictLog(request=pb.PredictRequest(inputs=inputs)))
    return bytes(log.SerializeToString())
