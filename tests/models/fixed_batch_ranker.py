"""A ranker in JAX as programs for TPUs write them: its sizes are those of the batch of training, a
feature has an activation for each of its ids, and a layer of its own looks up on SparseCores.

Tables, stacks and layout are those of `sparsecore_ranker`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from tests.models import sparsecore_ranker as ranker
from tests.units.export.checkpoint.orbax_trees import write_item

BATCH = 8
LENGTH = 3
DIM = 4
HIDDEN = 8
"""As many as examples in the batch, so that a size alone does not show which dimension is which."""
AXIS = "device"
TABLE_OF = {"user": "users", "history": "movies", "movie": "movies"}
POSITIONS = {"user": 1, "history": LENGTH, "movie": 1}


def scores(weights: Any, rows: Mapping[str, Any], price: Any, batch: int) -> Any:
    """Returns scores [batch] of activations by feature and prices [batch]."""
    history = jnp.reshape(rows["history"], (batch, LENGTH, DIM))
    alike = jnp.einsum("bld,bd->bl", history, rows["movie"])
    parts = [
        jnp.reshape(history, (batch, -1)),
        jnp.reshape(rows["user"], (batch, -1)),
        jax.nn.softmax(alike, axis=-1),
        jnp.reshape(price, (batch, 1)),
        jnp.ones((batch, 1)),
    ]
    hidden = nn.relu(jnp.concatenate(parts, axis=-1) @ weights["w"])
    squares = jnp.reshape(hidden[:, :, None] * hidden[:, None], (batch, HIDDEN, HIDDEN))
    return jnp.reshape(squares.sum(axis=1) @ weights["v"], (batch,))


def parameters(seed: int = 5) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters of the network."""
    random = np.random.default_rng(seed)
    width = LENGTH * DIM + DIM + LENGTH + 2
    return {
        "w": random.normal(0, 0.4, (width, HIDDEN)).astype(np.float32),
        "v": random.normal(0, 0.4, HIDDEN).astype(np.float32),
    }


def shapes() -> Any:
    """Returns the shapes of the network's parameters."""
    return jax.eval_shape(lambda: jax.tree.map(jnp.asarray, parameters()))


def feature_specs() -> dict[str, Any]:
    """Returns the fields of each specification that an export reads."""
    specs = {}
    for name, read in TABLE_OF.items():
        table = ranker.TABLES[read]
        rows = BATCH * POSITIONS[name]
        specs[name] = {
            "name": name,
            "table_spec": {
                "name": read,
                "vocabulary_size": table.rows,
                "embedding_dim": table.dim,
                "combiner": table.combiner,
            },
            "input_shape": (rows, 1),
            "output_shape": (rows, DIM),
        }
    return specs


def package_specs() -> dict[str, Any]:
    """Returns the specifications as objects of jax-tpu-embedding, prepared for training."""
    from tests.models.jax_tpu_embedding_ranker import prepared_specs

    return prepared_specs(
        {
            name: (TABLE_OF[name], spec["input_shape"], spec["output_shape"])
            for name, spec in feature_specs().items()
        }
    )


def mesh() -> Any:
    """Returns this machine as the only device."""
    return jax.sharding.Mesh(np.array(jax.devices("cpu")[:1]), (AXIS,))


class OwnLookup(nn.Module):  # type: ignore[misc]
    """A layer that looks up by the function of jax-tpu-embedding."""

    specs: Any

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, ids: Any) -> Any:
        from jax_tpu_embedding.sparsecore.lib.nn import embedding

        devices = mesh()
        by_row = jax.sharding.PartitionSpec(AXIS, None)
        create = functools.partial(
            embedding.init_embedding_variables,
            table_specs=embedding.get_table_specs(self.specs),
            global_sharding=jax.sharding.NamedSharding(devices, by_row),
            num_sparsecore_per_device=ranker.CORES // 2,
        )
        tables = self.param("tables", create)
        look_up = functools.partial(
            embedding.tpu_sparse_dense_matmul,
            global_device_count=devices.size,
            feature_specs=self.specs,
        )
        by_example = jax.sharding.PartitionSpec(AXIS)
        return jax.shard_map(
            look_up,
            mesh=devices,
            in_specs=(by_example, by_row),
            out_specs=by_example,
            check_vma=False,
        )(ids, tables)


class Ranker(nn.Module):  # type: ignore[misc]
    """The ranker in Flax linen: it takes activations, or looks them up by a layer of its own."""

    global_batch_size: int
    specs: Any = None

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, rows: Any, price: Any) -> Any:
        if self.specs is not None:
            rows = OwnLookup(self.specs)(rows)
        weights = {
            name: self.param(name, nn.initializers.zeros, leaf.shape)
            for name, leaf in shapes().items()
        }
        return scores(weights, rows, price, self.global_batch_size)


