"""Finds the operation of a tower at which a compiled form leaves the SavedModel, or the SavedModel
another framework: all intermediate values of one example are computed in both ways, and the first
ones that differ come from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import BundleError
from bundle.format.manifest import Precision, TowerOutput
from export.bounds import differ, largest_at, of_another_order
from export.front_end.interface import ComparedOperation, TracedTower
from export.graphs.functions import narrowed, type_of
from export.graphs.loading import tf
from export.towers.compiled import compile_tower
from export.towers.rewriting import GraphRewriter
from export.towers.savedmodels import save_function
from export.user_lines import at_line
from export.verify.hostile_examples import number_text
from runtime.litert import CompiledTower
from runtime.savedmodel import SavedModelTower

_COMPARED = ("float32", "int32", "int64", "bool")
_PASSING = frozenset({"Placeholder", "Const", "Identity", "ReadVariableOp", "NoOp"})
"""Operations that compute nothing."""


def first_differing(operations: Iterable[ComparedOperation]) -> tuple[str, str, str] | None:
    """Returns the first operation whose results differ, with its line and operand, its trained
    result and the served one; None if none differs.
    """
    for operation in operations:
        trained = operation.trained.reshape(-1)
        served = operation.served.reshape(-1)
        is_number = np.isfinite(trained.astype(np.float64))
        differs = differ(served, trained, of_another_order(trained)) & is_number
        if not differs.any():
            continue
        _, position = largest_at(served, trained, differs)
        operand = operation.operand
        argument = ""
        if operand is not None and operand.shape == operation.trained.shape:
            argument = f" of {number_text(operand.reshape(-1)[position])}"
        return (
            f"{operation.name}{at_line(operation.line)}{argument}",
            number_text(trained[position]),
            number_text(served[position]),
        )
    return None


def compiled_operations(
    tower: TracedTower, precision: Precision, inputs: Mapping[str, NDArray[Any]]
) -> Iterator[ComparedOperation]:
    """Yields the operations of a SavedModel, each beside its counterpart in a compiled form; none
    if one of the two cannot compute them all.

    Args:
      tower: The traced tower, whose variables have their values.
      precision: The precision of the compiled form.
      inputs: [1, ...] the values of each input of the tower.
    """
    rewriting = GraphRewriter(tower)
    operations = [
        operation
        for operation in rewriting.graph.get_operations()
        if operation.type not in _PASSING and any(map(_is_compared, operation.outputs))
    ]
    fetches = {}
    with rewriting.graph.as_default():
        for number, operation in enumerate(operations):
            tensor = next(filter(_is_compared, operation.outputs))
            fetches[f"value_{number}"] = _as_number(tensor)
        for number, operation in enumerate(operations):
            operand = next(filter(_is_compared, operation.inputs), None)
            if operand is not None:
                fetches[f"operand_{number}"] = _as_number(operand)
    values = _both(rewriting, precision, fetches, inputs)
    if values is None:
        return
    compiled, expected = values
    for number, operation in enumerate(operations):
        yield ComparedOperation(
            operation.type,
            tower.lines.get(operation.type, ""),
            expected.get(f"operand_{number}"),
            expected[f"value_{number}"],
            compiled[f"value_{number}"],
        )


def _is_compared(tensor: Any) -> bool:
    """Returns whether a tensor has a row for each example, or may have one."""
    return tensor.dtype.name in _COMPARED and bool(tensor.shape.rank) and tensor.shape[0] is None


def _as_number(tensor: Any) -> Any:
    """Returns a tensor of a type that towers return."""
    if tensor.dtype == tf.bool:
        return tf.cast(tensor, tf.int32)
    return tf.identity(tensor)


def _both(
    rewriting: GraphRewriter[TracedTower],
    precision: Precision,
    fetches: Mapping[str, Any],
    inputs: Mapping[str, NDArray[Any]],
) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]] | None:
    """Returns tensors of a tower as a compiled form computes them, and as a SavedModel does; None
    if one of the two cannot compute them all.
    """
    tower = rewriting.tower
    function, variables = narrowed(tower.spec.name, tower.function, rewriting.inputs, fetches)
    outputs = tuple(TowerOutput(name=name, **type_of(fetches[name])) for name in fetches)
    opened = replace(
        tower,
        function=function,
        variables=variables,
        spec=replace(tower.spec, outputs=outputs),
    )
    with TemporaryDirectory(prefix="rowcast-") as directory:
        saved_model = Path(directory, "saved_model")
        path = Path(directory, "compiled.tflite")
        save_function(opened, saved_model)
        if compile_tower(saved_model, precision, path):
            return None
        try:
            return CompiledTower(path).run(inputs), SavedModelTower(saved_model).run(inputs)
        except BundleError:
            return None
