"""What the JSON Schema of recipes accepts and refuses, as an editor shows it, without the models
that it is made from.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from export.recipe.json_schema import FILE_NAME, recipe_schema
from tests.cases.recipes.test_wrong_values_of_every_key import VALID, WRONG, with_value
from tests.units.export.commands import Command
from tests.units.export.movies_job import Recipe, changed

ROOT = Path(__file__).parents[3]
RECIPES = sorted(ROOT.glob("examples/**/*recipe*.toml"))
SCHEMA = Draft7Validator(recipe_schema())
BEYOND_TYPES: dict[str, tuple[str, Any]] = {
    "a length as text": ("inputs.user.shape", ["10"]),
    "a number as text": ("verify.count", "256"),
    "a number for a flag": ("towers.query.split", 1),
    "a text for a list": ("corpora.films.filters", "genres"),
    "a recall above 1": ("indexes.films.recall", {"value": 95}),
}
"""Mistakes that `WRONG` does not draw: it has dates for all types, and what is below a minimum."""


def problems(recipe: Any) -> list[str]:
    return [problem.message for problem in SCHEMA.iter_errors(recipe)]


def test_schema_is_one_of_its_draft() -> None:
    Draft7Validator.check_schema(SCHEMA.schema)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_recipe_of_an_example_is_accepted(path: Path) -> None:
    # Where a model has hundreds of inputs, the training script of the example writes them.
    recipe = {"inputs": {}} | tomllib.loads(path.read_text())
    assert problems(recipe) == []


def test_recipes_of_the_zoo_are_among_the_examples() -> None:
    assert any("zoo" in path.parts for path in RECIPES)


def test_recipe_with_each_section_is_accepted(recipe: Recipe) -> None:
    assert problems(recipe) == []
    assert problems(VALID) == []
    assert problems(changed(VALID, "verify.trained_ids.user", "ids.txt")) == []


@pytest.mark.parametrize(("key", "value"), BEYOND_TYPES.values(), ids=BEYOND_TYPES)
def test_usual_mistake_is_marked(key: str, value: Any) -> None:
    assert problems(changed(VALID, key, value))


def test_wrong_value_of_any_key_is_marked() -> None:
    unmarked = [
        wrong
        for wrong in WRONG
        if not problems(tomllib.loads(with_value(VALID, wrong.key, wrong.value)))
    ]
    assert unmarked == []


def test_every_key_is_described() -> None:
    sections = [SCHEMA.schema, *SCHEMA.schema["definitions"].values()]
    undescribed = [
        name
        for section in sections
        for name, part in section["properties"].items()
        # A section has its own description, where its key has no other.
        if not {"description", "$ref"} & part.keys()
    ]
    assert undescribed == []


def test_command_prints_or_writes_the_page_of_the_reference(
    command: Command, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "reference" / FILE_NAME).read_text()
    assert command("schema").out == page
    file = tmp_path / FILE_NAME
    assert command("schema", "--out", file).code == 0
    assert file.read_text() == page
