"""Ids that models compute of columns of an input, and of words: a bundle finds the rows of the
original.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.verify.examples import Examples
from tests.units.export.parity_checks import check_parity
from tests.units.export.traced_models import save_and_trace, tower_recipe

TITLES = [
    "Star Wars (1977)",
    "The  of\tthe\u00a0star",
    "DON'T don't",
    "\u00c9t\u00e9 in love",
    "a",
    "\u65e5 b!",
    "*",
]
TITLES += ["none of it", "in love", "a b a b a b a b a b", "<br />Of<br />Wars", "", " "]
N = len(TITLES)
FIELDS = 6
random = np.random.default_rng(3)
NUMBERS = random.normal(0, 3, (N, FIELDS)) * 10.0 ** random.integers(-1, 3, (N, FIELDS))
NUMBERS[:4] = [0.0, -0.0, 0.25, 1e10, -3e38, 2.0**31]
STRING = {"dtype": "string"}
INT64 = {"dtype": "int64"}
FLOAT = {"dtype": "float32"}
SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "city": (STRING, ["red", "", "\u00e9", " Blue ", "PURPLE", "green", "Red", "blue", "purple"]),
    "city_2": (STRING, ["", "&", "|1", "\u00e9\u00e9", "x" * 70, "green", "red"]),
    "item": (INT64, [7, -1, 5, 0, (1 << 31) + 3, -7, 1, 1 << 40, 10, 30]),
    "shop": (
        INT64,
        [1 << 40, -3, 0, 9, 10, -(1 << 63), 1, 19_999, 20_000, (1 << 62) + 5, (1 << 31) - 1, 20],
    ),
    "small": ({"dtype": "int32"}, [7, -1, 5, 0, 1 << 30, -7, 7]),
    "few": (INT64, [3, 49, -1, 4, 0, 7, 9]),
    "age": (FLOAT, [0.0, 0.5, 2.0, 29.9, 30.0, -4.0, 1e6, 1.0, 3.0]),
    "place": (FLOAT, [-10.0, 10.0, 0.0, -11.0, 9.99, 100.0, 3.0]),
    "one": ({**STRING, "shape": [1]}, [["a"], ["b"], ["a"], [""], ["c"], ["\u00fc"], ["a"]]),
    "other": ({**STRING, "shape": [1]}, [["x"], ["x"], [""], ["y"], ["x"], ["z"], ["y"]]),
    "words": (
        {**STRING, "shape": [3]},
        [["red", "red", ""], ["blue", "x", "green"], ["\u00e9", "y", "z"]],
    ),
    "several": ({**INT64, "shape": [3]}, (np.arange(21).reshape(7, 3) - 9).tolist()),
    "few_pair": ({**INT64, "shape": [2]}, [[3, 3], [9, 0], [1, 2]]),
    "x": (
        {**INT64, "shape": [FIELDS]},
        random.integers(0, [100, 3000, 7, 50, 9000, 400], (N, FIELDS)).tolist(),
    ),
    "n": ({**FLOAT, "shape": [FIELDS]}, NUMBERS.tolist()),
    "a": (INT64, random.integers(0, 100, N).tolist()),
    "b": (INT64, random.integers(0, 3000, N).tolist()),
    "bag": ({**INT64, "kind": "ragged"}, [[1, 2], [], [3], [19_999] * 3]),
    "tags": ({**INT64, "kind": "sparse"}, [[7, 7], [], [1 << 10, -1]]),
    "title": (STRING, TITLES),
    "titles": ({**STRING, "shape": [1]}, [[title] for title in TITLES]),
}
"""Input -> what the recipe says of it, and what is sent, over and over."""
EXAMPLES = [
    {name: values[position % len(values)] for name, (_, values) in SENT.items()}
    for position in range(N)
]
TEXTS = {"inline_bytes_max": 4000, "table_threshold": 100}


def job_of(function: str, **code: Any) -> ExportJob:
    inputs = {
        name: pattern
        for name, (pattern, _) in SENT.items()
        if "functional" not in function or name == "titles"
    }
    return tower_recipe(f"ids.py:{function}", inputs, code=code)


def tensor_of(name: str) -> Any:
    """Returns what builds a model: zeros, or the first texts, of three examples."""
    pattern = SENT[name][0]
    if pattern["dtype"] == "string":
        return tf.constant([example[name] for example in EXAMPLES[:3]])
    if "kind" not in pattern:
        return tf.zeros([3, *pattern.get("shape", [])], pattern["dtype"])
    ragged = tf.ragged.constant([[0, 0], [], [0]], pattern["dtype"])
    return ragged if pattern["kind"] == "ragged" else ragged.to_sparse()


def column_of(name: str) -> Column:
    pattern = SENT[name][0]
    values = [example[name] for example in EXAMPLES]
    lengths = [len(value) if isinstance(value, list) else 1 for value in values]
    flat = [
        item_id for value in values for item_id in (value if isinstance(value, list) else [value])
    ]
    array = np.array(flat, object if pattern["dtype"] == "string" else pattern["dtype"])
    single = "kind" not in pattern and (not pattern.get("shape") or name in ("x", "n"))
    return Column(array, None if single else np.concatenate([[0], np.cumsum(lengths)]))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "code"), [("build_places", {}), ("build_handmade", TEXTS)])
def test_ids_that_a_model_computes_give_the_original_s_rows(
    function: str, code: dict[str, int], tmp_path: Path
) -> None:
    job = job_of(function, **code)
    tensors = {name: tensor_of(name) for name in job.inputs}
    checkpoint = save_and_trace(job, tmp_path, tensors)
    assert checkpoint.model.notes == ()
    columns = {name: column_of(name) for name in checkpoint.model.spec.inputs}
    check_parity(checkpoint, tmp_path, Examples(N, columns))
