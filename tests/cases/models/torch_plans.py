"""Towers of PyTorch of tests/models, in the files that PyTorch wrote of them, over tables of
TorchRec.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export.recipe.schema import ExportJob
from tests.cases.models.planned_models import PlannedModel, Project, source_of
from tests.cases.models.recipe_parts import (
    FLOAT,
    ID,
    RAGGED,
    Part,
    candidates,
    query,
    ranking,
    several,
)
from tests.units.export.given_towers.graphs import extract

TABLES = {
    "user": {"name": "users", "num_embeddings": 21, "embedding_dim": 4, "pooling": "sum"},
    "item": {"name": "items", "num_embeddings": 10, "embedding_dim": 8, "pooling": "sum"},
    "tag": {"name": "tags", "num_embeddings": 9, "embedding_dim": 4, "pooling": "mean"},
}
"""Those of the checkpoint, by the feature that reads each."""
RESULT = {"tower": {"role": "query"}}
USER_AND_ITEM = {"user": ID, "item": ID}
HISTORY = several("float32", 6, 8)
MOVIES = several("int64", 6)
TOWERS: dict[str, tuple[Part, Part]] = {
    "ranker": (
        {"user": ID, "item": ID, "tag": RAGGED, "age": FLOAT},
        ranking("click", "like"),
    ),
    "cross": (USER_AND_ITEM, ranking()),
    "attention": ({"user": ID, "movies": MOVIES}, RESULT),
    "encoder": ({"movies": MOVIES, "last": ID}, RESULT),
    "attended": ({"item": ID, "history": HISTORY}, query("taste", "weights", "last")),
    "experts": (USER_AND_ITEM, ranking()),
    "interest": ({"item": ID, "history": HISTORY, "count": ID}, query("mean", "likeness")),
    "outputs": (USER_AND_ITEM, query("first", "second")),
    "elements": ({"number": FLOAT, "count": ID}, RESULT),
    "shapes": (USER_AND_ITEM, RESULT),
    "convolution": ({"user": ID}, RESULT),
}
"""The inputs of a recipe, and its towers, by the name of a case in torch_towers.py."""


def torch_plans() -> Iterator[PlannedModel]:
    """Yields a plan for each tower."""
    for name, (inputs, towers) in TOWERS.items():
        yield _planned(name, inputs, towers)


def _planned(name: str, inputs: Part, towers: Part) -> PlannedModel:
    def write(folder: Path) -> Project:
        graphs = extract(folder, "torch_graphs")
        extract(folder, "torch")
        tables = [
            {**table, "feature_names": [feature]}
            for feature, table in TABLES.items()
            if feature in inputs
        ]
        returned = (tables, {"": f"{name}.npz"})
        (graphs / "model.py").write_text(f"def build():\n    return {returned!r}\n")
        expected = _expected(towers)
        (graphs / "recorded.jsonl").write_text(json.dumps(dict.fromkeys(expected, 0.0)) + "\n")
        page: dict[str, Any] = {
            "model": name,
            "checkpoint": {"path": "../torch_distributed"},
            "code": {"factory": "model.py:build"},
            "output": {"root": "bundles"},
            "inputs": inputs,
            "features": candidates("item") if "item" in inputs else {},
            "towers": towers,
            "verify": {"examples": "recorded.jsonl", "expected": expected},
        }
        return Project(ExportJob.model_validate(page), graphs)

    return PlannedModel(f"torch_towers.{name}", source_of("torch_towers"), write)


def _expected(towers: Part) -> dict[str, str]:
    """Returns the columns that a tower's result is compared with; a plan reads no value of them."""
    (tower,) = towers.values()
    result = tower.get("result", "result")
    return {result: result}
