"""Writes checkpoints with TensorFlow's own code, each with what it must be read as. Run by test_checkpoints.py.

Each case is a directory: the checkpoint, `values.npz` (table -> the bits of its values) and `facts.json`.
Usage: python write_checkpoints.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ |= {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from tensorflow.python.distribute import sharded_variable

embedding = tf.tpu.experimental.embedding
HOSTS = 4
ROWS = {"users": 101, "genres": 7, "a": 5, "b/c.d": 6}
DIM = 8


def random_values(rows: int, seed: int, dim: int = DIM) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


def finish(directory: Path, values: dict[str, Any], slots: Sequence[str], **facts: Any) -> None:
    """Writes down what is expected: values as unsigned integers of their width, the slots that each table has."""
    arrays = {name: np.asarray(each) for name, each in values.items()}
    bits = {name: each.view(f"u{each.itemsize}") for name, each in arrays.items()}
    named: Any = {name.replace("/", "|"): each for name, each in bits.items()}
    np.savez(directory / "values.npz", **named)
    (directory / "facts.json").write_text(json.dumps({"slots": dict.fromkeys(values, slots), **facts}))


def table_configs(rows: dict[str, int]) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    values = {name: random_values(count, seed) for seed, (name, count) in enumerate(rows.items())}

    def initializer(name: str) -> Callable[..., Any]:
        return lambda shape, dtype=None, **_: tf.constant(values[name])

    configs = {
        name: embedding.FeatureConfig(embedding.TableConfig(count, DIM, initializer=initializer(name), name=name))
        for name, count in rows.items()
    }
    return configs, values


def mid_level(directory: Path, optimizer: Any, slots: Sequence[str]) -> None:
    """The mid-level API on a CPU; tables with names that their keys must escape."""
    configs, values = table_configs(ROWS)
    tables = embedding.TPUEmbedding(configs, optimizer)
    tables.build()
    tf.train.Checkpoint(step=tf.Variable(7, dtype=tf.int64), embedding=tables).save(str(directory / "ckpt"))
    finish(directory, values, slots, step=7, origin="TPUEmbedding")


def mid_level_hosts(directory: Path) -> None:
    """The mid-level API as TPUStrategy saves it: a slice per host. Logical CPU devices stand for the hosts."""
    configs, values = table_configs({"users": 101, "tiny": 2})
    tables = embedding.TPUEmbedding(configs, embedding.Adagrad(0.1))
    tables._using_tpu, tables._hosts = True, [f"/device:CPU:{host}" for host in range(HOSTS)]
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
    tables._built, tables._using_tpu = True, False  # a save would fetch the tables from a TPU otherwise
    tf.train.Checkpoint(embedding=tables).save(str(directory / "ckpt"))
    finish(directory, values, ["accumulators"], step=None, origin="TPUEmbedding")


def tfrs_layer(directory: Path, optimizer: Any, slots: Sequence[str]) -> None:
    """The TFRS layer in a Keras model, trained for one step with a Keras optimizer of the older kind."""
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


def keras_layer(directory: Path, dtype: str) -> None:
    """Keras Embedding layers with an optimizer of the newer kind, whose variables have the tables' shapes."""
    first = tf.keras.layers.Embedding(101, DIM, dtype=dtype, name="movies")
    second = tf.keras.layers.Embedding(7, DIM, dtype=dtype, name="genres")
    inputs = [tf.keras.Input((), dtype=tf.int64, name=name) for name in ("movie", "genre")]
    rows = tf.concat([tf.cast(layer(ids), tf.float32) for layer, ids in zip((first, second), inputs, strict=True)], -1)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(rows))
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    for seed, layer in enumerate((first, second)):
        layer.embeddings.assign(tf.cast(random_values(layer.input_dim, seed), dtype))
    tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(directory / "ckpt"))
    values = {layer.name: layer.embeddings.numpy() for layer in (first, second)}
    finish(directory, values, [], step=0, origin="Keras Embedding", dtype=dtype)


