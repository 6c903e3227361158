"""SparseCore checkpoints by TPUEmbeddingV2 itself: its stacking, sharding, rotation, padding and
layouts, on CPUs.

Only the strategy is stood in for: its TPU chips are logical CPU devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, tpu_strategy
from tensorflow.python.tpu import tpu_embedding_v3, tpu_embedding_v3_utils

from tests.differential.expectations import DIM, embedding, finish, random_values

SHAPES = {"alpha": (200, DIM), "be_ta": (103, DIM), "gamma": (67, DIM - 2), "wide": (55, DIM + 3)}
SLOTS = {"Adagrad": ["accumulators"], "Adam": ["momenta", "velocities"]}


class StandIn(tpu_strategy.TPUStrategyV2):  # type: ignore[misc]  # TensorFlow has no types
    """A strategy over logical CPU devices that says it has sparse cores."""

    num_replicas_in_sync = 0
    extended: Any = None
    _enable_packed_variable_in_eager_mode = False

    def __init__(self, chips: int, cores: int) -> None:
        devices = np.array(
            [[f"/job:localhost/replica:0/task:0/device:CPU:{chip}"] for chip in range(chips)]
        )
        type(self).num_replicas_in_sync = chips
        type(self).extended = SimpleNamespace(
            _tpu_devices=devices,
            tpu_hardware_feature=SimpleNamespace(num_embedding_devices_per_chip=cores),
            worker_devices=tuple(devices[:, 0]),
            parameter_devices=tuple(devices[:, 0]),
            _device_assignment=None,
        )


def padded(values: np.ndarray[Any, Any]) -> Callable[..., Any]:
    """Returns an initializer that puts a table's values into the padded shape that it is called
    with, with ones around them.
    """

    def initialize(shape: Any, dtype: Any = None) -> Any:
        rows, dim = values.shape
        return tf.constant(
            np.pad(values, [(0, shape[0] - rows), (0, shape[1] - dim)], constant_values=1)
        )

    return initialize


def embedding_object(
    optimizer: str, stacked: bool, seed: int
) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    values = {
        name: random_values(rows, seed + n, dim)
        for n, (name, (rows, dim)) in enumerate(SHAPES.items())
    }
    rule = getattr(embedding, optimizer)(0.1)
    # TensorFlow 2.21 requests the rows of a device, and this makes them of a table.
    sharded = getattr(tpu_embedding_v3_utils, "shard_initializer", lambda _, whole: whole)
    strategy = tpu_embedding_v3.distribute_lib.get_strategy()
    configs = {
        name: embedding.FeatureConfig(
            embedding.TableConfig(
                *SHAPES[name],
                initializer=sharded(strategy, padded(value)),
                name=name,
                optimizer=rule,
            ),
            output_shape=[8],
        )
        for name, value in values.items()
    }
    how = tpu_embedding_v3.SparseCoreEmbeddingConfig(disable_table_stacking=not stacked)
    tables = embedding.TPUEmbeddingV2(configs, rule, sparse_core_embedding_config=how)
    tables.build()
    return tables, values


def stacks(
    directory: Path,
    *,
    chips: int,
    cores: int,
    optimizer: str = "Adagrad",
    stacked: bool = True,
    objects: Sequence[str],
) -> None:
    """One or several embedding objects whose tables lie in SparseCore stacks."""
    strategy = StandIn(chips, cores)
    tpu_embedding_v3.distribute_lib = SimpleNamespace(
        **{**vars(distribute_lib), "get_strategy": lambda: strategy}
    )
    made = {name: embedding_object(optimizer, stacked, 10 * n) for n, name in enumerate(objects)}
    tf.train.Checkpoint(**{name: tables for name, (tables, _) in made.items()}).save(
        str(directory / "ckpt")
    )
    values = {
        name if len(made) == 1 else f"{owner}.{name}": each
        for owner, (_, tables) in made.items()
        for name, each in tables.items()
    }
    finish(
        directory, values, SLOTS[optimizer], step=None, origin="TPUEmbedding", layout="sparse_core"
    )


STACK_CASES: dict[str, Callable[[Path], None]] = {
    "stacks_2x4": partial(stacks, chips=2, cores=4, objects=["e"]),
    "stacks_4x2_adam": partial(stacks, chips=4, cores=2, optimizer="Adam", objects=["e"]),
    "stacks_off": partial(stacks, chips=2, cores=4, stacked=False, objects=["e"]),
    "stacks_of_two_objects": partial(stacks, chips=2, cores=2, objects=["query", "candidate"]),
}
