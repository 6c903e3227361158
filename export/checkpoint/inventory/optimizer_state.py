"""Optimizers' variables: what an object graph, or a name of TF1, tells to be the slot variable of
another variable.

Never by shape: Adam's moments have the shape and dtype of their table.

Source: TensorFlow 2.20, python/training/slot_creator.py and the optimizers beside it; tensorflow
2.15, python/tpu/tpu_embedding.py (slot variables of TPUEstimator); tf-keras 2.20,
optimizers/optimizer.py; Keras 3.15, src/optimizers/base_optimizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from export.checkpoint.formats.object_graph import Node, ObjectGraph
from export.checkpoint.inventory.findings import Findings
from export.checkpoint.variables import Entry

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
_COUNTED = re.compile(r"_\d+$")
_TABLE_NAMES = ("/embedding_weights", "/embeddings")
_OPTIMIZERS_OWN = re.compile(r"(?:.*/)?beta[12]_power(?:_\d+)?")
_LISTED_AVERAGE = "model_variables_moving_average"
AVERAGE_SLOTS = frozenset({"average", _LISTED_AVERAGE})
"""What an average of an object graph is called here."""
AVERAGE = "ExponentialMovingAverage"
"""Of the weights: no optimizer's state, and what some models serve; left out unless the user names
it.
"""


def find_slots(found: Findings, graph: ObjectGraph) -> None:
    """Finds the optimizers' variables of an object graph: of Keras' older kind (slot variables) and
    newer (a list).
    """
    keys_by_name: dict[str, str] = {}
    flat_names: dict[int, dict[str, str]] = {}
    seen = {-1}  # a list belongs to one optimizer: a thousand that share a long one are hostile
    nodes = graph.nodes
    listed = {node.children.get(f"_{_LISTED_AVERAGE}", -1) for _, node in graph.holders} - {-1}
    averages = {child for each in listed for child in nodes[each].children.values()}
    for _, node in graph.holders:
        for slot in node.slots:
            found.add_slot(slot.name, nodes[slot.node].key, nodes[slot.of].key)
        if "_iterations" in node.children and node.children.get("_variables", -1) not in seen:
            owners = _owners(graph, node.children, seen)
            keys_by_name = keys_by_name or _unique(
                (each.full_name, each.key) for each in graph.nodes
            )
            seen.add(node.children["_variables"])
            for number, child in graph.nodes[node.children["_variables"]].children.items():
                state = graph.nodes[child]
                if child == node.children["_iterations"]:
                    continue
                name, of = owners.get(child) or _named_owner(found, state, keys_by_name)
                if not of and (trained := node.children.get("_trainable_variables")) is not None:
                    if trained not in flat_names:  # lists, too, may be shared by a thousand
                        flat_names[trained] = _flat_names(graph, trained)
                    name, of = _flatly_named_owner(found, state, flat_names[trained])
                same = _same_shape(found, state.key, of)
                unowned = _LISTED_AVERAGE if child in averages else state.full_name or number
                found.add_slot(name if same else unowned, state.key, of if same else "")


def _owners(
    graph: ObjectGraph, optimizer: Mapping[str, int], seen: set[int]
) -> dict[int, tuple[str, str]]:
    """Returns name and variable of a Keras 3 optimizer's states: its lists follow that of the
    variables it trains.

    Lists that were `seen` are left out; the others are added.
    """
    trained = (
        graph.nodes[optimizer["_trainable_variables"]].children
        if "_trainable_variables" in optimizer
        else {}
    )
    owners = {}
    for name, node in optimizer.items():
        if name not in ("_variables", "_trainable_variables") and node not in seen:
            seen.add(node)
            for number, child in graph.nodes[node].children.items():
                if number in trained:
                    owners[child] = name.removeprefix("_"), graph.nodes[trained[number]].key
    return owners


def _named_owner(found: Findings, state: Node, keys_by_name: Mapping[str, str]) -> tuple[str, str]:
    """Returns slot and variable that tf-keras names a state after:
    `[<optimizer>/]<slot>/<name of the variable>`.
    """
    rest = state.full_name
    for _ in range(_SCOPES_MAX):
        slot, separator, rest = rest.partition("/")
        if not separator:
            break
        if _same_shape(found, state.key, keys_by_name.get(rest, "")):
            return slot, keys_by_name[rest]
    return "", ""


def _flat_names(graph: ObjectGraph, trained: int) -> dict[str, str]:
    """Returns the variables that a Keras 3 optimizer trains, by their names as it writes them into
    those of states.
    """
    variables = [graph.nodes[node] for node in graph.nodes[trained].children.values()]
    return _unique((each.full_name.replace("/", "_"), each.key) for each in variables)


def _unique(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns keys by their names; the key of a name that several have is ""."""
    keys: dict[str, str] = {}
    for name, key in named:
        keys[name] = key if keys.get(name, key) == key else ""
    return {name: key for name, key in keys.items() if name}


