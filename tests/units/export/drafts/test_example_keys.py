"""Ids of examples of which training made rows: a draft names the file that has them as keys, or
asks for it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from export.graphs.loading import load_tensorflow
from tests.units.export.commands import Command

load_tensorflow()

from export.drafts.drafting import draft_recipe  # noqa: E402 after TensorFlow
from export.errors import UsageError  # noqa: E402
from export.model_code.factories import load_factory  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer ':UserWarning"),  # of calls that Keras tries
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
]
ROWS = 6
MODEL = f"""
import keras
import numpy as np


class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.items = keras.layers.Embedding({ROWS}, 4)
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return {{"score": self.out(self.items(x["item"]))[:, 0]}}


def write():
    keras.utils.set_random_seed(1)
    model = Ranker()
    model({{"item": np.array([1])}})
    model.save_weights("checkpoint.weights.h5")
"""
LETTERS = [*"abcdef"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of a model that takes rows of a table."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        load_factory("model.py:write", folder).function()
    return folder


@pytest.mark.parametrize(
    ("items", "keys", "ids", "question"),
    [
        (["a", "f"], LETTERS, {"first_row": 0}, None),
        ([905, 901], [900, 901, 902, 903, 904, 905], {"first_row": 0}, None),
        # Rows of padding, or of unknown ids: at the beginning, or at the end?
        (["a", "e"], LETTERS[:5], {"first_row": 1}, "which row has the first key of items.txt?"),
        (["a", "x"], LETTERS, None, "which file has the keys of rows, as training made them of"),
        ([905, 901], None, None, "of 905? The model takes rows of a table of 6"),
        # Rows may be keys, too.
        ([1, 5], [5, 4, 3, 2, 1, 0], None, "are these rows of the table, or keys of items.txt?"),
        ([1, 5], [0, 1, 2, 3, 4, 5], None, None),
        ([1, 5], [7, 8, 9], None, None),
        ([1, 5], None, None, None),
    ],
    ids=[
        *("texts", "numbers", "fewer keys", "other keys", "no file"),
        *("ambiguous", "alike", "other file", "rows"),
    ],
)
def test_keys_are_those_of_a_file_or_a_question(
    items: list[Any],
    keys: list[Any] | None,
    ids: dict[str, Any] | None,
    question: str | None,
    trained: Path,
    command: Command,
) -> None:
    file = trained / "items.txt"
    file.unlink(missing_ok=True)
    if keys is not None:
        file.write_text("".join(f"{key}\n" for key in keys))
    (trained / "examples.jsonl").write_text(
        "".join(f"{json.dumps({'item': item})}\n" for item in items)
    )
    draft = draft_recipe(
        "model.py:Ranker", "checkpoint.weights.h5", Path("examples.jsonl"), trained
    )
    assert draft.problem == ""
    recipe = tomllib.loads(draft.text)
    drafted = recipe["features"]["item"].get("ids")
    assert recipe["inputs"]["item"]["dtype"] in {"int32", "int64"}
    if ids is None:
        assert drafted is None
        assert "vocabularies" not in recipe
    else:
        first_row = drafted.pop("first_row", 0)
        assert {"first_row": first_row} == ids
        assert drafted == {"kind": "vocabulary", "vocabulary": "items"}
        dtype = "string" if isinstance(items[0], str) else "int64"
        assert recipe["vocabularies"] == {"items": {"file": "items.txt", "dtype": dtype}}
    if question is None:
        assert draft.questions == ()
        return
    assert draft.questions == ("item",)
    path = trained / "draft.toml"
    path.write_text(draft.text)
    (note, *_) = command("plan", path, "--json").json["notes"]
    assert question in note
    done = command("run", path)
    assert done.code == UsageError.exit_code
    assert question in done.message
