"""Models whose file a test writes, beside a recipe and a checkpoint: exported, and served in this
process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.jobs.staged import Published
from tests.differential.random_models.serving import response_to
from tests.units.export.movies_job import export, toml

Columns = Mapping[str, Sequence[Any] | NDArray[Any]]
"""The values of each input."""
OF_TENSORFLOW = {"path": "checkpoint/model", "object_path": "model"}
"""A recipe's `checkpoint` for what `tf.train.Checkpoint(model=...)` wrote to this path."""


@dataclass(frozen=True)
class WrittenModel:
    """A model file in a folder, with its recipe.

    Attributes:
      folder: The folder.
      names: What the file defines.
    """

    folder: Path
    names: Mapping[str, Any]

    def write_recipe(self, **sections: Any) -> None:
        """Writes a recipe of one query tower, all of whose tables are extracted, but for what the
        sections say.
        """
        code = {"factory": "model.py:build", "table_threshold": 0} | sections.pop("code", {})
        page = {
            "model": "random",  # which the service loads
            "checkpoint": {"path": "checkpoint"},
            "output": {"root": "bundles"},
            "towers": {"query": {"role": "query"}},
            "code": code,
            **sections,
        }
        lines = [f"{json.dumps(key)} = {toml(value)}\n" for key, value in page.items()]
        (self.folder / "recipe.toml").write_text("".join(lines))

    def write_examples(self, columns: Columns) -> dict[str, str]:
        """Writes examples; returns the section of a recipe that names them."""
        lines = [json.dumps(example) + "\n" for example in examples_of(columns)]
        (self.folder / "examples.jsonl").write_text("".join(lines))
        return {"examples": "examples.jsonl"}

    def export(self) -> Published:
        return export(self.folder / "recipe.toml")

    def served(self, columns: Columns, tower: str = "query") -> NDArray[np.float32]:
        """Returns the vectors with which the service responds, a hundred for each request."""
        requests = [{"features": example} for example in examples_of(columns)]
        results: list[dict[str, Any]] = []
        for first in range(0, len(requests), 100):
            body = {"tower": tower, "requests": requests[first : first + 100]}
            results += response_to(self.folder / "bundles", "embed", body)["results"]
        return np.array([result["vector"] for result in results], np.float32)


def write_model(folder: Path, text: str) -> WrittenModel:
    """Writes a model file, and runs it."""
    (folder / "model.py").write_text(text)
    names: dict[str, Any] = {}
    exec(text, names)
    return WrittenModel(folder, names)


def examples_of(columns: Columns) -> list[dict[str, Any]]:
    """Returns an object for each example."""
    lists = [np.asarray(values).tolist() for values in columns.values()]
    return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]
