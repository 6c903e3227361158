"""A team leaves TensorFlow Serving with what it has: the SavedModel that it serves, the requests of
its warm-up, a log of requests with their responses, and clients that change nothing but the
address. All are written by TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from bundle.storage.catalog import read_manifest
from bundle.storage.tfrecords import read_records
from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from export.jobs.bundle_job import prepare
from export.jobs.preparation import Prepared
from export.jobs.saved_model_job import prepare_inline
from export.jobs.warm_up import WarmUpWriter, locate_requests
from export.recipe.schema import OutputSection, WarmUpSection, read_recipe
from export.recipe.settings import ExportSettings
from tensors.records import read_prediction_log
from tests.bundles.tfrecords import example
from tests.e2e.process import WAIT_S
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    export,
    recipe_of,
    write_project,
)
from tests.units.service.running import RunningService

pytestmark = pytest.mark.slow

tf = load_tensorflow()
from tensorflow_serving.apis import (  # noqa: E402 - TensorFlow is loaded first
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    input_pb2,
    model_service_pb2_grpc,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.models import two_towers  # noqa: E402

LOGS = 30
ROWS = 4
"""Of a request."""
PredictionLog = prediction_log_pb2.PredictionLog
Inputs = dict[str, Any]


def ranking_of(model: Any) -> Any:
    """Returns the function that the team serves: raw ids are rows of its tables."""

    def rows(ids: Any) -> Any:
        return (ids - MOVIE_IDS[0]) // 7

    ids = tf.TensorSpec([None], tf.int64)

    def ranking(
        user_id: Any,
        history: Any,
        history_1: Any,
        hour: Any,
        movie_id: Any,
        genres: Any,
        genres_1: Any,
        year: Any,
    ) -> Any:
        features = {
            "user_id": user_id,
            "history": tf.RaggedTensor.from_row_splits(rows(history), history_1),
            "hour": hour,
            "movie_id": rows(movie_id),
            "genres": tf.RaggedTensor.from_row_splits(genres, genres_1),
            "year": year,
        }
        return {"score": model(features)["score"]}

    return tf.function(ranking, [*[ids] * 7, tf.TensorSpec([None], tf.float32)])


def inputs_of(random: np.random.Generator) -> Inputs:
    """Returns the inputs of one request."""
    inputs: Inputs = {
        "user_id": random.integers(0, 50, ROWS),
        "hour": random.integers(0, 24, ROWS),
        "movie_id": random.choice(MOVIE_IDS, ROWS),
        "year": random.random(ROWS, np.float32),
    }
    for name, ids in (("history", MOVIE_IDS), ("genres", list(range(9)))):
        splits = np.concatenate([[0], np.cumsum(random.integers(0, 4, ROWS))])
        inputs |= {name: random.choice(ids, splits[-1]), f"{name}_1": splits}
    return inputs


def predict_log(inputs: Inputs, signature: str = "ranking") -> Any:
    log = PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = "another"
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return log


def write_logs(path: Path, logs: list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for log in logs:
            writer.write(serialized(log))
    return path


def serialized(log: Any) -> bytes:
    if isinstance(log, bytes):
        return log
    return bytes(log.SerializeToString())


class Team:
    """What a team has before it moves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        root = tf.Module()
        build: Any = two_towers.build_movies
        root.model = build()
        ranking = ranking_of(root.model)
        self.saved_model = directory / "served" / "7"
        tf.saved_model.save(root, str(self.saved_model), signatures={"ranking": ranking})
        served = tf.saved_model.load(str(self.saved_model)).signatures["ranking"]
        self.signature = served
        random = np.random.default_rng(3)
        self.logs = []
        for _ in range(LOGS):
            inputs = inputs_of(random)
            specs = served.structured_input_signature[1]
            tensors = {name: tf.constant(inputs[name], spec.dtype) for name, spec in specs.items()}
            log = predict_log(inputs)
            log.predict_log.response.outputs["score"].CopyFrom(
                tf.make_tensor_proto(served(**tensors)["score"])
            )
            self.logs.append(log)
        write_logs(directory / "requests.tfrecord", self.logs)
        warm_up = self.saved_model / "assets.extra" / "tf_serving_warmup_requests"
        write_logs(warm_up, [*self.logs[:5], *self.examples()])

    def examples(self) -> list[Any]:
        """Returns a request of each call that takes Examples."""
        logs = []
        for method in ("classify", "regress"):
            log = PredictionLog()
            getattr(log, f"{method}_log").request.input.example_list_with_context.CopyFrom(elwc())
            logs.append(log)
        return logs

    def recipe(self) -> Recipe:
        verify = {
            "count": LOGS * ROWS,
            "examples": str(self.directory / "requests.tfrecord"),
            "examples_format": "prediction-log",
            "expected": {"score": "response.score"},
        }
        return changed(recipe_of(self.saved_model), "verify", verify)


