"""Damage to checkpoints of Orbax: stores, trees and data files that are changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)
HALF = np.concatenate([TABLE[:10], 0 * TABLE[:10]])
"""Its second half is a chunk of zeros."""
NOISE = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
"""Values that do not lie in a node of a store's tree, as a small array's do."""


def store_of(item: Path, **options: Any) -> Any:
    """Opens the OCDBT store of an item."""
    base = {"driver": "file", "path": f"{item}/"}
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": base, **options}).result()


def repacked(item: Path, node_bytes: int) -> Path:
    """Writes the store of an item anew, with at most a number of bytes in a node of its tree."""
    config = {"max_decoded_node_bytes": node_bytes}
    second = item.with_name("repacked")
    second.mkdir()
    new = store_of(second, config=config)
    old = store_of(item)
    for key in old.list().result():
        new[key] = old[key]
    shutil.copy(item / "_METADATA", second / "_METADATA")
    return second


def data_file_of(item: Path, key: str) -> tuple[Path, int]:
    """Returns the data file that holds a value of a store, and where the value ends in it."""
    value = store_of(item)[key]
    (file,) = (child for child in (item / "d").iterdir() if value in child.read_bytes())
    return file, file.read_bytes().index(value) + len(value)


def state_kind(item: Path, leaf: str, kind: str) -> None:
    """Lets the tree of an item say that a leaf is of another kind, and has an array."""
    tree = json.loads((item / "_METADATA").read_text())
    stated = {"value_type": kind, "skip_deserialize": False}
    tree["tree_metadata"][str((leaf,))]["value_metadata"] = stated
    (item / "_METADATA").write_text(json.dumps(tree))