def _flatly_named_owner(
    found: Findings, state: Node, keys_by_flat_name: Mapping[str, str]
) -> tuple[str, str]:
    """Returns slot and variable that Keras 3 names a state after:
    `<optimizer>/<name of the variable>_<slot>`.

    What tells the states of an optimizer that keeps them in no list or an incomplete one, as
    Adafactor and Muon do.
    """
    name = rest = state.full_name.rpartition("/")[2]
    for _ in range(_SCOPES_MAX):
        rest, separator, _ = rest.rpartition("_")
        if not separator:
            break
        if _same_shape(found, state.key, keys_by_flat_name.get(rest, "")):
            return name[len(rest) + 1 :], keys_by_flat_name[rest]
    return "", ""


def _same_shape(found: Findings, key: str, of: str) -> bool:
    entries = found.checkpoint.entries
    return key in entries and of in entries and entries[key].shape == entries[of].shape


def find_named_slots(found: Findings) -> None:
    """Finds the optimizers' variables of a checkpoint that has names alone.

    A name tells a slot variable only if the variable that it belongs to is there, with the same
    shape. An optimizer that its user named (`AdamOptimizer(name="mine")`: `<variable>/mine`,
    `<variable>/mine_1`) is recognised by several variables that have state of that name, or by one
    that is a table by its own name.
    """
    behind: dict[str, list[tuple[str, str, str]]] = {}
    for key, entry in found.checkpoint.entries.items():
        if entry.shape == () and _OPTIMIZERS_OWN.fullmatch(key):
            found.add_slot(key.rpartition("/")[2], key, "")
            continue
        name, slot = _saver_slot(key)
        if not name:
            name, slot = _keras_slot(key)
        of = _owner(found, name, entry) if name else ""
        if of:
            found.add_slot(slot, key, of)
        elif _same_shape(found, key, above := key.rpartition("/")[0]):
            last = key[len(above) + 1 :]
            behind.setdefault(_COUNTED.sub("", last), []).append((last, key, above))
    for slots in behind.values():
        if len({of for _, _, of in slots}) > 1 or slots[0][2].endswith(_TABLE_NAMES):
            for slot, key, of in slots:
                found.add_slot(slot, key, of)


def _saver_slot(key: str) -> tuple[str, str]:
    """Splits `<variable>/<optimizer>` and TPUEstimator's `<variable>/<optimizer>/<part>`."""
    name, _, slot = key.rpartition("/")
    if slot in _SAVER_PARTS:
        owner, _, optimizer = name.rpartition("/")
        if _OPTIMIZER.fullmatch(optimizer):
            return owner, f"{optimizer}/{slot}"
    return (name, slot) if _SAVER_SLOT.fullmatch(slot) else ("", "")


def _keras_slot(key: str) -> tuple[str, str]:
    """Splits `<scope>/<optimizer>/<variable>/<slot>`, as Keras' older optimizers name their state
    in TF1's graphs.
    """
    path, _, slot = key.rpartition("/")
    if slot in _KERAS_SLOTS:
        parts = path.split("/")
        for number, part in enumerate(parts):
            if _OPTIMIZER.fullmatch(part):
                return "/".join(parts[number + 1 :]), slot
    return "", ""


def _owner(found: Findings, name: str, state: Entry) -> str:
    """Returns the variable a slot belongs to: `name`, or what is left of it without the scopes of
    the optimizer.
    """
    for _ in range(_SCOPES_MAX):
        entry = found.checkpoint.entries.get(name)
        if entry is not None and entry.shape == state.shape:
            return name
        _, separator, name = name.partition("/")
        if not separator:
            break
    return ""
