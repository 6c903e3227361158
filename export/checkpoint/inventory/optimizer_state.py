"""Finds the variables of optimizers: an object graph, or a TF1 name, identifies a variable as the
slot variable of another.

The shape never identifies one: Adam's moments have the shape and dtype of their table.

Source: TensorFlow 2.20, python/training/slot_creator.py and the optimizers beside it; tensorflow
2.15, python/tpu/tpu_embedding.py (slot variables of TPUEstimator); tf-keras 2.20,
optimizers/optimizer.py; Keras 3.15, src/optimizers/base_optimizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from export.checkpoint.formats.object_graph import Node, ObjectGraph
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.reader import Checkpoint
from export.checkpoint.variables import Entry
from export.errors import CheckpointError

_OPTIMIZERS = (
    "Adadelta|Adagrad|AdagradDA|AdagradMomentum|AdaMax|Adamax|Adam|AdamW|AdamWeightDecay|AddSign|Ftrl|FTRL|LAMB|LARS|"
    "LARSOptimizer|LazyAdam|Lion|Momentum|Nadam|PowerSign|ProximalAdagrad|ProximalYogi|RMSProp|RMSprop|SGD"
)
_SAVER_SLOT = re.compile(rf"(?:{_OPTIMIZERS})(?:_\d+)?|adam_[mv]|ExponentialMovingAverage")
_SAVER_PARTS = frozenset({"m", "v", "ms", "mom", "Accumulator", "Momentum"})
_OPTIMIZER = re.compile(rf"(?:{_OPTIMIZERS})(?:_\d+)?")
_KERAS_SLOTS = frozenset(
    ["m", "v", "vhat", "accumulator", "accum_grad", "accum_var", "linear", "mg", "momentum", "rms"]
)
_SCOPES_MAX = 32
"""The maximum number of steps of a name that are tried: each costs a look-up."""
_COUNT_SUFFIX = re.compile(r"_\d+$")
_TABLE_NAMES = ("/embedding_weights", "/embeddings")
_OPTIMIZER_SCALAR = re.compile(r"(?:.*/)?beta[12]_power(?:_\d+)?")
_LISTED_AVERAGE = "model_variables_moving_average"
AVERAGE_SLOTS = frozenset({"average", _LISTED_AVERAGE})
"""The names of averages in an object graph."""
AVERAGE = "ExponentialMovingAverage"
"""The name of an average of the weights. It is not state of an optimizer, and some models serve it.
It is left out unless the user names it.
"""


def find_slots(findings: Findings, graph: ObjectGraph) -> None:
    """Finds the variables of optimizers in an object graph: Keras's older optimizers have slot
    variables, the newer ones have a list.
    """
    keys_by_name: dict[str, str] = {}
    flat_names: dict[int, dict[str, str]] = {}
    # A list belongs to one optimizer: a thousand that share one long list are hostile.
    seen_lists = {-1}
    nodes = graph.nodes
    lists = {node.children.get(f"_{_LISTED_AVERAGE}", -1) for _, node in graph.holders} - {-1}
    averages = {child for average_list in lists for child in nodes[average_list].children.values()}
    for _, node in graph.holders:
        for slot in node.slots:
            findings.add_slot(slot.name, nodes[slot.node].key, nodes[slot.trained_node].key)
        if "_iterations" in node.children and node.children.get("_variables", -1) not in seen_lists:
            owners = _owners(graph, node.children, seen_lists)
            keys_by_name = keys_by_name or _unambiguous_keys(
                (variable.full_name, variable.key) for variable in graph.nodes
            )
            seen_lists.add(node.children["_variables"])
            for number, child in graph.nodes[node.children["_variables"]].children.items():
                state = graph.nodes[child]
                if child == node.children["_iterations"]:
                    continue
                # Lists of Keras 3 identify variables exactly; names serve where there is no list.
                name, variable_key = owners.get(child) or _owner_by_name(
                    findings, state, keys_by_name
                )
                trained_list = node.children.get("_trainable_variables")
                if not variable_key and trained_list is not None:
                    # A thousand optimizers may share this list, too.
                    if trained_list not in flat_names:
                        flat_names[trained_list] = _flat_names(graph, trained_list)
                    name, variable_key = _owner_by_flat_name(
                        findings, state, flat_names[trained_list]
                    )
                if _same_shape(findings, state.key, variable_key):
                    findings.add_slot(name, state.key, variable_key)
                elif child in averages:
                    findings.add_slot(_LISTED_AVERAGE, state.key, "")
                else:
                    findings.add_slot(state.full_name or number, state.key, "")


def find_averages(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the key of the moving average of each variable that has one, by the variable's key.

    They are slot variables: of TensorFlow Addons' wrapper (`average`), of tf-keras
    (`[<optimizer>/]average/<variable>`) and of Keras 3 (a list in the order of the variables that
    are trained). The object graph ties them to their variables; nothing is guessed.

    Raises:
      CheckpointError: An average belongs to no single variable, or a variable has two averages; the
        error names it.
    """
    slots = Findings(checkpoint)
    if checkpoint.graph is not None:
        find_slots(slots, checkpoint.graph)
    average_keys: dict[str, str] = {}
    for slot in slots.slots.values():
        if slot.name not in AVERAGE_SLOTS:
            continue
        variable = checkpoint.entries.get(slot.trained_key)
        # An optimizer whose variables have ambiguous names has averages without a variable.
        average = checkpoint.entries[slot.key]
        if variable is None or (variable.dtype, variable.shape) != (average.dtype, average.shape):
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: the moving average {slot.key!r} is not tied to one "
                "variable of its shape and dtype; give every layer its own name, or call the "
                "optimizer's finalize_variable_values(model.trainable_variables) before the model "
                "is saved, and leave checkpoint.averages out"
            )
        if average_keys.setdefault(slot.trained_key, slot.key) != slot.key:
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: {slot.trained_key!r} has two moving averages, "
                f"{average_keys[slot.trained_key]!r} and {slot.key!r}; save the model with one "
                "optimizer"
            )
    return average_keys


