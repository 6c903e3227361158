"""What parts of a recipe say of each other, found before TensorFlow is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from export.errors import UsageError
from export.recipe.references import check_references
from export.recipe.schema import ExportJob

RANKING = {"role": "ranking", "outputs": {"click": "c", "like": "l"}, "result": "click"}


def job(**tower: Any) -> ExportJob:
    return ExportJob.model_validate(
        {
            "model": "m",
            "checkpoint": {"path": "c"},
            "code": {"factory": "m.py:f"},
            "output": {"root": "b"},
            "inputs": {"user_id": {"dtype": "int64"}, "age": {"dtype": "float32"}},
            "towers": {"t": {"role": "query", **tower}},
        }
    )


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (
        {"inputs": ["userid"]},
        "towers.t.inputs names 'userid' (did you mean 'user_id'?); the recipe's inputs: user_id, "
        "age",
    ),
    ({"inputs": ["x"]}, "towers.t.inputs names 'x'; the recipe's inputs: user_id, age"),
    (
        {**RANKING, "result": "clik"},
        "towers.t.result is 'clik' (did you mean 'click'?); it must be one of its outputs: click, "
        "like",
    ),
    ({"formula": "result"}, "towers.t.formula: a query tower ranks nothing; leave it out"),
    ({**RANKING, "formula": "click +"}, "towers.t.formula: "),
    (
        {**RANKING, "formula": "click * likes"},
        "towers.t.formula names 'likes' (did you mean 'like'?); the tower has click, like",
    ),
]


@pytest.mark.parametrize(("tower", "message"), MISTAKES)
def test_part_that_names_what_the_recipe_lacks_is_rejected(
    tower: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as rejected:
        check_references(job(**tower))
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    "tower",
    [
        {},
        {"inputs": ["age"], "result": "named_by_the_model"},
        {**RANKING, "formula": "click^2 * like"},
    ],
)
def test_parts_that_agree_pass(tower: dict[str, Any]) -> None:
    check_references(job(**tower))
