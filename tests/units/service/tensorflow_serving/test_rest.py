"""TensorFlow Serving's REST API: forms of requests and responses, pages, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.codec.stubs import tensorflow_serving_pb2 as pb
from service.engine.calls import EmbeddingRequest, RankingRequest, RetrievalRequest, Target
from tests.units.service.running import RunningService, column
from tests.units.service.tensorflow_serving.conftest import PROTOCOLS

TARGET = Target("movies")
MODEL = "/v1/models/movies"
USERS = [5, 7]
HISTORIES = [[1000, 1007], [1014]]
QUERY_COLUMNS = {
    "user": column(*USERS),
    "city": column("Oslo", "Wien"),
    "history": column(1000, 1007, 1014, offsets=[0, 2, 3]),
}
PAIRS = {
    "user": USERS,
    "movie": [1000, 1007],
    "genres": ["comedy", "drama", "drama"],
    "genres_1": [0, 1, 3],
    "year": [0.5, 1],
}


def b64(text: str) -> dict[str, str]:
    return {"b64": base64.b64encode(text.encode()).decode()}


def posted(rest: httpx.Client, call: str, body: Any) -> Any:
    response = rest.post(f"{MODEL}:{call}", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    return response.json()


def test_predict_returns_columns_for_columns_and_rows_for_rows(
    service: RunningService, rest: httpx.Client
) -> None:
    vectors = service.execute(EmbeddingRequest(TARGET, "query", QUERY_COLUMNS), "embed").vectors
    inputs = {"user": USERS, "city": [b64("Oslo"), "Wien"], "history": [1000, 1007, 1014]}
    by_column = posted(
        rest,
        "predict",
        {"signature_name": "query", "inputs": {**inputs, "history_1": [0, 2, 3]}},
    )
    assert list(by_column) == ["outputs"]
    assert np.array_equal(np.float32(by_column["outputs"]), vectors)
    rows = [
        {"user": user, "city": city, "history": history}
        for user, city, history in zip(USERS, ["Oslo", b64("Wien")], HISTORIES, strict=True)
    ]
    by_row = posted(rest, "predict", {"signature_name": "query", "instances": rows})
    assert by_row == {"predictions": by_column["outputs"]}


def test_outputs_of_a_ranking_are_named(service: RunningService, rest: httpx.Client) -> None:
    columns = posted(rest, "predict", {"inputs": PAIRS})["outputs"]
    assert sorted(columns) == ["rating", "score", "watch"]
    candidate = {
        "movie": column(1000, 1007),
        "genres": column("comedy", "drama", "drama", offsets=[0, 1, 3]),
        "year": column(0.5, 1.0),
    }
    context = {"user": column(*USERS)}
    expected = service.execute(
        RankingRequest(
            TARGET,
            context,
            candidate_features=candidate,
            offsets=np.arange(3),
            heads=("watch",),
        )
    )
    assert np.array_equal(np.float32(columns["score"]), expected.scores)
    assert np.array_equal(np.float32(columns["watch"]), expected.heads["watch"])
    rows = [
        {"user": 5, "movie": 1000, "genres": ["comedy"], "year": 0.5},
        {"user": 7, "movie": 1007, "genres": ["drama", "drama"], "year": 1},
    ]
    predictions = posted(rest, "predict", {"instances": rows})["predictions"]
    assert predictions == [
        {name: columns[name][row] for name in columns} for row in range(len(rows))
    ]


def test_neighbors_are_named_outputs(service: RunningService, rest: httpx.Client) -> None:
    expected = service.execute(RetrievalRequest(TARGET, context=QUERY_COLUMNS, k=3), "retrieve")
    body = {
        "signature_name": "retrieve",
        "inputs": {"user": USERS, "city": ["Oslo", "Wien"], "history": HISTORIES, "k": 3},
    }
    outputs = posted(rest, "predict", body)["outputs"]
    assert outputs["ids"] == expected.ids.reshape(2, 3).tolist()
    assert np.array_equal(np.float32(outputs["scores"]), expected.scores.reshape(2, 3))
    assert outputs["counts"] == [3, 3]


def test_classify_labels_scores_and_regress_returns_the_score(rest: httpx.Client) -> None:
    columns = posted(rest, "predict", {"inputs": PAIRS})["outputs"]
    body = {
        "context": {"user": 5},
        "examples": [
            {"movie": 1000, "genres": ["comedy"], "year": 0.5, "not an input": 1},
            {"user": [7], "movie": [1007], "genres": [b64("drama"), "drama"], "year": 1.0},
        ],
    }
    assert posted(rest, "regress", body) == {"results": columns["score"]}
    classes = posted(rest, "classify", body)["results"]
    assert classes == [
        [[name, columns[name][row]] for name in ("score", "watch", "rating")] for row in range(2)
    ]
    neighbors = {"signature_name": "retrieve", "examples": [{"user": 5}]}
    predicted = {"signature_name": "retrieve", "instances": [{"user": 5}]}
    (classes,) = posted(rest, "classify", neighbors)["results"]
    (prediction,) = posted(rest, "predict", predicted)["predictions"]
    assert classes == [
        [str(label), score]
        for label, score in zip(prediction["ids"], prediction["scores"], strict=True)
    ]


def test_fields_that_are_null_are_absent(rest: httpx.Client) -> None:
    body = {"signature_name": "query", "instances": [{"user": 5}]}
    nulls = {"inputs": None, "parameters": None}
    assert posted(rest, "predict", body | nulls) == posted(rest, "predict", body)
    examples = {"examples": [{"user": 5, "movie": 1000, "genres": "drama", "year": 1}]}
    nulls = {"signature_name": None, "context": None}
    assert posted(rest, "regress", examples | nulls) == posted(rest, "regress", examples)


def test_paths_name_versions_and_labels(rest: httpx.Client) -> None:
    body = {"signature_name": "query", "instances": [{"user": 5}]}
    expected = posted(rest, "predict", body)
    response = rest.post(f"{MODEL}/versions/1:predict", json=body)
    assert response.json() == expected
    missing = rest.post(f"{MODEL}/versions/9:predict", json=body)
    assert (missing.status_code, list(missing.json())) == (404, ["error"])
    missing = rest.post(f"{MODEL}/labels/stable:predict", json=body)
    assert (missing.status_code, "no label 'stable'" in missing.json()["error"]) == (404, True)


def test_status_and_metadata_are_those_of_tensorflow_serving(rest: httpx.Client) -> None:
    page = rest.get(MODEL).json()
    state = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    assert page["model_version_status"] == [state]
    assert page["calls"]  # rowcast's own page
    assert rest.get(f"{MODEL}/versions/1").json()["model_version_status"] == [state]
    metadata = rest.get(f"{MODEL}/metadata").json()
    assert metadata["model_spec"] == {"name": "movies", "version": "1", "signature_name": ""}
    described = metadata["metadata"]["signature_def"]["signature_def"]
    assert set(described) >= {"serving_default", "query", "ranking", "retrieve"}
    query = described["query"]
    assert query["method_name"] == "tensorflow/serving/predict"
    assert query["outputs"]["vector"] == {
        "name": "vector",
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "8", "name": ""}],
            "unknown_rank": False,
        },
    }
    missing = rest.get(f"{MODEL}/versions/9/metadata")
    assert (missing.status_code, list(missing.json())) == (404, ["error"])


QUERY = {"signature_name": "query"}
BAD: dict[str, tuple[str, Any, str]] = {
    "no json": ("predict", b"{", "not valid JSON"),
    "no object": ("predict", [1], "a JSON object was expected"),
    "no values": ("predict", {}, "either 'instances' or 'inputs'"),
    "both forms": (
        "predict",
        {"instances": [{"user": 1}], "inputs": {"user": [1]}},
        "either 'instances' or 'inputs'",
    ),
    "signature": ("predict", {"signature_name": 1, "instances": [1]}, "a string was expected"),
    "unknown signature": (
        "predict",
        {"signature_name": "querry", "instances": [{"user": 1}]},
        "has no signature 'querry'; did you mean 'query'?",
    ),
    "no rows": ("predict", QUERY | {"instances": []}, "a list of rows was expected"),
    "rows differ": (
        "predict",
        QUERY | {"instances": [{"user": 1}, {"user": 1, "hour": 2}]},
        "instances[1] has other inputs than instances[0]",
    ),
    "rows mixed": ("predict", QUERY | {"instances": [1, {"user": 1}]}, "mixes values with"),
    "unnamed": ("predict", QUERY | {"instances": [1, 2]}, "the values have no name"),
    "dtype": ("predict", QUERY | {"inputs": {"user": ["a"]}}, "'user' is string; int64 was"),
    "fraction": ("predict", QUERY | {"inputs": {"user": [1.5]}}, "'user' is float64; int64"),
    "null": ("predict", QUERY | {"inputs": {"user": [None]}}, "holds null"),
    "object": ("predict", QUERY | {"inputs": {"user": [{"a": 1}]}}, "a value was expected"),
    "base64": ("predict", QUERY | {"inputs": {"user": [{"b64": "*"}]}}, "is not base64"),
    "large": ("predict", QUERY | {"inputs": {"user": [2**63]}}, "does not fit int64"),
    "large beside a fraction": (
        "predict",
        b'{"inputs": {"user": [1.5, NaN, %s]}}' % (b"9" * 400),
        "'user' holds an integer that does not fit float64",
    ),
    "digits": (
        "predict",
        b'{"inputs": {"user": [NaN, %s]}}' % (b"9" * 5_000),
        "an integer has too many digits",
    ),
    "unknown field": (
        "predict",
        {"signature": "query", "instances": [{"user": 1}]},
        "unknown field 'signature'; one of signature_name, instances, inputs was expected; did",
    ),
    "other server": (
        "classify",
        {"examples": [{"user": 1}], "parameters": {"k": 1}},
        "unknown field 'parameters'; one of signature_name, context, examples",
    ),
    "kinds": ("predict", QUERY | {"inputs": {"user": [1, "a"]}}, "values of int, str"),
    "shape": ("predict", QUERY | {"inputs": {"user": [[1, 2]]}}, "int64 of shape [1, 2]"),
    "levels": ("predict", QUERY | {"inputs": {"user": [[1], 2]}}, "mixes lists with values"),
    "uneven": ("predict", QUERY | {"inputs": {"user": [[[1], [2, 3]]]}}, "different lengths"),
    "missing": ("predict", QUERY | {"inputs": {"hour": [1]}}, "input 'user' of signature 'query'"),
    "unknown": ("predict", QUERY | {"inputs": {"user": [1], "usr": [1]}}, "'usr' is unknown"),
    "not finite": (
        "predict",
        b'{"signature_name": "query", "instances": [{"user": 1, "hour": NaN}]}',
        "nan is not finite in float32",
    ),
    "no examples": ("classify", {}, "examples is null; a list was expected"),
    "empty examples": ("classify", {"examples": []}, "the request has no examples"),
    "no example": ("classify", {"examples": [1]}, "examples[0] is 1; a JSON object was"),
    "context": ("classify", {"context": 1, "examples": [{}]}, "context is 1"),
    "feature": ("classify", {"examples": [{"user": [[1]]}]}, "a value was expected"),
    "feature kinds": ("classify", {"examples": [{"user": 1}, {"user": "a"}]}, "of int, str"),
    "classified vector": (
        "classify",
        QUERY | {"examples": [{"user": 1}]},
        "classify cannot return what signature 'query' computes",
    ),
    "regressed ids": (
        "regress",
        {"signature_name": "retrieve", "examples": [{"user": 1}]},
        "regress cannot return what signature 'retrieve' computes",
    ),
}


def test_bad_bodies_are_rejected_in_the_form_of_tensorflow_serving(rest: httpx.Client) -> None:
    for case, (call, body, text) in BAD.items():
        content = body
        if not isinstance(body, bytes):
            content = json.dumps(body).encode()
        response = rest.post(f"{MODEL}:{call}", content=content)
        assert response.status_code == 400, case
        assert list(response.json()) == ["error"], case
        assert text in response.json()["error"], case


def test_numbers_that_are_not_finite_are_read(rest: httpx.Client) -> None:
    body = b'{"instances": [{"user": 1, "movie": 1000, "genres": [], "year": -Infinity}]}'
    response = rest.post(f"{MODEL}:predict", content=body)
    assert (response.status_code, "not finite" in response.json()["error"]) == (400, True)


def test_content_type_of_a_form_is_accepted_unless_a_web_page_sent_it(rest: httpx.Client) -> None:
    body = json.dumps(QUERY | {"instances": [{"user": 5}]}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert rest.post(f"{MODEL}:predict", content=body, headers=form).status_code == 200
    page = form | {"origin": "http://elsewhere"}
    response = rest.post(f"{MODEL}:predict", content=body, headers=page)
    assert (response.status_code, "content-type" in response.json()["error"]) == (400, True)


def test_other_methods_models_and_calls_keep_their_errors(rest: httpx.Client) -> None:
    response = rest.get(f"{MODEL}:predict")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "method GET" in response.json()["error"]
    response = rest.post(f"{MODEL}:rank", json={})
    assert response.json()["error"]["code"] == "INVALID_ARGUMENT"
    unknown = rest.post(f"{MODEL}:guess", json={})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "NOT_FOUND")


def test_overloaded_service_rejects_in_the_form_of_tensorflow_serving(
    write: Callable[..., Any], serve: Callable[..., RunningService]
) -> None:
    write()
    service = serve(protocols=PROTOCOLS, inline_max_us=0, max_concurrent_requests=1)
    tower = service.waiting()
    body = QUERY | {"instances": [{"user": 5}]}
    with httpx.Client(base_url=service.http, timeout=30) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, f"{MODEL}:predict", json=body)
        assert tower.entered.wait(20)
        for _ in range(3):  # the second and later ones are repeated
            response = client.post(f"{MODEL}:predict", json=body)
            assert response.status_code == 429
            assert response.json() == {
                "error": "too many requests are in progress (max_concurrent_requests)"
            }
            assert response.headers["retry-after"] == "1"
            assert len(response.headers["x-request-id"]) == 32
        assert client.post(f"{MODEL}:embed", json={}).json()["error"]["code"] == "OVERLOADED"
        tower.release.set()
        assert first.result().status_code == 200
    assert service.value("rowcast_rejected_requests_total", call="predict") == 3


def test_token_is_required_and_limits_the_models(
    write: Callable[..., Any], serve: Callable[..., RunningService], tmp_path: Path
) -> None:
    write()
    tokens = tmp_path / "tokens"
    tokens.write_text("reader secret-of-a-reader books\n")
    service = serve(protocols=PROTOCOLS, tokens=tokens)
    body = QUERY | {"instances": [{"user": 5}]}
    token = {"authorization": "Bearer secret-of-a-reader"}
    with httpx.Client(base_url=service.http, timeout=30) as client:
        for headers, status in (({}, 401), (token, 403)):
            response = client.post(f"{MODEL}:predict", json=body, headers=headers)
            assert (response.status_code, list(response.json())) == (status, ["error"])
            response = client.get(f"{MODEL}/metadata", headers=headers)
            assert (response.status_code, list(response.json())) == (status, ["error"])
    message = pb.PredictRequest(model_spec=pb.ModelSpec(name="movies")).SerializeToString()
    # The name in another order of fields is known once the message is parsed.
    reordered = b"\x1a\x01x" + message
    with grpc.insecure_channel(service.grpc) as channel:
        send = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for body_sent in (message, reordered):
            with pytest.raises(grpc.RpcError) as raised:
                send(body_sent, metadata=tuple(token.items()), timeout=30)
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
