"""Checkpoints of one table and the state of its optimizer, in formats other than TensorFlow's."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from tests.units.export.checkpoint.orbax_trees import write_step

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


def orbax(directory: Path) -> Path:
    write_step(
        directory, "7", {"params.user.embedding": TABLE, "opt_state.0.mu.user.embedding": TABLE + 1}
    )
    return directory


def keras(directory: Path) -> Path:
    with h5py.File(directory / "model.weights.h5", "w") as file:
        file.create_dataset("layers/embedding/vars/0", data=TABLE)
        file.create_dataset("optimizer/vars/0", data=np.int64(7))
        file.create_dataset("optimizer/vars/2", data=TABLE + 1)
    return directory
