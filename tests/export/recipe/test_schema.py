"""A recipe is refused with one sentence that names the key, the value and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from export.errors import UsageError
from export.recipe.schema import read_recipe
from export.recipe.settings import ExportSettings

RECIPE = """
model = "movielens"
[checkpoint]
path = "checkpoint"
[code]
factory = "model.py:build_model"
[output]
root = "bundles"
[inputs.user_id]
dtype = "int64"
[towers.query]
role = "query"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_recipe_with_only_the_required_keys_takes_every_default(tmp_path: Path) -> None:
    job = read_recipe(write(tmp_path, RECIPE))
    assert job.towers["query"].precisions == ("f32",)
    assert job.verify.count == 256
    assert job.inputs["user_id"].kind == "dense"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RECIPE.replace("factory", "factroy"), ["code.factroy", "did you mean 'factory'"]),
        (RECIPE.replace('role = "query"', 'role = "query"\nresults = "x"'), ["towers.query.results", "'result'"]),
        ("modle = 'x'\n" + RECIPE, ["'modle'", "did you mean 'model'"]),
        (RECIPE.replace('path = "checkpoint"', ""), ["checkpoint.path", "missing"]),
        (RECIPE.replace('"int64"', "7"), ["inputs.user_id.dtype", "7"]),
        (RECIPE.replace('model = "movielens"', 'model = "a/b"'), ["model", "'a/b'"]),
        (RECIPE + "[candidates.c]\nfile='f'\nid='i'\natributes=['a']", ["candidates.c.atributes", "'attributes'"]),
        (RECIPE + "[", ["cannot be read"]),
    ],
)
def test_recipe_with_a_mistake_is_refused_naming_it(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        read_recipe(write(tmp_path, text))
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_recipe_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_recipe(tmp_path / "none.toml")


def test_settings_from_the_environment_replace_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWCAST_EXPORT_WORKERS", "3")
    assert ExportSettings().workers == 3


def test_recipe_of_the_docs_is_a_valid_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "port-your-model.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    job = read_recipe(write(tmp_path, shown[0]))
    assert set(job.features) | {"user_id", "age"} == set(job.inputs)
    for fragment in shown[1:]:
        read_recipe(write(tmp_path, RECIPE + fragment))
