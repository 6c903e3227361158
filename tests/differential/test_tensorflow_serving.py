"""A client of TensorFlow Serving that changes nothing but the address: what rowcast responds equals
what TensorFlow computes with the self-contained SavedModel of the same model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from export.graphs.loading import load_tensorflow
from export.jobs.progress import Progress
from export.jobs.saved_model_job import prepare_inline, run_inline
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings
from tests.units.export.movies_job import MOVIE_IDS, changed, export, recipe_of, write_project
from tests.units.export.traced_models import movies_recipe, save_and_trace
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow  # two exports

tf = load_tensorflow()
from tensorflow_serving.apis import (  # noqa: E402 - TensorFlow is loaded first
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

EXAMPLES = 1_000
ROWS = 100
"""Of a request."""
Inputs = dict[str, NDArray[Any]]


class Served:
    """A model in rowcast, and as a SavedModel in TensorFlow."""

    def __init__(self, directory: Path) -> None:
        movies = save_and_trace(movies_recipe(), directory / "trained")
        recipe = recipe_of(movies.prefix)
        export(write_project(directory / "bundle", recipe), 1)
        inline = changed(recipe, "output.tables", "inline")
        inline = changed(inline, "output.serving_default", "ranking")
        project = write_project(directory / "inline", inline)
        prepared = prepare_inline(read_recipe(project), project.parent, ExportSettings())
        page = run_inline(prepared, ExportSettings(), Progress(Console(quiet=True)))
        self.saved_model = tf.saved_model.load(page["saved_model"])
        self.service = RunningService(
            directory / "bundle" / "bundles", protocols=("tensorflow-serving",)
        )
        self.channel = grpc.insecure_channel(self.service.grpc)
        self.predictions = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)

    def close(self) -> None:
        self.channel.close()
        self.service.close()

    def expected(self, signature: str, inputs: Inputs) -> dict[str, NDArray[Any]]:
        function = self.saved_model.signatures[signature]
        specs = function.structured_input_signature[1]
        tensors = {name: tf.constant(inputs[name], spec.dtype) for name, spec in specs.items()}
        return {name: value.numpy() for name, value in function(**tensors).items()}

    def predict(self, signature: str, inputs: Inputs) -> Any:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "movies"
        request.model_spec.signature_name = signature
        for name in self.saved_model.signatures[signature].structured_input_signature[1]:
            request.inputs[name].CopyFrom(tf.make_tensor_proto(inputs[name]))
        return self.predictions.Predict(request, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("served"))) as served:
        yield served


def requests() -> Iterator[Inputs]:
    """Yields the inputs of all towers, ragged ones as a signature takes them."""
    random = np.random.default_rng(7)
    for _ in range(EXAMPLES // ROWS):
        inputs = {
            "user_id": random.integers(0, 60, ROWS),  # some are out of vocabulary
            "hour": random.integers(0, 24, ROWS),
            "movie_id": random.choice(MOVIE_IDS, ROWS),
            "year": random.random(ROWS, np.float32),
        }
        for name, ids in (("history", MOVIE_IDS), ("genres", list(range(9)))):
            splits = np.concatenate([[0], np.cumsum(random.integers(0, 6, ROWS))])
            inputs |= {name: random.choice(ids, splits[-1]), f"{name}_1": splits}
        yield inputs


def assert_equal(returned: NDArray[Any], expected: NDArray[Any]) -> None:
    """As the exporter compares them, twice: each form differs from the original model."""
    assert returned.shape == expected.shape
    tolerance = 2e-5 + 2e-5 * np.maximum(np.abs(expected), np.median(np.abs(expected)))
    assert (np.abs(returned - expected) <= tolerance).all()


@pytest.mark.parametrize("signature", ["query", "candidate", "serving_default"])
def test_a_thousand_predictions_equal_those_of_the_saved_model(
    served: Served, signature: str
) -> None:
    count = 0
    for inputs in requests():
        expected = served.expected(signature, inputs)
        outputs = served.predict(signature, inputs).outputs
        assert set(outputs) == set(expected)
        for name, values in expected.items():
            assert_equal(tf.make_ndarray(outputs[name]), values)
        count += ROWS
    assert count == EXAMPLES


def test_predictions_over_rest_equal_those_of_the_saved_model(served: Served) -> None:
    inputs = next(requests())
    (expected,) = served.expected("serving_default", inputs).values()
    names = served.saved_model.signatures["serving_default"].structured_input_signature[1]
    columns = {name: inputs[name].tolist() for name in names}
    url = f"{served.service.http}/v1/models/movies:predict"
    response = httpx.post(url, json={"inputs": columns}, timeout=60)
    assert_equal(np.array(response.json()["outputs"], np.float32), expected)


def test_examples_are_regressed_and_classified_as_predicted(served: Served) -> None:
    inputs = next(requests())
    (expected,) = served.expected("ranking", inputs).values()
    regression = regression_pb2.RegressionRequest()
    regression.model_spec.name = "movies"
    for row in range(ROWS):
        features = regression.input.example_list.examples.add().features.feature
        for name in ("user_id", "hour", "movie_id"):
            features[name].int64_list.value.append(inputs[name][row])
        features["year"].float_list.value.append(inputs["year"][row])
        for name in ("history", "genres"):
            first, end = inputs[f"{name}_1"][[row, row + 1]]
            features[name].int64_list.value.extend(inputs[name][first:end])
    response = served.predictions.Regress(regression, timeout=60)
    scores = np.array([regression.value for regression in response.result.regressions], np.float32)
    assert_equal(scores, expected)
    classification = classification_pb2.ClassificationRequest(
        model_spec=regression.model_spec, input=regression.input
    )
    classes = served.predictions.Classify(classification, timeout=60).result.classifications
    assert [(row.classes[0].label, row.classes[0].score) for row in classes] == [
        ("score", score) for score in scores.tolist()
    ]


def test_models_are_described_as_the_saved_model(served: Served) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "movies"
    response = served.predictions.GetModelMetadata(request, timeout=60)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    for name, function in served.saved_model.signatures.items():
        if name == "serving_default":
            continue
        described = signatures.signature_def[name]
        specs = function.structured_input_signature[1]
        dtypes = {tensor: info.dtype for tensor, info in described.inputs.items()}
        assert dtypes == {tensor: spec.dtype.as_datatype_enum for tensor, spec in specs.items()}
        for output, array in function.structured_outputs.items():
            sizes = [dim.size for dim in described.outputs[output].tensor_shape.dim]
            assert sizes == [size or -1 for size in array.shape]
        assert described.outputs.keys() == function.structured_outputs.keys()
    models = model_service_pb2_grpc.ModelServiceStub(served.channel)
    status = get_model_status_pb2.GetModelStatusRequest(model_spec=request.model_spec)
    (state,) = models.GetModelStatus(status, timeout=60).model_version_status
    assert state.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
