"""For each key that the schema of recipes declares: a value of another type, one below its minimum
or outside of its choices, a key beside it that is unknown, and the recipe without it where it is
required. `check` names the key in each case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from export.recipe.schema import ExportJob
from tests.units.export.commands import Command
from tests.units.export.movies_job import Recipe, changed, toml

VALID: Recipe = {
    "model": "m",
    "checkpoint": {"path": "ckpt"},
    "code": {"factory": "model.py:build"},
    "output": {"root": "bundles"},
    "inputs": {"user": {"dtype": "int64"}},
    "towers": {"query": {"role": "query"}},
    "vocabularies": {"words": {"file": "words.txt"}},
    "features": {"user": {}},
    "tables": {"users": {}},
    "corpora": {"films": {"file": "films.csv", "id": "id"}},
    "contexts": {"people": {"file": "people.csv", "id": "id"}},
    "indexes": {"films": {"corpus": "films", "query_tower": "q", "candidate_tower": "c"}},
    "lists": {"popular": {"corpus": "films", "file": "popular.csv", "id": "id"}},
    "stages": {"rank": {"tower": "cheap", "keep": 10}},
    "verify": {"trained_ids": {"user": {}}},
    "warm_up": {},
}
"""A recipe with each section, by the keys that it needs."""
KINDS: dict[str, dict[str, Any]] = {
    "identity": {},
    "vocabulary": {"vocabulary": "words"},
    "hash": {},
    "buckets": {"boundaries": [0.5]},
    "keyed": {},
}
"""The keys that each rule of ids needs beside its kind."""
DATE = "1979-05-27"
"""Of TOML; no key takes one."""
TYPED = {"type", "enum", "const"}
"""The keywords of which a schema has one unless it takes anything."""
SCHEMA = ExportJob.model_json_schema()


class Wrong(NamedTuple):
    """A mistake: the value of a key in TOML, None without it; and the key that is named."""

    key: str
    value: str | None
    named: str


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the schemas of which a value needs to match one."""
    if "$ref" in schema:
        return alternatives(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    parts = schema.get("anyOf", schema.get("oneOf"))
    if parts is None:
        return [schema]
    return [choice for part in parts for choice in alternatives(part)]


def mistakes(path: str, schema: dict[str, Any], required: bool) -> Iterator[Wrong]:
    """Yields the mistakes in a key and in all that is below it."""
    choices = [choice for choice in alternatives(schema) if choice.get("type") != "null"]
    if required:
        yield Wrong(path, None, path)
    if all(TYPED & choice.keys() for choice in choices):
        yield Wrong(path, DATE, path)
    only, *further = choices
    if further:
        return
    if "minimum" in only or "exclusiveMinimum" in only:
        below = only.get("exclusiveMinimum", only.get("minimum", 0) - 1)
        yield Wrong(path, str(below), path)
    if "enum" in only or "const" in only:
        yield Wrong(path, '"other"', path)
    yield from sections(path, only)


def sections(path: str, schema: dict[str, Any]) -> Iterator[Wrong]:
    """Yields the mistakes in the keys of a section, or of each named one in a table of sections."""
    prefix = f"{path}." if path else ""
    if "properties" in schema:
        yield Wrong(f"{prefix}unheard_of", "1", "unknown key")
        for name, part in schema["properties"].items():
            yield from mistakes(f"{prefix}{name}", part, name in schema.get("required", ()))
    elif "additionalProperties" in schema and path in named_sections():
        (name,) = named_sections()[path]
        for part in alternatives(schema["additionalProperties"]):
            yield from sections(f"{prefix}{name}", part)


def named_sections() -> dict[str, Any]:
    nested = {"verify.trained_ids": VALID["verify"]["trained_ids"]}
    return VALID | nested


def rules() -> Iterator[Wrong]:
    """Yields the mistakes in the rules of ids, each of its own kind."""
    key = "features.user.ids"
    for kind, keys in KINDS.items():
        valid = {"kind": kind, **keys}
        yield Wrong(key, toml(valid | {"unheard_of": 1}), f"unknown key '{key}.unheard_of'")
        for name in keys:
            rest = {
                key_beside: stated for key_beside, stated in valid.items() if key_beside != name
            }
            yield Wrong(key, toml(rest), f"{key}.{name}")
            dated = toml(rest)[:-1] + f", {name} = {DATE}}}"
            yield Wrong(key, dated, f"{key}.{name}")


def with_value(recipe: Recipe, key: str, value: str | None) -> str:
    """Returns the TOML of the recipe with a key set, or without it."""
    marker = "\0" if value is not None else None
    parts = changed(changed(recipe, key, "\0"), key, marker)
    text = "".join(f"{name} = {toml(part)}\n" for name, part in parts.items())
    return text.replace(toml("\0"), value or "")


WRONG = [*sections("", SCHEMA), *rules()]


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{wrong.key}={wrong.value}" for wrong in WRONG])
def test_check_names_the_key_of_a_wrong_value(
    command: Command, tmp_path: Path, wrong: Wrong
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(with_value(VALID, wrong.key, wrong.value))
    done = command("check", recipe)
    assert done.code == 2, (wrong, done.out)
    # No name of a type that pydantic has tried follows.
    assert re.search(rf"{re.escape(wrong.named)}(?!\.?\w)", done.message), done.message
    if wrong.value == DATE:
        assert "1979" in done.message


def test_every_rule_of_ids_is_drawn() -> None:
    declared = alternatives(SCHEMA["$defs"]["FeatureSection"]["properties"]["ids"])
    assert {part["properties"]["kind"]["const"] for part in declared} == set(KINDS)


def test_every_section_of_recipes_is_drawn() -> None:
    assert set(VALID) == set(ExportJob.model_fields)
