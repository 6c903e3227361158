"""Constructs the models of X's Phoenix, which are modules of dm-haiku.

The published modules take rows of tables beside their hashes. The tables are published nowhere: the
functions here look the rows up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from rowcast.model_code import definitions

PHOENIX = Path(__file__).parent / "x-algorithm/phoenix"
ROWS = {"users": 1_000, "posts": 4_000, "authors": 600}
# The sizes of run_ranker.py.
DIM = 128
HISTORY = 32
ACTIONS = 19
SURFACES = 16


@dataclass(frozen=True)
class Functions:
    """A model as functions of its parameters and inputs.

    Attributes:
      initial: Returns the parameters for a key and inputs: the tables, and those of the modules.
      calls: The functions by name.
    """

    initial: Callable[[Any, Any], Any]
    calls: dict[str, Callable[[Any, Any], Any]]


def ranking_functions() -> Functions:
    """Returns the ranker, which scores each action for a post: one candidate for each example."""
    published = definitions(PHOENIX / "recsys_model.py")
    actions = definitions(PHOENIX / "runners.py").ACTIONS
    config = config_of(published, published.PhoenixModelConfig, num_actions=ACTIONS)

    @hk.without_apply_rng
    @hk.transform
    def module(batch: Any, rows: Any) -> Any:
        return config.make()(batch, rows).logits

    def initial(key: Any, inputs: Any) -> Any:
        tables = initial_tables(key)
        return {"tables": tables, "model": module.init(key, *arguments(published, tables, inputs))}

    def rank(parameters: Any, inputs: Any) -> Any:
        batch, rows = arguments(published, parameters["tables"], inputs)
        logits = module.apply(parameters["model"], batch, rows)[:, 0]
        return {action: logits[:, number] for number, action in enumerate(actions)}

    return Functions(initial, {"rank": rank})


def retrieval_functions() -> Functions:
    """Returns both towers of the retrieval model."""
    published = definitions(PHOENIX / "recsys_retrieval_model.py")
    config = config_of(published, published.PhoenixRetrievalModelConfig)

    @hk.without_apply_rng
    @hk.multi_transform
    def modules() -> Any:
        model = config.make()

        def query(batch: Any, rows: Any) -> Any:
            return model.build_user_representation(batch, rows)[0]

        def candidate(batch: Any, rows: Any) -> Any:
            return model.build_candidate_representation(batch, rows)[0][:, 0]

        def both(batch: Any, rows: Any) -> Any:
            return query(batch, rows), candidate(batch, rows)

        return both, (query, candidate)

    def initial(key: Any, inputs: Any) -> Any:
        tables = initial_tables(key)
        return {"tables": tables, "model": modules.init(key, *arguments(published, tables, inputs))}

    def call_of(apply: Any) -> Callable[[Any, Any], Any]:
        def call(parameters: Any, inputs: Any) -> Any:
            batch, rows = arguments(published, parameters["tables"], inputs)
            return apply(parameters["model"], batch, rows)

        return call

    query, candidate = modules.apply
    return Functions(initial, {"query": call_of(query), "candidate": call_of(candidate)})


def ranking() -> Any:
    """Returns the shapes of the ranker's parameters, and its function."""
    return shapes_and_calls(ranking_functions())


def retrieval() -> Any:
    """Returns the shapes of the retrieval model's parameters, and its functions."""
    return shapes_and_calls(retrieval_functions())


def shapes_and_calls(functions: Functions) -> Any:
    """Returns the shapes of the parameters of a model, and its functions."""
    two = (1, 2)
    inputs = {
        "user_hashes": jnp.zeros(two, jnp.int32),
        "history_post_hashes": jnp.zeros((1, HISTORY, 2), jnp.int32),
        "history_author_hashes": jnp.zeros((1, HISTORY, 2), jnp.int32),
        "history_actions": jnp.zeros((1, HISTORY, ACTIONS)),
        "history_product_surface": jnp.zeros((1, HISTORY), jnp.int32),
        "candidate_post_hashes": jnp.zeros(two, jnp.int32),
        "candidate_author_hashes": jnp.zeros(two, jnp.int32),
        "candidate_product_surface": jnp.zeros(1, jnp.int32),
    }
    return jax.eval_shape(functions.initial, jax.random.key(0), inputs), functions.calls


def config_of(published: Any, kind: Any, **further: Any) -> Any:
    """Returns the configuration of a model of one candidate, in float32."""
    return kind(
        emb_size=DIM,
        history_seq_len=HISTORY,
        candidate_seq_len=1,
        fprop_dtype=jnp.float32,
        hash_config=published.HashConfig(num_user_hashes=2, num_item_hashes=2, num_author_hashes=2),
        product_surface_vocab_size=SURFACES,
        model=published.TransformerConfig(
            emb_size=DIM,
            widening_factor=2,
            key_size=64,
            num_q_heads=2,
            num_kv_heads=2,
            num_layers=2,
            attn_output_multiplier=0.125,
        ),
        **further,
    ).initialize()


def initial_tables(key: Any) -> dict[str, Any]:
    """Returns tables of random rows, as those of create_example_batch are."""
    keys = jax.random.split(key, len(ROWS))
    return {
        name: jax.random.normal(key, (rows, DIM))
        for key, (name, rows) in zip(keys, ROWS.items(), strict=True)
    }


def arguments(published: Any, tables: Any, inputs: Any) -> tuple[Any, Any]:
    """Returns the batch that a module takes, and the rows of its hashes.

    Args:
      published: The definitions of a published file.
      tables: The tables by name.
      inputs: The fields of the batch; those of the candidate lack its axis, and all of one side
        may be missing.
    """
    fields = dict.fromkeys(published.RecsysBatch._fields) | dict(inputs)
    for name, value in fields.items():
        if name.startswith("candidate") and value is not None:
            fields[name] = value[:, None]

    def rows(table: str, hashes: str) -> Any:
        return None if fields[hashes] is None else tables[table][fields[hashes]]

    embeddings = published.RecsysEmbeddings(
        user_embeddings=rows("users", "user_hashes"),
        history_post_embeddings=rows("posts", "history_post_hashes"),
        candidate_post_embeddings=rows("posts", "candidate_post_hashes"),
        history_author_embeddings=rows("authors", "history_author_hashes"),
        candidate_author_embeddings=rows("authors", "candidate_author_hashes"),
    )
    return published.RecsysBatch(**fields), embeddings
