"""Drafts of models that take lists: where two readings of a list give different outputs, a draft
has a question instead of a default; what training's code or the examples show, it states.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from export.errors import UsageError
from export.graphs.loading import load_tensorflow

load_tensorflow()

from export.drafts.drafting import Draft, draft_recipe  # noqa: E402 after TensorFlow
from export.model_code.factories import load_factory  # noqa: E402
from export.recipe.questions import check_settled  # noqa: E402
from export.recipe.schema import ExportJob  # noqa: E402
from tests.units.export.commands import Command  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Layer ':UserWarning"),  # of calls that Keras tries
    pytest.mark.filterwarnings("ignore:`build\\(\\)` was called:UserWarning"),
]
LISTS = ([3, 7], [9], [4, 5, 6, 7], [11, 12, 13])
KERAS = """
import keras
import numpy as np


class Ranker(keras.Model):
    def __init__(self):
        super().__init__()
        self.items = keras.layers.Embedding(50, 4{options})
        self.pool = keras.layers.GlobalAveragePooling1D()
        self.last = keras.layers.GRU(4)
        self.out = keras.layers.Dense(1)

    def call(self, x):
        recent = {recent}
        return {{"score": self.out(recent + self.items(x["item"]))[:, 0]}}


def write():
    keras.utils.set_random_seed(1)
    model = Ranker()
    model({{"last": np.array([[1, 2, 3, 4]]), "item": np.array([1])}})
    model.save_weights("checkpoint.weights.h5")
"""
JAX = """
import os

import jax
import jax.numpy as jnp
import numpy as np


def score(parameters, x):
    table = parameters["table"]
    rows = table[x["last"]]
    return (({recent}) * table[x["item"]]).sum(1) * {weight}


def Ranker():
    return {{"table": jax.ShapeDtypeStruct((50, 4), jnp.float32)}}, {{"score": score}}


def write():
    import orbax.checkpoint as ocp

    table = np.random.default_rng(0).random((50, 4), np.float32)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(os.path.abspath("checkpoint"), {{"table": table}})
"""
PADDED = {"dtype": "int32", "shape": [4], "pad": 0}


def written(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Writes a model and its checkpoint; returns the name of the checkpoint."""
    monkeypatch.chdir(folder)
    (folder / "model.py").write_text(code)
    load_factory("model.py:write", folder).function()
    if "import keras" in code:
        return "checkpoint.weights.h5"
    return "checkpoint"


def drafted(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **columns: Any) -> Draft:
    checkpoint = written(code, folder, monkeypatch)
    columns = {"last": LISTS, "item": (1, 2, 3, 4)} | columns
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "examples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return draft_recipe("model.py:Ranker", checkpoint, Path("examples.jsonl"), folder)


