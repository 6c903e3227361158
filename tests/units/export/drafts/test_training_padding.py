"""How code of training pads lists is read from its text, in the forms in which people write it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from export.drafts.training_padding import paddings_of_training

NAMES = ("history", "tags")
Rule = tuple[int | None, object, str, str | None]

CASES: dict[str, tuple[str, dict[str | None, Rule]]] = {
    "pad_sequences": (
        'x = {"history": keras.utils.pad_sequences(lists, 4, padding="post")}',
        {"history": (4, 0, "end", "last")},
    ),
    "defaults of pad_sequences": (
        'columns["history"] = pad_sequences(columns["history"], LENGTH)',
        {"history": (8, 0, "start", "last")},
    ),
    "all arguments of pad_sequences": (
        "history = tf.keras.preprocessing.sequence.pad_sequences("
        'rows.last, maxlen=config.length, padding="post", truncating="post", value=-1)',
        {"history": (6, -1, "end", "first")},
    ),
    "the longest list": (
        'inputs = dict(tags=pad_sequences(tags, padding="post", value=""))',
        {"tags": (None, "", "end", None)},
    ),
    "a length that is computed": ("history = pad_sequences(history, max(map(len, history)))", {}),
    "named by what is padded": (
        "np.save('x.npy', pad_sequences(frame.history, 5))",
        {"history": (5, 0, "start", "last")},
    ),
    "padded_batch": (
        'd = d.padded_batch(32, padded_shapes={"history": [LENGTH], "tags": (None,), "id": []})',
        {"history": (8, None, "end", None), "tags": (None, None, "end", None)},
    ),
    "padded_batch with values": (
        'd.padded_batch(2, ({"tags": [3]}, []), padding_values={"tags": "-"})',
        {"tags": (3, "-", "end", None)},
    ),
    "to_tensor": (
        'x["tags"] = tags.to_tensor(default_value="", shape=[None, 3])',
        {"tags": (3, "", "end", "first")},
    ),
    "lists of Python": (
        'row["history"] = history[:LENGTH] + [0] * (LENGTH - len(history))',
        {"history": (8, 0, "end", "first")},
    ),
    "lists of Python from the other side": (
        'row["history"] = [PAD] * max(0, 8 - len(history)) + history[-8:]',
        {"history": (8, -1, "start", "last")},
    ),
    "in a loop over names": (
        "for name in lists:\n    x[name] = pad_sequences(x[name], 4)",
        {None: (4, 0, "start", "last")},
    ),
    "in two ways": ("history = pad_sequences(a, 4)\nhistory = pad_sequences(b, 5)", {}),
    "other lists": ('x = {"other": [1] + [2] * 3, "history": [0] * 4 + history}', {}),
}


@pytest.mark.parametrize(("code", "expected"), CASES.values(), ids=list(CASES))
def test_padding_is_read_from_code_beside_the_model(
    code: str, expected: dict[str | None, Rule], tmp_path: Path
) -> None:
    model = tmp_path / "model.py"
    model.write_text("LENGTH = 8\nPAD = -1\nclass config:\n    length = 6\n")
    (tmp_path / "train.py").write_text(f"import model\n{code}\n")
    (tmp_path / "broken.py").write_text("this is no Python")
    paddings = paddings_of_training(model, NAMES)
    rules = {
        name: (padding.length, padding.value, padding.side, padding.keep)
        for name, padding in paddings.items()
    }
    assert rules == expected
    assert {padding.where for padding in paddings.values()} <= {"train.py:2", "train.py:3"}


def test_padding_is_read_from_a_notebook(tmp_path: Path) -> None:
    source = ["from keras.utils import pad_sequences\n", "history = pad_sequences(history, 4)"]
    cell = {"cell_type": "code", "source": source, "metadata": {}, "outputs": []}
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}}))
    model = tmp_path / "model.py"
    model.write_text("")
    padding = paddings_of_training(model, NAMES)["history"]
    assert (padding.length, padding.side, padding.where) == (4, "start", "train.ipynb:2")
