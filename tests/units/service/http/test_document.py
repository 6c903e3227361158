"""The page, its assets, and the OpenAPI document: valid, complete, and in agreement with what the
service reads and writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from service.contract.changes import CHANGES
from service.errors import Code
from tests.bundles.small import write_small_bundle
from tests.e2e.process import WAIT_S
from tests.units.service.cases import REQUESTS
from tests.units.service.running import RunningService

Value = dict[str, Any]
MODEL = "/v1/models/movies"
MODELS = [f"/v1/models/{{model}}{end}" for end in ("", "/versions/{version}", "/labels/{label}")]
STREAM = "/v1/models/{model}/changes"


@pytest.fixture
def document(http: httpx.Client) -> Value:
    response: Value = http.get("/openapi.json").json()
    return response


def test_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", http.get("/docs").text)
    assert len(links) >= 3
    for link in links:
        assert "//" not in link
        assert len(http.get(link).raise_for_status().content) > 1000


def test_document_is_valid_openapi_and_describes_every_path(document: Value) -> None:
    validate(document)
    paths = document["paths"]
    pages = {"/v1/models", "/livez", "/readyz", "/metrics", STREAM}
    copies = {f"{STREAM}/states"}
    assert {path for path in paths if "get" in paths[path]} == pages | copies | {*MODELS}
    posts = {path: item["post"] for path, item in paths.items() if "post" in item}
    assert set(posts) == {f"{path}:{name}" for path in MODELS for name in REQUESTS} | {
        f"/v1/models/{{model}}/{kind}/{action}" for kind, action in CHANGES
    }
    for operation in posts.values():
        assert set(operation["requestBody"]["content"]) == {"application/json"}
        assert all(code.value in operation["responses"]["default"]["description"] for code in Code)


def test_document_has_the_version_of_the_api_that_its_paths_have(document: Value) -> None:
    assert document["info"]["version"] == "v1"
    calls = [path for path in document["paths"] if path.count("/") > 1]
    assert calls
    assert all(path.startswith("/v1/") for path in calls)


@pytest.mark.parametrize(
    "options", [{}, {"id_kind": "string", "users": True}, {"without": {"ranking"}}]
)
def test_document_has_a_body_of_each_call_that_the_loaded_model_takes(
    options: Value, serve: Callable[..., RunningService], root: Path, small_towers: Path
) -> None:
    write_small_bundle(root, small_towers, **options)
    with httpx.Client(base_url=serve().http, timeout=WAIT_S, verify=False) as client:
        document = client.get("/openapi.json").json()
        paths = document["paths"]
        # Changes have none: a click would change what is served.
        for path in [path for path in paths if ":" in path]:
            operation = paths[path]["post"]
            examples = operation["requestBody"]["content"]["application/json"].get("examples")
            if "without" in options and path.endswith(("rank", "recommend")):
                assert examples is None
                continue
            prefilled = {each["name"]: each.get("example") for each in operation["parameters"]}
            assert (prefilled["model"], [*examples]) == ("movies", ["movies"])
            if "{label}" not in path:  # the model has none
                url = path.format(model="movies", version=prefilled.get("version"))
                response = client.post(url, json=examples["movies"]["value"])
                assert response.status_code == 200, (path, response.text)
                assert response.json().get("found", [True]) == [True]
                content = operation["responses"]["200"]["content"]["application/json"]
                OAS31Validator(document | content["schema"]).validate(response.json())


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/v1/models", "ModelsResponse"),
        (MODEL, "ModelDetails"),
        ("/livez", "LiveResponse"),
        ("/readyz", "ReadyResponse"),
        ("/v1/models/x", "ErrorResponse"),
    ],
)
def test_page_matches_its_schema(
    path: str, schema: str, http: httpx.Client, document: Value
) -> None:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    OAS31Validator(document | reference).validate(http.get(path).json())
