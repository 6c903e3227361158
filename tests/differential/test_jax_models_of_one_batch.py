"""Functions of JAX that run in the batch of training alone: their towers compute each example of
any batch as the function does in its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.graphs.loading import tf
from export.jobs import bundle_job
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings
from tests.units.export.checkpoint.orbax_trees import write_item

jax = pytest.importorskip("jax")
jnp = jax.numpy

BATCH = 6
"""The batch of training; also the size of axes that are no batch."""
RANDOM = np.random.default_rng(3)
WEIGHTS = RANDOM.normal(size=(24, BATCH)).astype(np.float32)
SQUARE = RANDOM.normal(size=(BATCH, BATCH)).astype(np.float32)
TABLE = RANDOM.normal(size=(10, 4)).astype(np.float32)
TOKEN = RANDOM.normal(size=(1, 1, 6)).astype(np.float32)


def attention(x: Any) -> Any:
    heads = x.reshape(BATCH, 4, 6)
    mask = jnp.tril(jnp.ones((4, 4)))[None] > 0
    scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", heads, heads), -1e9)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), heads).reshape(BATCH, -1)


def with_token(x: Any) -> Any:
    tiled = jnp.tile(TOKEN, (BATCH, 1, 1))
    repeated = jnp.repeat(TOKEN, BATCH, axis=0)
    return jnp.concatenate([tiled, x.reshape(BATCH, 4, 6), repeated], axis=1)


def pairs(x: Any) -> Any:
    parts = x.reshape(BATCH, 4, 6)
    return jnp.einsum("bid,bjd->bij", parts, parts)[:, *jnp.tril_indices(4, -1)]


def in_one_shard(x: Any) -> Any:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("devices",))
    part = jax.sharding.PartitionSpec("devices")

    def function(y: Any) -> Any:
        return jnp.concatenate([y.reshape(BATCH, -1), jnp.ones((BATCH, 1))], 1)

    return jax.shard_map(function, mesh=mesh, in_specs=part, out_specs=part)(x)


def time_first(x: Any) -> Any:
    steps = x.reshape(BATCH, 4, 6).transpose(1, 0, 2)
    flat = steps.reshape(4, BATCH * 6)
    return flat.reshape(4, BATCH, 6).transpose(1, 0, 2)


def residual_layers(x: Any) -> Any:
    for _ in range(150):
        x = x + jax.nn.relu(x).reshape(BATCH, -1) * jnp.full((BATCH, 1), 1e-3)
    return x


OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "same numbers": lambda x: ((x.reshape(BATCH, 24) @ WEIGHTS) @ SQUARE).reshape(BATCH, 2, 3),
    "sum of a vector of the batch's size": lambda x: x / jnp.ones(BATCH).sum(),
    "bias": lambda x: x + jnp.ones((BATCH, 1)) * jnp.arange(24.0),
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (BATCH, 3, 24)),
    "attention": attention,
    "token": with_token,
    "pairs": pairs,
    "time first": time_first,
    "several rows": lambda x: jnp.tanh(x.reshape(BATCH * 4, 6) @ SQUARE).reshape(BATCH, -1),
    "for each row": jax.vmap(lambda row: jnp.outer(row, row[:3]).sum(0)),
    "order": lambda x: jnp.sort(x, 1)[:, ::2] + jnp.flip(x, 1)[:, :12] + jnp.cumsum(x, 1)[:, -12:],
    "positions": lambda x: jnp.concatenate([jnp.argsort(x, 1), jax.lax.top_k(x, 3)[1]], 1),
    "reductions": lambda x: jnp.stack([x.max(1), x.min(1), x.prod(1), x.sum(1)], 1),
    "largest": lambda x: jnp.argmax(x, 1) - jnp.argmin(x, 1),
    "parts": lambda x: jnp.split(x, [5], 1)[1] * x[:, 3:4] + jnp.take(x, jnp.array([7]), axis=1),
    "window": lambda x: jax.lax.dynamic_slice(x, (0, 5), (BATCH, 3)),
    "padding": lambda x: jnp.pad(x, ((0, 0), (1, 2))) + jnp.tile(x[:, :9], (1, 3)),
    "written": lambda x: x.at[:, 3].set(x[:, 0]),
    "written into zeros": lambda x: jnp.zeros((BATCH, 3)).at[:, 1].set(x[:, 0]),
    "only shard": in_one_shard,
    "residual layers": residual_layers,
}
OF_IDS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda ids: jnp.take(TABLE, ids.reshape(BATCH, 2) % 7, axis=0).reshape(BATCH, -1),
    "one hot": lambda ids: jax.nn.one_hot(ids, BATCH).reshape(BATCH, -1),
    "counted": lambda ids: jax.lax.broadcasted_iota(jnp.int32, (BATCH, 2), 1) + ids,
}
NAMES = (*OF_VALUES, *OF_IDS)


def every_function(_parameters: Any, inputs: Any) -> Any:
    results = [function(inputs["user"]) for function in OF_VALUES.values()]
    results += [function(inputs["ids"]) for function in OF_IDS.values()]
    return [result.astype(jnp.float32).reshape(BATCH, -1) for result in results]


def build() -> Any:
    table = {"name": "users", "vocabulary_size": 10, "embedding_dim": 24, "combiner": "sum"}
    spec = {"table_spec": table, "input_shape": (BATCH, 1), "output_shape": (BATCH, 24)}
    return {"w": jax.ShapeDtypeStruct((1,), jnp.float32)}, every_function, {"user": spec}


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("batch")
    table = np.zeros((10, 24), np.float32)
    write_item(folder / "checkpoint", {"params.w": np.zeros(1, np.float32), "users": table})
    page = {
        "model": "one_batch",
        "checkpoint": {"path": "checkpoint"},
        "code": {"factory": f"{__file__}:build"},
        "output": {"root": "bundles"},
        "inputs": {"user": {"dtype": "int32"}, "ids": {"dtype": "int32", "shape": [2]}},
        "tables": {"users": {"key": "users"}},
        "towers": {
            "tower": {
                "role": "query",
                "outputs": {f"o{number}": number for number, _ in enumerate(NAMES)},
                "result": "o0",
            }
        },
    }
    job = bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())
    assert any(f"in a batch of {BATCH} examples" in note for note in job.traced.notes)
    (traced,) = job.traced.towers
    return traced


@pytest.mark.parametrize("examples", [1, 4])
def test_each_example_is_computed_as_in_the_fixed_batch(examples: int, tower: Any) -> None:
    ids = np.array([[1, 25], [3, 0], [9, 4], [2, 13]], np.int32)[:examples]
    arrays: dict[str, NDArray[Any]] = {
        "user": RANDOM.normal(size=(examples, 24)).astype(np.float32),
        "ids": ids,
    }
    outputs = tower.function(*(tf.constant(arrays[tensor.feature]) for tensor in tower.spec.inputs))
    # Examples beside it fill the batch up, the same ones in another order.
    batches = [
        {
            name: np.resize(array[first:], (BATCH, *array.shape[1:]))
            for name, array in arrays.items()
        }
        for first in range(examples)
    ]
    run = jax.jit(every_function)
    expected = zip(*(run({}, batch) for batch in batches), strict=True)
    for number, (name, results) in enumerate(zip(NAMES, expected, strict=True)):
        wanted = np.stack([np.asarray(result)[0] for result in results])
        scale = np.abs(wanted).max(initial=1.0)
        actual = outputs[f"o{number}"]
        np.testing.assert_allclose(actual, wanted, 2e-5, 2e-5 * scale, err_msg=name)
