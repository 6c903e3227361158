"""The OpenAPI document of the HTTP endpoint as a file, and what routes say for it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

ABSENT: Any = Field(default_factory=lambda: None)
"""The default of a field that may be left out but is not null.

A document names no defaults: generated clients would send them, and `openapi-typescript` would
require them. The description of a field states the effect of leaving it out.
"""
Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
DOCUMENT = Path(__file__).with_name("openapi.json")
"""The document of the HTTP endpoint, which scripts/generate_reference writes."""


class ResponseSchema(BaseModel):
    """A JSON object of a response. Later versions may add fields, which clients must ignore."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def json_content(schema: str) -> dict[str, Any]:
    """Describes a body or a response as a schema that scripts/generate_reference adds."""
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"content": {"application/json": {"schema": reference}}}


def read_document() -> dict[str, Any]:
    """Returns the document of the HTTP endpoint, without what only a running service knows."""
    document: dict[str, Any] = orjson.loads(DOCUMENT.read_bytes())
    return document
