"""Inference, descriptions, health and the repository index of the protocol, over HTTP and gRPC.

`tests/differential/test_protocols_agree.py` compares the outputs with those of the native calls,
and `tests/cases/test_tensor_requests.py` has what is refused.
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

from tensors.stubs import open_inference_pb2 as pb
from tests.bundles.small import write_small_bundle
from tests.cases.ways import Ways, serving
from tests.differential import tensor_forms as forms
from tests.units.service import reflected
from tests.units.service.cases import MODEL
from tests.units.service.running import RunningService

INFER = f"/v2/models/{MODEL}/infer"
WAIT_S = 20
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
    write_small_bundle(root, small_towers, MODEL)
    with serving(root, protocols=("open-inference",)) as ways:
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
    call = channel.unary_unary(f"/{forms.SERVICE}/{method}")
    return bytes(call(message.SerializeToString(), timeout=WAIT_S))


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
    parsed = pb.ModelInferResponse.FromString(called(channel, "ModelInfer", message))
    assert (parsed.id, parsed.model_name, parsed.model_version) == ("42", MODEL, "1")


def test_outputs_are_returned_in_the_order_and_the_form_that_is_requested(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    expected = forms.arrays_of_json(posted(http, forms.json_body(RANKED)))
    outputs = [{"name": "rating", "parameters": {"binary_data": True}}, {"name": "score"}]
    response = http.post(INFER, json=forms.json_body(RANKED, outputs=outputs))
    assert response.headers["content-type"] == "application/octet-stream"
    end = int(response.headers[forms.HEADER_LENGTH])
    rating, score = json.loads(response.content[:end])["outputs"]
    assert rating["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(response.content[end:], "<f4").tolist() == expected["rating"].tolist()
    assert np.float32(score["data"]).tolist() == expected["score"].tolist()

    as_json = [{"name": "score", "parameters": {"binary_data": False}}]
    body, headers = forms.binary_body(RANKED, outputs=as_json)
    response = http.post(INFER, content=body, headers=headers)
    assert response.headers["content-type"] == "application/json"

    chosen = [
        pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("rating", "score")
    ]
    message = forms.message(RANKED, model=MODEL, outputs=chosen)
    assert list(forms.arrays_of_message(called(channel, "ModelInfer", message))) == [
        "rating",
        "score",
    ]


def test_forms_and_parameters_of_other_clients_are_the_same_request(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    inputs = {**USER, "city": np.array(["oslo"], object)}
    body = forms.json_body(inputs, "query")
    expected = posted(http, body)
    named = forms.json_body(inputs, "query", model_name=MODEL, model_version="1")
    named["parameters"] |= {"priority": 1, "timeout": 20_000_000, "content_type": "pd"}
    named["inputs"][0]["parameters"] = {"content_type": "np"}
    named["inputs"][1]["parameters"] = {"content_type": "str"}
    named["outputs"] = [{"name": "vector", "parameters": {"content_type": "np"}}]
    nulls = forms.json_body(inputs, "query", id=None, model_name=None, outputs=None)
    nulls["parameters"] |= {"binary_data_output": None, "timeout": None, "headers": None}
    nulls["inputs"][0]["parameters"] = {"binary_data_size": None, "content_type": None}
    nested = forms.json_body(inputs, "query")
    nested["inputs"][0]["data"] = [5]
    for equal_body in (named, nulls, nested):
        assert posted(http, equal_body) == expected
    assert posted(http, body, f"/v2/models/{MODEL}/versions/1/infer") == expected
    text = json.dumps(body).encode()
    for content, headers in (
        (gzip.compress(text), {"content-encoding": "gzip"}),
        (text, {"content-type": "application/octet-stream"}),
        (text, {"content-type": ""}),
    ):
        assert http.post(INFER, content=content, headers=headers).json() == expected
    assert http.post("/v2/repository/index", json={"ready": None}).status_code == 200

    # KServe's SDK states the parameters of HTTP over gRPC, too.
    message = forms.message(inputs, "query", MODEL, model_version="1")
    message.parameters["binary_data_output"].bool_param = True
    message.parameters["priority"].uint64_param = 1
    message.parameters["timeout"].SetInParent()
    message.inputs[0].parameters["binary_data_size"].int64_param = 8
    (vector,) = forms.arrays_of_message(called(channel, "ModelInfer", message)).values()
    assert vector.tolist() == forms.arrays_of_json(expected)["vector"].tolist()


def test_retrieval_is_filled_up_to_k(http: httpx.Client) -> None:
    body = forms.json_body({**USER, "k": np.array([45])}, "retrieve")
    arrays = forms.arrays_of_json(posted(http, body))
    assert (arrays["ids"].shape, arrays["counts"].tolist()) == ((1, 45), [40])
    assert set(arrays["ids"][0, :40].tolist()) == set(range(1000, 1280, 7))
    assert set(arrays["ids"][0, 40:].tolist()) == {-1}
    assert set(arrays["scores"][0, 40:].tolist()) == {np.finfo(np.float32).min}


def test_server_and_model_are_described_alike_by_both_transports(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    extensions = ["binary_tensor_data", "model_repository"]
    server: dict[str, Any] = {
        "name": "rowcast",
        "version": version("rowcast"),
        "extensions": extensions,
    }
    assert http.get("/v2").json() == http.get("/v2/").json() == server
    response = called(channel, "ServerMetadata", pb.ModelReadyRequest())
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
        metadata = pb.ModelMetadataResponse.FromString(called(channel, "ModelMetadata", request))
        assert metadata == pb.ModelMetadataResponse(**described)
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
    response = pb.ModelReadyResponse.FromString(called(channel, "ModelReady", request))
    assert response.ready is is_ready
    assert pb.ServerReadyResponse.FromString(called(channel, "ServerReady", request)).ready


def test_repository_lists_versions_with_their_states(
    write: Callable[..., Any], root: Path, serve: Callable[..., RunningService]
) -> None:
    write()
    (root / MODEL / "2").mkdir()
    (root / MODEL / "2/manifest.json").write_text("{}")
    service = serve(protocols=("open-inference",))
    with httpx.Client(base_url=service.http) as http:
        failed, loaded = http.post("/v2/repository/index").json()
        assert loaded == {"name": MODEL, "version": "1", "state": "READY", "reason": ""}
        assert (failed["version"], failed["state"], bool(failed["reason"])) == (
            "2",
            "UNAVAILABLE",
            True,
        )
        assert http.post("/v2/repository/index", json={"ready": True}).json() == [loaded]
    with grpc.insecure_channel(service.grpc) as channel:
        response = called(channel, "RepositoryIndex", pb.RepositoryIndexRequest())
    index = pb.RepositoryIndexResponse(
        models=[pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in (failed, loaded)]
    )
    assert pb.RepositoryIndexResponse.FromString(response) == index
