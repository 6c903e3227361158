"""Towers that PyTorch itself wrote: torch_graphs.tar.xz, by
tests/differential/write_torch_graphs.py; and small ones that are written by hand.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parents[3] / "differential"


def extract(folder: Path, name: str) -> Path:
    """Extracts an archive of golden files, and returns the folder in it."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def write_graph(path: Path, graph: dict[str, Any], **arrays: Any) -> None:
    """Writes a tower as `write_tower` does; in the names of arrays, `__` stands for a slash."""
    described = np.frombuffer(json.dumps(graph).encode(), np.uint8)
    named = {name.replace("__", "/"): array for name, array in arrays.items()}
    with path.open("wb") as file:
        np.savez(file, **{"graph": described, **named})


def operation(name: str, what: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Returns one operation of a graph."""
    return {"name": name, "operation": what, "arguments": arguments, "options": options}


def write_sum(path: Path, names: tuple[str, ...] = ("user", "item"), width: int = 2) -> None:
    """Writes a tower that adds the numbers of its inputs up."""
    values = {name: np.ones((3, width), np.float32) for name in names}
    graph = {
        "weights": [],
        "inputs": {name: f"p_{name}" for name in names},
        "operations": [
            operation("joined", "cat", [{"result": f"p_{name}"} for name in names], 1),
            operation("total", "sum", {"result": "joined"}, [1]),
        ],
        "outputs": {"": "total"},
    }
    examples = {f"examples__{name}": value for name, value in values.items()}
    total = np.full(3, float(width * len(names)), np.float32)
    write_graph(path, graph, **examples, results__=total)