def elwc() -> Any:
    """Returns a ranking of two movies for a user."""
    return input_pb2.ExampleListWithContext(
        context=example({"user_id": 5, "hour": 20, "history": [100, 107]}),
        examples=[
            example({"movie_id": movie, "genres": [1, 2], "year": 0.5}) for movie in MOVIE_IDS[:2]
        ],
    )


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Team:
    return Team(tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="module")
def project(team: Team) -> Path:
    return write_project(team.directory / "project", team.recipe())


@pytest.fixture(scope="module")
def service(project: Path) -> Iterator[RunningService]:
    published = export(project, 1)
    assert any("7 requests of tf_serving_warmup_requests" in note for note in published.notes)
    running = RunningService(project.parent / "bundles", protocols=("tensorflow-serving",))
    yield running
    running.close()


def test_requests_of_the_saved_model_are_computed_before_the_bundle_is_served(
    service: RunningService,
) -> None:
    assert service.states() == {1: "available"}, service.problem(1)
    manifest = read_manifest(service.settings.root / "movies" / "1")
    assert manifest.warm_up is not None
    assert manifest.warm_up.size == 7
    assert manifest.warm_up.file in [file.path for file in manifest.files]


@pytest.fixture
def channel(service: RunningService) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.grpc) as channel:
        yield channel


def assert_logged(score: Any, log: Any) -> None:
    recorded = tf.make_ndarray(log.predict_log.response.outputs["score"])
    np.testing.assert_allclose(np.reshape(score, recorded.shape), recorded, rtol=1e-4, atol=1e-4)


def test_logged_requests_have_the_logged_responses(
    team: Team, service: RunningService, channel: grpc.Channel
) -> None:
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    url = f"{service.http}/v1/models/movies:predict"
    for log in team.logs:
        request = log.predict_log.request
        request.model_spec.name = "movies"
        outputs = predictions.Predict(request, timeout=WAIT_S).outputs
        assert_logged(tf.make_ndarray(outputs["score"]), log)
        columns = {
            name: tf.make_ndarray(tensor).tolist() for name, tensor in request.inputs.items()
        }
        response = httpx.post(url, json={"inputs": columns}, timeout=WAIT_S, verify=False)
        assert_logged(response.json()["outputs"], log)


def test_examples_of_a_logged_request_are_regressed_and_classified(
    team: Team, channel: grpc.Channel
) -> None:
    log = team.logs[0]
    inputs = {
        name: tf.make_ndarray(value) for name, value in log.predict_log.request.inputs.items()
    }
    regression = regression_pb2.RegressionRequest()
    regression.model_spec.name = "movies"
    for row in range(ROWS):
        features = {name: inputs[name][row] for name in ("user_id", "hour", "movie_id", "year")}
        for name in ("history", "genres"):
            first, end = inputs[f"{name}_1"][[row, row + 1]]
            features[name] = inputs[name][first:end]
        regression.input.example_list.examples.append(example(features))
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = predictions.Regress(regression, timeout=WAIT_S)
    scores = [row.value for row in response.result.regressions]
    assert_logged(scores, log)
    classification = classification_pb2.ClassificationRequest(
        model_spec=regression.model_spec, input=regression.input
    )
    classes = predictions.Classify(classification, timeout=WAIT_S).result.classifications
    assert [(row.classes[0].label, row.classes[0].score) for row in classes] == [
        ("score", score) for score in scores
    ]


def test_model_is_described_as_the_saved_model(team: Team, channel: grpc.Channel) -> None:
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "movies"
    predictions = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = predictions.GetModelMetadata(request, timeout=WAIT_S)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    described = signatures.signature_def["ranking"]
    specs = team.signature.structured_input_signature[1]
    dtypes = {tensor: info.dtype for tensor, info in described.inputs.items()}
    assert dtypes == {tensor: spec.dtype.as_datatype_enum for tensor, spec in specs.items()}
    assert described.outputs.keys() == team.signature.structured_outputs.keys()
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    status = get_model_status_pb2.GetModelStatusRequest(model_spec=request.model_spec)
    (state,) = models.GetModelStatus(status, timeout=WAIT_S).model_version_status
    assert state.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE


@pytest.fixture(scope="module")
def prepared(project: Path) -> Prepared:
    return prepare(read_recipe(project), project.parent, ExportSettings(), 2)


Writing = Callable[..., int]


