"""Writes checkpoints with TensorFlow's own code, each with what it must be read as. Run by
test_checkpoints.py.

Each case is a directory: the checkpoint, `values.npz` (table -> the bits of its values) and
`facts.json`.
Usage: TF_USE_LEGACY_KERAS=1 KERAS_BACKEND=tensorflow python -m tests.differential.write_checkpoints
DIRECTORY
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from tensorflow.python.distribute import distribute_lib, sharded_variable, tpu_strategy
from tensorflow.python.tpu import tpu_embedding_v1

from tests.differential.expectations import DIM, HOSTS, embedding, finish, random_values
from tests.differential.write_keras import KERAS_CASES
from tests.differential.write_names import NAME_CASES
from tests.differential.write_stacks import STACK_CASES

SHARDED_DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
ROWS = {"users": 101, "genres": 7, "a": 5, "b/c.d": 6}


def table_configs(rows: dict[str, int]) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    values = {name: random_values(count, seed) for seed, (name, count) in enumerate(rows.items())}

    def initializer(name: str) -> Callable[..., Any]:
        return lambda shape, dtype=None, **_: tf.constant(values[name])

    configs = {
        name: embedding.FeatureConfig(
            embedding.TableConfig(count, DIM, initializer=initializer(name), name=name)
        )
        for name, count in rows.items()
    }
    return configs, values


def mid_level(directory: Path, optimizer: Any, slots: Sequence[str]) -> None:
    """The mid-level API on a CPU; tables with names that their keys must escape."""
    configs, values = table_configs(ROWS)
    tables = embedding.TPUEmbedding(configs, optimizer)
    tables.build()
    tf.train.Checkpoint(step=tf.Variable(7, dtype=tf.int64), embedding=tables).save(
        str(directory / "ckpt")
    )
    finish(directory, values, slots, step=7, origin="TPUEmbedding")


def custom_optimizer() -> Any:
    """An optimizer whose slot variables its user names."""
    zeros = tf.zeros_initializer()
    return embedding.CustomOptimizer(
        custom_computation=tf.function(lambda *_: None),
        slot_names=["first", "second"],
        slot_initializers=[zeros, zeros],
    )


def mid_level_plain(directory: Path, optimizer: Any, slots: Sequence[str]) -> None:
    """TPUEmbeddingV0, for TPUs without embedding hardware. The class below takes the place of the
    strategy that it requires.
    """

    class StandIn(tpu_strategy.TPUStrategyV2):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self) -> None:
            pass

    configs, values = table_configs({"users": 101, "genres": 7})
    tpu_embedding_v1.distribute_lib = SimpleNamespace(
        **{**vars(distribute_lib), "get_strategy": StandIn}
    )
    tables = embedding.TPUEmbeddingV0(configs, optimizer)
    tables.build()
    tf.train.Checkpoint(embedding=tables).save(str(directory / "ckpt"))
    finish(directory, values, slots, step=None, origin="TPUEmbedding")


def mid_level_hosts(directory: Path) -> None:
    """The mid-level API as TPUStrategy saves it: a slice per host. Logical CPU devices stand for
    the hosts.
    """
    configs, values = table_configs({"users": 101, "tiny": 2})
    tables = embedding.TPUEmbedding(configs, embedding.Adagrad(0.1))
    tables._using_tpu = True
    tables._hosts = [f"/device:CPU:{host}" for host in range(HOSTS)]
    for config in configs.values():
        config.table.initializer = lambda shape, dtype=None, shard_info=None: tf.zeros(
            shard_info.shape if shard_info else shape
        )
    tables._variables = tables._create_variables_and_slots()
    for name, variables in tables._variables.items():
        row = 0
        for part in variables["parameters"].variables:
            part.assign(values[name][row : row + part.shape[0]])
            row += part.shape[0]
    tables._built = True
    tables._using_tpu = False  # a save would fetch the tables from a TPU otherwise
    tf.train.Checkpoint(embedding=tables).save(str(directory / "ckpt"))
    finish(directory, values, ["accumulators"], step=None, origin="TPUEmbedding")


def tfrs_layer(directory: Path, optimizer: Any, slots: Sequence[str]) -> None:
    """The TFRS layer in a Keras model, trained for one step with a Keras optimizer of the older
    kind.
    """
    configs, _ = table_configs({"users": 101, "genres": 7})
    layer = tfrs.layers.embedding.TPUEmbedding(configs, optimizer)

    class Model(tf.keras.Model):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self) -> None:
            super().__init__()
            self.tables = layer
            self.dense = tf.keras.layers.Dense(1)

        def call(self, features: Any) -> Any:
            rows = self.tables(features)
            return self.dense(tf.concat([rows["users"], rows["genres"]], -1))

    model = Model()
    model.compile(optimizer, "mse", run_eagerly=True)
    ids = {"users": tf.constant([1, 2, 100], tf.int32), "genres": tf.constant([0, 6, 3], tf.int32)}
    model.fit(ids, tf.ones([3, 1]), batch_size=3, verbose=0)
    tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(directory / "ckpt"))
    values = {table.name: variable.numpy() for table, variable in layer.embedding_tables.items()}
    finish(directory, values, slots, step=1, origin="TFRS TPUEmbedding")


def partial_layer(directory: Path) -> None:
    """PartialTPUEmbedding: one table on the TPU, two small ones as Keras layers, of which two
    features share one.
    """
    rows = {"users": 101, "genres": 7, "ages": 5}
    tables = {name: embedding.TableConfig(count, DIM, name=name) for name, count in rows.items()}
    reads = {"user": "users", "genre": "genres", "other_genre": "genres", "age": "ages"}
    configs = {feature: embedding.FeatureConfig(tables[name]) for feature, name in reads.items()}
    optimizer = tf.keras.optimizers.legacy.Adagrad(0.1)
    layer = tfrs.experimental.layers.embedding.PartialTPUEmbedding(
        configs, optimizer, size_threshold=50
    )
    layer({feature: tf.constant([0, 1], tf.int32) for feature in reads})
    tf.train.Checkpoint(layer=layer).save(str(directory / "ckpt"))
    values = {
        table.name: variable.numpy()
        for table, variable in layer.tpu_embedding.embedding_tables.items()
    }
    values |= {
        name: layer.keras_embedding_layers[name].embeddings.numpy() for name in ("genre", "age")
    }
    origins = {
        "users": "TFRS TPUEmbedding",
        "genre": "PartialTPUEmbedding",
        "age": "PartialTPUEmbedding",
    }
    finish(directory, values, [], step=None, origins=origins)


def sharded_variable_case(directory: Path, dtype: str) -> None:
    """A variable in row slices, each on a device of its own, as a parameter-server strategy saves
    it.
    """
    values = tf.cast(random_values(100, 1) * 100, dtype)
    parts = []
    for device, (low, high) in enumerate(pairwise([0, 34, 67, 100])):
        with tf.device(f"/device:CPU:{device}"):
            parts.append(tf.Variable(values[low:high]))
    tf.train.Checkpoint(emb=sharded_variable.ShardedVariable(parts, name="emb")).save(
        str(directory / "ckpt")
    )
    finish(
        directory,
        {"emb": values.numpy()},
        [],
        step=None,
        origin="named",
        named={"emb": "emb"},
        dtype=dtype,
    )


def size_limited(directory: Path) -> None:
    """Variables cut by a size limit: irregular slices over many files, and values that begin at any
    byte.
    """
    values = {"emb": random_values(200, 1), "other": random_values(200, 2)}
    checkpoint = tf.train.Checkpoint(
        flag=tf.Variable(True), **{name: tf.Variable(value) for name, value in values.items()}
    )
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=900)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    checkpoint.save(str(directory / "ckpt"), options=options)
    named = {name: name for name in values}
    finish(directory, values, [], step=None, origin="named", named=named)


legacy = tf.keras.optimizers.legacy
CASES: dict[str, Callable[[Path], None]] = {
    "mid_level_sgd": lambda to: mid_level(to, embedding.SGD(0.1), []),
    "mid_level_adagrad": lambda to: mid_level(to, embedding.Adagrad(0.1), ["accumulators"]),
    "mid_level_adagrad_momentum": lambda to: mid_level(
        to, embedding.AdagradMomentum(0.1, momentum=0.9), ["accumulators", "momenta"]
    ),
    "mid_level_adam": lambda to: mid_level(to, embedding.Adam(0.1), ["momenta", "velocities"]),
    "mid_level_ftrl": lambda to: mid_level(to, embedding.FTRL(0.1), ["accumulators", "linears"]),
    "mid_level_rate": lambda to: mid_level(
        to, embedding.Adagrad(lambda: tf.constant(0.1)), ["accumulators"]
    ),
    "mid_level_custom": lambda to: mid_level(to, custom_optimizer(), ["first", "second"]),
    "mid_level_plain": lambda to: mid_level_plain(
        to, embedding.Adam(0.1), ["momenta", "velocities"]
    ),
    "mid_level_hosts": mid_level_hosts,
    "tfrs_adagrad": lambda to: tfrs_layer(to, legacy.Adagrad(0.1), ["accumulator"]),
    "tfrs_adam": lambda to: tfrs_layer(to, legacy.Adam(0.1), ["m", "v"]),
    "partial": partial_layer,
    **{f"sharded_{dtype}": partial(sharded_variable_case, dtype=dtype) for dtype in SHARDED_DTYPES},
    "size_limited": size_limited,
    **KERAS_CASES,
    **NAME_CASES,
    **STACK_CASES,
}


def main(root: Path, names: Sequence[str]) -> None:
    """Writes the cases of these names, or every case."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * HOSTS
    )
    for name in names or CASES:
        (root / name).mkdir(parents=True)
        CASES[name](root / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
