"""Trains the dense part and the tables in JAX on a CPU, and writes the files of an export.

python -m examples.jax_tpu_embedding.train [--out DIR]
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from examples import requests, trained
from examples.columns import Column, Columns, Ragged, size, take
from examples.jax_tpu_embedding.model import (
    COMBINERS,
    FEATURES,
    Ranker,
    Sizes,
    example,
    table_specs,
)
from examples.jax_tpu_embedding.stacks import layout, stacks_of
from examples.watching import Watching

HISTORY = 10
"""Maximum length of a history."""
WIDTHS = {"tiny": (4, 8), "small": (32, 64), "article": (64, 256)}
"""Widths of the tables and of the hidden layer, by scale."""
INTERACTIONS = {"tiny": 300, "small": 60_000, "article": 1_000_000}
BATCH = {"tiny": 400, "small": 2_000, "article": 4_000}
NEGATIVES = 3
"""Number of further movies beside each watched one in the training."""
CANDIDATES = 20
"""Number of candidates of a request."""
ACCUMULATOR = 1e-6
"""Initial value of Adagrad's accumulators."""

Arrays = dict[str, NDArray[Any]]


class EmbeddingVariables(NamedTuple):
    """A stack and its slot variables, as jax-tpu-embedding saves them."""

    table: NDArray[np.float32]
    slot: tuple[NDArray[np.float32], ...]


def train(out: Path, scale: trained.Scale = "small") -> None:
    """Trains, and writes the folder `out`."""
    watching = Watching(scale, HISTORY)
    dim, hidden = WIDTHS[scale]
    sizes = Sizes(watching.users, watching.movies, watching.genres, dim, hidden)
    interactions = watching.draw(watching.trained, INTERACTIONS[scale])
    columns, labels = watching.pairs(interactions, NEGATIVES)
    parameters, accumulators = fit(sizes, columns, labels["watched"], BATCH[scale])

    def call(columns: Columns) -> NDArray[np.float32]:
        return np.asarray(jax.jit(scores)(parameters, arrays(columns)))

    held_out, _ = watching.pairs(watching.held_out, NEGATIVES)
    # The watched movie is the first of each row.
    held_out_scores = call(held_out).reshape(-1, 1 + NEGATIVES)
    above = np.mean(held_out_scores[:, :1] > held_out_scores[:, 1:])
    print(f"held out: {above:.3f} of the other movies have a lower score than the one watched")

    contexts = watching.contexts(watching.draw(watching.interactions, requests.COUNT[scale]))
    movies = watching.movie_features(watching.draw_movies(CANDIDATES * requests.COUNT[scale]))
    pairs = requests.pairs(contexts, movies)
    reference = trained.ReferenceRequests(
        requests.rankings(watching.ids(contexts), watching.ids(movies)),
        {"score": call(pairs)},
        watching.ids(pairs),
    )
    trained.write_files(out, Path(__file__).parent, sizes, reference)
    watching.write_catalogue(out)
    save(out, sizes, parameters, accumulators)


def arrays(columns: Columns) -> Arrays:
    """Returns columns as arrays of a fixed width, with the number of ids of each example."""
    arrays: Arrays = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            lengths = np.diff(column.offsets)
            is_id = np.arange(lengths.max(initial=1)) < lengths[:, np.newaxis]
            ids = np.zeros(is_id.shape, np.int32)
            ids[is_id] = column.values
            arrays |= {name: ids, f"{name}_lengths": lengths.astype(np.int32)}
        else:
            dtype = np.float32 if column.dtype.kind == "f" else np.int32
            arrays[name] = column.astype(dtype)
    return arrays


