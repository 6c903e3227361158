"""The page, its assets, and the OpenAPI document: valid, complete, and in agreement with what reads
the bodies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from bundle.changes.records import Action, Kind
from service.change_schemas import CHANGE_SCHEMAS, ChangeResponse
from service.changes.requests import ChangeResult
from service.codec.changes import ACTIONS, change_value, read_change
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.calls import Target
from service.errors import Code, InvalidArgument, TooLarge
from service.http.error_schemas import ErrorResponse
from service.http.model_schemas import (
    LiveResponse,
    ModelDetails,
    ModelsResponse,
    ReadyResponse,
)
from service.http.schemas import SCHEMAS
from tests.bundles.small import write_small_bundle
from tests.units.service.http.test_routes import BODIES
from tests.units.service.running import RunningService

SETTINGS = ServiceSettings(root=Path.cwd())
Value = dict[str, Any]


@pytest.fixture
def document(http: httpx.Client) -> Value:
    response: Value = http.get("/openapi.json").json()
    return response


def test_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(links) >= 3
    for link in links:
        assert "//" not in link
        assert len(http.get(link).raise_for_status().content) > 1000


def test_document_is_valid_openapi_and_describes_every_path(document: Value) -> None:
    validate(document)
    model_paths = {
        f"/v1/models/{{model}}{end}" for end in ("", "/versions/{version}", "/labels/{label}")
    }
    streams = "/v1/models/{model}/changes"
    gets = {path for path, item in document["paths"].items() if "get" in item}
    copies = {f"{streams}/records", f"{streams}/segments/{{segment}}"}
    pages = {"/v1/models", "/livez", "/readyz", "/metrics", streams}
    assert gets == pages | copies | model_paths
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    calls = {f"{path}:{name}" for path in model_paths for name in OPERATIONS}
    changes = {
        f"/v1/models/{{model}}/{kind}/{action}"
        for kind, actions in ACTIONS.items()
        for action in actions
    }
    assert set(posts) == calls | changes
    for operation in posts.values():
        assert set(operation["requestBody"]["content"]) == {"application/json"}
        assert all(code.value in operation["responses"]["default"]["description"] for code in Code)
    first_paths = [path for path, operation in posts.items() if operation["tags"] == ["calls"]]
    assert first_paths == [f"/v1/models/{{model}}:{name}" for name in OPERATIONS]


def test_document_lets_responses_grow_and_types_the_rest(document: Value) -> None:
    schemas = document["components"]["schemas"]
    closed = {name for name, schema in schemas.items() if "additionalProperties" in schema}
    assert closed
    assert not [name for name in closed if "Response" in name or "Result" in name]
    metrics = document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert [*metrics] == ["text/plain"]
    models = document["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]
    assert models["application/json"]["schema"] != {}
    timeout = next(
        parameter["schema"]
        for parameter in document["paths"]["/v1/models/{model}:rank"]["post"]["parameters"]
        if parameter["name"] == "x-request-timeout-ms"
    )
    assert timeout["minimum"] == 0


def test_document_is_one_from_which_clients_can_be_generated(document: Value) -> None:
    """Methods have names, types have names, and nothing is sent that was left out."""
    items = document["paths"].values()
    operations = [operation for item in items for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len({*names}) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []

    named = document["components"]["schemas"]
    fields = [
        (f"{name}.{field}", schema)
        for name, owner in named.items()
        for field, schema in owner.get("properties", {}).items()
    ]
    bodies = [
        (operation["operationId"], content["schema"])
        for operation in operations
        for owner in (operation.get("requestBody", {}), *operation["responses"].values())
        for content in owner.get("content", {}).values()
    ]
    assert [name for name, schema in fields + bodies if _has_inline_type(schema)] == []
    assert [name for name, schema in fields if "default" in schema] == []


def _has_inline_type(schema: Any) -> bool:
    """Whether a schema has an object or an enumeration that a generated client must name itself."""
    if isinstance(schema, list):
        return any(map(_has_inline_type, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "object" or "enum" in schema:
        return True
    return _has_inline_type([*schema.values()])


def test_document_has_a_body_of_each_call_that_the_loaded_model_takes(
    document: Value, http: httpx.Client
) -> None:
    # Changes have none: a click would change what is served.
    posts = {path: item["post"] for path, item in document["paths"].items() if ":" in path}
    for path, operation in posts.items():
        examples = operation["requestBody"]["content"]["application/json"]["examples"]
        assert [*examples] == ["movies"]
        parameters = operation["parameters"]
        prefilled = {parameter["name"]: parameter.get("example") for parameter in parameters}
        assert prefilled["model"] == "movies"
        assert prefilled.get("version", 1) == 1
        if "{label}" not in path:  # the model has none
            url = path.format(model="movies", version=1)
            response = http.post(url, json=examples["movies"]["value"])
            assert response.status_code == 200, (path, response.text)


def test_ids_of_the_examples_are_known(document: Value, http: httpx.Client) -> None:
    content = document["paths"]["/v1/models/{model}:lookup"]["post"]["requestBody"]["content"]
    body = content["application/json"]["examples"]["movies"]["value"]
    assert http.post("/v1/models/movies:lookup", json=body).json()["found"] == [True]


@pytest.mark.parametrize(
    "options", [{"id_kind": "string", "users": True}, {"without": {"ranking"}}]
)
def test_bodies_of_another_model_are_served(
    options: dict[str, Any],
    serve: Callable[..., RunningService],
    root: Path,
    small_towers: Path,
) -> None:
    write_small_bundle(root, small_towers, **options)
    service = serve()
    with httpx.Client(base_url=service.http, timeout=20) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for name in OPERATIONS:
            operation = paths[f"/v1/models/{{model}}:{name}"]["post"]
            examples = operation["requestBody"]["content"]["application/json"].get("examples")
            if name in ("rank", "recommend") and "without" in options:
                assert examples is None
                continue
            url = f"/v1/models/movies:{name}"
            response = client.post(url, json=examples["movies"]["value"])
            assert response.status_code == 200, (name, response.text)


def test_models_match_their_schema(http: httpx.Client) -> None:
    listed = http.get("/v1/models").content
    ModelsResponse.model_validate_json(listed, strict=True, extra="forbid")
    details = http.get("/v1/models/movies").content
    ModelDetails.model_validate_json(details, strict=True, extra="forbid")
    for path, schema in (("/livez", LiveResponse), ("/readyz", ReadyResponse)):
        schema.model_validate_json(http.get(path).content, strict=True, extra="forbid")


@pytest.mark.parametrize("name", OPERATIONS)
def test_responses_match_their_schema(name: str, http: httpx.Client) -> None:
    body = BODIES[name]
    (request, response) = SCHEMAS[name]
    request.model_validate(body)
    request.model_validate(request.model_json_schema()["examples"][0])
    response.model_validate_json(
        http.post(f"/v1/models/movies:{name}", json=body).content, strict=True, extra="forbid"
    )
    failed = http.post(f"/v1/models/movies:{name}", json={"zzz": 1})
    ErrorResponse.model_validate_json(failed.content, strict=True, extra="forbid")
    if name != "lookup":
        options = {key: value for key, value in body.items() if key in {"k", "tower"}}
        listed = {
            **options,
            "requests": [{key: value for key, value in body.items() if key not in options}] * 2,
        }
        request.model_validate(listed)
        parsed = response.model_validate_json(
            http.post(f"/v1/models/movies:{name}", json=listed).content,
            strict=True,
            extra="forbid",
        )
        assert len(parsed.results) == 2  # type: ignore[attr-defined]


def _unknown(name: str, body: Value) -> str:
    """The message of a reader that rejects a field for its name; empty: it does not."""
    try:
        OPERATIONS[name].read_json(body, Target("m"), SETTINGS)
    except InvalidArgument as problem:
        return str(problem) if "unknown" in str(problem) else ""
    except TooLarge:
        return ""
    return ""


@pytest.mark.parametrize("name", OPERATIONS)
def test_reader_and_schema_have_the_same_fields(name: str) -> None:
    request = SCHEMAS[name][0]
    parts = request.model_fields.get("requests")
    schemas = {field for model, _ in SCHEMAS.values() for field in model.model_fields}
    messages = {
        field.name
        for operation in OPERATIONS.values()
        for field in operation.request_class.DESCRIPTOR.fields
    }
    for field in schemas | messages | {"zzzzzz"}:
        assert bool(_unknown(name, {field: None})) == (field not in request.model_fields), field
        if parts is not None:
            part: Any = type(request.model_validate({"requests": [{}]}).requests[0])  # type: ignore[attr-defined]
            listed = {"requests": [{field: None}]}
            assert bool(_unknown(name, listed)) == (field not in part.model_fields), field


@pytest.mark.parametrize(("kind", "action"), CHANGE_SCHEMAS)
def test_reader_of_changes_and_schema_have_the_same_fields(kind: Kind, action: Action) -> None:
    request = CHANGE_SCHEMAS[kind, action]
    body = request.model_json_schema()["examples"][0]
    read_change(kind, action, request.model_validate(body).model_dump(exclude_unset=True))
    item = request.model_fields["items"].annotation.__args__[0]  # type: ignore[union-attr]

    bodies = {field for schema in CHANGE_SCHEMAS.values() for field in schema.model_fields}
    for field in bodies | {"zzzzzz"}:
        is_unknown = _is_unknown_to(kind, action, {field: None})
        assert is_unknown == (field not in request.model_fields), field
    items = {"id", "sequence", "vector", "features", "attributes", "vectors", "expires_s"}
    for field in items | {"zzzzzz"}:
        is_unknown = _is_unknown_to(kind, action, {"items": [{field: None}]})
        assert is_unknown == (field not in item.model_fields), field


def _is_unknown_to(kind: Kind, action: Action, body: Value) -> bool:
    with pytest.raises(InvalidArgument) as raised:
        read_change(kind, action, body)
    return "unknown" in str(raised.value)


@pytest.mark.parametrize(
    "result",
    [
        ChangeResult("movies", 1, sequence=6, changed=1),
        ChangeResult("movies", 1, 0, 0, (1, "x"), (2**60,), 2, 1, True, stream_offset=7),
    ],
)
def test_response_to_a_change_matches_its_schema(result: ChangeResult) -> None:
    ChangeResponse.model_validate(change_value(result), strict=True, extra="forbid")
