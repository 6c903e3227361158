"""What the format of bundles can say of features, and what the features of a bundle say."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from bundle.format.manifest import DenseFeature, EmbeddedFeature, Manifest, TableDtype

OF_RECIPES = frozenset({"role", "default", "input_length"})
"""Fields that follow from the recipe alone."""
OF_GRAPHS = frozenset({"nodes", "tables", "table", "inputs"})
"""Fields that hold names, or operations, which tests/differential/test_id_graphs.py draws."""


def options_of_format() -> set[str]:
    """Returns the name of each option that a manifest has for tables and features: each field, and
    each word that a field may hold.
    """
    names = {f"table {dtype}" for dtype in get_args(TableDtype)}
    for kind in (EmbeddedFeature, DenseFeature):
        names |= set(_options_of_type(kind, ""))
    return names


def options_of_bundle(manifest: Manifest) -> set[str]:
    """Returns the name of each option that a manifest uses."""
    names = {f"table {table.dtype}" for table in manifest.tables.values()}
    for feature in manifest.features.values():
        names |= set(_options_of_value(feature, ""))
    return names


def _options_of_type(annotation: Any, path: str) -> Iterator[str]:
    origin = get_origin(annotation)
    if origin is Literal:
        yield from (f"{path} {word}" for word in get_args(annotation))
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _options_of_type(part, path)
    elif origin in (Annotated, tuple):
        yield from _options_of_type(get_args(annotation)[0], path)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if name not in OF_RECIPES | OF_GRAPHS:
                # Of a field of words, each is an option.
                if get_origin(field.annotation) is not Literal:
                    yield _place(path, name)
                yield from _options_of_type(field.annotation, _place(path, name))


def _options_of_value(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            part = getattr(value, name)
            if name not in OF_RECIPES | OF_GRAPHS:
                if part != field.default:
                    yield _place(path, name)
                yield from _options_of_value(part, _place(path, name))
    elif isinstance(value, str):
        yield f"{path} {value}"
    elif isinstance(value, tuple):
        for part in value:
            yield from _options_of_value(part, path)


def _place(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