def activations(tables: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the activations that SparseCores compute: the combined rows of each feature."""
    activations = {}
    for name, table in FEATURES.items():
        rows = tables[table][batch[name]]
        # A feature with one id per example needs no combiner.
        if rows.ndim == 2:
            activations[name] = rows
            continue
        lengths = batch[f"{name}_lengths"][:, None]
        is_id = jnp.arange(rows.shape[1]) < lengths
        total = (rows * is_id[..., None]).sum(axis=1)
        count = jnp.maximum(lengths, 1).astype(jnp.float32)
        divisor = {"sum": 1.0, "mean": count, "sqrtn": jnp.sqrt(count)}[COMBINERS[table]]
        activations[name] = total / divisor
    return activations


def scores(parameters: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
    """Returns the scores of examples: [b]."""
    (hidden,) = parameters["dense"]["params"]["Dense_0"]["bias"].shape
    inputs = activations(parameters["tables"], batch) | {"year": batch["year"]}
    return Ranker(hidden).apply(parameters["dense"], inputs)


def fit(
    sizes: Sizes, columns: Columns, watched: NDArray[np.float32], batch_size: int
) -> tuple[Any, Any]:
    """Returns trained parameters, and Adagrad's accumulators of the tables."""
    table_optimizer = optax.adagrad(0.1, initial_accumulator_value=ACCUMULATOR)
    dense_optimizer = optax.adam(0.002)
    random = np.random.default_rng(1)
    tables = {}
    for name, spec in table_specs(sizes).items():
        shape = (spec["vocabulary_size"], spec["embedding_dim"])
        tables[name] = jnp.asarray(random.normal(0, 0.1, shape), jnp.float32)
    dense = jax.jit(Ranker(sizes.hidden).init)(jax.random.key(3), example(sizes))
    parameters = {"tables": tables, "dense": dense}
    states = {"tables": table_optimizer.init(tables), "dense": dense_optimizer.init(dense)}

    def loss_of(parameters: Any, batch: Any, labels: Any) -> Any:
        # Cross entropy, of probabilities that are neither 0 nor 1.
        probabilities = jnp.clip(scores(parameters, batch), 1e-6, 1 - 1e-6)
        logs = labels * jnp.log(probabilities) + (1 - labels) * jnp.log1p(-probabilities)
        return -jnp.mean(logs)

    @jax.jit
    def step(parameters: Any, states: Any, batch: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch, labels)
        updates = {}
        new_states = {}
        for name, optimizer in (("tables", table_optimizer), ("dense", dense_optimizer)):
            updates[name], new_states[name] = optimizer.update(gradients[name], states[name])
        return optax.apply_updates(parameters, updates), new_states, loss

    start = time.monotonic()
    losses = []
    order = random.permutation(size(columns))
    all_arrays: Mapping[str, Column] = arrays(columns)
    for first in range(0, len(order) - batch_size + 1, batch_size):
        positions = order[first : first + batch_size]
        batch = take(all_arrays, positions)
        parameters, states, loss = step(parameters, states, batch, watched[positions])
        losses.append(float(loss))
    seconds = time.monotonic() - start
    print(
        f"{len(losses)} steps, {seconds:.0f} s: loss {losses[0]:.4f}, in the end {losses[-1]:.4f}"
    )
    accumulators = optax.tree_utils.tree_get(states["tables"], "sum_of_squares")
    return parameters, accumulators


def save(out: Path, sizes: Sizes, parameters: Any, accumulators: Any) -> None:
    """Writes stacks and the dense part's parameters as the documentation of jax-tpu-embedding does,
    and the layout of the stacks.
    """
    stacks = stacks_of(table_specs(sizes))
    tables = jax.tree.map(np.asarray, parameters["tables"])
    slots = jax.tree.map(np.asarray, accumulators)
    embedding = {}
    for stack in stacks:
        accumulator = stack.laid_out(slots, padding=ACCUMULATOR)
        embedding[stack.name] = EmbeddingVariables(stack.laid_out(tables), (accumulator,))
    state = {"params": parameters["dense"], "step": 1}
    with ocp.CheckpointManager((out / "checkpoint").resolve()) as manager:
        items = {
            "train_state": ocp.args.PyTreeSave(state),
            "embedding": ocp.args.PyTreeSave(embedding),
        }
        manager.save(1, args=ocp.args.Composite(**items))
    (out / "layout.textproto").write_text(layout(stacks))


if __name__ == "__main__":
    trained.command_line("jax_tpu_embedding", train)
