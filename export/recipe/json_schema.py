"""The JSON Schema of recipes, by which editors complete keys and mark mistakes.

docs/reference/recipe-schema.json is generated from it.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from export.recipe.schema import ExportJob

FILE_NAME = "recipe-schema.json"
"""The name of the file with the schema, in the first line of drafts."""


class _OfToml(GenerateJsonSchema):
    """Writes what TOML can hold, in the draft that editors of TOML read."""

    schema_dialect = "http://json-schema.org/draft-07/schema#"

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - as all
        """Returns false: the title would be the key once more."""
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Returns the schema of the other values: TOML has no null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Returns the schema with its default, unless that is null, or a section of defaults."""
        default = schema.get("default")
        if default is None or isinstance(default, BaseModel):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def recipe_schema() -> dict[str, Any]:
    """Returns the JSON Schema of recipes. It has the keys, their types, choices and limits, and
    what they mean; not the rules between keys, which `rowcast-export check` knows.
    """
    schema = ExportJob.model_json_schema(
        schema_generator=_OfToml, ref_template="#/definitions/{model}"
    )
    # The name of this draft; pydantic writes that of later ones.
    definitions = schema.pop("$defs")
    for section in (schema, *definitions.values()):
        # The name of the class.
        del section["title"]
        for entry in (section, *section["properties"].values()):
            # Of OpenAPI.
            entry.pop("discriminator", None)
            if "description" in entry:
                entry["description"] = " ".join(entry["description"].split())
    heading = {"$schema": _OfToml.schema_dialect, "title": "Recipe of rowcast-export"}
    return heading | schema | {"definitions": definitions}


def schema_text() -> str:
    """Returns the schema as the text of a file."""
    return json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n"
