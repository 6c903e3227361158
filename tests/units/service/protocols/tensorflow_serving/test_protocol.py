"""TensorFlow Serving's REST API and gRPC services: the forms of tensors and examples, pages, and
requests that are computed together.

`tests/differential/test_protocols_agree.py` compares the outputs with those of the native calls,
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
HALVES = np.array([1, 2], np.float16).view(np.uint16).tolist()
BFLOATS = np.array([0x3F80, 0x4000, 0x4000], np.uint16)
HOURS = {
    "float": tensor(pb.DT_FLOAT, 3, float_val=[1, 2, 2]),
    "last value repeated": tensor(pb.DT_FLOAT, 3, float_val=[1, 2]),
    "double": tensor(pb.DT_DOUBLE, 3, double_val=[1, 2]),
    "half": tensor(pb.DT_HALF, 3, half_val=HALVES),
    "bfloat16": tensor(pb.DT_BFLOAT16, 3, half_val=[0x3F80, 0x4000]),
    "content": tensor(pb.DT_FLOAT, 3, tensor_content=np.array([1, 2, 2], np.float32).tobytes()),
    "bfloat16 content": tensor(pb.DT_BFLOAT16, 3, tensor_content=BFLOATS.tobytes()),
    "int32": tensor(pb.DT_INT32, 3, int_val=[1, 2]),
    "uint8": tensor(pb.DT_UINT8, 3, int_val=[1, 2]),
    "uint32": tensor(pb.DT_UINT32, 3, uint32_val=[1, 2]),
    "column": tensor(pb.DT_FLOAT, 3, 1, float_val=[1, 2, 2]),
}
USERS = {
    "int64": tensor(pb.DT_INT64, 3, int64_val=[5, 7, 9]),
    "content": tensor(pb.DT_INT64, 3, tensor_content=np.array([5, 7, 9]).tobytes()),
    "int32": tensor(pb.DT_INT32, 3, int_val=[5, 7, 9]),
    "int16": tensor(pb.DT_INT16, 3, int_val=[5, 7, 9]),
    "int8 content": tensor(pb.DT_INT8, 3, tensor_content=bytes([5, 7, 9])),
    "uint16": tensor(pb.DT_UINT16, 3, int_val=[5, 7, 9]),
    "uint64": tensor(pb.DT_UINT64, 3, uint64_val=[5, 7, 9]),
}


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


def predicted(ways: Ways, message: pb.PredictRequest, output: str = "vector") -> list[Any]:
    response = called(ways, f"{PREDICTION_SERVICE}/Predict", message, pb.PredictResponse)
    return list(response.outputs[output].float_val)


def b64(text: str) -> dict[str, str]:
    return {"b64": base64.b64encode(text.encode()).decode()}


def test_tensors_are_read_in_all_of_their_forms(ways: Ways) -> None:
    inputs = {"user": [5, 7, 9], "hour": [1, 2, 2]}
    vectors = posted(ways, "predict", QUERY | {"inputs": inputs})["outputs"]
    expected = np.float32(vectors).ravel().tolist()
    pairs = [(USERS["int64"], hour) for hour in HOURS.values()]
    for user, hour in [*pairs, *[(user, HOURS["float"]) for user in USERS.values()]]:
        assert predicted(ways, predict(user=user, hour=hour)) == expected, (user, hour)
    # Values that are missing are zeros and empty strings; inputs that nothing reads are ignored.
    zeros = predict(
        user=tensor(pb.DT_INT64, 2),
        city=tensor(pb.DT_STRING, 2),
        hour=tensor(pb.DT_FLOAT, 2),
        old_input=tensor(pb.DT_INT64, 2),
    )
    rows = [{"user": 0, "city": "", "hour": 0}] * 2
    expected_rows = posted(ways, "predict", QUERY | {"instances": rows})["predictions"]
    assert predicted(ways, zeros) == np.float32(expected_rows).ravel().tolist()


@pytest.mark.parametrize(
    "history",
    [
        [[1000, 1007], [1014, 1000]],
        {"history": [1000, 1007, 1014, 1000], "history_1": [0, 2, 4]},
        {
            "history": [[0, 0], [0, 1], [1, 0], [1, 1]],
            "history_1": [1000, 1007, 1014, 1000],
            "history_2": [2, 2],
        },
    ],
    ids=["dense", "ragged", "sparse"],
)
def test_lists_and_texts_are_read_in_each_form(history: Any, ways: Ways) -> None:
    inputs = history if isinstance(history, dict) else {"history": history}
    columns = {"user": [5, 7], "city": [b64("Oslo"), "Wien"], **inputs}
    by_column = posted(ways, "predict", QUERY | {"inputs": columns})
    rows = [
        {"user": 5, "city": "Oslo", "history": [1000, 1007]},
        {"user": 7, "city": b64("Wien"), "history": [1014, 1000]},
    ]
    by_row = posted(ways, "predict", QUERY | {"instances": rows})
    assert by_row["predictions"] == by_column["outputs"]
    versioned = ways.clients.http.post(
        f"{MODEL}/versions/1:predict", json=QUERY | {"instances": rows}
    )
    assert versioned.json() == by_row


def feature(*values: Any) -> pb.Feature:
    if values and isinstance(values[0], str):
        texts = [text.encode() for text in values]
        return pb.Feature(bytes_list=pb.BytesList(value=texts))
    if values and isinstance(values[0], float):
        return pb.Feature(float_list=pb.FloatList(value=values))
    return pb.Feature(int64_list=pb.Int64List(value=values))


def example(**features: Any) -> pb.Example:
    listed = {name: feature(*np.atleast_1d(values).tolist()) for name, values in features.items()}
    return pb.Example(features=pb.Features(feature=listed))


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
    messages = [example(**row), example(**ROWS[1] | {"year": 1.0})]
    with_context = pb.ExampleListWithContext(examples=messages, context=example(user=5))
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
    request = predict({"name": "movies", "signature_name": "retrieve"}, user=USERS["int64"])
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
    own = ways.clients.http.post(f"{MODEL}:rank", json={}).json()["error"]
    assert own["code"] == "INVALID_ARGUMENT"
