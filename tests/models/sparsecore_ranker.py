"""A ranker in JAX whose bags SparseCores looked up in training: its stacks, its checkpoint, its
recipe, and what it gives.

The stacks are those of two devices with four SparseCores each, as jax-tpu-embedding lays them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.units.export.checkpoint.orbax_trees import write_item

CORES = 8
DENSE = 3


@dataclass(frozen=True)
class Table:
    """A table and where its stack holds it."""

    rows: int
    dim: int
    combiner: str
    stack: str
    padded_rows: int
    offset: int
    rotation: int


TABLES = {
    "movies": Table(70, 4, "mean", "movies_users", 128, 0, 0),
    "users": Table(100, 4, "mean", "movies_users", 128, 16, 4),
    "genres": Table(24, 3, "sqrtn", "genres", 64, 0, 0),
    "tags": Table(60, 2, "sum", "tags", 64, 0, 0),
}
FEATURES = {
    "user": "users",
    "movie": "movies",
    "liked": "movies",
    "genres": "genres",
    "tags": "tags",
}
STACK_DIM = 8
MODEL = '''
"""A dense part of activations."""
import jax
import jax.numpy as jnp

TABLES = {TABLES}
FEATURES = {FEATURES}
DENSE = {DENSE}


def score(parameters, inputs):
    x = jnp.concatenate([inputs[name] for name in (*sorted(FEATURES), "dense")], axis=-1)
    x = jnp.tanh(x @ parameters["w"] + parameters["b"])
    return {"score": x[:, 0], "vector": x}


def shapes():
    width = sum(TABLES[table]["embedding_dim"] for table in FEATURES.values()) + DENSE
    return {
        "w": jax.ShapeDtypeStruct((width, 2), jnp.float32),
        "b": jax.ShapeDtypeStruct((2,), jnp.float32),
    }


def feature_specs():
    specs = {}
    for name, table in FEATURES.items():
        output_shape = (32, TABLES[table]["embedding_dim"])
        specs[name] = {"name": name, "table_spec": TABLES[table], "output_shape": output_shape}
    return specs


def build():
    return shapes(), {"score": score}, feature_specs()
'''


def table_specs(prepared: bool = False) -> dict[str, dict[str, Any]]:
    """Returns the specification of each table; with its place in its stack if it is prepared."""
    specs: dict[str, dict[str, Any]] = {}
    for name, table in TABLES.items():
        specs[name] = {
            "name": name,
            "vocabulary_size": table.rows,
            "embedding_dim": table.dim,
            "combiner": table.combiner,
        }
        if prepared:
            specs[name]["setting_in_stack"] = {
                "stack_name": table.stack,
                "padded_vocab_size": table.padded_rows,
                "row_offset_in_shard": table.offset,
                "shard_rotation": table.rotation,
            }
            specs[name]["stacked_table_spec"] = {"stack_vocab_size": _stack_rows(table.stack)}
    return specs


def _stack_rows(stack: str) -> int:
    return sum(table.padded_rows for table in TABLES.values() if table.stack == stack)


def model_file(prepared: bool = False, more: str = "") -> str:
    """Returns a model file; `more` is added to it."""
    page = MODEL.replace("{TABLES}", repr(table_specs(prepared)))
    page = page.replace("{FEATURES}", repr(FEATURES)).replace("{DENSE}", str(DENSE))
    return page + more


def tables(seed: int = 5) -> dict[str, NDArray[np.float32]]:
    """Returns the rows of each table."""
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0, 0.5, (table.rows, table.dim)).astype(np.float32)
        for name, table in TABLES.items()
    }


def stacks(held: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Returns the rows of each stack: core by core, row r of a table on core r + rotation."""
    found: dict[str, NDArray[np.float32]] = {}
    for name, table in TABLES.items():
        rows = _stack_rows(table.stack)
        stack = found.setdefault(table.stack, np.zeros((rows, STACK_DIM), np.float32))
        for row, values in enumerate(held[name]):
            core = (row + table.rotation) % CORES
            stack[core * (rows // CORES) + table.offset + row // CORES, : table.dim] = values
    return found


def parameters(seed: int = 6) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters of the dense part."""
    random = np.random.default_rng(seed)
    width = sum(TABLES[table].dim for table in FEATURES.values()) + DENSE
    weights = random.normal(0, 0.4, (width, 2)).astype(np.float32)
    return {"w": weights, "b": np.array([0.1, -0.2], np.float32)}


def layout() -> str:
    """Returns the EmbeddingSpecProto that training writes, as text."""
    lines = []
    for stack in dict.fromkeys(table.stack for table in TABLES.values()):
        lines.append(
            f'stacked_table_specs {{ stack_name: "{stack}" stack_vocab_size: {_stack_rows(stack)} '
            f"stack_embedding_dim: {STACK_DIM} num_sparsecores: {CORES}"
        )
        for name, table in TABLES.items():
            if table.stack == stack:
                lines.append(
                    f'table_specs {{ table_name: "{name}" vocab_size: {table.rows} '
                    f"embedding_dim: {table.dim} padded_vocab_size: {table.padded_rows} "
                    f"padded_embedding_dim: {STACK_DIM} row_offset_in_shard: {table.offset} "
                    f'shard_rotation: {table.rotation} combiner: "{table.combiner}" '
                    "optimizer { type: ADAGRAD learning_rate: 0.1 } }"
                )
        lines.append("}")
    return "\n".join(lines)


def write(
    folder: Path,
    prepared: bool = False,
    more: str = "",
    *,
    chunk_rows: int = 1 << 20,
    stacks_at: str = "embedding",
    others: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
    trained: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
) -> None:
    """Writes model file, checkpoint and layout.

    Args:
      folder: The folder in which they are written.
      prepared, more: See `model_file`.
      chunk_rows: The rows of each array that the checkpoint stores together.
      stacks_at: The path of the stacks in the checkpoint.
      others: Further parameters, by name.
      trained: The rows of each table that training read, as the slot variables show.
    """
    (folder / "model.py").write_text(model_file(prepared, more))
    (folder / "layout.textproto").write_text(layout())
    held = {**parameters(), **others}
    leaves = {f"params.{name}": values for name, values in held.items()}
    accumulators = {name: np.zeros_like(rows) for name, rows in tables().items()}
    for name, read in trained.items():
        accumulators[name][read] = tables(seed=7)[name][read] ** 2
    slots = stacks(accumulators)
    for name, rows in stacks(tables()).items():
        leaves[f"{stacks_at}.{name}.table"] = rows
        leaves[f"{stacks_at}.{name}.slot.0"] = slots[name]
    write_item(folder / "checkpoint", leaves, chunk_rows=chunk_rows)


def recipe(**changes: Any) -> dict[str, Any]:
    """Returns the recipe as a page; `changes` replace its parts."""
    ragged = {"dtype": "int32", "kind": "ragged"}
    return {
        "model": "ranker",
        "checkpoint": {"path": "checkpoint", "layout": "layout.textproto"},
        "code": {"factory": "model.py:build"},
        "output": {"root": "bundles"},
        "inputs": {
            "user": {"dtype": "int32"},
            "movie": {"dtype": "int32"},
            "liked": ragged,
            "genres": {"dtype": "int32", "kind": "sparse"},
            "tags": ragged,
            "tag_weights": {"dtype": "float32", "kind": "ragged", "weights_for": "tags"},
            "dense": {"dtype": "float32", "shape": [DENSE]},
        },
        "features": {name: {"role": "candidate"} for name in ("movie", "genres", "tags")},
        "towers": {
            "ranking": {
                "role": "ranking",
                "call": "score",
                "outputs": {"score": "score"},
                "result": "score",
            }
        },
        **changes,
    }


def combined(
    rows: NDArray[np.float32], combiner: str, ids: Sequence[int], weights: Sequence[float]
) -> NDArray[np.float64]:
    """Returns the vector of one bag, by the formula of SparseCores' preprocessing."""
    total = np.zeros(rows.shape[1])
    for place, gain in zip(ids, weights, strict=True):
        total += gain * rows[place].astype(np.float64)
    divisor = {
        "sum": 1.0,
        "mean": sum(weights),
        "sqrtn": sum(gain * gain for gain in weights) ** 0.5,
    }[combiner]
    return total / divisor if divisor else np.zeros_like(total)


def score(sent: Mapping[str, Any]) -> float:
    """Returns the score of one example: ids by feature, weights of tags, and numbers."""
    held = tables()
    weights = parameters()
    parts = []
    for name in sorted(FEATURES):
        given = sent[name]
        gains = (
            [1.0] * len(np.atleast_1d(given)) if not isinstance(given, dict) else given["weights"]
        )
        ids = given["ids"] if isinstance(given, dict) else np.atleast_1d(given).tolist()
        table = FEATURES[name]
        parts.append(combined(held[table], TABLES[table].combiner, ids, gains))
    x = np.concatenate([*parts, sent["dense"]])
    return float(np.tanh(x @ weights["w"] + weights["b"])[0])