@pytest.mark.parametrize(
    ("recent", "question"),
    [
        ("rows.mean(1)", "Filled up to 6 values, output "),
        ("rows[:, 0] + 2 * rows[:, 3]", "Filled up at the start, output "),
        ('(rows * (x["last"] > 0)[..., None]).sum(1)', None),
    ],
    ids=["mean of all", "by position", "masked"],
)
def test_padding_that_changes_outputs_is_a_question(
    recent: str, question: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("orbax.checkpoint")
    draft = drafted(JAX.format(recent=recent, weight=1), tmp_path, monkeypatch)
    assert draft.problem == ""
    recipe = tomllib.loads(draft.text)
    asked = recipe["inputs"]["last"].pop("question", None)
    assert recipe["inputs"]["last"] == PADDED
    assert "}  # length, and value that filled up shorter lists, in training?\n" in draft.text
    # The factory returns one function by its name: it is one tower.
    assert list(recipe["towers"]) == ["score"]
    job = ExportJob.model_validate(tomllib.loads(draft.text))
    if question is None:
        assert (asked, draft.questions) == (None, ())
        check_settled(job)
    else:
        assert question in asked
        assert draft.questions == ("last",)
        with pytest.raises(UsageError, match=r"inputs\.last\.question: .* then remove 'question'"):
            check_settled(job)


def test_ragged_lists_are_a_question_that_plan_repeats_and_run_rejects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    code = KERAS.format(options="", recent='keras.ops.mean(self.items(x["last"]), axis=1)')
    draft = drafted(code, tmp_path, monkeypatch)
    asked = tomllib.loads(draft.text)["inputs"]["last"]
    assert asked["kind"] == "ragged"
    assert "Filled up with 0 to 4 values, output 'score' of example" in asked["question"]
    assert "write shape = [4], pad = 0 instead of kind\n" in draft.text
    (tmp_path / "recipe.toml").write_text(draft.text)
    (note, *_) = command("plan", tmp_path / "recipe.toml", "--json").json["notes"]
    assert note.startswith("inputs.last.question: how did training fill up and cut lists?")
    done = command("run", tmp_path / "recipe.toml")
    assert done.code == UsageError.exit_code
    assert done.message.startswith("rowcast-export: inputs.last.question: ")
    assert not (tmp_path / "bundles").exists()

    # The code of training settles it, also where it reads the length from the model's file.
    (tmp_path / "train.py").write_text(
        'columns["last"] = keras.utils.pad_sequences(columns["last"], 5, padding="post")\n'
    )
    draft = draft_recipe(
        "model.py:Ranker", "checkpoint.weights.h5", Path("examples.jsonl"), tmp_path
    )
    assert "# filled up as in train.py:1\n" in draft.text
    stated = {"dtype": "int64", "shape": [5], "pad": 0, "keep": "last"}
    assert tomllib.loads(draft.text)["inputs"]["last"] == stated
    assert draft.questions == ()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "recent", "expected", "question"),
    [
        # It can be traced with ragged lists, and does not compute them.
        (
            ", mask_zero=True",
            'self.pool(self.items(x["last"]))',
            {"dtype": "int64", "shape": [4], "pad": 0},
            None,
        ),
        # What fills up a sparse batch is what fills up an array to its longest list.
        (
            "",
            'self.last(self.items(x["last"]))',
            {"dtype": "int64", "kind": "sparse"},
            "Filled up at the start, output 'score' of example",
        ),
    ],
    ids=["masked", "recurrent"],
)
def test_lists_of_keras_are_settled_or_a_question(
    options: str,
    recent: str,
    expected: dict[str, Any],
    question: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = KERAS.format(options=options, recent=recent)
    inputs = tomllib.loads(drafted(code, tmp_path, monkeypatch).text)["inputs"]
    asked = inputs["last"].pop("question", None)
    assert inputs["last"] == expected
    assert (asked is None) == (question is None)
    assert (question or "") in (asked or "")


def test_draft_has_what_columns_show_and_comments_at_what_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("orbax.checkpoint")
    weight = '(x["age"] + x["grid"].sum((1, 2)) + x["two"].sum(1))'
    code = JAX.format(recent='(rows * (x["last"] > 0)[..., None]).sum(1)', weight=weight)
    filled_up = [[*values, 0, 0, 0][:4] for values in LISTS]
    grid = [[[1.5, 2, 3], [4, 5, 6]]] * 4
    columns = {"last": filled_up, "age": (7, 8, 9, 9), "grid": grid, "two": [[0.5, 1.5]] * 4}
    draft = drafted(code, tmp_path, monkeypatch, **columns)
    assert draft.problem == ""
    lines = draft.text.splitlines()
    shape = "all lists of the examples have this shape: those of training, too?"
    assert [line for line in lines if line.startswith(("last", "item", "age", "grid", "two"))] == [
        'last = { dtype = "int32", shape = [4], pad = 0 }  # the examples seem to be filled up to '
        "this length: as in training? keep states what it cut from longer lists, which are "
        "rejected without",
        'item = { dtype = "int32" }',
        'age = { dtype = "int32" }  # whole numbers in the examples: float32 in training?',
        f'grid = {{ dtype = "float32", shape = [2, 3] }}  # {shape}',
        f'two = {{ dtype = "float32", shape = [2] }}  # {shape}',
    ]


def test_draft_that_cannot_be_run_has_the_error_of_the_model_and_asks_about_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("orbax.checkpoint")
    code = JAX.format(recent="rows.mean(1)", weight='(table @ table[x["item"]])')
    draft = drafted(code, tmp_path, monkeypatch)
    assert draft.problem.startswith(
        "call 'score' raised TypeError (model.py:12): dot_general requires contracting dimensions"
    )
    assert draft.questions == ("last",)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_lists_of_other_files_are_drafted_alike(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("orbax.checkpoint")
    written(JAX.format(recent="rows.mean(1)", weight=1), tmp_path, monkeypatch)
    file = tmp_path / f"examples.{suffix}"
    if suffix == "csv":
        rows = ["|".join(map(str, values)) for values in LISTS]
        file.write_text("\n".join(["last,item", *(f"{row},{1}" for row in rows)]))
    else:
        parquet.write_table(pa.table({"last": LISTS, "item": [1, 2, 3, 4]}), file)
    draft = draft_recipe("model.py:Ranker", "checkpoint", Path(file.name), tmp_path)
    assert draft.problem == ""
    assert draft.questions == ("last",)
    assert PADDED.items() <= tomllib.loads(draft.text)["inputs"]["last"].items()


FUNCTIONAL = """
import keras


def Ranker():
    last = keras.Input(({length},), dtype="int32", name="last")
    item = keras.Input((), dtype="int32", name="item")
    items = keras.layers.Embedding(50, 4)
    recent = items(last)
    score = keras.ops.sum(({recent}) * items(item), axis=-1)
    return keras.Model({{"last": last, "item": item}}, score)


def write():
    keras.utils.set_random_seed(1)
    Ranker().save_weights("checkpoint.weights.h5")
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("length", "recent", "question"),
    [
        (None, "keras.ops.mean(recent, axis=1)", "Filled up to 6 values, output "),
        (4, "recent[:, 0] + 2 * recent[:, 3]", "Filled up at the start, output "),
    ],
    ids=["any length", "one length"],
)
def test_lists_shorter_than_those_of_a_functional_model_are_a_question(
    length: int | None,
    recent: str,
    question: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft = drafted(FUNCTIONAL.format(length=length, recent=recent), tmp_path, monkeypatch)
    assert draft.problem == ""
    inputs = tomllib.loads(draft.text)["inputs"]
    assert question in inputs["last"].pop("question")
    assert inputs == {"last": PADDED, "item": {"dtype": "int32"}}
