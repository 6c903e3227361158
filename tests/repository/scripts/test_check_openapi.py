"""Which changes of the API break clients: `scripts/check_openapi` for the OpenAPI document, and
`buf breaking`, as it is configured, for the protobuf contract.
"""

from __future__ import annotations

import copy
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "check_openapi"
BUF = Path(sys.executable).with_name("buf")

Document = dict[str, Any]

TEXT: Document = {"type": "string"}
DOCUMENT: Document = {
    "paths": {
        "/items/{name}": {
            "post": {
                "operationId": "send",
                "parameters": [
                    {"name": "name", "in": "path", "required": True, "schema": TEXT},
                    {"name": "wait", "in": "query", "schema": {"type": "integer", "minimum": 0}},
                ],
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Request"}},
                        "text/plain": {"schema": TEXT},
                    }
                },
                "responses": {
                    "200": {
                        "headers": {"server-timing": {"schema": TEXT}},
                        "content": {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Result"}}
                        },
                    },
                    "default": {},
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Request": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "id": {"$ref": "#/components/schemas/Id"},
                    "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Request"}},
                    "order": {"type": "string", "enum": ["up", "down"]},
                },
            },
            "Result": {
                "type": "object",
                "required": ["id", "state"],
                "properties": {
                    "id": {"$ref": "#/components/schemas/Id"},
                    "state": {"type": "string", "enum": ["new", "old"]},
                    "score": {"type": "number"},
                    "names": {"type": "object", "additionalProperties": TEXT},
                },
            },
            "Spare": {"type": "object"},
            "Id": {"anyOf": [{"type": "integer", "format": "int64"}, {"type": "string"}]},
        }
    },
}
"""A document in which each change of the table has its place."""


def operation(document: Document) -> Document:
    value: Document = document["paths"]["/items/{name}"]["post"]
    return value


def schema(document: Document, name: str) -> Document:
    value: Document = document["components"]["schemas"][name]
    return value


def fields(document: Document, name: str) -> Document:
    value: Document = schema(document, name)["properties"]
    return value


BREAKING: dict[str, Callable[[Document], object]] = {
    "POST /items/{name} (send) was removed": lambda new: new["paths"].clear(),
    "POST /items/{name} (send).query.wait was removed": (
        lambda new: operation(new)["parameters"].pop()
    ),
    "POST /items/{name} (send).query.wait is required": (
        lambda new: operation(new)["parameters"][1].update(required=True)
    ),
    "POST /items/{name} (send).query.more is required": (
        lambda new: operation(new)["parameters"].append(
            {"name": "more", "in": "query", "required": True, "schema": TEXT}
        )
    ),
    "POST /items/{name} (send).query.wait: a value beyond the minimum 1 is not accepted": (
        lambda new: operation(new)["parameters"][1]["schema"].update(minimum=1)
    ),
    "POST /items/{name} (send).body is required": (
        lambda new: operation(new)["requestBody"].update(required=True)
    ),
    "POST /items/{name} (send).body.text/plain was removed": (
        lambda new: operation(new)["requestBody"]["content"].pop("text/plain")
    ),
    "POST /items/{name} (send).200.server-timing was removed": (
        lambda new: operation(new)["responses"]["200"].pop("headers")
    ),
    "POST /items/{name} (send).default was removed": (
        lambda new: operation(new)["responses"].pop("default")
    ),
    "Request.order was removed": lambda new: fields(new, "Request").pop("order"),
    "Request.id is required": lambda new: schema(new, "Request").update(required=["id"]),
    "Request.order: down is not accepted": (
        lambda new: fields(new, "Request")["order"].update(enum=["up"])
    ),
    "Request.order: string is not accepted": (
        lambda new: fields(new, "Request").update(order={"type": "boolean"})
    ),
    "Result.score was removed": lambda new: fields(new, "Result").pop("score"),
    "Result.state may be absent": lambda new: schema(new, "Result").update(required=["id"]),
    "Result.state: gone may be returned": (
        lambda new: fields(new, "Result")["state"]["enum"].append("gone")
    ),
    "Result.score: string may be returned": (
        lambda new: fields(new, "Result").update(score={"anyOf": [{"type": "number"}, TEXT]})
    ),
    "Result.names.*: any value may be returned": (
        lambda new: fields(new, "Result")["names"].update(additionalProperties={})
    ),
    "Id: string is not accepted": lambda new: schema(new, "Id")["anyOf"].pop(),
    "Id: null may be returned": lambda new: schema(new, "Id")["anyOf"].append({"type": "null"}),
    "Id: the format changed": lambda new: schema(new, "Id")["anyOf"][0].pop("format"),
    "schema Spare was removed": lambda new: new["components"]["schemas"].pop("Spare"),
}

