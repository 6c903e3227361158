"""The ranker of `sparsecore_ranker` with the specifications and layers of jax-tpu-embedding itself;
a model file of tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax_tpu_embedding.sparsecore.lib.flax.linen import embed
from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed
from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking

from tests.models import sparsecore_ranker as ranker

BATCH = 32
DEVICES = 2
AXIS = "x"


Size = tuple[int, int]


def prepared_specs(features: Mapping[str, tuple[str, Size, Size]]) -> dict[str, Any]:
    """Returns specifications, prepared for the devices of training, of features with the table, the
    shape of the input and that of the output of each.
    """
    tables = {}
    for name, table in ranker.TABLES.items():
        tables[name] = embedding_spec.TableSpec(
            name=name,
            vocabulary_size=table.rows,
            embedding_dim=table.dim,
            initializer=jax.nn.initializers.normal(0.1),
            optimizer=embedding_spec.SGDOptimizerSpec(),
            combiner=table.combiner,
        )
    specs = {}
    for name, (read, input_shape, output_shape) in features.items():
        specs[name] = embedding_spec.FeatureSpec(
            name=name, table_spec=tables[read], input_shape=input_shape, output_shape=output_shape
        )
    devices = {"global_device_count": DEVICES, "num_sc_per_device": ranker.CORES // DEVICES}
    table_stacking.auto_stack_tables(specs, **devices)
    embedding.prepare_feature_specs_for_training(specs, **devices)
    return specs


def feature_specs() -> dict[str, Any]:
    """Returns the specifications of the ranker's features."""
    return prepared_specs(
        {
            name: (read, (BATCH, 4), (BATCH, ranker.TABLES[read].dim))
            for name, read in ranker.FEATURES.items()
        }
    )


def dense_part(parameters: Any, rows: Any, inputs: Any) -> Any:
    """Returns scores of rows and numbers."""
    x = jnp.concatenate([*(rows[name] for name in sorted(rows)), inputs["dense"]], axis=-1)
    return {"score": jnp.tanh(x @ parameters["w"] + parameters["b"])[:, 0]}


def shapes() -> Any:
    """Returns the shapes of the dense part's parameters."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, ranker.parameters()))


def mesh() -> Any:
    """Returns this machine as the only device."""
    return jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), (AXIS,))


def build() -> Any:
    """Returns a function of activations."""

    def score(parameters: Any, inputs: Any) -> Any:
        return dense_part(parameters, {name: inputs[name] for name in ranker.FEATURES}, inputs)

    return shapes(), {"score": score}, feature_specs()


def build_linen() -> Any:
    """Returns a module of Flax linen that calls the layer."""
    specs = feature_specs()

    class Model(nn.Module):  # type: ignore[misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, inputs: Any) -> Any:
            layer = embed.SparseCoreEmbed(specs, AXIS, mesh())
            rows = layer(None)
            held = {
                name: self.param(name, nn.initializers.zeros, leaf.shape)
                for name, leaf in shapes().items()
            }
            return dense_part(held, rows, inputs)

    model = Model()
    example = {"dense": jnp.zeros((BATCH, ranker.DENSE))}
    parameters = jax.eval_shape(model.init, jax.random.key(0), example)["params"]

    def score(parameters: Any, inputs: Any) -> Any:
        return model.apply({"params": parameters}, inputs)

    return parameters, {"score": score}, specs


def build_nnx() -> Any:
    """Returns a module of nnx that calls the layer."""
    specs = feature_specs()

    class Model(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.layer = nnx_embed.SparseCoreEmbed(specs, AXIS, mesh(), rngs)
            held = {name: jnp.zeros(leaf.shape) for name, leaf in shapes().items()}
            self.w = nnx.Param(held["w"])
            self.b = nnx.Param(held["b"])

        def __call__(self, inputs: Any) -> Any:
            held = {"w": self.w[...], "b": self.b[...]}
            return dense_part(held, self.layer(None), inputs)

    graph, state = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def score(parameters: Any, inputs: Any) -> Any:
        return nnx.merge(graph, parameters)(inputs)

    return state, {"score": score}, specs
