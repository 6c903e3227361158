"""A recipe is refused with one sentence that names the key, the value and what was expected."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from export.recipe.schema import VocabularyRule, read_recipe

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


def test_recipe_of_the_docs_is_a_valid_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "port-your-model.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    job = read_recipe(write(tmp_path, shown[0]))
    assert set(job.features) | {"user_id", "age"} == set(job.inputs)
    for fragment in shown[1:]:
        read_recipe(write(tmp_path, RECIPE + fragment))


def test_vocabulary_rule_with_oov_buckets_requires_their_first_row() -> None:
    with pytest.raises(ValidationError, match="'oov_buckets' requires 'oov_first_row'"):
        VocabularyRule(kind="vocabulary", vocabulary="names", oov_buckets=3)
