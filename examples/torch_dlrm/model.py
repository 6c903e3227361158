"""The tables of a DLRM that PyTorch trained, and the file of its tower. It needs no library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBERS = 13


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model.

    Attributes:
      rows: The number of rows of each category's table.
      ids: The maximum number of ids of each category in an example; 1: exactly one id.
      dim: The width of the tables' rows.
      bottom: The widths of the hidden layers of the bottom network; a layer of `dim` follows.
      top: The widths of the hidden layers of the top network.
    """

    rows: tuple[int, ...]
    ids: tuple[int, ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


def configs(sizes: Sizes) -> list[dict[str, Any]]:
    """Returns the table of each category, with the fields of TorchRec's EmbeddingBagConfig."""
    return [
        {
            "name": f"table_c{number}",
            "num_embeddings": rows,
            "embedding_dim": sizes.dim,
            "feature_names": [f"c{number}"],
            "pooling": "sum",
        }
        for number, rows in enumerate(sizes.rows, start=1)
    ]


def build_model() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the tables, and the file of the tower by the name that the recipe's tower calls."""
    sizes = Sizes(**json.loads(Path(__file__).with_name("sizes.json").read_text()))
    return configs(sizes), {"click": "tower.npz"}
