"""Steps by jax-tpu-embedding's own save_checkpoint: python write_jax_tpu_embedding.py DIRECTORY

Needs jax-tpu-embedding and Orbax; jax_tpu_embedding.tar.xz was written with jax-tpu-embedding
0.2.0, jax 0.12.0.1 and Orbax 0.12.8. Two CPU devices stand for two chips of four SparseCores each.

    step        as training saves it: a stack of three tables, and a table alone
    converted   the same for four chips of two cores, by the package's converter
    in_order    the same without a target: each table in the order of its ids
"""

# mypy: ignore-errors

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax_tpu_embedding.sparsecore.lib.flax.nnx import checkpoint_utils, embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking
from jax_tpu_embedding.sparsecore.utils import utils

DEVICES = 2
CORES = 4
BATCH = 16
IDS = 4
TABLES = {
    "users": (100, 16, "mean"),
    "movies": (70, 16, "mean"),
    "tags": (60, 16, "sum"),
    "genres": (24, 12, "mean"),
}
utils.NUM_SC_PER_DEVICE_MAP["cpu"] = CORES


class Model(nnx.Module):
    def __init__(self, feature_specs):
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
        self.embedding_layer = embed.SparseCoreEmbed(feature_specs, "x", mesh, nnx.Rngs(0))
        self.dense = nnx.Linear(60, 1, rngs=nnx.Rngs(1))


def features():
    specs = {}
    for name, (rows, dim, combiner) in TABLES.items():
        table = embedding_spec.TableSpec(
            vocabulary_size=rows,
            embedding_dim=dim,
            initializer=jax.nn.initializers.normal(0.1),
            optimizer=embedding_spec.AdagradOptimizerSpec(learning_rate=0.1),
            combiner=combiner,
            name=name,
        )
        specs[name] = embedding_spec.FeatureSpec(
            name=name, table_spec=table, input_shape=(BATCH, IDS), output_shape=(BATCH, dim)
        )
    devices = {"global_device_count": DEVICES, "num_sc_per_device": CORES}
    table_stacking.auto_stack_tables(specs, **devices)
    embedding.prepare_feature_specs_for_training(specs, **devices)
    return specs


def main():
    directory = Path(sys.argv[1]).resolve()
    specs = features()
    model = Model(specs)
    step = directory / "step"
    with checkpoint_utils.create_checkpoint_manager(
        cp_path=step, cp_options=ocp.CheckpointManagerOptions()
    ) as manager:
        checkpoint_utils.save_checkpoint(
            cp_manager=manager,
            step=5,
            model=model,
            optimizer=nnx.Optimizer(model, optax.adam(0.001), wrt=nnx.Param),
            feature_specs=specs,
            num_global_devices=DEVICES,
            num_sc_per_device=CORES,
        )
    targets = {"converted": checkpoint_utils.TargetTopology(4, 2), "in_order": None}
    for name, target in targets.items():
        checkpoint_utils.convert_cross_topology_checkpoint(
            input_checkpoint_path=step,
            output_checkpoint_path=directory / name,
            target_topology=target,
        )

    stacks = model.embedding_layer.embedding_table.get_value()
    tables = table_stacking.unshard_and_unstack_tables(
        embedding.get_table_specs(specs),
        {name: np.asarray(variables.table) for name, variables in stacks.items()},
        DEVICES * CORES,
    )
    rows = {}
    for name, (count, dim, _) in TABLES.items():
        rows[name] = np.asarray(tables[name])[:count, :dim]
    np.savez(directory / "values.npz", **rows)


if __name__ == "__main__":
    main()
