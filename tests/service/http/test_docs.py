"""The page, its assets, and the OpenAPI document: valid, complete, and in agreement with what reads the bodies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from pydantic import ValidationError

from service.codec import json
from service.codec.limits import Limits
from service.codec.operations import OPERATIONS
from service.engine.requests import Target
from service.errors import Code, InvalidArgument, TooLarge
from service.http.schemas import SCHEMAS, ErrorResponse
from tests.service.http.test_calls import BODIES
from tests.service.running import RunningService

LIMITS = Limits(max_values=100, max_features=10, max_queries=4, max_names=4)
Value = dict[str, Any]


@pytest.fixture
def document(http: httpx.Client) -> Value:
    answer: Value = http.get("/openapi.json").json()
    return answer


def test_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(links) >= 3
    for link in links:
        assert "//" not in link
        assert len(http.get(f"/{link}").raise_for_status().content) > 1000


def test_document_is_valid_openapi_and_describes_every_path(document: Value) -> None:
    validate(document)
    model_paths = {f"/v1/models/{{model}}{of}" for of in ("", "/versions/{version}", "/labels/{label}")}
    gets = {path for path, item in document["paths"].items() if "get" in item}
    assert gets == {"/v1/models", "/livez", "/readyz", "/metrics"} | model_paths
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    assert set(posts) == {f"{path}:{name}" for path in model_paths for name in OPERATIONS}
    for operation in posts.values():
        assert set(operation["requestBody"]["content"]) == {"application/json", "application/x-protobuf"}
        assert all(code.value in operation["responses"]["default"]["description"] for code in Code)
    shown = [path for path, operation in posts.items() if operation["tags"] == ["calls"]]
    assert shown == [f"/v1/models/{{model}}:{name}" for name in OPERATIONS]


def test_document_has_examples_for_the_loaded_model_and_computes_nothing(
    service: RunningService, http: httpx.Client
) -> None:
    def computed() -> float:
        return sum(service.value("rowcast_examples_total", call=name) for name in OPERATIONS)

    before = computed()
    paths = http.get("/openapi.json").json()["paths"]
    assert computed() == before
    for name in OPERATIONS:
        body = paths[f"/v1/models/{{model}}:{name}"]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = http.post(f"/v1/models/movies:{name}", json=body)
        unknown = name == "rank" and "candidate 1 is not in corpus" in answer.text  # no ids are looked up for it
        assert answer.status_code == 200 or unknown, answer.text


def test_document_without_a_model_has_no_examples(serve: Callable[..., RunningService]) -> None:
    document = httpx.get(serve().http + "/openapi.json").json()
    validate(document)
    operation = document["paths"]["/v1/models/{model}:embed"]["post"]
    assert "example" not in operation["requestBody"]["content"]["application/json"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_answers_are_as_their_schema_says(name: str, http: httpx.Client) -> None:
    body, (request, response) = BODIES[name], SCHEMAS[name]
    request.model_validate(body)
    response.model_validate_json(http.post(f"/v1/models/movies:{name}", json=body).content, strict=True)
    failed = http.post(f"/v1/models/movies:{name}", json={"zzz": 1})
    ErrorResponse.model_validate_json(failed.content, strict=True)
    if name != "lookup":
        options = {key: value for key, value in body.items() if key in {"k", "tower"}}
        listed = {**options, "requests": [{key: value for key, value in body.items() if key not in options}] * 2}
        request.model_validate(listed)
        answer = response.model_validate_json(http.post(f"/v1/models/movies:{name}", json=listed).content, strict=True)
        assert len(answer.results) == 2  # type: ignore[attr-defined]


def _unknown(name: str, body: Value) -> str:
    """The message of a reader that rejects a field for its name; empty: it does not."""
    try:
        OPERATIONS[name].read_json(body, Target("m"), LIMITS)
    except InvalidArgument as problem:
        return str(problem) if "unknown" in str(problem) else ""
    except TooLarge:
        return ""
    return ""


@pytest.mark.parametrize("name", OPERATIONS)
def test_reader_and_schema_know_the_same_fields(name: str) -> None:
    request = SCHEMAS[name][0]
    parts = request.model_fields.get("requests")
    known = {field for model, _ in SCHEMAS.values() for field in model.model_fields}
    messages = {field.name for each in OPERATIONS.values() for field in each.request_class.DESCRIPTOR.fields}
    for field in known | messages | {"zzzzzz"}:
        assert bool(_unknown(name, {field: None})) == (field not in request.model_fields), field
        if parts is not None:
            part: Any = type(request.model_validate({"requests": [{}]}).requests[0])  # type: ignore[attr-defined]
            listed = {"requests": [{field: None}]}
            assert bool(_unknown(name, listed)) == (field not in part.model_fields), field


def bodies(schema: Value, definitions: Value) -> st.SearchStrategy[Any]:
    """Values that a JSON schema, as pydantic writes them, allows."""
    if "$ref" in schema:
        return bodies(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return st.one_of([bodies(each, definitions) for each in schema["anyOf"]])
    if "properties" in schema:
        fields = {name: bodies(each, definitions) for name, each in schema["properties"].items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(needed, optional=fields)
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "integer": st.integers,
        "number": lambda: st.floats(allow_nan=False, allow_infinity=False),
        "string": lambda: st.text(max_size=5),
        "boolean": st.booleans,
        "array": lambda: st.lists(bodies(schema.get("items", {}), definitions), max_size=5),
        "object": lambda: st.dictionaries(
            st.text(max_size=3),
            bodies(extra, definitions) if isinstance(extra := schema.get("additionalProperties"), dict) else anything,
            max_size=3,
        ),
    }
    return kinds[schema["type"]]() if "type" in schema else anything


def objects(body: Value) -> Iterator[Value]:
    yield body
    yield from body.get("requests", ())


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_body_of_the_schema_is_decoded_or_rejected_and_one_with_more_fields_is_rejected_by_both(
    name: str, data: st.DataObject
) -> None:
    request = SCHEMAS[name][0]
    schema = request.model_json_schema()
    body = data.draw(bodies(schema, schema.get("$defs", {})))
    request.model_validate(body)

    def decode() -> None:
        OPERATIONS[name].read_json(json.parse(json.dump(body), LIMITS), Target("m"), LIMITS)

    try:
        decode()
    except (InvalidArgument, TooLarge):
        pass
    except TypeError as problem:  # of the writer: JSON has no integers that large, nor lone surrogates
        assert "Integer exceeds" in str(problem) or "utf-8" in str(problem).lower()  # noqa: PT017
        return
    data.draw(st.sampled_from(list(objects(body))))["extra"] = 1
    with pytest.raises(ValidationError, match="extra"):
        request.model_validate(body)
    with pytest.raises((InvalidArgument, TooLarge)):
        decode()