HARMLESS: dict[str, Callable[[Document], object]] = {
    "another path": lambda new: new["paths"].update({"/more": new["paths"]["/items/{name}"]}),
    "an optional parameter": lambda new: operation(new)["parameters"].append(
        {"name": "more", "in": "query", "schema": TEXT}
    ),
    "an optional field of a request": lambda new: fields(new, "Request").update(more=TEXT),
    "a field of a response": lambda new: fields(new, "Result").update(more=TEXT),
    "a required field of a response": lambda new: schema(new, "Result")["required"].append("score"),
    "another word that is accepted": (
        lambda new: fields(new, "Request")["order"]["enum"].append("any")
    ),
    "a word that is not returned any more": lambda new: fields(new, "Result")["state"][
        "enum"
    ].pop(),
    "a wider bound": lambda new: operation(new)["parameters"][1]["schema"].pop("minimum"),
    "whole numbers in a response": lambda new: fields(new, "Result").update(
        score={"type": "integer"}
    ),
    "descriptions": lambda new: schema(new, "Id").update(description="An id."),
}


@pytest.fixture(scope="module")
def script() -> Any:
    loader = SourceFileLoader("check_openapi", str(SCRIPT))
    specification = importlib.util.spec_from_loader(loader.name, loader)
    assert specification is not None
    module = importlib.util.module_from_spec(specification)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("problem", BREAKING)
def test_change_that_breaks_clients_is_named(problem: str, script: Any) -> None:
    changed = copy.deepcopy(DOCUMENT)
    BREAKING[problem](changed)
    assert problem in script.breaking_changes(DOCUMENT, changed)


@pytest.mark.parametrize("change", HARMLESS)
def test_change_that_breaks_no_client_passes(change: str, script: Any) -> None:
    changed = copy.deepcopy(DOCUMENT)
    HARMLESS[change](changed)
    assert script.breaking_changes(DOCUMENT, changed) == []


@pytest.mark.parametrize(
    ("line", "changed_line", "problem"),
    [
        ("  repeated string values = 1;", "  repeated string values = 2;", "values"),
        ("  rpc Lookup(LookupRequest)", "  rpc Find(LookupRequest)", "Lookup"),
        ("  INDEX_KIND_TREE_AH = 2;", "", "IndexKind"),
        ("  int64 bytes = 5;", "  int64 size_bytes = 5;", "bytes"),
        ("  int64 bytes = 5;", "  int64 bytes = 5;\n  int64 more = 99;", ""),
    ],
)
def test_change_of_the_contract_is_compared_with_its_image(
    line: str, changed_line: str, problem: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    contract = tmp_path / "proto" / "rowcast" / "embedding" / "v1" / "embedding_service.proto"
    text = contract.read_text()
    assert line in text
    contract.write_text(text.replace(line, changed_line, 1))

    image = ROOT / "scripts" / "api_images" / "embedding_service.binpb"
    command: list[str | Path] = [BUF, "breaking", "--against", image]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode == 0) == (problem == "")
    assert problem in result.stdout
