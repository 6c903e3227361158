"""Walks a traced graph: where a tensor's values come from, what some results need, and who reads what."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from export.frameworks.loading import tf

PYTHON_CODE = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
"""Operations that run Python code: tf.py_function, tf.numpy_function."""
_SAME_VALUES = frozenset(
    {"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "EnsureShape", "PreventGradient"}
)
"""Ops that hand on their first input's values, all of them and in order."""


@dataclass(frozen=True)
class Source:
    """An input of a traced call, or one part of it: dense, values, splits, indices or extent.

    Attributes:
      place: which one of several values of a dense input, if it is one of them.
    """

    name: str
    part: str
    place: int | None = None


Sources = Mapping[str, Source]
"""By the name of the input's tensor, which is unique in its graph."""


def sources_of(inputs: Mapping[str, Any]) -> dict[str, Source]:
    """Returns the tensors that make up the inputs of a traced call, by their names.

    Where inputs share a part (weights the splits of their ids), it is the first one's.
    """
    sources: dict[str, Source] = {}
    for name, value in inputs.items():
        if isinstance(value, tf.RaggedTensor):
            parts = {"values": value.values, "splits": value.row_splits}
        elif isinstance(value, tf.SparseTensor):
            parts = {"indices": value.indices, "values": value.values, "extent": value.dense_shape}
        else:
            parts = {"dense": value}
        for part, tensor in parts.items():
            sources.setdefault(tensor.name, Source(name, part))
    return sources


def hands_on(operation: Any) -> bool:
    """Returns whether an operation changes no value of its first input, as casts of integers or of floats do not."""
    if operation.type != "Cast":
        return operation.type in _SAME_VALUES and bool(operation.inputs)
    before, after = operation.inputs[0].dtype, operation.outputs[0].dtype
    return bool((before.is_integer and after.is_integer) or (before.is_floating and after.is_floating))


@dataclass(frozen=True)
class Needed:
    """What results are computed from.

    Attributes:
      stops: names of the given stops that were reached.
      placeholders: every other placeholder: inputs and captures.
      operations: all operations on the way.
    """

    stops: frozenset[str]
    placeholders: tuple[Any, ...]
    operations: tuple[Any, ...]


def needed(results: Iterable[Any], stops: Iterable[Any]) -> Needed:
    """Walks back from `results`, not beyond `stops` (both tensors of one graph)."""
    walls = {tensor.name for tensor in stops}
    reached: set[str] = set()
    placeholders: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    queue = list(results)
    while queue:
        tensor = queue.pop()
        if tensor.name in walls:
            reached.add(tensor.name)
            continue
        operation = tensor.op
        if operation.type == "Placeholder":
            placeholders[tensor.name] = tensor
            continue
        if operation.name in operations:
            continue
        operations[operation.name] = operation
        queue.extend(operation.inputs)
        # A control input is an operation; any output of it stands for it, and one without outputs is walked through.
        for control in operation.control_inputs:
            if control.outputs:
                queue.append(control.outputs[0])
            else:
                operations[control.name] = control
                queue.extend(control.inputs)
    return Needed(frozenset(reached), tuple(placeholders.values()), tuple(operations.values()))


def resource(handle: Any) -> str:
    """Returns what distinguishes one variable's resource from another's, as long as both live."""
    return str(id(handle))


def identifier(text: str) -> str:
    """Returns a name that Python and a TensorFlow graph take for one."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"input_{name}" if not name or name[0].isdigit() or name[0] == "_" or keyword.iskeyword(name) else name


def distinct_identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns a distinct Python identifier for each name: signatures take no others."""
    taken: dict[str, str] = {}
    for name in names:
        chosen = identifier(name)
        while chosen in taken.values():
            chosen += "_"
        taken[name] = chosen
    return taken
