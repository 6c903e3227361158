"""Ids that models compute of columns of an input, and of words: a bundle finds the rows of the
original.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from tests.units.export.job_runs import publish
from tests.units.export.traced_models import MODELS, save_checkpoint, tower_recipe

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
    "x": (
        {**INT64, "shape": [FIELDS]},
        random.integers(0, [100, 3000, 7, 50, 9000, 400], (N, FIELDS)).tolist(),
    ),
    "n": ({**FLOAT, "shape": [FIELDS]}, NUMBERS.tolist()),
    "a": (INT64, random.integers(0, 100, N).tolist()),
    "b": (INT64, random.integers(0, 3000, N).tolist()),
    "title": (STRING, TITLES),
}
"""Input -> what the recipe says of it, and what is sent."""
TEXTS = {"inline_bytes_max": 4000, "table_threshold": 100}


def tensor_of(name: str) -> Any:
    """Returns what builds a model: zeros, or the first texts, of three examples."""
    pattern = SENT[name][0]
    if pattern["dtype"] == "string":
        return tf.constant(SENT[name][1][:3])
    return tf.zeros([3, *pattern.get("shape", [])], pattern["dtype"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "code"),
    [
        ("build_handmade", TEXTS),
        # Thirty columns; the tables of operations and the random programs draw their computations.
        pytest.param("build_places", {}, marks=pytest.mark.nightly),
    ],
)
def test_ids_that_a_model_computes_give_the_original_s_rows(
    function: str, code: dict[str, int], tmp_path: Path
) -> None:
    inputs = {name: pattern for name, (pattern, _) in SENT.items()}
    tensors = {name: tensor_of(name) for name in inputs}
    job = tower_recipe(f"ids.py:{function}", inputs, code=code)
    prefix = save_checkpoint(job, tmp_path, inputs=tensors)
    rows = zip(*(values for _, values in SENT.values()), strict=True)
    lines = [json.dumps(dict(zip(SENT, row, strict=True))) for row in rows]
    (tmp_path / "examples.jsonl").write_text("\n".join(lines))
    page = job.model_dump(exclude_unset=True) | {
        "checkpoint": {"path": str(prefix), "object_path": "model"},
        "output": {"root": str(tmp_path)},
        "towers": {"tower": {"role": "query", "precisions": []}},
        "verify": {"examples": str(tmp_path / "examples.jsonl")},
    }
    assert publish(page, MODELS).manifest.verification.examples == N
