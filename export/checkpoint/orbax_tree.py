"""What the paths of an Orbax tree tell: optimizer states, embedding tables, stacks of jax-tpu-embedding and keras-rs.

    opt_state..., optimizer_variables...                       optax's and Keras' states: slot variables
    ...embedding   ...embedding.value   ...embeddings          the table of flax' Embed, nnx' Embed, Keras' Embedding
    ...sc_embedding_variables.<stack>.table, .slot.<n>         jax-tpu-embedding: tables spread over sparse cores
    ...var:<stack>:table, var:<stack>:table:slot:<name>        keras-rs' DistributedEmbedding: the same

A tree has no classes, only names, and any program may choose these; a matrix with another name is a candidate. How many
sparse cores a stack lies on, and which tables, the checkpoint does not say: a layout file does.

Source: flax 0.12.8, linen/linear.py and nnx/nn/linear.py; optax 0.2.8; Keras 3.15, Model.get_state_tree; keras-rs
0.4.0, layers/embedding/jax/distributed_embedding.py; jax-tpu-embedding 0.1.0, sparsecore/lib/flax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from export.checkpoint.findings import Findings, Found, table_spec
from export.checkpoint.specs import FLOATS, Origin
from export.checkpoint.variables import Entry

_STATES = frozenset(["opt_state", "opt_states", "optimizer_state", "optimizer_states", "optimizer_variables", "opt"])
_LEAVES: dict[str, Origin] = {"embedding": "Flax Embed", "embeddings": "Keras Embedding"}
_STACK = re.compile(
    r"(?:.*\.)?(?:sc_embedding_variables|embedding_table)\.(?:value\.)?(?P<jax>.+)\.table|(?:.*\.)?var:(?P<keras>.+):table"
)
_STACK_SLOT = re.compile(r"(?P<jax>.+)\.slot\.(?P<number>.+)|(?P<keras>(?:.*\.)?var:.+:table):slot:(?P<name>.+)")
_SPREAD = (
    "it is a SparseCore stack, and how its rows are spread over cores is not in the checkpoint; say it with --layout "
    "FILE (docs/checkpoints.md)"
)


def find_in_tree(found: Findings) -> None:
    """Finds slot variables, tables and stacks by their paths."""
    entries = found.checkpoint.entries
    states = [key for key in entries if _is_state(key)]
    weights = _by_tail(entries.keys() - states)
    for key in states:
        found.add_slot(*_state(key, weights))
    for key in entries:
        slot = _STACK_SLOT.fullmatch(key) if "slot" in key else None
        of = (slot["keras"] or f"{slot['jax']}.table") if slot else ""
        if slot and of in entries:
            found.add_slot(slot["name"] or f"slot {slot['number']}", key, of)
    tables = []
    for key, entry in entries.items():
        if key in found.slots:
            continue
        stack = _STACK.fullmatch(key) if key.endswith("table") else None
        if stack and len(entry.shape) == 2:
            found.refuse(stack["jax"] or stack["keras"], key, _SPREAD)
        elif (origin := _origin(key, entry)) is not None:
            *path, leaf = _parts(key)
            tables.append(Found(table_spec(path[-1] if path else leaf, entry, origin, ""), ".".join(path) or key))
    found.add_tables(tables)


def step_keys(keys: Iterable[str]) -> list[str]:
    """Returns the leaves that may be the training step, the likeliest first: the program's own, then an optimizer's."""
    own = [key for key in keys if _leaf(key) in ("step", "global_step")]
    return sorted(own, key=len) + [key for key in keys if _leaf(key) in ("iteration", "count") and _is_state(key)]


def _is_state(key: str) -> bool:
    """Tells whether a leaf belongs to an optimizer."""
    return not _STATES.isdisjoint(key.split("."))


def _parts(key: str) -> list[str]:
    """Returns the steps of a path, without the `value` in which flax' nnx wraps a leaf."""
    return key.removesuffix(".value").split(".")


def _leaf(key: str) -> str:
    return key.removesuffix(".value").rpartition(".")[2]


def _by_tail(weights: Iterable[str]) -> dict[str, str]:
    """Returns weights by what optimizers repeat of their paths: any tail that no other weight has."""
    by_tail: dict[str, str] = {}
    for weight in weights:
        parts = _parts(weight)
        tails = {separator.join(parts[start:]) for start in range(len(parts)) for separator in "._"}
        for tail in tails:
            by_tail[tail] = "" if tail in by_tail else weight
    return by_tail


def _state(key: str, weights: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns what a state is called, its key, and the weight that it is of, "" where the path does not say it.

    optax repeats the path of the weight behind its own field; Keras writes `<layer>_<weight>_<state>` as one name.
    """
    parts = _parts(key)
    root = 0
    while parts[root] not in _STATES:
        root += 1
    if parts[root] == "optimizer_variables":
        weight, _, name = parts[-1].rpartition("_")
        of = weights.get(weight, "")
        return name if of else parts[-1], key, of
    for start in range(root + 2, len(parts)):
        of = weights.get(".".join(parts[start:]), "")
        if of:
            return parts[start - 1], key, of
    return parts[-1], key, ""


def _origin(key: str, entry: Entry) -> Origin | None:
    matrix = len(entry.shape) == 2 and min(entry.shape) and entry.dtype in FLOATS
    return _LEAVES.get(_leaf(key)) if matrix else None