@pytest.fixture
def write(prepared: Prepared, tmp_path: Path) -> Writing:
    """Writes requests for the warm-up, as a job does."""

    def write(logs: list[Any], **options: Any) -> int:
        part = WarmUpSection(requests="requests", **options)
        job = prepared.job.model_copy(update={"warm_up": part})
        source = write_logs(tmp_path / "requests", logs)
        writer = WarmUpWriter(job, prepared.traced.spec, prepared.entries, ())
        return writer.write(source, tmp_path / "written")

    return write


def test_elwc_records_are_written_as_rankings(write: Writing, tmp_path: Path) -> None:
    assert write([elwc()] * 2, format="elwc", signature="ranking") == 2
    first, _ = read_records(tmp_path / "written")
    written = read_prediction_log(first)
    assert (written.call, written.request.model_spec.signature_name) == ("classify", "ranking")
    log = PredictionLog.FromString(first)
    assert log.classify_log.request.input.example_list_with_context == elwc()


INPUTS = inputs_of(np.random.default_rng(0))


def without(name: str) -> Inputs:
    return {key: values for key, values in INPUTS.items() if not key.startswith(name)}


QUERY = {"user_id": [1], "hour": [2]}
SERIALIZED = {"examples": [example({"user_id": 5, "hour": 1}).SerializeToString()]}
SESSION = PredictionLog(session_run_log=prediction_log_pb2.SessionRunLog())
REGRESS = PredictionLog()
REGRESS.regress_log.request.model_spec.signature_name = "query"
REGRESS.regress_log.request.input.example_list.examples.add()
REJECTED: dict[str, tuple[list[Any], str]] = {
    "none": ([], "requests has no records"),
    "more": (
        [predict_log(QUERY, "query")] * 1_001,
        "requests has more than 1000 records, which is the maximum of TensorFlow Serving",
    ),
    "no message": ([b"\xff"], "record 1 is no PredictionLog"),
    "session": ([SESSION], "record 1 holds a session_run_log"),
    "signature": (
        [predict_log(QUERY, "query"), predict_log(INPUTS, "rank")],
        "record 2 is for signature 'rank'; the bundle has serving_default, query, candidate, "
        "ranking, retrieve, retrieve:movies",
    ),
    "missing": ([predict_log(without("year"))], "record 1 has no 'year', which has no default"),
    "of another tower": (
        [predict_log({**QUERY, "year": [0.5]}, "query")],
        "no input of the model is called 'year'; it takes history, hour, user_id",
    ),
    "dtype": (
        [predict_log({**INPUTS, "hour": np.zeros(ROWS, np.float32)})],
        "inputs.hour: float32; int64 was expected",
    ),
    "rows": ([predict_log({**INPUTS, "hour": [1, 2]})], "different numbers of rows"),
    "call": ([REGRESS], "a regress request for signature 'query'; a ranking tower computes it"),
    "serialized": ([predict_log(SERIALIZED, "query")], "holds serialized Examples in a predict"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_requests_that_no_service_computes_are_rejected(write: Writing, name: str) -> None:
    logs, message = REJECTED[name]
    with pytest.raises(UsageError) as rejection:
        write(logs)
    assert str(rejection.value).startswith("warm_up.requests: requests")
    assert message in str(rejection.value)


def test_requests_of_all_kinds_are_taken(write: Writing, team: Team) -> None:
    retrieval = predict_log({**QUERY, "k": np.int64(3)}, "retrieve")
    logs = [*team.logs, *team.examples(), predict_log(QUERY, "query"), retrieval]
    assert write(logs) == len(logs)


def test_requests_of_the_saved_model_can_be_left_out(project: Path, prepared: Prepared) -> None:
    located = locate_requests(prepared.job, project.parent, prepared.checkpoint)
    assert located is not None
    assert located.name == "tf_serving_warmup_requests"
    inline = read_recipe(project).model_copy(
        update={"output": OutputSection(root="models", tables="inline")}
    )
    notes = prepare_inline(inline, project.parent, ExportSettings()).notes
    assert any("tf_serving_warmup_requests are not copied" in note for note in notes)
    part = WarmUpSection(from_saved_model=False)
    job = prepared.job.model_copy(update={"warm_up": part})
    assert locate_requests(job, project.parent, prepared.checkpoint) is None
    job = prepared.job.model_copy(update={"warm_up": replace_requests(part, "none")})
    with pytest.raises(UsageError, match=r"warm_up\.requests: file .*none does not exist"):
        locate_requests(job, project.parent, prepared.checkpoint)


def replace_requests(part: WarmUpSection, requests: str) -> WarmUpSection:
    return part.model_copy(update={"requests": requests})
