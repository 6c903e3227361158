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

from export.checkpoint.inventory.findings import Findings, table_spec
from export.checkpoint.inventory.specs import Origin, may_be_table

_OPTIMIZER_BRANCHES = frozenset(
    ["opt_state", "opt_states", "optimizer_state", "optimizer_states", "optimizer_variables", "opt"]
)
_KERAS_STATES = "optimizer_variables"
_ORIGIN_OF_LEAF: dict[str, Origin] = {"embedding": "Flax Embed", "embeddings": "Keras Embedding"}
_TABLE_ENDS = ("table", *_ORIGIN_OF_LEAF, *(f"{leaf}.value" for leaf in _ORIGIN_OF_LEAF))
_STEP_ENDS = tuple(
    f"{leaf}{value}" for leaf in ("step", "iteration", "count") for value in ("", ".value")
)
_STACK = re.compile(
    r"(?:.*\.)?(?:sc_embedding_variables|embedding_table)\.(?:value\.)?(?P<jax>.+)\.table|(?:.*\.)?var:(?P<keras>.+):table"
)
_STACK_SLOT = re.compile(
    r"(?P<jax>.+)\.slot\.(?P<number>.+)|(?P<keras>(?:.*\.)?var:.+:table):slot:(?P<name>.+)"
)
_STACK_REASON = (
    "it is a SparseCore stack, and how its rows are spread over cores is not in the checkpoint; "
    "say it with --layout FILE, perhaps with --trained-ids (docs/reference/layouts.md)"
)


def find_in_tree(findings: Findings) -> None:
    """Finds slot variables, tables and stacks by their paths."""
    entries = findings.checkpoint.entries
    states = [key for key in entries if _is_state(key)]
    weight_keys = entries.keys() - states
    weights = _by_tail(weight_keys)
    # Names of Keras's states join the steps of a path by `_`, which is costly to undo.
    flat_weights = {}
    if any(_KERAS_STATES in key for key in states):
        flat_weights = _by_tail(weight_keys, "._")
    for key in states:
        findings.add_slot(*_state(key, weights, flat_weights))
    keys_with_slots: set[str] = set()
    # Most keys are excluded by a search for a text, which costs less than the expression.
    for key in [key for key in entries if "slot" in key]:
        slot = _STACK_SLOT.fullmatch(key)
        if slot is None:
            continue
        table_key = slot["keras"] or f"{slot['jax']}.table"
        if table_key in entries:
            findings.add_slot(slot["name"] or f"slot {slot['number']}", key, table_key)
            keys_with_slots.add(table_key)
    tables = []
    for key in [key for key in entries if key.endswith(_TABLE_ENDS) and key not in findings.slots]:
        entry = entries[key]
        stack = _stack_of(key, keys_with_slots)
        origin = _ORIGIN_OF_LEAF.get(_leaf(key))
        if stack and len(entry.shape) == 2:
            # The rows of a stack are in an order that only a record or a layout file states.
            findings.reject(stack, key, _STACK_REASON, is_stack=True)
        elif origin is not None and may_be_table(entry):
            *path, leaf = _path_steps(key)
            name = path[-1] if path else leaf
            spec = table_spec(name, entry, origin, "")
            tables.append((spec, ".".join(path) or key))
    findings.add_tables(tables)


def _stack_of(key: str, keys_with_slots: Collection[str]) -> str:
    """Returns the stack that a table belongs to by its path; "" if it belongs to none."""
    match = None
    if key.endswith("table"):
        match = _STACK.fullmatch(key)
    if match is not None:
        return match["jax"] or match["keras"]

    stack = ""
    parents: list[str] = []
    leaf = key
    if "." in key:
        *parents, stack, leaf = key.split(".")
    # jax-tpu-embedding's documentation saves it this way; SGD has no slot variables.
    is_documented = leaf == "table" and parents[-1:] == ["embedding"]
    if key in keys_with_slots or is_documented:
        return stack
    return ""


def step_keys(keys: Iterable[str]) -> list[str]:
    """Returns the leaves that may be the training step, the likeliest first: the program's own
    step, then an optimizer's.
    """
    step_leaves = [(key, _leaf(key)) for key in keys if key.endswith(_STEP_ENDS)]
    program_steps = [key for key, leaf in step_leaves if leaf in ("step", "global_step")]
    optimizer_steps = []
    for key, leaf in step_leaves:
        if leaf in ("iteration", "count") and _is_state(key):
            optimizer_steps.append(key)
    # The shortest path is that of the program itself, not of a part of it.
    return sorted(program_steps, key=len) + optimizer_steps


def _is_state(key: str) -> bool:
    """Returns whether a leaf belongs to an optimizer."""
    return not _OPTIMIZER_BRANCHES.isdisjoint(key.split("."))


def _path_steps(key: str) -> list[str]:
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
        while "." in tail:
            tail = tail.partition(".")[2]
            tails.add(tail)
        if separators != ".":
            dotted_tails = tails
            tails = set()
            for separator in separators:
                tails |= {dotted.replace(".", separator) for dotted in dotted_tails}
        for tail_name in tails:
            # A tail that two weights share names neither.
            by_tail[tail_name] = "" if tail_name in by_tail else weight
    return by_tail


def _state(
    key: str, weights: Mapping[str, str], flat_weights: Mapping[str, str]
) -> tuple[str, str, str]:
    """Returns the name of a state, its key, and the weight that it belongs to, which is "" where
    the path does not show it.

    optax repeats the path of the weight after its own field; Keras writes
    `<layer>_<weight>_<state>` as one name.
    """
    tail = key.removesuffix(".value")
    root = ""
    while root not in _OPTIMIZER_BRANCHES:
        root, _, tail = tail.partition(".")
    if root == _KERAS_STATES:
        leaf = _leaf(key)
        weight, _, name = leaf.rpartition("_")
        weight_key = flat_weights.get(weight, "")
        if not weight_key:
            return leaf, key, ""
        return name, key, weight_key
    field, _, tail = tail.partition(".")
    while tail:
        weight_key = weights.get(tail, "")
        if weight_key:
            return field, key, weight_key
        field, _, tail = tail.partition(".")
    return _leaf(key), key, ""
