"""The JSON Schema of recipes."""

from __future__ import annotations

from export.recipe.json_schema import schema_text

SUFFIX = ".json"


def page() -> str:
    """Returns the schema."""
    return schema_text()
