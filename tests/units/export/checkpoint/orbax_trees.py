"""Writes checkpoints as Orbax lays them out, with tensorstore alone. Orbax's own tests:
tests/differential/test_orbax.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.laws.stored_arrays import StoredArray
from tests.laws.zarr_files import write_zarr

Leaves = Mapping[str, np.ndarray[Any, Any] | None]
"""By dotted path; None is a leaf without an array."""


def write_item(
    directory: Path,
    leaves: Leaves,
    *,
    chunk_rows: int = 1 << 20,
    zarr3: bool = False,
    zeros: bool | None = True,
) -> None:
    """Writes one item: a tree of arrays in an OCDBT store, in chunks of some rows."""
    directory.mkdir(parents=True)
    arrays: dict[str, StoredArray | None] = {}
    for path, values in leaves.items():
        arrays[path] = None
        if values is not None:
            shape = np.shape(values)
            chunk = (min(chunk_rows, shape[0]), *shape[1:]) if shape else ()
            arrays[path] = StoredArray(values, (), chunk, "raw")
    driver = "zarr3" if zarr3 else "zarr"
    write_zarr(directory, arrays, driver=driver, packed=True, zeros=zeros)


def write_step(root: Path, step: str, leaves: Leaves, *, committed: bool = True) -> Path:
    """Writes a step as a CheckpointManager does; one that is not committed is as a store without
    renaming has it.
    """
    write_item(root / step / "default", leaves)
    metadata = {
        "item_handlers": {},
        "init_timestamp_nsecs": 1,
        "commit_timestamp_nsecs": 2 if committed else None,
    }
    (root / step / "_CHECKPOINT_METADATA").write_text(json.dumps(metadata))
    if committed:
        for directory in (root / step, root / step / "default"):
            (directory / "commit_success.txt").write_text("Checkpoint commit was successful")
    return root / step
