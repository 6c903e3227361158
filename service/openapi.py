"""Parts of the service's OpenAPI documents: fields that many schemas have, and schemas beside those
of FastAPI.

Fields with a name of their own (`TypeAliasType`) are named schemas in a document, so that generated
clients have one type for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

ABSENT: Any = Field(default_factory=lambda: None)
"""The default of a field that may be left out but is not null.

A document names no defaults: generated clients would send them, and `openapi-typescript` would
require them. The description of a field states the effect of leaving it out.
"""
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
Integer = TypeAliasType(
    "Integer",
    Annotated[
        Int64 | str, Field(description="An integer; beyond 2^53 it travels as a decimal string.")
    ],
)
Id = TypeAliasType(
    "Id",
    Annotated[Int64 | str, Field(description="Integers beyond 2^53 travel as decimal strings.")],
)
Features = TypeAliasType(
    "Features",
    Annotated[
        dict[str, Any],
        Field(
            description="By feature name: a scalar; a list (bag, sequence, dense); or "
            "{ids, weights} of a weighted bag."
        ),
    ],
)


class ResponseSchema(BaseModel):
    """A JSON object of a response. Later versions may add fields, which clients must ignore."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def json_content(schema: str) -> dict[str, Any]:
    """Describes a body or a response as a schema that `add_schemas` adds."""
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"content": {"application/json": {"schema": reference}}}


def add_schemas(app: FastAPI, schemas: Callable[[], Mapping[str, Any]]) -> None:
    """Adds schemas, which are made for the document alone, to those of an application's routes."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        components = document.setdefault("components", {})
        schemas_of_routes = components.get("schemas", {})
        components["schemas"] = dict(sorted({**schemas_of_routes, **schemas()}.items()))
        return document

    app.openapi = openapi  # type: ignore[method-assign]
