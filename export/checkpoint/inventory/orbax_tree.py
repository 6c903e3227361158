"""What the paths of an Orbax tree show: optimizer states, embedding tables, and stacks of
jax-tpu-embedding and keras-rs.

    opt_state..., optimizer_variables...                 states of optax and Keras: slot variables
    ...embedding   ...embedding.value   ...embeddings    a table of Flax, nnx or Keras
    ...sc_embedding_variables.<stack>.table, .slot.<n>   jax-tpu-embedding: tables on SparseCores
    embedding.<stack>.table                              the same, as its documentation saves it
    ...<stack>.table beside ...<stack>.slot.<n>          the same, under any name
    ...var:<stack>:table, var:<stack>:table:slot:<name>  keras-rs, DistributedEmbedding: the same

A tree has no classes, only names, and any program may choose these; a matrix with another name is a
candidate. No path shows how many SparseCores a stack lies on, and which tables it has: that is in
an item that jax-tpu-embedding saved beside it (`recorded_stacks.py`) or in a layout file.

Source: flax 0.12.8, linen/linear.py and nnx/nn/linear.py; optax 0.2.8; Keras 3.15,
Model.get_state_tree; keras-rs 0.4.0, layers/embedding/jax/distributed_embedding.py;
jax-tpu-embedding 0.1.0, sparsecore/lib/flax.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from export.checkpoint.inventory.findings import Findings, Found, table_spec
from export.checkpoint.inventory.specs import Origin, may_be_table

_STATES = frozenset(
    ["opt_state", "opt_states", "optimizer_state", "optimizer_states", "optimizer_variables", "opt"]
)
_KERAS_STATES = "optimizer_variables"
_LEAVES: dict[str, Origin] = {"embedding": "Flax Embed", "embeddings": "Keras Embedding"}
_TABLE_ENDS = ("table", *_LEAVES, *(f"{leaf}.value" for leaf in _LEAVES))
_STEP_ENDS = tuple(
    f"{leaf}{value}" for leaf in ("step", "iteration", "count") for value in ("", ".value")
)
_STACK = re.compile(
    r"(?:.*\.)?(?:sc_embedding_variables|embedding_table)\.(?:value\.)?(?P<jax>.+)\.table|(?:.*\.)?var:(?P<keras>.+):table"
)
_STACK_SLOT = re.compile(
    r"(?P<jax>.+)\.slot\.(?P<number>.+)|(?P<keras>(?:.*\.)?var:.+:table):slot:(?P<name>.+)"
)
_SPREAD = (
    "it is a SparseCore stack, and how its rows are spread over cores is not in the checkpoint; "
    "say it with --layout FILE, perhaps with --trained-ids (docs/reference/checkpoints.md)"
)


def find_in_tree(found: Findings) -> None:
    """Finds slot variables, tables and stacks by their paths."""
    entries = found.checkpoint.entries
    states = [key for key in entries if _is_state(key)]
    others = entries.keys() - states
    weights = _by_tail(others)
    named = _by_tail(others, "._") if any(_KERAS_STATES in key for key in states) else {}
    for key in states:
        found.add_slot(*_state(key, weights, named))
    with_slots: set[str] = set()
    for key in [key for key in entries if "slot" in key]:
        slot = _STACK_SLOT.fullmatch(key)
        if slot is None:
            continue
        of = slot["keras"] or f"{slot['jax']}.table"
        if of in entries:
            found.add_slot(slot["name"] or f"slot {slot['number']}", key, of)
            with_slots.add(of)
    tables = []
    for key in [key for key in entries if key.endswith(_TABLE_ENDS) and key not in found.slots]:
        entry = entries[key]
        stack = _stack_of(key, with_slots)
        if stack and len(entry.shape) == 2:
            found.reject(stack, key, _SPREAD, is_stack=True)
        elif (origin := _LEAVES.get(_leaf(key))) is not None and may_be_table(entry):
            *path, leaf = _parts(key)
            tables.append(
                Found(
                    table_spec(path[-1] if path else leaf, entry, origin, ""), ".".join(path) or key
                )
            )
    found.add_tables(tables)


def _stack_of(key: str, with_slots: Collection[str]) -> str:
    """Returns the stack that a table belongs to by its path; "" if it belongs to none."""
    match = _STACK.fullmatch(key) if key.endswith("table") else None
    if match is not None:
        return match["jax"] or match["keras"]
    *parents, stack, leaf = key.split(".") if "." in key else ("", key)
    if key in with_slots:
        return stack
    # jax-tpu-embedding's documentation saves it this way; SGD has no slot variables.
    return stack if leaf == "table" and parents[-1:] == ["embedding"] else ""


def step_keys(keys: Iterable[str]) -> list[str]:
    """Returns the leaves that may be the training step, the likeliest first: the program's own
    step, then an optimizer's.
    """
    likely = [(key, _leaf(key)) for key in keys if key.endswith(_STEP_ENDS)]
    own = [key for key, leaf in likely if leaf in ("step", "global_step")]
    return sorted(own, key=len) + [
        key for key, leaf in likely if leaf in ("iteration", "count") and _is_state(key)
    ]


def _is_state(key: str) -> bool:
    """Returns whether a leaf belongs to an optimizer."""
    return not _STATES.isdisjoint(key.split("."))


def _parts(key: str) -> list[str]:
    """Returns the steps of a path, without the `value` in which flax.nnx wraps a leaf."""
    return key.removesuffix(".value").split(".")


def _leaf(key: str) -> str:
    return key.removesuffix(".value").rpartition(".")[2]


def _by_tail(weights: Iterable[str], separators: str = ".") -> dict[str, str]:
    """Returns the weights by the part of their paths that optimizers repeat: any tail that no other
    weight has.

    Args:
      weights: The paths of the weights.
      separators: The separators that may join the steps of a tail, one character each.
    """
    by_tail: dict[str, str] = {}
    for weight in weights:
        tail = weight.removesuffix(".value")
        tails = {tail}
        while (at := tail.find(".")) >= 0:
            tail = tail[at + 1 :]
            tails.add(tail)
        if separators != ".":
            tails = {each.replace(".", separator) for each in tails for separator in separators}
        for each in tails:
            by_tail[each] = "" if each in by_tail else weight
    return by_tail


def _state(key: str, weights: Mapping[str, str], named: Mapping[str, str]) -> tuple[str, str, str]:
    """Returns the name of a state, its key, and the weight that it belongs to, which is "" where
    the path does not show it.

    optax repeats the path of the weight after its own field; Keras writes
    `<layer>_<weight>_<state>` as one name.
    """
    tail = key.removesuffix(".value")
    root = ""
    while root not in _STATES:
        root, _, tail = tail.partition(".")
    if root == _KERAS_STATES:
        leaf = _leaf(key)
        weight, _, name = leaf.rpartition("_")
        of = named.get(weight, "")
        return name if of else leaf, key, of
    field, _, tail = tail.partition(".")
    while tail:
        of = weights.get(tail, "")
        if of:
            return field, key, of
        field, _, tail = tail.partition(".")
    return _leaf(key), key, ""
