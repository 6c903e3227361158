"""SASRec and HSTU twice: in Flax, evaluated as the exporter does, and by hand in TensorFlow, with
the same weights; both compiled for LiteRT.

Sources: Kang and McAuley, arXiv:1808.09781; Zhai et al., arXiv:2402.17152.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from examples.hstu.model import Block as HstuBlock
from export.graphs.loading import tf
from export.jax_models.evaluation import Evaluator
from export.jax_models.tracing import BATCH, trace
from export.jax_models.values import Value
from export.towers.compiled import compile_tower
from runtime.litert import CompiledTower

DIM = 64
LENGTH = 50
HEADS = 2
BLOCKS = 2
SPECS = {
    "history": tf.TensorSpec([None, LENGTH, DIM], tf.float32, "history"),
    "length": tf.TensorSpec([None], tf.int32, "length"),
}

Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """One model in both forms."""

    name: str
    in_jax: CompiledTower
    in_tensorflow: CompiledTower


def open_pairs(folder: Path) -> Iterator[Pair]:
    """Compiles both models into a folder, and opens them.

    Raises:
      RuntimeError: LiteRT cannot run one, or the two forms differ.
    """
    models: tuple[tuple[str, nn.Module, Callable[..., Any]], ...] = (
        ("SASRec", Sasrec(), sasrec),
        ("HSTU", Hstu(), hstu),
    )
    for name, module, by_hand in models:
        inputs = random_inputs(8)
        weights = jax.jit(module.init)(jax.random.key(3), inputs)
        pair = Pair(
            name,
            _compiled(folder / name / "jax", _of_jax(module, weights)),
            _compiled(folder / name / "tensorflow", _by_hand(by_hand, weights["params"])),
        )
        first = pair.in_jax.run(inputs)["vector"]
        second = pair.in_tensorflow.run(inputs)["vector"]
        if not np.allclose(first, second, rtol=1e-4, atol=1e-5):
            raise RuntimeError(f"{name}: the forms differ by {np.abs(first - second).max()}")
        yield pair


def random_inputs(batch: int) -> dict[str, Any]:
    """Returns activations and lengths of a number of histories."""
    random = np.random.default_rng(3)
    history = random.standard_normal((batch, LENGTH, DIM)).astype(np.float32)
    return {"history": history, "length": random.integers(1, LENGTH + 1, batch).astype(np.int32)}


class Sasrec(nn.Module):  # type: ignore[misc]
    """Causal attention and a dense network in turn; the last position is the result."""

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, inputs: Weights) -> Any:
        """Computes [b, DIM]."""
        position_vectors = self.param("places", nn.initializers.normal(0.02), (LENGTH, DIM))
        x = inputs["history"] + position_vectors
        positions = np.arange(LENGTH)
        watched = positions < inputs["length"][:, None]
        earlier = positions[:, None] >= positions[None, :]
        mask = (watched[:, None, :] & earlier)[:, None]
        for _ in range(BLOCKS):
            normal = nn.LayerNorm(epsilon=1e-6)(x)
            x = x + nn.MultiHeadDotProductAttention(HEADS)(normal, x, mask=mask)
            hidden = nn.relu(nn.Dense(DIM)(nn.LayerNorm(epsilon=1e-6)(x)))
            x = x + nn.Dense(DIM)(hidden)
        last = (positions == inputs["length"][:, None] - 1).astype(jnp.float32)
        return jnp.einsum("bnd,bn->bd", x, last)


class Hstu(nn.Module):  # type: ignore[misc]
    """The blocks of examples/hstu over activations."""

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, inputs: Weights) -> Any:
        """Computes [b, DIM]."""
        positions = np.arange(LENGTH)
        earlier = (positions[:, None] >= positions[None, :]).astype(np.float32)
        watched = (positions < inputs["length"][:, None]).astype(jnp.float32)
        x = inputs["history"]
        for _ in range(BLOCKS):
            x = HstuBlock(DIM, LENGTH)(x, earlier * watched[:, None, :])
        last = (positions == inputs["length"][:, None] - 1).astype(jnp.float32)
        return jnp.einsum("bnd,bn->bd", x, last)


def sasrec(weights: Weights, history: Any, length: Any) -> Any:
    """Computes what `Sasrec` does."""
    x = history + weights["places"]
    mask = tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)
    mask *= tf.sequence_mask(length, LENGTH, tf.float32)[:, tf.newaxis, :]
    penalty = ((mask - 1.0) * 1e9)[:, tf.newaxis]
    for block in range(BLOCKS):
        attention = weights[f"MultiHeadDotProductAttention_{block}"]
        normal = _normalized(x, weights[f"LayerNorm_{2 * block}"])
        query = _heads(normal, attention["query"]) / float(np.sqrt(DIM // HEADS))
        key = _heads(x, attention["key"])
        value = _heads(x, attention["value"])
        shares = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + penalty)
        mixed = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        kernel = attention["out"]["kernel"].reshape(DIM, DIM)
        x += tf.matmul(tf.reshape(mixed, [-1, LENGTH, DIM]), kernel) + attention["out"]["bias"]
        hidden = _normalized(x, weights[f"LayerNorm_{2 * block + 1}"])
        hidden = tf.nn.relu(_dense(hidden, weights[f"Dense_{2 * block}"]))
        x += _dense(hidden, weights[f"Dense_{2 * block + 1}"])
    return _last(x, length)


def hstu(weights: Weights, history: Any, length: Any) -> Any:
    """Computes what `Hstu` does."""
    visible = tf.linalg.band_part(tf.ones([LENGTH, LENGTH]), -1, 0)
    visible *= tf.sequence_mask(length, LENGTH, tf.float32)[:, tf.newaxis, :]
    distances = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :] + LENGTH - 1
    x = history
    for number in range(BLOCKS):
        block = weights[f"Block_{number}"]
        normal = _normalized(x, block["LayerNorm_0"])
        projected = tf.matmul(normal, block["Dense_0"]["kernel"])
        projected *= tf.sigmoid(projected)
        gates, values, queries, keys = tf.split(projected, 4, axis=-1)
        scores = tf.matmul(queries, keys, transpose_b=True) + block["bias"][distances]
        attended = tf.matmul(scores * tf.sigmoid(scores) * (visible / LENGTH), values)
        x += _dense(_normalized(attended, block["LayerNorm_1"]) * gates, block["Dense_1"])
    return _last(x, length)


def _normalized(x: Any, weights: Weights) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, weights["bias"], weights["scale"], 1e-6)


def _dense(x: Any, weights: Weights) -> Any:
    return tf.matmul(x, weights["kernel"]) + weights["bias"]


def _heads(x: Any, weights: Weights) -> Any:
    """Returns [b, heads, length, width]."""
    kernel = weights["kernel"].reshape(DIM, DIM)
    product = tf.matmul(x, kernel) + weights["bias"].reshape(DIM)
    return tf.transpose(tf.reshape(product, [-1, LENGTH, HEADS, DIM // HEADS]), [0, 2, 1, 3])


def _last(x: Any, length: Any) -> Any:
    return tf.squeeze(tf.matmul(tf.one_hot(length - 1, LENGTH)[:, tf.newaxis], x), 1)


def _of_jax(module: nn.Module, weights: Any) -> Any:
    """Returns the function that the exporter makes of a module."""

    def function(weights: Any, inputs: Any) -> Any:
        return module.apply(weights, inputs)

    shapes = jax.eval_shape(lambda: weights)
    traced = trace(function, shapes, SPECS, "the function")
    leaves = jax.tree.leaves(weights)

    def body(history: Any, length: Any) -> Any:
        tensors = [*(tf.constant(np.asarray(leaf)) for leaf in leaves), history, length]
        avals = traced.jaxpr.in_avals
        values = [Value(aval.shape, tensor) for aval, tensor in zip(avals, tensors, strict=True)]
        (vector,) = Evaluator({BATCH: tf.shape(history)[0]}).results(traced.jaxpr, values)
        return {"vector": vector}

    return tf.function(body, autograph=False)


def _by_hand(function: Callable[..., Any], weights: Weights) -> Any:
    arrays = jax.tree.map(np.asarray, weights)

    def body(history: Any, length: Any) -> Any:
        return {"vector": function(arrays, history, length)}

    return tf.function(body, autograph=False)


def _compiled(folder: Path, function: Any) -> CompiledTower:
    signature = function.get_concrete_function(**SPECS)
    tf.saved_model.save(tf.Module(), str(folder / "saved_model"), signatures=signature)
    path = folder / "compiled.tflite"
    reason = compile_tower(folder / "saved_model", "f32", path)
    if reason:
        raise RuntimeError(f"{folder}: {reason}")
    return CompiledTower(path)
