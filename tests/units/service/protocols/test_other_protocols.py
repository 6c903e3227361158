"""Open Inference and TensorFlow Serving over HTTP and gRPC: which outputs a response has, what else
clients may send, descriptions, health and the states of versions.

`tests/differential/test_protocols_agree.py` compares outputs with those of the native calls, and
`tests/cases/raw_requests.py` has what is refused.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.protocols.tensorflow_serving.protocol import MODEL_SERVICE, PREDICTION_SERVICE
from tensors.stubs import open_inference_pb2 as pb
from tensors.stubs import tensorflow_serving_pb2 as tf_pb
from tests.bundles.small import write_small_bundle
from tests.cases.raw_requests import PAGE, QUERY, predict, shape, tensor
from tests.cases.ways import RawRequest, RawResponse, Ways, serving
from tests.differential import tensor_forms as forms
from tests.e2e.process import WAIT_S
from tests.units.service import reflected
from tests.units.service.cases import MODEL
from tests.units.service.running import RunningService

PROTOCOLS = ("open-inference", "tensorflow-serving")
INFER = f"/v2/models/{MODEL}/infer"
USER = {"user": np.array([5])}
RANKED = {
    "user": np.array([5, 6]),
    "mood": np.array([[0.25, -1.0], [0.5, 2.0]], np.float32),
    "movie": np.array([1000, 1007]),
    "genres": np.array(["drama", "opera"], object),
    "genres_1": np.array([0, 1, 2]),
    "year": np.array([0.5, 0.25], np.float32),
}
METHODS = {
    *("ModelInfer", "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata"),
    "RepositoryIndex",
}


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, parts=True, unread_inputs=("old input",))
    with serving(root, protocols=PROTOCOLS) as ways:
        yield ways


@pytest.fixture
def http(ways: Ways) -> httpx.Client:
    return ways.clients.http


@pytest.fixture
def channel(ways: Ways) -> grpc.Channel:
    return ways.clients.channel


def posted(http: httpx.Client, body: Any, path: str = INFER) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def called(channel: grpc.Channel, method: str, message: Any) -> bytes:
    return bytes(channel.unary_unary(f"/{method}")(message.SerializeToString(), timeout=WAIT_S))


def inferred(channel: grpc.Channel, message: Any) -> RawResponse:
    return RawResponse("OK", called(channel, f"{forms.SERVICE}/ModelInfer", message), {})


def outputs_of(body: dict[str, Any]) -> dict[str, Any]:
    return forms.outputs_of_json(RawResponse(200, json.dumps(body).encode(), {}))


def test_response_has_the_id_the_version_and_the_outputs_of_the_only_ranking_tower(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    response = posted(http, forms.json_body(RANKED, id="42"))
    outputs = response.pop("outputs")
    assert response == {"model_name": MODEL, "model_version": "1", "id": "42"}
    assert [output["name"] for output in outputs] == ["score", "watch", "rating"]
    assert {(output["datatype"], *output["shape"]) for output in outputs} == {("FP32", 2)}
    assert posted(http, forms.json_body(RANKED, "ranking"))["outputs"] == outputs
    message = forms.message(RANKED, id="42")  # without the name of the only model, too
    parsed = pb.ModelInferResponse.FromString(inferred(channel, message).content)
    assert (parsed.id, parsed.model_name, parsed.model_version) == ("42", MODEL, "1")

    score, *_ = outputs
    examples = [
        {"user": 5, "mood": [0.25, -1.0], "movie": 1000, "genres": ["drama"], "year": 0.5},
        {"user": 6, "mood": [0.5, 2.0], "movie": 1007, "genres": ["opera"], "year": 0.25},
    ]
    for options in ({}, {"signature_name": None}):
        regressed = posted(http, {"examples": examples, **options}, f"{PAGE}:regress")
        assert regressed == {"results": score["data"]}


def test_outputs_are_returned_in_the_order_and_the_form_that_is_requested(
    ways: Ways, http: httpx.Client, channel: grpc.Channel
) -> None:
    expected = outputs_of(posted(http, forms.json_body(RANKED)))
    outputs = [{"name": "rating", "parameters": {"binary_data": True}}, {"name": "score"}]
    response = http.post(INFER, json=forms.json_body(RANKED, outputs=outputs))
    assert response.headers["content-type"] == "application/octet-stream"
    end = int(response.headers[forms.HEADER_LENGTH])
    rating, score = json.loads(response.content[:end])["outputs"]
    assert rating["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(response.content[end:], "<f4").tolist() == expected["rating"].tolist()
    assert np.float32(score["data"]).tolist() == expected["score"].tolist()

    as_json = [{"name": "score", "parameters": {"binary_data": False}}]
    by_json = ways.by_bytes(forms.binary_request(RANKED, outputs=as_json))
    assert by_json.headers["content-type"] == "application/json"

    chosen = [
        pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("rating", "score")
    ]
    message = forms.message(RANKED, model=MODEL, outputs=chosen)
    assert [*forms.outputs_of_message(inferred(channel, message))] == ["rating", "score"]


def test_forms_and_parameters_of_other_clients_are_the_same_request(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    inputs = {**USER, "city": np.array(["oslo"], object)}
    body = forms.json_body(inputs, "query")
    expected = posted(http, body)
    named = forms.json_body(inputs, "query", model_name=MODEL, model_version="1")
    named["parameters"] |= {"priority": 1, "timeout": 60_000_000, "content_type": "pd"}
    named["inputs"][0]["parameters"] = {"content_type": "np"}
    named["inputs"][1]["parameters"] = {"content_type": "str"}
    named["outputs"] = [{"name": "vector", "parameters": {"content_type": "np"}}]
    nulls = forms.json_body(inputs, "query", id=None, model_name=None, outputs=None)
    nulls["parameters"] |= {"binary_data_output": None, "timeout": None, "headers": None}
    nulls["inputs"][0]["parameters"] = {"binary_data_size": None, "content_type": None}
    for equal_body in (named, nulls):
        assert posted(http, equal_body) == expected
    assert posted(http, body, f"/v2/models/{MODEL}/versions/1/infer") == expected
    text = json.dumps(body).encode()
    for content, headers in (
        (gzip.compress(text), {"content-encoding": "gzip"}),
        (text, {"content-type": "application/octet-stream"}),
        (text, {"content-type": ""}),
    ):
        assert http.post(INFER, content=content, headers=headers).json() == expected

    # KServe's SDK states the parameters of HTTP over gRPC, too.
    message = forms.message(inputs, "query", MODEL, model_version="1")
    message.parameters["binary_data_output"].bool_param = True
    message.parameters["priority"].uint64_param = 1
    message.parameters["timeout"].SetInParent()
    message.inputs[0].parameters["binary_data_size"].int64_param = 8
    (vector,) = forms.outputs_of_message(inferred(channel, message)).values()
    assert vector.tolist() == outputs_of(expected)["vector"].tolist()


def test_retrieval_is_filled_up_to_k(http: httpx.Client) -> None:
    body = forms.json_body({**USER, "k": np.array([45])}, "retrieve")
    arrays = outputs_of(posted(http, body))
    assert (arrays["ids"].shape, arrays["counts"].tolist()) == ((1, 45), [40])
    assert set(arrays["ids"][0, :40].tolist()) == set(range(1000, 1280, 7))
    assert set(arrays["ids"][0, 40:].tolist()) == {-1}
    assert set(arrays["scores"][0, 40:].tolist()) == {np.finfo(np.float32).min}


def test_neighbors_are_classes_and_outputs_are_filtered(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    retrieve = {"signature_name": "retrieve"}
    (classes,) = posted(http, retrieve | {"examples": [{"user": 5}]}, f"{PAGE}:classify")["results"]
    (neighbors,) = posted(http, retrieve | {"instances": [{"user": 5}]}, f"{PAGE}:predict")[
        "predictions"
    ]
    pairs = zip(map(str, neighbors["ids"]), neighbors["scores"], strict=True)
    assert classes == [list(pair) for pair in pairs]

    users = tensor(tf_pb.DT_INT64, 3, int64_val=[5, 7, 9])
    request = predict({"name": MODEL, "signature_name": "retrieve"}, user=users)
    request.output_filter.append("ids")
    method = f"{PREDICTION_SERVICE}/Predict"
    response = tf_pb.PredictResponse.FromString(called(channel, method, request))
    assert list(response.outputs) == ["ids"]
    assert (response.model_spec.version.value, response.model_spec.name) == (1, MODEL)
    ids = response.outputs["ids"]
    assert (ids.dtype, ids.tensor_shape, len(ids.int64_val)) == (tf_pb.DT_INT64, shape(3, 10), 30)
    request.output_filter.append("ids")
    with pytest.raises(grpc.RpcError, match="'ids' twice"):
        called(channel, method, request)


def test_values_that_are_missing_are_zeros_and_inputs_that_nothing_reads_are_ignored(
    ways: Ways, http: httpx.Client, channel: grpc.Channel
) -> None:
    zeros = predict(
        user=tensor(tf_pb.DT_INT64, 2),
        city=tensor(tf_pb.DT_STRING, 2),
        hour=tensor(tf_pb.DT_FLOAT, 2),
        old_input=tensor(tf_pb.DT_INT64, 2),
    )
    response = called(channel, f"{PREDICTION_SERVICE}/Predict", zeros)
    vectors = tf_pb.PredictResponse.FromString(response).outputs["vector"].float_val
    body = QUERY | {"instances": [{"user": 0, "city": "", "hour": 0}] * 2}
    by_version = ways.by_bytes(RawRequest(f"POST {PAGE}/versions/1:predict", body))
    rows = posted(http, body, f"{PAGE}:predict")["predictions"]
    assert list(vectors) == np.float32(rows).ravel().tolist()
    assert json.loads(by_version.content)["predictions"] == rows


def test_open_inference_describes_server_and_model_alike_by_both_transports(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    extensions = ["binary_tensor_data", "model_repository"]
    server: dict[str, Any] = {
        "name": "rowcast",
        "version": version("rowcast"),
        "extensions": extensions,
    }
    assert http.get("/v2").json() == http.get("/v2/").json() == server
    response = called(channel, f"{forms.SERVICE}/ServerMetadata", pb.ModelReadyRequest())
    assert pb.ServerMetadataResponse.FromString(response) == pb.ServerMetadataResponse(**server)

    described = http.get(f"/v2/models/{MODEL}").json()
    assert described == http.get(f"/v2/models/{MODEL}/versions/1").json()
    head = {name: described[name] for name in ("name", "versions", "platform")}
    assert head == {"name": MODEL, "versions": ["1"], "platform": "rowcast"}
    tensors = {
        tensor["name"]: (tensor["datatype"], *tensor["shape"]) for tensor in described["inputs"]
    }
    assert tensors["user"] == tensors["genres_1"] == ("INT64", -1)
    assert (tensors["mood"], tensors["genres"]) == (("FP32", -1, 2), ("BYTES", -1))
    for number in ("", "1"):
        request = pb.ModelMetadataRequest(name=MODEL, version=number)
        metadata = called(channel, f"{forms.SERVICE}/ModelMetadata", request)
        assert pb.ModelMetadataResponse.FromString(metadata) == pb.ModelMetadataResponse(
            **described
        )
    assert reflected.method_names(channel, forms.SERVICE) == METHODS
    assert reflected.json_response(channel, forms.SERVICE, "ServerLive", {}) == {"live": True}


@pytest.mark.parametrize(
    ("name", "number", "is_ready"),
    [(MODEL, "", True), (MODEL, "1", True), (MODEL, "7", False), ("x", "", False)],
)
def test_models_that_are_served_are_ready(
    name: str, number: str, is_ready: bool, http: httpx.Client, channel: grpc.Channel
) -> None:
    assert http.get("/v2/health/ready").status_code == 200
    path = f"/v2/models/{name}{number and f'/versions/{number}'}/ready"
    assert (http.get(path).status_code == 200) is is_ready
    request = pb.ModelReadyRequest(name=name, version=number)
    response = called(channel, f"{forms.SERVICE}/ModelReady", request)
    assert pb.ModelReadyResponse.FromString(response).ready is is_ready
    response = called(channel, f"{forms.SERVICE}/ServerReady", request)
    assert pb.ServerReadyResponse.FromString(response).ready


def test_status_and_metadata_are_those_of_tensorflow_serving(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    state = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    page = http.get(PAGE).json()
    assert page["model_version_status"] == [state]
    assert page["calls"]  # rowcast's own page
    metadata = http.get(f"{PAGE}/metadata").json()
    assert metadata["model_spec"] == {"name": MODEL, "version": "1", "signature_name": ""}
    described = metadata["metadata"]["signature_def"]["signature_def"]
    names = {"serving_default", "query", "candidate", "ranking", "retrieve", "retrieve:movies"}
    assert set(described) == names
    assert described["query"]["method_name"] == "tensorflow/serving/predict"
    sizes = [{"size": "-1", "name": ""}, {"size": "8", "name": ""}]
    vector = {"dim": sizes, "unknown_rank": False}
    expected = {"name": "vector", "dtype": "DT_FLOAT", "tensor_shape": vector}
    assert described["query"]["outputs"]["vector"] == expected

    health = health_pb2_grpc.HealthStub(channel)
    for service in (PREDICTION_SERVICE, MODEL_SERVICE):
        response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT_S)
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    methods = {"Predict", "Classify", "Regress", "GetModelMetadata"}
    assert reflected.method_names(channel, PREDICTION_SERVICE) == methods
    status = {"model_spec": {"name": MODEL}}
    (version,) = reflected.json_response(channel, MODEL_SERVICE, "GetModelStatus", status)[
        "model_version_status"
    ]
    assert (version["version"], version["state"]) == ("1", "AVAILABLE")


def test_service_that_does_not_speak_a_protocol_names_its_option(
    serve: Callable[..., RunningService],
) -> None:
    with httpx.Client(base_url=serve().http, verify=False) as http:
        for protocol, targets in {
            "open-inference": (f"POST {INFER}", "GET /v2/health/ready", "GET /v2"),
            "tensorflow-serving": (f"POST {PAGE}:predict", f"GET {PAGE}/metadata"),
        }.items():
            for target in targets:
                response = http.request(*target.split())
                assert response.status_code == 404
                assert f"--protocols {protocol} " in response.json()["error"]["message"]


def test_both_protocols_list_versions_with_their_states(
    write: Callable[..., Any], root: Path, serve: Callable[..., RunningService]
) -> None:
    write()
    (root / MODEL / "2").mkdir()
    (root / MODEL / "2/manifest.json").write_text("{}")
    service = serve(protocols=PROTOCOLS)
    with httpx.Client(base_url=service.http, verify=False) as http:
        failed, loaded = http.post("/v2/repository/index", json={"ready": None}).json()
        assert loaded == {"name": MODEL, "version": "1", "state": "READY", "reason": ""}
        assert (failed["version"], failed["state"], bool(failed["reason"])) == (
            "2",
            "UNAVAILABLE",
            True,
        )
        assert http.post("/v2/repository/index", json={"ready": True}).json() == [loaded]
    with grpc.insecure_channel(service.grpc) as channel:
        response = called(channel, f"{forms.SERVICE}/RepositoryIndex", pb.RepositoryIndexRequest())
        status = tf_pb.GetModelStatusRequest(model_spec=tf_pb.ModelSpec(name=MODEL))
        states = called(channel, f"{MODEL_SERVICE}/GetModelStatus", status)
    index = pb.RepositoryIndexResponse(
        models=[pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in (failed, loaded)]
    )
    assert pb.RepositoryIndexResponse.FromString(response) == index
    by_version = {
        state.version: state
        for state in tf_pb.GetModelStatusResponse.FromString(states).model_version_status
    }
    assert by_version[1].state == tf_pb.ModelVersionStatus.AVAILABLE
    assert by_version[2].state == tf_pb.ModelVersionStatus.END
    problem = by_version[2].status
    assert (problem.error_code, bool(problem.error_message)) == (tf_pb.UNKNOWN, True)
