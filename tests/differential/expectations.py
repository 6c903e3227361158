"""What every case of write_checkpoints needs: values, and what a checkpoint of them must be read
as.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

embedding = tf.tpu.experimental.embedding
HOSTS = 4
DIM = 8


def random_values(rows: int, seed: int, dim: int = DIM) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


def finish(
    directory: Path,
    values: dict[str, Any],
    slots: Sequence[str] | Mapping[str, Sequence[str]],
    **facts: Any,
) -> None:
    """Writes down what is expected: values as unsigned integers of their width, the slots that each
    table has.
    """
    arrays = {name: np.asarray(value) for name, value in values.items()}
    bits = {name: array.view(f"u{array.itemsize}") for name, array in arrays.items()}
    named: Any = {name.replace("/", "|"): bit for name, bit in bits.items()}
    np.savez(directory / "values.npz", **named)
    of_each = slots if isinstance(slots, Mapping) else dict.fromkeys(values, slots)
    (directory / "facts.json").write_text(json.dumps({"slots": of_each, **facts}))
