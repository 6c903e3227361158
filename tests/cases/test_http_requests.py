"""What surrounds a request over HTTP (its path, method, headers, encoding and size) and what each
gets: a status, the code of the error, and words that name what is wrong.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.codec.stubs import embedding_service_pb2 as pb
from service.errors import TRANSPORT_STATUS, Code
from tests.bundles.small import write_small_bundle
from tests.cases.bad_values import BODIES
from tests.units.service.cases import LIMITS
from tests.units.service.http.clients import BODY, PROTOBUF, RETRIEVE, error_of
from tests.units.service.running import RunningService, log_lines

MODEL = "/v1/models/movies"
BAD = Code.INVALID_ARGUMENT
LARGE = Code.TOO_LARGE
GONE = Code.NOT_FOUND
DENIED = Code.PERMISSION_DENIED
FOREIGN = {"host": "example.com"}
BROWSER = {
    "accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8",
    "accept-language": "de;q=0.5",
    "cookie": "session=1",
    "dnt": "1",
    "referer": "http://127.0.0.1/docs",
    "sec-fetch-mode": "cors",
}
PROXY = [
    ("x-forwarded-for", "10.0.0.1, unknown"),
    ("via", "1.1 proxy"),
    ("forwarded", "for=unknown"),
    ("traceparent", "00-xyz-1-01"),
    ("x-rowcast-timeout", "soon"),
    ("x-request-id", "its own"),
    ("x-request-id", "that of the proxy"),
]
TEXT = json.dumps(BODY).encode()
GZIP = {"content-encoding": "gzip"}
MESSAGE = pb.RetrieveRequest(k=2, context={"user": pb.Column(int64s=(7).to_bytes(8, "little"))})
MESSAGE_BYTES = MESSAGE.SerializeToString()
OK: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a version": ("POST", f"{MODEL}/versions/1:retrieve", {"json": BODY}),
    "an encoded name": ("POST", "/v1/models/%6Dovies:retrieve", {"json": BODY}),
    "no content type": ("POST", RETRIEVE, {"content": TEXT}),
    "a charset": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": {"content-type": 'Application/JSON; charset="UTF-8"'}},
    ),
    "a typed page": (
        "POST",
        RETRIEVE,
        {"json": BODY, "headers": {"origin": "https://example.com"}},
    ),
    "gzip": ("POST", RETRIEVE, {"content": gzip.compress(TEXT), "headers": GZIP}),
    "gzip that shrinks": (
        "POST",
        RETRIEVE,
        {"content": gzip.compress(TEXT + b" " * 100_000), "headers": GZIP},
    ),
    "a timeout": ("POST", RETRIEVE, {"json": BODY, "headers": {"x-request-timeout-ms": "60000"}}),
    "headers of a browser": ("POST", RETRIEVE, {"json": BODY, "headers": BROWSER}),
    "headers of a proxy": ("POST", RETRIEVE, {"json": BODY, "headers": PROXY}),
    "a parameter against caches": ("GET", "/docs/assets/swagger-ui.css?v=2", {}),
    "parameters of a scrape": ("GET", "/metrics?name[]=rowcast_ready", {}),
    "a probe of another host": ("GET", "/readyz", {"headers": FOREIGN}),
}
REFUSED: dict[str, tuple[str, str, dict[str, Any], Code | int, str]] = {
    "no JSON": ("POST", RETRIEVE, {"content": b"{"}, BAD, "JSON"),
    "no UTF-8": ("POST", RETRIEVE, {"content": b'{"k": "\xff"}'}, BAD, "JSON"),
    "a lone surrogate": (
        "POST",
        RETRIEVE,
        {"content": b'"\\ud800"'},
        BAD,
        "JSON",
    ),
    "NaN": (
        "POST",
        RETRIEVE,
        {"content": b'{"k": [0,\n -Infinity]}'},
        BAD,
        "line 2",
    ),
    "many separators": ("POST", RETRIEVE, {"content": b"[],[" * 400}, LARGE, "max_values"),
    "many fields of a message": (
        "POST",
        RETRIEVE,
        {"content": b"\x18\x01" * 50_000, "headers": PROTOBUF},
        LARGE,
        "max_features",
    ),
    "many strings of a message": (
        "POST",
        f"{MODEL}:lookup",
        {
            "content": pb.LookupRequest(
                ids=pb.Column(strings=pb.Strings(values=[""] * 60_000))
            ).SerializeToString(),
            "headers": PROTOBUF,
        },
        LARGE,
        "max_values",
    ),
    "another model in the body": (
        "POST",
        RETRIEVE,
        {
            "content": pb.RetrieveRequest(model=pb.ModelSpec(name="books")).SerializeToString(),
            "headers": PROTOBUF,
        },
        BAD,
        "send the model once",
    ),
    "too large": ("POST", RETRIEVE, {"content": bytes(131_073)}, LARGE, "131072"),
    "another type": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": {"content-type": "text/plain"}},
        BAD,
        "application/x-protobuf",
    ),
    "an untyped page": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": {"origin": "https://example.com"}},
        BAD,
        "application/x-protobuf",
    ),
    "another charset": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": {"content-type": "application/json; Charset=utf-16"}},
        BAD,
        "utf-8",
    ),
    "another encoding": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": {"content-encoding": "br"}},
        BAD,
        "gzip or none",
    ),
    "no gzip": (
        "POST",
        RETRIEVE,
        {"content": TEXT, "headers": GZIP},
        BAD,
        "leave content-encoding out",
    ),
    "gzip of too much": (
        "POST",
        RETRIEVE,
        {"content": gzip.compress(bytes(10**6)), "headers": GZIP},
        LARGE,
        "131072",
    ),
    "gzip that ends early": (
        "POST",
        RETRIEVE,
        {"content": gzip.compress(b"{}")[:-3], "headers": GZIP},
        BAD,
        "truncated",
    ),
    "two gzips": (
        "POST",
        RETRIEVE,
        {"content": gzip.compress(b"{}") * 2, "headers": GZIP},
        BAD,
        "one gzip",
    ),
    **{
        f"a timeout of {text!r:.9}": (
            "POST",
            RETRIEVE,
            {"json": BODY, "headers": {"x-request-timeout-ms": text}},
            BAD,
            "x-request-timeout-ms",
        )
        for text in ("soon", "", "-1", "1.5", "1e3", "3600001", "9" * 5000)
    },
    "two timeouts": (
        "POST",
        RETRIEVE,
        {"json": BODY, "headers": [("x-request-timeout-ms", "9")] * 2},
        BAD,
        "9, 9",
    ),
    **{
        f"an id of {text!r:.9}": (
            "POST",
            RETRIEVE,
            {"json": BODY, "headers": {"x-request-id": text}},
            BAD,
            f"x-request-id is {text[:20]!r}; 1 to 128 characters",
        )
        for text in ("a b;c", "x" * 129, 'a"b', "a\\b")
    },
    "an id for a page": ("GET", "/v1/models", {"headers": {"x-request-id": "a b"}}, BAD, "'a b'"),
    "a version of words": (
        "POST",
        f"{MODEL}/versions/one:retrieve",
        {"json": BODY},
        BAD,
        "version",
    ),
    "an unknown version": (
        "POST",
        f"{MODEL}/versions/2:retrieve",
        {"json": BODY},
        GONE,
        "2",
    ),
    "an unknown label": (
        "POST",
        f"{MODEL}/labels/x:retrieve",
        {"json": BODY},
        GONE,
        "'x'",
    ),
    "an unknown model": ("POST", "/v1/models/x:retrieve", {"json": BODY}, GONE, "'x'"),
    "an unknown call": ("POST", f"{MODEL}:retreive", {"json": BODY}, GONE, "retrieve"),
    "a call as a path": ("POST", f"{MODEL}/retrieve", {"json": BODY}, GONE, f"{MODEL}:retrieve"),
    "an unknown path": ("POST", "/v1/nothing", {"json": BODY}, GONE, "/docs"),
    "a page of no model": ("GET", "/v1/models/x", {}, GONE, "'x'"),
    "no asset": ("GET", "/docs/assets/nothing.js", {}, GONE, "/docs"),
    "an asset elsewhere": ("GET", "/docs/assets/%2e%2e/core.py", {}, GONE, "/docs"),
    "another method": ("GET", RETRIEVE, {}, 405, "POST"),
    "another method of a model": ("POST", MODEL, {}, 405, "GET"),
    "a parameter of a call": (
        "POST",
        f"{RETRIEVE}?k=1",
        {"json": BODY},
        BAD,
        "'k' of the query string is unknown; no parameter was expected; options are fields",
    ),
    "a parameter of a page": ("GET", "/v1/models?k", {}, BAD, "'k'"),
    "a parameter of the document": ("GET", "/openapi.json?k", {}, BAD, "'k'"),
    "another host": (
        "POST",
        RETRIEVE,
        {"json": BODY, "headers": FOREIGN},
        DENIED,
        "host",
    ),
    "a page of another host": (
        "GET",
        "/v1/models",
        {"headers": {"host": "127.0.0.1.example.com"}},
        DENIED,
        "allowed_hosts",
    ),
}


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, small_towers: Path
) -> Iterator[RunningService]:
    root = tmp_path_factory.mktemp("root")
    write_small_bundle(root, small_towers)
    running = RunningService(root, **{**LIMITS, "max_request_bytes": 131_072})
    yield running
    running.close()


@pytest.fixture(scope="module")
def http(service: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.http, timeout=20) as client:
        yield client


@pytest.mark.parametrize(("method", "path", "options"), OK.values(), ids=OK)
def test_request_is_accepted(
    method: str, path: str, options: dict[str, Any], http: httpx.Client
) -> None:
    response = http.request(method, path, **options)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("method", "path", "options", "code", "words"), REFUSED.values(), ids=REFUSED
)
def test_request_is_refused_with_its_status_and_words(
    method: str,
    path: str,
    options: dict[str, Any],
    code: Code | int,
    words: str,
    http: httpx.Client,
    service: RunningService,
) -> None:
    response = http.request(method, path, **options)
    status = code if isinstance(code, int) else TRANSPORT_STATUS[code].http
    assert response.status_code == status, response.text
    if response.headers["content-type"] != "application/json":
        details = pb.ErrorDetails.FromString(response.content)
        assert words in details.message
        return
    error = error_of(response)
    assert words in error["message"]
    if isinstance(code, Code):
        assert error["code"] == code.value
    else:
        assert response.headers["allow"] == words
    assert service.dataplane.budget.held == 0


@pytest.mark.parametrize("call", BODIES)
def test_response_has_the_form_that_is_accepted_and_the_times_of_its_phases(
    call: str, http: httpx.Client
) -> None:
    response = http.post(f"{MODEL}:{call}", json=BODIES[call])
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert (response.json()["model"], response.json()["version"]) == ("movies", 1)
    timing = response.headers["server-timing"]
    assert re.fullmatch(r"decode;dur=[\d.]+, (\w+;dur=[\d.]+, )*encode;dur=[\d.]+", timing)


def test_accept_chooses_the_form_of_a_response_by_its_weights(http: httpx.Client) -> None:
    accept = {"accept": "application/json;q=0.8, application/x-protobuf;q=0.9, */*"}
    by_json = http.post(RETRIEVE, json=BODY, headers=accept)
    assert pb.RetrieveResponse.FromString(by_json.content).searched == 40
    accept = {"accept": "*/*, application/x-protobuf;q=0, application/json, application/protobuf"}
    by_message = http.post(RETRIEVE, content=MESSAGE_BYTES, headers=PROTOBUF | accept)
    assert len(by_message.json()["results"][0]["ids"]) == 2


def test_lookup_in_protobuf_has_the_json_of_one_in_json(http: httpx.Client) -> None:
    accept = {"accept": "application/json"}
    ids = pb.Column(int64s=struct.pack("<2q", 3, 5))
    message = pb.LookupRequest(feature="user", ids=ids).SerializeToString()
    by_message = http.post(f"{MODEL}:lookup", content=message, headers=PROTOBUF | accept)
    by_json = http.post(f"{MODEL}:lookup", json={"feature": "user", "ids": [3, 5]})
    assert by_json.status_code == 200
    assert by_message.json() == by_json.json()


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


def test_models_and_their_descriptions_have_both_forms(http: httpx.Client) -> None:
    accept = {"accept": "application/x-protobuf"}
    (model,) = http.get("/v1/models").json()["models"]
    state = model["versions"][0]
    assert (model["name"], state["version"], state["state"]) == ("movies", 1, "available")
    models = pb.ListModelsResponse.FromString(http.get("/v1/models", headers=accept).content)
    assert models.models[0].versions[0].state == pb.LOAD_STATE_AVAILABLE
    value = http.get(MODEL).json()
    assert (value["model"], value["version"], value["current"]) == ("movies", 1, True)
    details = pb.GetModelResponse.FromString(http.get(MODEL, headers=accept).content)
    names = [feature.name for feature in details.calls[0].features]
    assert names == [feature["name"] for feature in value["calls"][0]["features"]]


@pytest.mark.parametrize("path", ["/v1/models", MODEL, "/livez", "/readyz", "/metrics", "/nowhere"])
def test_head_has_the_headers_of_get_alone(path: str, http: httpx.Client) -> None:
    head = http.head(path)
    get = http.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


def test_requests_are_counted_by_call_and_code_and_probes_are_not_logged(
    http: httpx.Client, service: RunningService
) -> None:
    requests = [
        ("GET", "/v1/models", "models", "OK"),
        ("GET", f"{MODEL}/versions/x", "model", "INVALID_ARGUMENT"),
        ("POST", f"{MODEL}:embed", "embed", "INVALID_ARGUMENT"),
        ("GET", "/nowhere", "other", "NOT_FOUND"),
    ]

    def counts() -> list[float]:
        name = "rowcast_requests_total"
        return [
            service.value(name, transport="http", call=call, code=code)
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
