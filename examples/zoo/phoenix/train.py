"""Trains the models of X's Phoenix for a few steps, on batches as its runners draw them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from examples.columns import Columns
from examples.zoo import recorded
from examples.zoo.recorded import Recorded
from examples.zoo.train import Run
from examples.zoo.viewings import write_corpus

BATCH = 64
STEPS = 3
RECORDED = 100
"""The number of requests whose responses are compared."""
POSTS = 2_000
"""The number of posts that are retrieved."""
HISTORY = 32
USER_ROWS = 1_000
POST_ROWS = 4_000
AUTHOR_ROWS = 600
ACTIONS = 19
SURFACES = 16


def ranking(run: Run) -> Recorded:
    """Trains the ranker to predict two actions."""
    functions = run.built("ranking_functions")
    rank = functions.calls["rank"]
    outputs = ("favorite_score", "reply_score")

    def loss(parameters: Any, batch: Columns, labels: Any) -> Any:
        logits = rank(parameters, batch)
        return sum(((logits[name] - labels) ** 2).mean() for name in outputs)

    parameters = _trained(functions, loss)
    _save(parameters, run.folder)

    def call(columns: Columns) -> Any:
        scores = rank(parameters, columns)
        return {"favorite": scores["favorite_score"], "reply": scores["reply_score"]}

    contexts = _users(RECORDED, seed=2)
    candidates = _posts(RECORDED * recorded.CANDIDATES, seed=3)
    surfaces = np.random.default_rng(4).integers(SURFACES, size=RECORDED * recorded.CANDIDATES)
    candidates["candidate_product_surface"] = surfaces.astype(np.int32)
    return recorded.rankings(contexts, candidates, call, ("favorite", "reply"))


def retrieval(run: Run) -> Recorded:
    """Trains both towers, and records the posts with the largest products."""
    functions = run.built("retrieval_functions")
    query = functions.calls["query"]
    candidate = functions.calls["candidate"]

    def loss(parameters: Any, batch: Columns, labels: Any) -> Any:
        products = (query(parameters, batch) * candidate(parameters, batch)).sum(-1)
        return ((products - labels) ** 2).mean()

    parameters = _trained(functions, loss)
    _save(parameters, run.folder)

    posts = _posts(POSTS, seed=3)
    write_corpus(run.folder / "movies.csv", posts)
    contexts = _users(RECORDED, seed=2)
    chosen = np.random.default_rng(4).integers(1, POSTS + 1, RECORDED)
    queries = query(parameters, contexts)
    return recorded.retrievals(contexts, queries, posts, candidate(parameters, posts), chosen)


def _trained(functions: Any, loss: Callable[[Any, Columns, Any], Any]) -> Any:
    """Returns the parameters of a model after a few steps."""
    import jax
    import optax

    batches = []
    for seed in range(10, 10 + STEPS):
        batch = {**_users(BATCH, seed), **_posts(BATCH, seed)}
        batch["candidate_product_surface"] = np.full(BATCH, seed % SURFACES, np.int32)
        batches.append(batch)
    parameters = functions.initial(jax.random.key(0), batches[0])
    # The published layers begin with zeros, whose gradients are zero, too: no layer would learn.
    random = np.random.default_rng(0)
    parameters["model"] = jax.tree.map(
        lambda array: np.asarray(array) + random.normal(0, 0.1, array.shape).astype(np.float32),
        parameters["model"],
    )
    optimizer = optax.adam(1e-3)
    state = optimizer.init(parameters)
    gradient = jax.jit(jax.grad(loss))
    for batch in batches:
        labels = batch["candidate_post_hashes"][:, 0] % 2
        updates, state = optimizer.update(gradient(parameters, batch, labels), state)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


def _save(parameters: Any, folder: Path) -> None:
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((folder / "checkpoint").resolve(), {"params": parameters})


def _users(count: int, seed: int) -> dict[str, Any]:
    """Returns random users with histories of half of the positions or more, filled up with 0."""
    random = np.random.default_rng(seed)
    posts = random.integers(1, POST_ROWS, (count, HISTORY, 2))
    authors = random.integers(1, AUTHOR_ROWS, (count, HISTORY, 2))
    lengths = random.integers(HISTORY // 2, HISTORY + 1, (count, 1, 1))
    is_event = np.arange(HISTORY)[:, np.newaxis] < lengths
    actions = random.random((count, HISTORY, ACTIONS)) > 0.7
    return {
        "user_hashes": random.integers(1, USER_ROWS, (count, 2)).astype(np.int32),
        "history_post_hashes": (posts * is_event).astype(np.int32),
        "history_author_hashes": (authors * is_event).astype(np.int32),
        "history_actions": actions.astype(np.float32),
        "history_product_surface": random.integers(SURFACES, size=(count, HISTORY)).astype(
            np.int32
        ),
    }


def _posts(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "candidate_post_hashes": random.integers(1, POST_ROWS, (count, 2)).astype(np.int32),
        "candidate_author_hashes": random.integers(1, AUTHOR_ROWS, (count, 2)).astype(np.int32),
    }
