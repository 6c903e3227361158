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

from service.codec.changes import ACTIONS
from service.codec.operations import OPERATIONS
from service.config import ServiceSettings
from service.engine.calls import Target
from service.errors import Code, InvalidArgument, TooLarge
from service.http.schemas import SCHEMAS, ErrorResponse, ModelDetails, ModelsResponse
from tests.bundles.small import write_small_bundle
from tests.service.http.test_routes import BODIES
from tests.service.running import RunningService

SETTINGS = ServiceSettings(root=Path.cwd())
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
        assert len(http.get(link).raise_for_status().content) > 1000


def test_document_is_valid_openapi_and_describes_every_path(document: Value) -> None:
    validate(document)
    model_paths = {
        f"/v1/models/{{model}}{of}" for of in ("", "/versions/{version}", "/labels/{label}")
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
    for path, operation in posts.items():
        content_types = {"application/json"}
        if path in calls:
            content_types.add("application/x-protobuf")
        assert set(operation["requestBody"]["content"]) == content_types
        assert all(code.value in operation["responses"]["default"]["description"] for code in Code)
    shown = [path for path, operation in posts.items() if operation["tags"] == ["calls"]]
    assert shown == [f"/v1/models/{{model}}:{name}" for name in OPERATIONS]


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


def test_document_has_a_body_of_each_call_that_the_loaded_model_takes(
    document: Value, http: httpx.Client
) -> None:
    # Changes have none: a click would change what is served.
    posts = {path: item["post"] for path, item in document["paths"].items() if ":" in path}
    for path, operation in posts.items():
        examples = operation["requestBody"]["content"]["application/json"]["examples"]
        assert [*examples] == ["movies"]
        prefilled = {one["name"]: one.get("example") for one in operation["parameters"]}
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
        answer = response.model_validate_json(
            http.post(f"/v1/models/movies:{name}", json=listed).content,
            strict=True,
            extra="forbid",
        )
        assert len(answer.results) == 2  # type: ignore[attr-defined]


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
    known = {field for model, _ in SCHEMAS.values() for field in model.model_fields}
    messages = {
        field.name for each in OPERATIONS.values() for field in each.request_class.DESCRIPTOR.fields
    }
    for field in known | messages | {"zzzzzz"}:
        assert bool(_unknown(name, {field: None})) == (field not in request.model_fields), field
        if parts is not None:
            part: Any = type(request.model_validate({"requests": [{}]}).requests[0])  # type: ignore[attr-defined]
            listed = {"requests": [{field: None}]}
            assert bool(_unknown(name, listed)) == (field not in part.model_fields), field
