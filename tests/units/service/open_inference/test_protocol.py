"""Inference, metadata, health and the repository index of the protocol, over HTTP and gRPC."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.codec.stubs import open_inference_pb2 as pb
from tests.bundles.small import SmallBundle
from tests.units.service import reference, reflected
from tests.units.service.cases import LIMITS, MODEL
from tests.units.service.clients import SIMPLE, Clients
from tests.units.service.open_inference import forms
from tests.units.service.running import RunningService

INFER = f"/v2/models/{MODEL}/infer"
WAIT_S = 20
USER = {"user": np.array([5])}
RANKED = {
    "user": np.array([5, 6]),
    "movie": np.array([1000, 1007]),
    "genres": np.array(["drama", "opera"], object),
    "genres_1": np.array([0, 1, 2]),
    "year": np.array([0.5, 0.25], np.float32),
}
TOKEN = "secret-of-a-client"


def posted(http: httpx.Client, body: Any, path: str = INFER, **options: Any) -> dict[str, Any]:
    response = http.post(path, json=body, **options)
    assert response.status_code == 200, response.text
    return dict(response.json())


def called(channel: grpc.Channel, method: str, message: Any, **options: Any) -> bytes:
    call = channel.unary_unary(f"/{forms.SERVICE}/{method}")
    return bytes(call(message.SerializeToString(), timeout=WAIT_S, **options))


def rejected(channel: grpc.Channel, method: str, message: Any, **options: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as problem:
        called(channel, method, message, **options)
    return problem.value.code()


def test_tower_returns_what_the_reference_computes(http: httpx.Client, small: SmallBundle) -> None:
    response = posted(http, forms.json_body(USER, "query", id="42"))
    expected = reference.query_vector(small, 5)
    (output,) = response.pop("outputs")
    assert response == {"model_name": MODEL, "model_version": "1", "id": "42"}
    assert output.pop("data") == pytest.approx(expected.tolist(), 1e-4, 1e-4)
    assert output == {"name": "vector", "datatype": "FP32", "shape": [1, 8]}


def test_request_without_a_signature_is_for_the_only_ranking_tower(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    by_default = posted(http, forms.json_body(RANKED))
    assert by_default == posted(http, forms.json_body(RANKED, "ranking"))
    assert [output["name"] for output in by_default["outputs"]] == ["score", "watch", "rating"]
    message = forms.message(RANKED)  # without the name of the only model, too
    by_message = forms.arrays_of_message(called(channel, "ModelInfer", message))
    by_json = forms.arrays_of_json(by_default)
    assert {name: array.tolist() for name, array in by_message.items()} == {
        name: array.tolist() for name, array in by_json.items()
    }


def test_elements_in_flat_and_nested_lists_are_the_same(http: httpx.Client) -> None:
    mood = np.array([[0.25, -1.0], [0.5, 2.0]], np.float32)
    body = forms.json_body({**RANKED, "mood": mood})
    flat = json.loads(json.dumps(body))
    (entry,) = [entry for entry in flat["inputs"] if entry["name"] == "mood"]
    entry["data"] = mood.reshape(-1).tolist()
    assert posted(http, body) == posted(http, flat)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "u1", "u2", "u4", "u8"])
def test_integers_of_any_datatype_are_the_same(
    dtype: str, http: httpx.Client, channel: grpc.Channel
) -> None:
    expected = posted(http, forms.json_body(USER, "query"))
    array = {"user": np.array([5], dtype)}
    assert posted(http, forms.json_body(array, "query")) == expected
    message = forms.message(array, "query", MODEL)
    (vector,) = forms.arrays_of_message(called(channel, "ModelInfer", message)).values()
    assert vector.reshape(-1).tolist() == forms.arrays_of_json(expected)["vector"][0].tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8"])
def test_numbers_of_any_datatype_are_the_same(dtype: str, http: httpx.Client) -> None:
    hours = [np.array([2], dtype), np.array([2], np.float32)]
    bodies = [forms.binary_body({**USER, "hour": hour}, "query") for hour in hours]
    responses = [http.post(INFER, content=body, headers=headers) for body, headers in bodies]
    assert responses[0].status_code == 200, responses[0].text
    assert responses[0].content == responses[1].content


def test_requested_outputs_are_returned_in_their_order_and_forms(http: httpx.Client) -> None:
    outputs = [{"name": "rating", "parameters": {"binary_data": True}}, {"name": "score"}]
    response = http.post(INFER, json=forms.json_body(RANKED, outputs=outputs))
    assert response.headers["content-type"] == "application/octet-stream"
    end = int(response.headers[forms.HEADER_LENGTH])
    rating, score = json.loads(response.content[:end])["outputs"]
    expected = forms.arrays_of_json(posted(http, forms.json_body(RANKED)))
    assert rating["parameters"] == {"binary_data_size": 8}
    assert np.frombuffer(response.content[end:], "<f4").tolist() == expected["rating"].tolist()
    assert (score["name"], np.float32(score["data"]).tolist()) == (
        "score",
        expected["score"].tolist(),
    )


def test_outputs_are_bytes_unless_one_says_otherwise(http: httpx.Client) -> None:
    body, headers = forms.binary_body(
        RANKED, outputs=[{"name": "score", "parameters": {"binary_data": False}}]
    )
    response = http.post(INFER, content=body, headers=headers)
    assert response.headers["content-type"] == "application/json"
    assert "data" in response.json()["outputs"][0]


def test_requested_outputs_over_grpc_are_returned_in_their_order(channel: grpc.Channel) -> None:
    outputs = [
        pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in ("rating", "score")
    ]
    message = forms.message(RANKED, model=MODEL, id="42", outputs=outputs)
    response = called(channel, "ModelInfer", message)
    assert list(forms.arrays_of_message(response)) == ["rating", "score"]
    parsed = pb.ModelInferResponse.FromString(response)
    assert (parsed.id, parsed.model_name, parsed.model_version) == ("42", MODEL, "1")


def test_retrieval_returns_neighbors_and_fills_up_to_k(http: httpx.Client) -> None:
    inputs = {**USER, "k": np.array([45])}
    arrays = forms.arrays_of_json(posted(http, forms.json_body(inputs, "retrieve")))
    assert {name: array.shape for name, array in arrays.items()} == {
        "ids": (1, 45),
        "scores": (1, 45),
        "counts": (1,),
    }
    assert arrays["counts"].tolist() == [40]
    assert set(arrays["ids"][0, :40].tolist()) == set(range(1000, 1280, 7))
    assert set(arrays["ids"][0, 40:].tolist()) == {-1}


def test_compressed_body_is_measured_as_it_was(http: httpx.Client) -> None:
    body, headers = forms.binary_body(USER, "query")
    plain = http.post(INFER, content=body, headers=headers)
    encoded = {**headers, "content-encoding": "gzip"}
    assert http.post(INFER, content=gzip.compress(body), headers=encoded).content == plain.content


@pytest.mark.parametrize("content_type", ["application/octet-stream", "", "application/json; x=y"])
def test_json_of_other_clients_is_read(content_type: str, http: httpx.Client) -> None:
    body = json.dumps(forms.json_body(USER, "query"))
    response = http.post(INFER, content=body, headers={"content-type": content_type})
    assert response.status_code == 200, response.text


def test_parameters_of_other_clients_are_obeyed(http: httpx.Client, channel: grpc.Channel) -> None:
    inputs = {**USER, "city": np.array(["oslo"], object)}
    expected = posted(http, forms.json_body(inputs, "query"))
    body = forms.json_body(inputs, "query", model_name=MODEL, model_version="1")
    body["parameters"] |= {"priority": 1, "timeout": 20_000_000, "content_type": "pd"}
    body["inputs"][0]["parameters"] = {"content_type": "np"}
    body["inputs"][1]["parameters"] = {"content_type": "str"}
    body["outputs"] = [{"name": "vector", "parameters": {"content_type": "np"}}]
    assert posted(http, body) == expected

    # KServe's SDK states the parameters of HTTP over gRPC, too.
    message = forms.message(inputs, "query", MODEL)
    message.parameters["binary_data_output"].bool_param = True
    message.parameters["priority"].uint64_param = 1
    message.parameters["timeout"].int64_param = 20_000_000
    message.inputs[0].parameters["binary_data_size"].int64_param = 8
    (vector,) = forms.arrays_of_message(called(channel, "ModelInfer", message)).values()
    assert vector.tolist() == forms.arrays_of_json(expected)["vector"].tolist()


def test_fields_and_parameters_that_are_null_are_absent(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    body = forms.json_body(USER, "query")
    expected = posted(http, body)
    nulls = {"id": None, "model_name": None, "model_version": None, "outputs": None}
    body["parameters"] |= {"binary_data_output": None, "timeout": None, "headers": None}
    body["inputs"][0]["parameters"] = {"binary_data_size": None, "content_type": None}
    assert posted(http, body | nulls) == expected
    body["inputs"][0]["parameters"] = None
    outputs = [{"name": "vector", "parameters": None}]
    assert posted(http, body | {"outputs": outputs}) == expected
    by_default = forms.json_body(RANKED)
    assert posted(http, by_default | {"parameters": None}) == posted(http, by_default)
    options = {"ready": None, "repository_name": None}
    assert http.post("/v2/repository/index", json=options).status_code == 200

    message = forms.message(USER, "query", MODEL)
    message.parameters["timeout"].SetInParent()
    assert called(channel, "ModelInfer", message)


def test_version_is_chosen_by_path_and_by_message(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    path = f"/v2/models/{MODEL}/versions/1/infer"
    assert posted(http, forms.json_body(USER, "query"), path)["model_version"] == "1"
    message = forms.message(USER, "query", MODEL, model_version="1")
    response = called(channel, "ModelInfer", message)
    assert pb.ModelInferResponse.FromString(response).model_version == "1"


def test_server_is_described_alike_by_both_transports(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    expected: dict[str, Any] = {
        "name": "rowcast",
        "version": version("rowcast"),
        "extensions": ["binary_tensor_data", "model_repository"],
    }
    assert http.get("/v2").json() == http.get("/v2/").json() == expected
    response = called(channel, "ServerMetadata", pb.ModelReadyRequest())
    assert pb.ServerMetadataResponse.FromString(response) == pb.ServerMetadataResponse(**expected)


def test_model_is_described_alike_by_both_transports(
    http: httpx.Client, channel: grpc.Channel
) -> None:
    described = http.get(f"/v2/models/{MODEL}").json()
    assert described == http.get(f"/v2/models/{MODEL}/versions/1").json()
    head = {name: described[name] for name in ("name", "versions", "platform")}
    assert head == {"name": MODEL, "versions": ["1"], "platform": "rowcast"}
    inputs = {
        tensor["name"]: (tensor["datatype"], tensor["shape"]) for tensor in described["inputs"]
    }
    assert inputs["user"] == ("INT64", [-1])
    assert inputs["mood"] == ("FP32", [-1, 2])
    assert (inputs["genres"], inputs["genres_1"]) == (("BYTES", [-1]), ("INT64", [-1]))
    assert described["outputs"] == [
        {"name": name, "datatype": "FP32", "shape": [-1]} for name in ("score", "watch", "rating")
    ]
    for request in (
        pb.ModelMetadataRequest(name=MODEL),
        pb.ModelMetadataRequest(name=MODEL, version="1"),
    ):
        response = pb.ModelMetadataResponse.FromString(called(channel, "ModelMetadata", request))
        assert response == pb.ModelMetadataResponse(**described)


def test_service_and_its_models_are_ready(http: httpx.Client, channel: grpc.Channel) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", f"/v2/models/{MODEL}/ready"):
        assert http.get(path).status_code == 200
    assert http.get(f"/v2/models/{MODEL}/versions/1/ready").json() == {"name": MODEL, "ready": True}
    empty = pb.ModelReadyRequest()
    assert pb.ServerLiveResponse.FromString(called(channel, "ServerLive", empty)).live
    assert pb.ServerReadyResponse.FromString(called(channel, "ServerReady", empty)).ready
    for name, number, is_ready in ((MODEL, "", True), (MODEL, "7", False), ("books", "", False)):
        request = pb.ModelReadyRequest(name=name, version=number)
        response = pb.ModelReadyResponse.FromString(called(channel, "ModelReady", request))
        assert response.ready is is_ready
        path = f"/v2/models/{name}{number and f'/versions/{number}'}/ready"
        assert (http.get(path).status_code == 200) is is_ready


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
        assert (failed["version"], failed["state"]) == ("2", "UNAVAILABLE")
        assert failed["reason"]
        assert http.post("/v2/repository/index", json={"ready": True}).json() == [loaded]
    with grpc.insecure_channel(service.grpc) as channel:
        response = called(channel, "RepositoryIndex", pb.RepositoryIndexRequest())
        index = pb.RepositoryIndexResponse.FromString(response)
        assert list(index.models) == [
            pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in (failed, loaded)
        ]


def test_clients_need_a_token_for_the_model_and_probes_none(
    write: Callable[..., Any], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    write("books")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"client {TOKEN} {MODEL}\n")
    service = serve(protocols=("open-inference",), tokens=tokens)
    headers = {"authorization": f"Bearer {TOKEN}"}
    body = forms.json_body(USER, "query")
    with httpx.Client(base_url=service.http) as http:
        assert http.get("/v2/health/live").status_code == 200
        assert http.get("/v2/health/ready").status_code == 200
        for method, path in (("POST", INFER), ("GET", "/v2"), ("GET", f"/v2/models/{MODEL}")):
            response = http.request(method, path, json=body)
            assert response.status_code == 401
            assert set(response.json()) == {"error"}
        assert http.get(f"/v2/models/{MODEL}", headers=headers).status_code == 200
        assert http.get("/v2/models/books", headers=headers).status_code == 403
        assert http.post("/v2/models/books/infer", json=body, headers=headers).status_code == 403
        assert http.post("/v2/repository/index", headers=headers).status_code == 403
        assert http.post(INFER, json=body, headers=headers).status_code == 200
    metadata = {"metadata": tuple(headers.items())}
    with grpc.insecure_channel(service.grpc) as channel:
        mine, of_another = (forms.message(USER, "query", name) for name in (MODEL, "books"))
        assert rejected(channel, "ModelInfer", mine) is grpc.StatusCode.UNAUTHENTICATED
        assert (
            rejected(channel, "ModelInfer", of_another, **metadata)
            is grpc.StatusCode.PERMISSION_DENIED
        )
        assert called(channel, "ModelInfer", mine, **metadata)


def test_full_service_rejects_with_when_to_retry(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(
        protocols=("open-inference",),
        max_concurrent_requests=1,
        retry_after_s=2.5,
        inline_max_us=0,
    )
    tower = service.waiting(MODEL)
    clients = Clients(service)
    method = clients.channel.unary_unary("/rowcast.embedding.v1.EmbeddingService/Retrieve")
    first = method.future(SIMPLE.body(), timeout=30)
    assert tower.entered.wait(30)
    try:
        for _ in range(2):  # the second response is that of the first
            response = clients.http.post(INFER, json=forms.json_body(USER, "query"))
            assert (response.status_code, response.headers["retry-after"]) == (429, "3")
            assert set(response.json()) == {"error"}
        message = forms.message(USER, "query", MODEL)
        code = rejected(clients.channel, "ModelInfer", message)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        tower.release.set()
    assert first.result()
    clients.close()


def test_service_without_models_is_live_and_not_ready(
    serve: Callable[..., RunningService],
) -> None:
    service = serve(protocols=("open-inference",))
    with httpx.Client(base_url=service.http) as http:
        assert http.get("/v2/health/live").status_code == 200
        response = http.get("/v2/health/ready")
        assert response.status_code == 503
        assert "no bundle has been found" in response.json()["error"]
        assert http.post(INFER, json=forms.json_body(USER)).status_code == 503
    with grpc.insecure_channel(service.grpc) as channel:
        ready = called(channel, "ServerReady", pb.ModelReadyRequest())
        assert not pb.ServerReadyResponse.FromString(ready).ready


def test_service_without_the_protocol_knows_none_of_it(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve()
    with httpx.Client(base_url=service.http) as http:
        assert http.post(INFER, json=forms.json_body(USER, "query")).status_code == 404
        assert http.get("/v2").json()["error"]["code"] == "NOT_FOUND"
    with grpc.insecure_channel(service.grpc) as channel:
        message = forms.message(USER, "query", MODEL)
        assert rejected(channel, "ModelInfer", message) is grpc.StatusCode.UNIMPLEMENTED


def test_requests_are_counted_and_limited_as_all_others(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(protocols=("open-inference",), **LIMITS)
    rows = LIMITS["max_queries"] + 1
    with httpx.Client(base_url=service.http) as http:
        posted(http, forms.json_body(USER, "query"))
        body = forms.json_body({"user": np.arange(rows)}, "query")
        response = http.post(INFER, json=body)
        assert response.status_code == 413
        assert f"has {rows} queries" in response.json()["error"]
        body = forms.json_body(USER, "query")
        late = http.post(INFER, json=body, headers={"x-request-timeout-ms": "0"})
        assert late.status_code in {429, 504}
    labels = {"transport": "http", "call": "infer", "model": MODEL}
    assert service.value("rowcast_requests_total", code="OK", **labels) == 1
    assert service.value("rowcast_requests_total", code="TOO_LARGE", **labels) == 1


def test_reflection_describes_the_methods_so_that_they_can_be_called(channel: grpc.Channel) -> None:
    names = reflected.method_names(channel, forms.SERVICE)
    assert names == {
        "ModelInfer",
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "RepositoryIndex",
    }
    assert reflected.json_response(channel, forms.SERVICE, "ServerLive", {}) == {"live": True}
    described = reflected.json_response(channel, forms.SERVICE, "ModelMetadata", {"name": MODEL})
    assert described["name"] == MODEL
    assert described["inputs"]