def _owners(
    graph: ObjectGraph, optimizer: Mapping[str, int], seen_lists: set[int]
) -> dict[int, tuple[str, str]]:
    """Returns the name and the variable of each state of a Keras 3 optimizer: its lists have the
    order of the list of variables that it trains.

    Lists in `seen_lists` are left out, and the other lists are added there.
    """
    trained: Mapping[str, int] = {}
    if "_trainable_variables" in optimizer:
        trained = graph.nodes[optimizer["_trainable_variables"]].children
    owners = {}
    for name, node in optimizer.items():
        if name not in ("_variables", "_trainable_variables") and node not in seen_lists:
            seen_lists.add(node)
            for number, child in graph.nodes[node].children.items():
                if number in trained:
                    owners[child] = name.removeprefix("_"), graph.nodes[trained[number]].key
    return owners


def _owner_by_name(
    findings: Findings, state: Node, keys_by_name: Mapping[str, str]
) -> tuple[str, str]:
    """Returns the slot and the variable after which tf-keras names a state:
    `[<optimizer>/]<slot>/<name of the variable>`.
    """
    # Names of variables have slashes, too, so each slash may be where the variable begins.
    remaining_name = state.full_name
    for _ in range(_SCOPES_MAX):
        slot, separator, remaining_name = remaining_name.partition("/")
        if not separator:
            break
        if _same_shape(findings, state.key, keys_by_name.get(remaining_name, "")):
            return slot, keys_by_name[remaining_name]
    return "", ""


def _flat_names(graph: ObjectGraph, trained_list: int) -> dict[str, str]:
    """Returns the keys of the variables that a Keras 3 optimizer trains, by their names in the form
    that the names of states contain.
    """
    variables = [graph.nodes[node] for node in graph.nodes[trained_list].children.values()]
    return _unambiguous_keys(
        (variable.full_name.replace("/", "_"), variable.key) for variable in variables
    )


