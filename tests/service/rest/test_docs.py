"""The docs page, its assets, and the document behind it."""

from __future__ import annotations

import re

import httpx

from service.errors import ANSWERS, Code, Unimplemented
from service.rest.examples import worked_examples
from service.wire.operations import OPERATIONS
from tests.service.doors import ScriptedEngine


def test_docs_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    links = re.findall(r"""(?:src|href)=["']([^"']+)["']""", page.text)
    assert len(links) >= 3
    for link in links:
        assert "//" not in link
        asset = http.get(f"/{link}")
        assert asset.status_code == 200
        assert len(asset.content) > 1000


def test_document_describes_every_path_and_call(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    for name in OPERATIONS:
        for of in ("", "/versions/{version}", "/labels/{label}"):
            path = f"/v1/models/{{model}}{of}:{name}"
            operation = described["paths"][path]["post"]
            assert set(operation["requestBody"]["content"]) == {"application/json", "application/x-protobuf"}
            statuses = {str(answer.http) for answer in ANSWERS.values()}
            assert statuses <= set(operation["responses"])
    gets = {path for path, item in described["paths"].items() if "get" in item}
    assert gets == {
        "/v1/models",
        "/v1/models/{model}",
        "/v1/models/{model}/versions/{version}",
        "/v1/models/{model}/labels/{label}",
        "/livez",
        "/readyz",
        "/metrics",
    }


def test_document_shows_each_call_once_apart_from_those_of_one_version(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    shown = [path for path, item in described["paths"].items() if item.get("post", {}).get("tags") == ["calls"]]
    assert shown == [f"/v1/models/{{model}}:{name}" for name in OPERATIONS]
    assert described["tags"][0]["name"] == "calls"
    assert "request for the model that is loaded" in described["tags"][0]["description"]


def test_document_shows_each_failure_with_its_own_code(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    shown: set[tuple[str, str]] = set()
    for item in described["paths"].values():
        for operation in (item[method] for method in ("get", "post") if method in item):
            for status, answer in operation["responses"].items():
                if status not in {"200", "default"}:
                    code = answer["content"]["application/json"]["example"]["error"]["code"]
                    shown.add((status, code))
    assert shown == {(str(ANSWERS[Code(code)].http), code) for _, code in shown}
    assert {Code(code) for _, code in shown} == set(Code) - {Code.INTERNAL}  # which has the status of DATA_LOSS


def test_document_describes_every_field_that_a_body_takes(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    for name in OPERATIONS:
        operation = described["paths"][f"/v1/models/{{model}}:{name}"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        refused = http.post(f"/v1/models/m:{name}", json={"zzzzzz": 1}).json()["error"]["message"]
        taken = re.search("known are (.*)", refused)
        assert taken is not None
        assert set(schema["properties"]) == set(taken[1].split(", "))


def test_document_shows_an_example_with_the_models_own_answer(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    operation = described["paths"]["/v1/models/{model}:embed"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    assert example == {"tower": "query", "features": {"user": 1}}
    answer = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert answer == {"model": "m", "version": 3, "vector": [1.0, 1.0]}
    assert http.post("/v1/models/m:embed", json=example).json() == answer
    assert f"curl -s '{http.base_url}/v1/models/m:embed'".replace("/'", "'") in operation["description"]


def test_document_without_a_model_still_shows_bodies(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.problem = Unimplemented("off")
    described = http.get("/openapi.json")
    assert described.status_code == 501  # the list of models itself failed


async def _no_model() -> set[str]:
    class Empty(ScriptedEngine):
        def models(self) -> tuple[()]:
            return ()

    return set(await worked_examples(Empty()))  # type: ignore[arg-type]


def test_examples_without_a_model_are_there_for_every_call() -> None:
    import asyncio

    assert asyncio.run(_no_model()) == set(OPERATIONS)