def sharded_variable_case(directory: Path, dtype: str) -> None:
    """A variable in row slices, as a parameter-server strategy saves it."""
    values = tf.cast(random_values(100, 1), dtype)
    cuts = [0, 34, 67, 100]
    parts = [tf.Variable(values[low:high]) for low, high in pairwise(cuts)]
    tf.train.Checkpoint(emb=sharded_variable.ShardedVariable(parts, name="emb")).save(str(directory / "ckpt"))
    finish(directory, {"emb": values.numpy()}, [], step=None, origin="named", named={"emb": "emb"}, dtype=dtype)


def size_limited(directory: Path) -> None:
    """Variables cut by a size limit: irregular slices over many files, and values that begin at any byte."""
    values = {"emb": random_values(200, 1), "other": random_values(200, 2)}
    checkpoint = tf.train.Checkpoint(
        flag=tf.Variable(True), **{name: tf.Variable(each) for name, each in values.items()}
    )
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=900)
    options = tf.train.CheckpointOptions(experimental_sharding_callback=policy)
    checkpoint.save(str(directory / "ckpt"), options=options)
    named = {name: name for name in values}
    finish(directory, values, [], step=None, origin="named", named=named)


def name_based(directory: Path) -> None:
    """A TF1 Saver, which saves names and no objects; the variable is cut along its columns."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.create_global_step()
        cut = v1.get_variable(
            "scope/emb",
            (50, DIM),
            initializer=v1.random_normal_initializer(seed=1),
            partitioner=v1.fixed_size_partitioner(3, 1),
        )
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(directory / "ckpt"))
        values = session.run(tf.concat(list(cut), 1))
    finish(directory, {"emb": values}, [], step=0, origin="named", named={"emb": "scope/emb"})


def version_one(directory: Path) -> None:
    """A TF1 Saver of the first format, which is refused."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        v1.get_variable("emb", initializer=tf.constant(random_values(5, 1)))
        session.run(v1.global_variables_initializer())
        v1.train.Saver(write_version=v1.train.SaverDef.V1).save(session, str(directory / "model.ckpt"))


legacy = tf.keras.optimizers.legacy
CASES: dict[str, Callable[[Path], None]] = {
    "mid_level_sgd": lambda to: mid_level(to, embedding.SGD(0.1), []),
    "mid_level_adagrad": lambda to: mid_level(to, embedding.Adagrad(0.1), ["accumulators"]),
    "mid_level_adagrad_momentum": lambda to: mid_level(
        to, embedding.AdagradMomentum(0.1, momentum=0.9), ["accumulators", "momenta"]
    ),
    "mid_level_adam": lambda to: mid_level(to, embedding.Adam(0.1), ["momenta", "velocities"]),
    "mid_level_ftrl": lambda to: mid_level(to, embedding.FTRL(0.1), ["accumulators", "linears"]),
    "mid_level_hosts": mid_level_hosts,
    "tfrs_adagrad": lambda to: tfrs_layer(to, legacy.Adagrad(0.1), ["accumulator"]),
    "tfrs_adam": lambda to: tfrs_layer(to, legacy.Adam(0.1), ["m", "v"]),
    "keras_float32": lambda to: keras_layer(to, "float32"),
    "keras_bfloat16": lambda to: keras_layer(to, "bfloat16"),
    "keras_float16": lambda to: keras_layer(to, "float16"),
    "sharded_float32": lambda to: sharded_variable_case(to, "float32"),
    "sharded_float16": lambda to: sharded_variable_case(to, "float16"),
    "size_limited": size_limited,
    "name_based": name_based,
    "version_one": version_one,
}


def main(root: Path) -> None:
    """Writes every case."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * HOSTS)
    for name, write in CASES.items():
        (root / name).mkdir(parents=True)
        write(root / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