def _unambiguous_keys(keys_with_names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns keys of variables by name; the key is "" for a name that several variables have."""
    keys: dict[str, str] = {}
    for name, key in keys_with_names:
        if keys.setdefault(name, key) != key:
            keys[name] = ""
    return {name: key for name, key in keys.items() if name}


def _owner_by_flat_name(
    findings: Findings, state: Node, keys_by_flat_name: Mapping[str, str]
) -> tuple[str, str]:
    """Returns the slot and the variable after which Keras 3 names a state: `<optimizer>/<name of
    the variable>_<slot>`.

    This identifies the states of an optimizer that keeps them in an incomplete list or in none, as
    Adafactor and Muon do.
    """
    name = variable_name = state.full_name.rpartition("/")[2]
    for _ in range(_SCOPES_MAX):
        variable_name, separator, _ = variable_name.rpartition("_")
        if not separator:
            break
        if _same_shape(findings, state.key, keys_by_flat_name.get(variable_name, "")):
            return name[len(variable_name) + 1 :], keys_by_flat_name[variable_name]
    return "", ""


def _same_shape(findings: Findings, key: str, variable_key: str) -> bool:
    entries = findings.checkpoint.entries
    return (
        key in entries
        and variable_key in entries
        and entries[key].shape == entries[variable_key].shape
    )


def find_named_slots(findings: Findings) -> None:
    """Finds the variables of optimizers in a checkpoint that has only names.

    A name identifies a slot variable only if the checkpoint has the variable that it belongs to,
    with the same shape. An optimizer that its user named (`AdamOptimizer(name="mine")`:
    `<variable>/mine`, `<variable>/mine_1`) is recognized if several variables have state of that
    name, or if one variable has, and its own name says that it is a table.
    """
    unsure_slots: dict[str, list[tuple[str, str, str]]] = {}
    for key, entry in findings.checkpoint.entries.items():
        # Adam keeps the powers of its betas once, and not for each variable.
        if entry.shape == () and _OPTIMIZER_SCALAR.fullmatch(key):
            findings.add_slot(key.rpartition("/")[2], key, "")
            continue
        name, slot = _saver_slot(key)
        if not name:
            name, slot = _keras_slot(key)
        variable_key = ""
        if name:
            variable_key = _owner(findings, name, entry)
        if variable_key:
            findings.add_slot(slot, key, variable_key)
            continue
        # Perhaps an optimizer that its user named: decided when all variables have been seen.
        parent, _, last = key.rpartition("/")
        if _same_shape(findings, key, parent):
            unsure_slots.setdefault(_COUNT_SUFFIX.sub("", last), []).append((last, key, parent))
    for slots in unsure_slots.values():
        owner_keys = [owner_key for _, _, owner_key in slots]
        if len(set(owner_keys)) > 1 or owner_keys[0].endswith(_TABLE_NAMES):
            for slot, key, variable_key in slots:
                findings.add_slot(slot, key, variable_key)


def _saver_slot(key: str) -> tuple[str, str]:
    """Splits `<variable>/<optimizer>` and TPUEstimator's `<variable>/<optimizer>/<part>`."""
    name, _, slot = key.rpartition("/")
    if slot in _SAVER_PARTS:
        owner, _, optimizer = name.rpartition("/")
        if _OPTIMIZER.fullmatch(optimizer):
            return owner, f"{optimizer}/{slot}"
    if _SAVER_SLOT.fullmatch(slot):
        return name, slot
    return "", ""


def _keras_slot(key: str) -> tuple[str, str]:
    """Splits `<scope>/<optimizer>/<variable>/<slot>`, as Keras's older optimizers name their state
    in TF1 graphs.
    """
    path, _, slot = key.rpartition("/")
    if slot in _KERAS_SLOTS:
        parts = path.split("/")
        for number, part in enumerate(parts):
            if _OPTIMIZER.fullmatch(part):
                return "/".join(parts[number + 1 :]), slot
    return "", ""


def _owner(findings: Findings, name: str, state: Entry) -> str:
    """Returns the variable that a slot belongs to: `name`, perhaps without the scopes of the
    optimizer.
    """
    for _ in range(_SCOPES_MAX):
        entry = findings.checkpoint.entries.get(name)
        if entry is not None and entry.shape == state.shape:
            return name
        _, separator, name = name.partition("/")
        if not separator:
            break
    return ""
