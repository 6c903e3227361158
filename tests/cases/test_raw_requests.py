"""Each request of the table of bytes gets the status of its code, in the form of errors of its
protocol, with words that name what is wrong. And what all responses over HTTP have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import Code
from tests.bundles.small import write_small_bundle
from tests.cases.bad_values import BODIES
from tests.cases.raw_requests import ACCEPTED, PAGE, SETTINGS, UNFIT, refused, sentence_of
from tests.cases.ways import RawRequest, Ways, serving
from tests.differential import tensor_forms as forms
from tests.units.service.cases import MODEL
from tests.units.service.http.clients import BODY, PROTOBUF, RETRIEVE
from tests.units.service.running import log_lines

MESSAGE = pb.RetrieveRequest(k=2, context={"user": pb.Column(int64s=(7).to_bytes(8, "little"))})
REFUSED = list(refused())


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, small_towers: Path) -> Iterator[Ways]:
    root = tmp_path_factory.mktemp("bundles")
    write_small_bundle(root, small_towers, MODEL, parts=True)
    with serving(root, protocols=("open-inference", "tensorflow-serving"), **SETTINGS) as ways:
        yield ways


@pytest.fixture
def http(ways: Ways) -> httpx.Client:
    return ways.clients.http


@pytest.mark.parametrize("request_of_case", ACCEPTED.values(), ids=ACCEPTED)
def test_request_is_accepted(request_of_case: RawRequest, ways: Ways) -> None:
    response = ways.by_bytes(request_of_case)
    assert response.status in {200, "OK"}, response.content


@pytest.mark.parametrize(
    ("request_of_case", "code", "words"),
    [row for _, *row in REFUSED],
    ids=[name for name, *_ in REFUSED],
)
def test_request_is_refused_with_its_status_and_words(
    request_of_case: RawRequest, code: Code | int, words: str, ways: Ways
) -> None:
    response = ways.by_bytes(request_of_case)
    if isinstance(code, int):
        assert (response.status, response.headers["allow"]) == (code, words)
        return
    assert words in sentence_of(request_of_case, response, code)
    # A method that is not provided has no field.
    if request_of_case.target.startswith("/"):
        assert response.faults == (code is not Code.UNIMPLEMENTED or request_of_case.body != b"")
    assert ways.service.dataplane.budget.held == 0


@pytest.mark.parametrize(("signature", "arrays", "code", "words"), UNFIT.values(), ids=UNFIT)
def test_tensors_that_do_not_fit_a_signature_are_refused_in_each_form(
    signature: str, arrays: Mapping[str, Any], code: Code, words: str, ways: Ways
) -> None:
    for name, form in forms.FORMS.items():
        # In JSON of TensorFlow Serving, an empty list has no second axis.
        if "columns" in name and not all(
            array.size or array.ndim == 1 for array in arrays.values()
        ):
            continue
        # In JSON of Open Inference, data is a list.
        if "JSON" in name and not all(array.ndim for array in arrays.values()):
            continue
        request = form.request(arrays, signature)
        assert words in sentence_of(request, ways.by_bytes(request), code)


@pytest.mark.parametrize("call", BODIES)
def test_response_has_the_form_that_is_accepted_and_the_times_of_its_phases(
    call: str, http: httpx.Client
) -> None:
    response = http.post(f"{PAGE}:{call}", json=BODIES[call])
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert (response.json()["model"], response.json()["version"]) == ("movies", 1)
    timing = response.headers["server-timing"]
    assert re.fullmatch(r"decode;dur=[\d.]+, (\w+;dur=[\d.]+, )*encode;dur=[\d.]+", timing)


def test_label_of_a_model_without_labels_expects_none(http: httpx.Client) -> None:
    error = http.post(f"{PAGE}/labels/x:retrieve", json=BODY).json()["error"]
    assert error["violations"][0]["expected"] == "nothing, as there is none"


def test_accept_chooses_the_form_of_a_response_by_its_weights(http: httpx.Client) -> None:
    accept = {"accept": "application/json;q=0.8, application/x-protobuf;q=0.9, */*"}
    by_json = http.post(RETRIEVE, json=BODY, headers=accept)
    assert pb.RetrieveResponse.FromString(by_json.content).searched == 40
    accept = {"accept": "*/*, application/x-protobuf;q=0, application/json, application/protobuf"}
    by_message = http.post(RETRIEVE, content=MESSAGE.SerializeToString(), headers=PROTOBUF | accept)
    assert len(by_message.json()["results"][0]["ids"]) == 2


def test_request_id_is_that_of_the_client_of_its_trace_or_a_new_one(http: httpx.Client) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    ids = {
        "order-17/a": {"x-request-id": "order-17/a"},
        "-{x}#1": {"x-request-id": "-{x}#1"},
        trace: {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"},
    }
    for expected, headers in ids.items():
        assert http.post(RETRIEVE, json=BODY, headers=headers).headers["x-request-id"] == expected
    malformed = [{"x-request-id": ""}, {"x-request-id": "a,b"}]
    malformed += [{"traceparent": text} for text in ("00-xyz-1-01", f"00-{'0' * 32}-0-01", trace)]
    new = [
        http.post(RETRIEVE, json=BODY, headers=headers).headers["x-request-id"]
        for headers in malformed
    ]
    assert all(re.fullmatch("[0-9a-f]{32}", request_id) for request_id in new)
    assert len({*new}) == len(new)


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/models", PAGE, f"{PAGE}/changes", "/livez", "/readyz", "/metrics", "/nowhere"),
        *("/docs", "/docs/assets/swagger-ui.css", "/docs/oauth2-redirect", "/openapi.json"),
    ],
)
def test_head_has_the_headers_of_get_alone(path: str, http: httpx.Client) -> None:
    head = http.head(path)
    get = http.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_requests_are_counted_by_call_and_code_and_probes_are_not_logged(
    http: httpx.Client, ways: Ways
) -> None:
    requests = [
        ("GET", "/v1/models", "models", "OK"),
        ("GET", f"{PAGE}/versions/7", "model", "NOT_FOUND"),
        ("POST", f"{PAGE}:embed", "embed", "INVALID_ARGUMENT"),
        ("GET", "/nowhere", "other", "NOT_FOUND"),
    ]

    def counts() -> list[float]:
        name = "rowcast_requests_total"
        return [
            ways.service.value(name, transport="http", call=call, code=code)
            for _, _, call, code in requests
        ]

    before = counts()
    with log_lines() as lines:
        for method, path, _, _ in requests:
            http.request(method, path, content=b'{"towers": 1}')
        assert http.get("/livez").json() == {"live": True}
        assert http.get("/readyz").json() == {"ready": True}
    assert counts() == [count + 1 for count in before]
    events = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["request_failed"] * 3
    assert [event["model"] for event in events] == ["movies", "movies", ""]
    assert http.get("/metrics").headers["content-type"].startswith("text/plain; version=")
