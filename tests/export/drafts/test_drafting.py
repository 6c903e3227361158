"""Drafts of recipes: they hold what a model, its examples and its checkpoint show."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from export.errors import UsageError
from export.graphs.loading import load_tensorflow
from tests.export.movies_job import export

load_tensorflow()

from export.drafts.drafting import draft_recipe  # noqa: E402 after TensorFlow
from tests.models import published_calls as models  # noqa: E402

FACTORIES = "tests.models.published_calls"
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer ':UserWarning"),  # of calls that Keras tries
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a functional model."""
    directory = tmp_path_factory.mktemp("draft")
    models.list_of_results().save_weights(directory / "model.weights.h5")
    return directory


def drafted(factory: str, folder: Path, examples: Path | None = None) -> tuple[str, Any]:
    text = draft_recipe(f"{FACTORIES}:{factory}", "model.weights.h5", examples, folder)
    return text, tomllib.loads(text)


def test_draft_of_a_functional_model_is_a_recipe_that_publishes(folder: Path) -> None:
    text, recipe = drafted("list_of_results", folder)
    assert recipe["inputs"] == {"user": {"dtype": "int32"}, "movie": {"dtype": "int32"}}
    assert recipe["towers"]["tower"]["outputs"] == {"click": "click", "like": "like"}
    assert "#   embedding: 300 rows of 8\n#   embedding_1: 400 rows of 8\n" in text
    candidate = '# [features.movie]\n# role = "candidate"\n'
    assert candidate in text
    (folder / "recipe.toml").write_text(text.replace(candidate, candidate.replace("# ", "")))
    published = export(folder / "recipe.toml")
    assert published.manifest.towers["tower"].role == "ranking"


def test_draft_finds_the_inputs_that_a_call_asks_for(folder: Path) -> None:
    text, recipe = drafted("nested_ranker", folder)
    assert set(recipe["inputs"]) == {"dense_features", "sparse_features.0", "sparse_features.1"}
    assert text.count("Nothing states them") == 3


def test_draft_takes_an_input_for_numbers_where_integers_do_not_fit(folder: Path) -> None:
    _, recipe = drafted("ages_beside_users", folder)
    assert recipe["inputs"] == {"user": {"dtype": "int64"}, "age": {"dtype": "float32"}}
    assert recipe["towers"]["tower"]["outputs"] == {"score": "score"}


def test_draft_gives_a_call_its_arguments(folder: Path) -> None:
    _, recipe = drafted("retrieval", folder)
    assert recipe["inputs"] == {"inputs": {"dtype": "int64"}}
    tower = recipe["towers"]["tower"]
    assert (tower["role"], tower["arguments"]) == ("query", ["inputs"])
    assert "outputs" not in tower


def test_draft_takes_inputs_of_examples(folder: Path) -> None:
    examples = folder / "examples.jsonl"
    row = {
        "user": 7,
        "movie": 8,
        "age": 0.5,
        "tags": ["a"],
        "last": [1, 2, 3],
        "new": True,
        "at": None,
    }
    rows = [row, row | {"tags": ["a", "b"], "age": 3}]
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, recipe = drafted("many_arguments", folder, examples)
    assert "\n# columns of the examples that no input takes: at\n" in text
    assert recipe["inputs"] == {
        "user": {"dtype": "int64"},
        "movie": {"dtype": "int64"},
        "age": {"dtype": "float32"},
        "tags": {"dtype": "string", "kind": "ragged"},
        "last": {"dtype": "int64", "shape": [3]},
        "new": {"dtype": "bool"},
    }
    assert recipe["verify"]["examples"] == str(examples)


def test_draft_says_why_a_call_could_not_be_run(folder: Path) -> None:
    text, recipe = drafted("many_arguments", folder)
    assert recipe["towers"]["tower"]["arguments"] == ["users", "movies", "known", "scale"]
    assert "# The call could not be run with these inputs: " in text


def test_draft_of_nothing_says_what_is_missing(folder: Path) -> None:
    with pytest.raises(UsageError, match="has no function 'missing'"):
        drafted("missing", folder)
    with pytest.raises(UsageError, match=r"\A--examples: .*none\.jsonl does not exist"):
        drafted("retrieval", folder, Path("none.jsonl"))
