"""Towers that `scripts/torch_tower.py` wrote in the training program: a graph of PyTorch's
operations, its weights, and what PyTorch computed for a few examples.

Operations become those of TensorFlow. They are compared with PyTorch's own results before anything
is exported: this is the only place where PyTorch has a say.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from export.errors import NotConvertible
from export.given_towers.aten_operations import OPERATIONS
from export.graphs.loading import tf
from export.recipe.schema import explain

TOLERANCE = 1e-4
"""Largest difference from PyTorch's results, by the largest of them; both compute in float32."""
_WRITE_AGAIN = "write it again with write_tower of scripts/torch_tower.py"


class _Operation(BaseModel):
    """One operation: its name in the graph, PyTorch's name, and its arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    operation: str
    arguments: dict[str, Any]


class _Graph(BaseModel):
    """The graph; weights, inputs and outputs by their names outside and inside of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: dict[str, str]
    inputs: dict[str, str]
    operations: tuple[_Operation, ...]
    outputs: dict[str, str]


class ExportedGraphTower:
    """A tower in a file that `write_tower` wrote. Implements `GivenTower`."""

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
          NotConvertible: it is damaged or not such a file, has an operation without a counterpart,
            or computes something else than PyTorch did.
        """
        self._path = path
        try:
            with path.open("rb") as stream, np.load(stream) as file:
                self._arrays = {name: file[name] for name in file.files}
            self._graph = _Graph.model_validate_json(self._arrays["graph"].tobytes())
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as problem:
            reason = str(problem).partition("\n")[0]
            if isinstance(problem, ValidationError):
                reason = explain(problem, _Graph)
            raise NotConvertible(
                f"tower {path} cannot be read: {reason}; {_WRITE_AGAIN}"
            ) from problem
        self._check_operations()
        examples = self._examples()
        self.inputs = {
            name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name)
            for name, value in examples.items()
        }
        self._check_results(examples)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """See GivenTower.__call__."""
        graph = self._graph
        results = {name: inputs[given] for name, given in graph.inputs.items()}
        for name, weight in graph.weights.items():
            results[name] = tf.constant(self._arrays[f"weights/{weight}"])
        for each in graph.operations:
            results[each.name] = self._result(each, results)
        outputs = {name: results[result] for name, result in graph.outputs.items()}
        return outputs.get("", outputs)

    def _result(self, each: _Operation, results: Mapping[str, Any]) -> Any:
        arguments = {name: _value(value, results) for name, value in each.arguments.items()}
        first = [arguments.pop("values")] if next(iter(arguments), "") == "values" else []
        try:
            return OPERATIONS[each.operation](*first, **arguments)
        except NotConvertible as problem:
            raise NotConvertible(f"tower {self._path}: {problem}") from problem
        except (ValueError, TypeError, tf.errors.OpError) as problem:
            message = " ".join(str(problem).split())
            raise NotConvertible(
                f"tower {self._path}: operation {each.name!r} ({each.operation}) of PyTorch has no "
                f"counterpart with these arguments: {message[:200]}"
            ) from problem

    def _check_operations(self) -> None:
        unknown = {each.operation for each in self._graph.operations} - OPERATIONS.keys()
        if unknown:
            raise NotConvertible(
                f"tower {self._path} has operations of PyTorch without a counterpart: "
                f"{', '.join(sorted(unknown))}; write it with other operations, or bring the tower "
                "as a SavedModel"
            )

    def _examples(self) -> dict[str, Any]:
        """Returns the examples that PyTorch computed results for, by input."""
        names = self._graph.inputs.values()
        stored = [f"weights/{name}" for name in self._graph.weights.values()]
        stored += [f"examples/{name}" for name in names]
        stored += [f"results/{name}" for name in self._graph.outputs]
        missing = [name for name in stored if name not in self._arrays]
        if missing:
            raise NotConvertible(f"tower {self._path} lacks {missing[0]!r}; {_WRITE_AGAIN}")
        return {name: self._arrays[f"examples/{name}"] for name in names}

    def _check_results(self, examples: Mapping[str, Any]) -> None:
        """Compares what is computed for the examples with what PyTorch computed."""
        wanted = {name: self._arrays[f"results/{name}"] for name in self._graph.outputs}
        try:
            found = self({name: tf.constant(value) for name, value in examples.items()})
        except KeyError as problem:
            raise NotConvertible(
                f"tower {self._path} lacks operation {problem}; {_WRITE_AGAIN}"
            ) from problem
        computed = found if isinstance(found, dict) else {"": found}
        for name, expected in wanted.items():
            values = np.asarray(computed[name])
            what = f"output {name!r}" if name else "the result"
            if values.shape != expected.shape:
                raise NotConvertible(
                    f"tower {self._path}: {what} has shape {list(values.shape)}, and PyTorch "
                    f"computed {list(expected.shape)}"
                )
            largest = float(np.max(np.abs(values.astype(float) - expected), initial=0))
            scale = float(np.max(np.abs(expected), initial=0))
            if not largest <= TOLERANCE * max(scale, 1e-3):
                raise NotConvertible(
                    f"tower {self._path}: {what} differs from PyTorch's by {largest:.3g}, and "
                    f"PyTorch's largest value is {scale:.3g}; at most {TOLERANCE:g} of it was "
                    "expected. Please report the operations of this tower"
                )


def _value(argument: Any, results: Mapping[str, Any]) -> Any:
    """Returns the value of an argument that `write_tower` described."""
    if isinstance(argument, list):
        return [_value(each, results) for each in argument]
    if not isinstance(argument, dict):
        return argument
    if "dtype" in argument:
        return tf.as_dtype(argument["dtype"])
    return results[argument["result"]]
