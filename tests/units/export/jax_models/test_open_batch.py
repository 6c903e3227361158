"""Functions that run in a batch of one size, for any number of examples: what they compute of each
example is the same, or they are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from export.errors import NotConvertible
from export.jax_models.open_batch import with_open_batch
from export.jax_models.tracing import trace
from tests.units.export.jax_models.evaluated import assert_close, with_opened_batch

jax = pytest.importorskip("jax")
tf = pytest.importorskip("tensorflow")
jnp = jax.numpy

BATCH = 6
"""Also the size of axes that are no batch."""
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


OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "same numbers": lambda x: ((x.reshape(BATCH, 24) @ WEIGHTS) @ SQUARE).reshape(BATCH, 2, 3),
    "ones of the batch": lambda x: jnp.concatenate([jnp.ones((BATCH, BATCH)), x], 1),
    "sum of a vector of the batch's size": lambda x: x / jnp.ones(BATCH).sum(),
    "bias": lambda x: x + jnp.ones((BATCH, 1)) * jnp.arange(24.0),
    "reshaped ones": lambda x: x * jnp.ones((BATCH, 1, 1)).reshape(BATCH, 1),
    "broadcast": lambda x: jnp.broadcast_to(x[:, None], (BATCH, 3, 24)),
    "array without axes": lambda x: jnp.where(x > 0, x, 0.5) + jnp.zeros((BATCH, 24)),
    "attention": attention,
    "token": with_token,
    "pairs": pairs,
    "time first": time_first,
    "several rows": lambda x: jnp.tanh(x.reshape(BATCH * 4, 6) @ SQUARE).reshape(BATCH, -1),
    "paired with what each has": lambda x: jnp.einsum("bi,bi->b", jnp.ones((BATCH, 24)), x),
    "calls": lambda x: jax.checkpoint(lambda y: jax.nn.gelu(jax.nn.relu(y)))(x.reshape(BATCH, 24)),
    "for each row": jax.vmap(lambda row: jnp.outer(row, row[:3]).sum(0)),
    "order": lambda x: jnp.sort(x, 1)[:, ::2] + jnp.flip(x, 1)[:, :12] + jnp.cumsum(x, 1)[:, -12:],
    "positions": lambda x: jnp.concatenate([jnp.argsort(x, 1), jax.lax.top_k(x, 3)[1]], 1),
    "reductions": lambda x: jnp.stack([x.max(1), x.min(1), x.prod(1), x.sum(1)], 1),
    "truth": lambda x: jnp.stack([(x > 0).any(1), (x > -9).all(1)], 1),
    "largest": lambda x: jnp.argmax(x, 1) - jnp.argmin(x, 1),
    "parts": lambda x: jnp.split(x, [5], 1)[1] * x[:, 3:4] + jnp.take(x, jnp.array([7]), axis=1),
    "window": lambda x: jax.lax.dynamic_slice(x, (0, 5), (BATCH, 3)),
    "padding": lambda x: jnp.pad(x, ((0, 0), (1, 2))) + jnp.tile(x[:, :9], (1, 3)),
    "only shard": in_one_shard,
    "barrier": lambda x: jax.lax.optimization_barrier(x).reshape(BATCH, -1),
    "no examples": lambda x: jnp.zeros((BATCH, 2)),
}
OF_IDS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda ids: jnp.take(TABLE, ids.reshape(BATCH, 2) % 7, axis=0).reshape(BATCH, -1),
    "remainders of columns": lambda ids: ids.reshape(BATCH, -1) % jnp.array([7, 5]),
    "quotient": lambda ids: ids.reshape(BATCH, -1) // 3,
    "one hot": lambda ids: jax.nn.one_hot(ids, BATCH).reshape(BATCH, -1),
    "counted": lambda ids: jax.lax.broadcasted_iota(jnp.int32, (BATCH, 2), 1) + ids,
}


def in_own_batch(
    function: Callable[..., Any], *arrays: NDArray[Any], positions: tuple[int, ...]
) -> list[NDArray[Any]]:
    """Returns what JAX gives for the first BATCH examples, and for others filled up by them."""
    results = []
    for first in (0, 1):
        chosen = [
            np.resize(array[first * count :], (BATCH * count, *array.shape[1:]))
            for array, count in zip(arrays, positions, strict=True)
        ]
        results.append(jax.tree.leaves(jax.jit(function)(*chosen)))
    examples = len(arrays[0]) // positions[0]
    return [
        np.concatenate([np.asarray(before)[:1], np.asarray(after)[: examples - 1]])
        for before, after in zip(*results, strict=True)
    ]


def check_opened(
    functions: dict[str, Callable[..., Any]], *arrays: NDArray[Any], positions: tuple[int, ...]
) -> None:
    """Compares functions of any number of examples with JAX, which runs them in their batch."""

    def every(*values: Any) -> Any:
        return {name: function(*values) for name, function in functions.items()}

    expected = in_own_batch(every, *arrays, positions=positions)
    results = with_opened_batch(every, BATCH, positions, *arrays)
    for name, result, expected_result in zip(sorted(functions), results, expected, strict=True):
        assert_close(result, expected_result, name)


@pytest.mark.parametrize("examples", [1, 4])
def test_values_of_each_example_are_those_of_the_fixed_batch(examples: int) -> None:
    values = RANDOM.normal(size=(examples, 24)).astype(np.float32)
    check_opened(OF_VALUES, values, positions=(1,))


def test_ids_of_each_example_are_looked_up_as_in_the_fixed_batch() -> None:
    check_opened(OF_IDS, np.array([[1, 25], [3, 0], [9, 4]], np.int32), positions=(1,))


def test_several_entries_of_an_example_stay_together() -> None:
    def function(words: Any, own_ids: Any) -> Any:
        chosen = jnp.take_along_axis(words.reshape(BATCH, 12), own_ids, axis=1)
        return jnp.concatenate([words.reshape(BATCH, -1), chosen], 1)

    words = RANDOM.normal(size=(4 * 3, 4)).astype(np.float32)
    positions_of_own = np.array([[3], [0], [11], [5]], np.int32)
    check_opened({"function": function}, words, positions_of_own, positions=(3, 1))


def loop(x: Any) -> Any:
    return jax.lax.scan(lambda total, y: (total + y, total), jnp.zeros(BATCH), x.T)[0]


JOINING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "mean": (lambda x: x - x.mean(0), "reduce_sum"),
    "softmax": (lambda x: jax.nn.softmax(x, 0), "reduce_max"),
    "total": (lambda x: x.cumsum(0), "cumsum"),
    "order": (lambda x: jnp.sort(x, 0), "sort"),
    "reversed": (lambda x: x[::-1], "rev"),
    "moved": (lambda x: jnp.roll(x, 1, 0), "slice"),
    "first": (lambda x: x * x[0], "slice"),
    "window": (lambda x: jax.lax.dynamic_slice(x, (1, 0), (2, 5)), "dynamic_slice"),
    "twice": (lambda x: jnp.concatenate([x, x]), "concatenate"),
    "copies": (lambda x: jnp.tile(x, (2, 1)), "tile"),
    "padded": (lambda x: jnp.pad(x, ((0, 2), (0, 0))), "pad"),
    "products": (lambda x: x @ x.T, "dot_general"),
    "summed": (lambda x: SQUARE @ x, "dot_general"),
    "distances": (lambda x: x[:, None] - x[None], "sub"),
    "own weights": (lambda x: x * jnp.arange(6.0)[:, None], "mul"),
    "own array": (lambda x: x + SQUARE[:, :5], "add"),
    "places": (lambda x: x[jnp.arange(BATCH), jnp.argmax(x, 1)], "concatenate"),
    "places of a column": (lambda x: x[jnp.arange(BATCH), 0], "gather"),
    "permuted": (lambda x: jnp.take(x, jnp.array([1, 0, 2, 3, 4, 5]), axis=0), "gather"),
    "own rows": (lambda x: jnp.take_along_axis(SQUARE, (x > 0).astype(int), 1), "gather"),
    "all of another": (lambda x: jnp.take(x, (x[:, 0] > 0).astype(int), axis=1), "gather"),
    "other places": (lambda x: x.reshape(5, BATCH), "reshape"),
    "cut": (lambda x: x.reshape(3, 10), "reshape"),
    "written": (lambda x: jnp.zeros((BATCH, 9)).at[:, 0].set(x[:, 0]), "scatter"),
    "loop": (loop, "scan"),
}


@pytest.mark.parametrize("name", JOINING)
def test_function_that_joins_or_places_examples_is_rejected_with_its_line(name: str) -> None:
    function, operation = JOINING[name]
    with pytest.raises(NotConvertible) as caught:
        opened(function)
    message = str(caught.value)
    assert message.startswith(f"JAX operation {operation} (test_open_batch.py:")
    assert f"no other batch than that of {BATCH} examples, which feature_specs state" in message
    assert "compute each example from its own values" in message


def test_random_numbers_are_rejected_as_in_any_batch() -> None:
    with pytest.raises(NotConvertible, match="it draws random numbers"):
        opened(lambda x: x * jax.random.normal(jax.random.key(0), x.shape))


@pytest.mark.parametrize("function", [lambda x: x.T, lambda x: x.reshape(BATCH * 5)])
def test_result_without_a_row_for_each_example_is_rejected(function: Any) -> None:
    with pytest.raises(NotConvertible, match=r"the call returns \[.*\] for 6 examples"):
        opened(function)


def opened(function: Callable[[Any], Any]) -> Any:
    """Opens the batch of a function of BATCH x 5 numbers."""
    specs = {"x": tf.TensorSpec([None, 5], tf.float32)}
    fixed = trace(lambda _, inputs: function(inputs["x"]), {}, specs, "the call", batch=BATCH)
    return with_open_batch(fixed, BATCH, [1])


def test_batch_of_residual_layers_of_any_depth_is_opened() -> None:
    def function(x: Any) -> Any:
        for _ in range(300):
            x = x + jax.nn.relu(x).reshape(BATCH, -1) * jnp.ones((BATCH, 1))
        return x

    opened(function)