def build() -> Any:
    """Returns a module that takes activations."""
    model = Ranker(BATCH)

    def score(weights: Any, inputs: Any) -> Any:
        return model.apply({"params": weights}, inputs, inputs["price"])

    return shapes(), score, feature_specs()


def build_with_sizes_of_inputs() -> Any:
    """Returns the same module with the size of a batch set from an input."""
    model = Ranker(BATCH)

    def score(weights: Any, inputs: Any) -> Any:
        opened = model.clone(global_batch_size=inputs["price"].shape[0])
        return opened.apply({"params": weights}, inputs, inputs["price"])

    return shapes(), score, feature_specs()


def build_with_own_lookup() -> Any:
    """Returns a module as it is applied: to ids and prices."""
    model = Ranker(BATCH, package_specs())
    variables = jax.eval_shape(model.init, jax.random.key(0), None, jnp.zeros(BATCH))
    return variables, model.apply, model.specs


def nnx_ranker() -> Any:
    """Returns the graph and the state of the ranker in nnx, whose lookup is the package's layer;
    and its specifications.
    """
    from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed

    specs = package_specs()

    class Model(nnx.Module):  # type: ignore[misc]
        def __init__(self, global_batch_size: int) -> None:
            self.global_batch_size = global_batch_size
            self.layer = embed.SparseCoreEmbed(specs, AXIS, mesh(), nnx.Rngs(0))
            self.w = nnx.Param(jnp.zeros(shapes()["w"].shape))
            self.v = nnx.Param(jnp.zeros(shapes()["v"].shape))

        def __call__(self, ids: Any, price: Any) -> Any:
            weights = {"w": self.w[...], "v": self.v[...]}
            return scores(weights, self.layer(ids), price, self.global_batch_size)

    return *nnx.split(nnx.eval_shape(lambda: Model(BATCH))), specs


def build_nnx() -> Any:
    """Returns the module of nnx."""
    graph, state, specs = nnx_ranker()
    return state, lambda parameters, *given: nnx.merge(graph, parameters)(*given), specs


def build_nnx_with_sizes_of_inputs() -> Any:
    """Returns the module of nnx with the size of a batch set from an input."""
    graph, state, specs = nnx_ranker()

    def score(parameters: Any, ids: Any, price: Any) -> Any:
        model = nnx.merge(graph, parameters)
        model.global_batch_size = price.shape[0]
        return model(ids, price)

    return state, score, specs


def write(folder: Path) -> None:
    """Writes checkpoint and layout."""
    (folder / "layout.textproto").write_text(ranker.layout())
    leaves = {f"params.{name}": values for name, values in parameters().items()}
    for name, rows in ranker.stacks(ranker.tables()).items():
        leaves[f"embedding.{name}.table"] = rows
    write_item(folder / "checkpoint", leaves)


def recipe(factory: str, **changes: Any) -> dict[str, Any]:
    """Returns the recipe as a page; `changes` replace its parts."""
    tower: dict[str, Any] = {"role": "ranking"}
    if factory in ("build_with_own_lookup", "build_nnx", "build_nnx_with_sizes_of_inputs"):
        tower["arguments"] = [{name: name for name in TABLE_OF}, "price"]
    return {
        "model": "random",
        "checkpoint": {"path": "checkpoint", "layout": "layout.textproto"},
        "code": {"factory": f"{__file__}:{factory}"},
        "output": {"root": "bundles"},
        "inputs": {
            "user": {"dtype": "int32"},
            "history": {"dtype": "int32", "shape": [LENGTH]},
            "movie": {"dtype": "int32"},
            "price": {"dtype": "float32"},
        },
        "features": {name: {"role": "candidate"} for name in ("movie", "price")},
        "towers": {"ranking": tower},
        **changes,
    }


def score(user: int, history: list[int], movie: int, price: float) -> float:
    """Returns the score of one example, computed in NumPy."""
    tables = {name: rows.astype(np.float64) for name, rows in ranker.tables().items()}
    weights = parameters()
    words = tables["movies"][history]
    alike = np.exp(words @ tables["movies"][movie])
    x = np.concatenate([words.ravel(), tables["users"][user], alike / alike.sum(), [price, 1.0]])
    hidden = np.maximum(x @ weights["w"], 0)
    return float((np.outer(hidden, hidden).sum(axis=0)) @ weights["v"])
