"""Moving averages that optimizers keep of variables, where the object graph ties them to each other; never by guessing.

Source: tf-keras 2.20, optimizers/optimizer.py, `build` and `add_variable_from_reference` (named
`[<optimizer>/]average/<name of the variable>`); Keras 3.15, src/optimizers/base_optimizer.py, `build` (a list in the
order of the variables that are trained); TensorFlow Addons 0.23, optimizers/average_wrapper.py (slots `average`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from export.checkpoint.formats.object_graph import Node, ObjectGraph
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError

_SLOT, _LIST, _TRAINED = "average", "_model_variables_moving_average", "_trainable_variables"
AVERAGE_SLOTS = frozenset({_SLOT, _LIST.removeprefix("_")})
"""What `optimizer_state` calls an average of an object graph."""


class _Tie(NamedTuple):
    """An average, and the variables that it may belong to: exactly one, or it is tied to none."""

    average: Node
    variables: list[Node]


def find_averages(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the key of the moving average of each variable that has one, by the variable's key.

    Raises:
      CheckpointError: an average cannot be told to be of one variable, or a variable has two; names it.
    """
    found: dict[str, str] = {}
    for average, variables in _ties(checkpoint.graph) if checkpoint.graph is not None else ():
        if len(variables) != 1:
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: the moving average {average.key!r} ({average.full_name}) is not tied "
                f"to one variable: {', '.join(each.key for each in variables) or 'none'} could be meant; give every "
                "layer its own name, or call the optimizer's finalize_variable_values(model.trainable_variables) "
                "before the model is saved, and leave checkpoint.averages out"
            )
        (variable,) = variables
        told, kept = checkpoint.entries.get(variable.key), checkpoint.entries.get(average.key)
        if told is None or kept is None or (told.dtype, told.shape) != (kept.dtype, kept.shape):
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: {average.key!r} is kept as the moving average of {variable.key!r}, and "
                "one is missing or of another shape or dtype; save the checkpoint anew"
            )
        if found.setdefault(variable.key, average.key) != average.key:
            raise CheckpointError(
                f"checkpoint {checkpoint.name}: {variable.key!r} has two moving averages, {found[variable.key]!r} and "
                f"{average.key!r}; save the model with one optimizer"
            )
    return found


def _ties(graph: ObjectGraph) -> Iterator[_Tie]:
    lists: dict[int, Node] = {}
    for node in graph.nodes:
        for slot in node.slots:
            if slot.name == _SLOT:
                yield _Tie(graph.nodes[slot.node], [graph.nodes[slot.of]])
        if _LIST in node.children and "_iterations" in node.children:
            lists.setdefault(node.children[_LIST], node)
    named: dict[str, list[Node]] = {}
    for node in graph.nodes if lists else ():
        if node.full_name:
            named.setdefault(node.full_name, []).append(node)
    for place, optimizer in lists.items():
        trained = graph.nodes[optimizer.children[_TRAINED]].children if _TRAINED in optimizer.children else None
        for number, child in graph.nodes[place].children.items():
            average = graph.nodes[child]
            if trained is not None:
                yield _Tie(average, [graph.nodes[trained[number]]] if number in trained else [])
            else:
                yield _Tie(average, named.get(_owner_name(average.full_name), []))


def _owner_name(name: str) -> str:
    """Returns the name of the variable that an average of tf-keras is named after."""
    head, separator, rest = name.partition(f"{_SLOT}/")
    return rest if separator and (not head or head.endswith("/")) else ""
