"""Writes checkpoints as Orbax lays them out, with tensorstore alone. Orbax's own tests:
tests/differential/test_orbax.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

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
    """Writes one item: a tree of arrays in an OCDBT store.

    Args:
      directory: The directory of the tree.
      leaves: The leaves of the tree.
      chunk_rows: The number of rows of a chunk.
      zarr3: Whether the arrays are in zarr 3; otherwise they are in zarr 2.
      zeros: Whether chunks of zeros are stored, as Orbax does since 0.10; None: they are not, and
        the tree does not say it.
    """
    directory.mkdir(parents=True)
    tree = {}
    for path, values in leaves.items():
        metadata_json = {
            "value_type": "None" if values is None else "jax.Array",
            "skip_deserialize": values is None,
        }
        steps = [{"key": step, "key_type": 2} for step in path.split(".")]
        tree[str(tuple(path.split(".")))] = {"key_metadata": steps, "value_metadata": metadata_json}
        if values is not None:
            chunks = [min(chunk_rows, values.shape[0]), *values.shape[1:]] if values.shape else []
            metadata: dict[str, Any] = {"shape": values.shape}
            if zarr3:
                grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
                metadata |= {"data_type": values.dtype.name, "chunk_grid": grid}
            else:
                custom = values.dtype.kind == "V"  # bfloat16
                dtype = values.dtype.name if custom else values.dtype.str
                metadata |= {"chunks": chunks, "dtype": dtype}
            base = {"driver": "file", "path": f"{directory}/"}
            driver = "zarr3" if zarr3 else "zarr"
            spec = {"driver": driver, "metadata": metadata, "create": True}
            spec["store_data_equal_to_fill_value"] = bool(zeros)
            where = {"driver": "ocdbt", "base": base, "path": f"{path}/"}
            tensorstore.open(spec | {"kvstore": where}).result().write(values).result()
    page = {"tree_metadata": tree, "use_ocdbt": True, "use_zarr3": zarr3}
    if zeros is not None:
        page["store_array_data_equal_to_fill_value"] = True
    (directory / "_METADATA").write_text(json.dumps(page))


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
