"""Writes the Orbax checkpoints of tests/golden/orbax.tar.xz with the libraries' own code. Not run by the tests.

Needs an environment of its own, not the product's: flax, optax, orbax-checkpoint, keras, keras-rs 0.4.0 and
jax-tpu-embedding 0.1.0 with what they need. CPU devices stand for TPUs of two sparse cores each.
Usage: python tests/golden/write_orbax.py tests/golden/orbax.tar.xz
"""

# mypy: ignore-errors
# Its libraries are not in the environment that the checks run in.
from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}

import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import keras_rs
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking
from jax_tpu_embedding.sparsecore.utils import utils
from keras_rs.src.layers.embedding.jax.checkpoint_utils import JaxKeras3CheckpointManager
from keras_rs.src.layers.embedding.jax.distributed_embedding import DistributedEmbedding

DEVICES, CORES = 4, 8
ROWS = {"movies": 100, "users": 30}


def values_of(rows: int, dim: int, seed: int) -> np.ndarray[Any, Any]:
    """Values that pack well: quarters."""
    return (np.random.default_rng(seed).integers(-8, 8, (rows, dim)) / 4).astype(np.float32)


def over_devices(values: Any) -> jax.Array:
    """Gives each device its rows, as a trainer does: each becomes a chunk."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return jax.device_put(jnp.asarray(values), NamedSharding(mesh, PartitionSpec("x", None)))


def flax_steps(root: Path) -> dict[str, Any]:
    """A flax model with optax' Adam, saved by a CheckpointManager; the newest step has other values."""

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            return nn.Dense(1)(nn.Embed(64, 8, name="movies")(ids))

    model = Model()
    params = model.init(jax.random.key(0), jnp.zeros((2,), jnp.int32))["params"]
    with ocp.CheckpointManager(root) as manager:
        for step in (9, 10):
            params["movies"]["embedding"] = over_devices(values_of(64, 8, step))
            state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.1))
            manager.save(step, args=ocp.args.StandardSave(state.replace(step=step)))
    return {"movies": values_of(64, 8, 10)}


def flat_tree(root: Path, *, packed: bool, zarr3: bool) -> dict[str, Any]:
    """A tree of two dtypes that a Checkpointer saves alone."""
    values = values_of(40, 8, 1)
    if packed:  # a chunk of more than 1 KiB lies in a data file of its own, a smaller one in the store's tree
        values = np.random.default_rng(1).standard_normal((40, 32), np.float32)
    tree = {
        "params": {"a": over_devices(values), "half": over_devices(jnp.asarray(values, jnp.bfloat16))},
        "step": np.int64(3),
        "nothing": None,
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=packed, use_zarr3=zarr3)) as checkpointer:
        checkpointer.save(root, tree)
    return {"a": values, "half": values}


def jax_stacks(root: Path) -> tuple[dict[str, Any], Any]:
    """Tables that jax-tpu-embedding stacks and shards itself, in the variable of its flax layer."""
    specs = [
        embedding_spec.FeatureSpec(
            table_spec=embedding_spec.TableSpec(
                vocabulary_size=rows,
                embedding_dim=dim,
                initializer=jax.nn.initializers.zeros,
                optimizer=embedding_spec.AdagradOptimizerSpec(0.1),
                combiner="sum",
                name=name,
            ),
            input_shape=(16, 1),
            output_shape=(16, dim),
            name=f"{name}_id",
        )
        for name, rows, dim in (
            ("movies", 100, 8),
            ("users", 30, 6),
            ("a_name_that_makes_the_name_of_the_stack_too_long", 9, 8),
        )
    ]
    table_stacking.auto_stack_tables(specs, DEVICES, CORES // DEVICES)
    embedding.prepare_feature_specs_for_training(specs, DEVICES, CORES // DEVICES)
    tables = embedding.get_table_specs(specs)
    values = {
        name: values_of(spec.vocabulary_size, spec.embedding_dim, seed)
        for seed, (name, spec) in enumerate(tables.items())
    }
    stacks = table_stacking.stack_and_shard_tables(tables, {name: jnp.asarray(values[name]) for name in tables}, CORES)
    variables = {}
    for name, stack in stacks.items():
        rows = over_devices(stack.reshape(-1, stack.shape[-1]))
        variables[name] = embedding.EmbeddingVariables(rows, (over_devices(jnp.full_like(rows, 0.1)),))
    with ocp.CheckpointManager(root) as manager:
        tree = {"params": {"embed": {"sc_embedding_variables": variables}, "kernel": jnp.ones((4, 2))}, "step": 5}
        manager.save(5, args=ocp.args.StandardSave(tree))
    return values, specs


def keras_rs_stacks(root: Path) -> tuple[dict[str, Any], Any]:
    """keras-rs' DistributedEmbedding, two of whose tables are stacked, saved by its own manager."""
    places = [(name, rows, "sparsecore") for name, rows in ROWS.items()] + [("tiny", 5, "default_device")]
    configs = {
        name: keras_rs.layers.TableConfig(
            name=name, vocabulary_size=rows, embedding_dim=8, optimizer="adagrad", placement=place
        )
        for name, rows, place in places
    }
    features = {
        name: keras_rs.layers.FeatureConfig(name=f"{name}_id", table=table, input_shape=(16, 1), output_shape=(16, 8))
        for name, table in configs.items()
    }

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embed = keras_rs.layers.DistributedEmbedding(features, table_stacking="auto", name="embed")
            self.embed.build(dict.fromkeys(features, (16, 1)))
            self.built = True

    model = Model()
    model.compile("adam", "mse")
    model.optimizer.build([])
    values = {name: values_of(table.vocabulary_size, 8, seed) for seed, (name, table) in enumerate(configs.items())}
    model.embed.set_embedding_tables({name: values[name] for name in ROWS})
    next(each for each in model.embed.variables if "tiny" in each.path).assign(values["tiny"])
    with JaxKeras3CheckpointManager(model, root, 1) as manager:
        manager.save_state(4)
    return values, model.embed._config.feature_specs


def main(archive: Path) -> None:
    """Writes every case, with the values that it must be read as, and its trainer's layout, into one archive."""
    utils.NUM_SC_PER_DEVICE_MAP["cpu"] = CORES // DEVICES
    DistributedEmbedding._has_sparsecore = lambda self: True
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        cases: dict[str, tuple[dict[str, Any], Any]] = {"flax_steps": (flax_steps(root / "flax_steps"), None)}
        for packed in (True, False):
            for zarr3 in (True, False):
                name = f"{'packed' if packed else 'loose'}_{'zarr3' if zarr3 else 'zarr2'}"
                cases[name] = flat_tree(root / name, packed=packed, zarr3=zarr3), None
        cases["jax_stacks"] = jax_stacks(root / "jax_stacks")
        cases["keras_rs_stacks"] = keras_rs_stacks(root / "keras_rs_stacks")
        for name, (values, specs) in cases.items():
            np.savez_compressed(root / name / "values.npz", **values)
            if specs is not None:
                told = embedding.create_proto_from_feature_specs(specs, DEVICES, CORES // DEVICES)
                (root / name / "layout.pb").write_bytes(told.SerializeToString())
        for marker in root.rglob("commit_success.txt"):  # it tells the directory of the machine that wrote it
            marker.write_text("Checkpoint commit was successful")
        with tarfile.open(archive, "w:xz") as written:
            written.add(root, ".", filter=_timeless)


def _timeless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Keeps the archive the same where the content is."""
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]))
