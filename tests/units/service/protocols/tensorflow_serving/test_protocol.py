"""TensorFlow Serving's REST API and gRPC services: examples, outputs and pages.

`tests/differential/test_protocols_agree.py` compares the outputs with those of the native calls,
`tests/differential/test_tensor_protos.py` and `tests/laws/test_tensors.py` the forms of tensors,
and `tests/cases/test_tensor_requests.py` has what is refused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.protocols.tensorflow_serving.protocol import MODEL_SERVICE, PREDICTION_SERVICE
from tensors.stubs import tensorflow_serving_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.bundles.tfrecords import example
from tests.cases.test_tensor_requests import predict, shape, tensor
from tests.cases.ways import Ways, serving
from tests.units.service import reflected
from tests.units.service.protocols.tensorflow_serving.protocols import PROTOCOLS

MODEL = "/v1/models/movies"
QUERY = {"signature_name": "query"}
ROWS = [
    {"user": 5, "movie": 1000, "genres": ["comedy"], "year": 0.5},
    {"user": 7, "movie": 1007, "genres": ["drama", "drama"], "year": 1},
]
USERS = tensor(pb.DT_INT64, 3, int64_val=[5, 7, 9])


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, parts=True, unread_inputs=("old input",))
    with serving(root, protocols=PROTOCOLS, poll_interval_s=3600) as ways:
        yield ways


def posted(ways: Ways, call: str, body: Any, **options: Any) -> Any:
    response = ways.clients.http.post(f"{MODEL}:{call}", json=body, **options)
    assert response.status_code == 200, response.text
    return response.json()


def called(ways: Ways, method: str, message: Any, response: Any) -> Any:
    send = ways.clients.channel.unary_unary(f"/{method}")
    return response.FromString(send(message.SerializeToString(), timeout=30))


def b64(text: str) -> dict[str, str]:
    return {"b64": base64.b64encode(text.encode()).decode()}


def test_values_that_are_missing_are_zeros_and_inputs_that_nothing_reads_are_ignored(
    ways: Ways,
) -> None:
    zeros = predict(
        user=tensor(pb.DT_INT64, 2),
        city=tensor(pb.DT_STRING, 2),
        hour=tensor(pb.DT_FLOAT, 2),
        old_input=tensor(pb.DT_INT64, 2),
    )
    response = called(ways, f"{PREDICTION_SERVICE}/Predict", zeros, pb.PredictResponse)
    body = QUERY | {"instances": [{"user": 0, "city": "", "hour": 0}] * 2}
    rows = posted(ways, "predict", body)["predictions"]
    assert list(response.outputs["vector"].float_val) == np.float32(rows).ravel().tolist()
    versioned = ways.clients.http.post(f"{MODEL}/versions/1:predict", json=body)
    assert versioned.json()["predictions"] == rows


def test_examples_are_classified_and_regressed_by_both_transports(ways: Ways) -> None:
    predictions = posted(ways, "predict", {"instances": ROWS})["predictions"]
    first = {name: value for name, value in ROWS[0].items() if name != "user"} | {"no input": 1}
    listed = [first, ROWS[1] | {"user": [7], "genres": [b64("drama"), "drama"]}]
    body = {"context": {"user": 5}, "examples": listed}
    scores = [row["score"] for row in predictions]
    assert posted(ways, "regress", body) == {"results": scores}
    assert posted(ways, "regress", body | {"signature_name": None}) == {"results": scores}
    names = ("score", "watch", "rating")
    expected = [[[name, row[name]] for name in names] for row in predictions]
    assert posted(ways, "classify", body) == {"results": expected}
    retrieve = {"signature_name": "retrieve"}
    (classes,) = posted(ways, "classify", retrieve | {"examples": [{"user": 5}]})["results"]
    (neighbors,) = posted(ways, "predict", retrieve | {"instances": [{"user": 5}]})["predictions"]
    pairs = zip(map(str, neighbors["ids"]), neighbors["scores"], strict=True)
    assert classes == [list(pair) for pair in pairs]

    row = {"movie": 1000, "genres": ["comedy"], "year": 0.5}
    messages = [example(row, pb), example(ROWS[1] | {"year": 1.0}, pb)]
    with_context = pb.ExampleListWithContext(examples=messages, context=example({"user": 5}, pb))
    request = pb.ExamplesRequest(
        model_spec=pb.ModelSpec(name="movies"),
        input=pb.Input(example_list_with_context=with_context),
    )
    regressed = called(ways, f"{PREDICTION_SERVICE}/Regress", request, pb.RegressionResponse)
    assert [row.value for row in regressed.result.regressions] == np.array(
        scores, np.float32
    ).tolist()
    assert regressed.model_spec.signature_name == "serving_default"
    classified = called(ways, f"{PREDICTION_SERVICE}/Classify", request, pb.ClassificationResponse)
    by_label = [
        {label.label: label.score for label in row.classes}
        for row in classified.result.classifications
    ]
    assert by_label == [
        {name: float(np.float32(row[name])) for name in names} for row in predictions
    ]


def test_outputs_are_filtered_and_ids_have_their_type(ways: Ways) -> None:
    request = predict({"name": "movies", "signature_name": "retrieve"}, user=USERS)
    request.output_filter.append("ids")
    response = called(ways, f"{PREDICTION_SERVICE}/Predict", request, pb.PredictResponse)
    assert list(response.outputs) == ["ids"]
    assert (response.model_spec.version.value, response.model_spec.name) == (1, "movies")
    ids = response.outputs["ids"]
    assert (ids.dtype, ids.tensor_shape, len(ids.int64_val)) == (pb.DT_INT64, shape(3, 10), 30)
    request.output_filter.append("ids")
    with pytest.raises(grpc.RpcError, match="'ids' twice"):
        called(ways, f"{PREDICTION_SERVICE}/Predict", request, pb.PredictResponse)


def test_status_and_metadata_are_those_of_tensorflow_serving(ways: Ways) -> None:
    http = ways.clients.http
    state = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    page = http.get(MODEL).json()
    assert page["model_version_status"] == [state]
    assert page["calls"]  # rowcast's own page
    metadata = http.get(f"{MODEL}/metadata").json()
    assert metadata["model_spec"] == {"name": "movies", "version": "1", "signature_name": ""}
    described = metadata["metadata"]["signature_def"]["signature_def"]
    names = {"serving_default", "query", "candidate", "ranking", "retrieve", "retrieve:movies"}
    assert set(described) == names
    assert described["query"]["method_name"] == "tensorflow/serving/predict"
    sizes = [{"size": "-1", "name": ""}, {"size": "8", "name": ""}]
    vector = {"dim": sizes, "unknown_rank": False}
    expected = {"name": "vector", "dtype": "DT_FLOAT", "tensor_shape": vector}
    assert described["query"]["outputs"]["vector"] == expected

    channel = ways.clients.channel
    health = health_pb2_grpc.HealthStub(channel)
    for service in (PREDICTION_SERVICE, MODEL_SERVICE):
        response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    methods = {"Predict", "Classify", "Regress", "GetModelMetadata"}
    assert reflected.method_names(channel, PREDICTION_SERVICE) == methods
    status = {"model_spec": {"name": "movies"}}
    (version,) = reflected.json_response(channel, MODEL_SERVICE, "GetModelStatus", status)[
        "model_version_status"
    ]
    assert (version["version"], version["state"]) == ("1", "AVAILABLE")


def test_failed_version_has_ended_with_its_problem(ways: Ways) -> None:
    directory = ways.service.settings.root / "movies" / "2"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    ways.service.scan()
    request = pb.GetModelStatusRequest(model_spec=pb.ModelSpec(name="movies"))
    response = called(ways, f"{MODEL_SERVICE}/GetModelStatus", request, pb.GetModelStatusResponse)
    failed, available = sorted(response.model_version_status, key=lambda state: -state.version)
    assert (failed.version, failed.state) == (2, pb.ModelVersionStatus.END)
    assert (failed.status.error_code, bool(failed.status.error_message)) == (pb.UNKNOWN, True)
    assert available.state == pb.ModelVersionStatus.AVAILABLE


def test_content_type_of_a_form_is_accepted_unless_a_web_page_sent_it(ways: Ways) -> None:
    body = json.dumps(QUERY | {"instances": [{"user": 5}]}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers, status in ((form, 200), (form | {"origin": "http://elsewhere"}, 400)):
        response = ways.clients.http.post(f"{MODEL}:predict", content=body, headers=headers)
        assert response.status_code == status
    error = ways.clients.http.post(f"{MODEL}:rank", json={}).json()["error"]
    assert error["code"] == "INVALID_ARGUMENT"
