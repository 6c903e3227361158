"""Towers that `scripts/torch_tower.py` wrote in the training program: a graph of PyTorch's
operations, its weights, and PyTorch's results for a few examples.

Operations become operations of TensorFlow. Their results are compared with PyTorch's before
anything is exported: the exporter itself does not run PyTorch.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from bundle.shown_values import shown
from bundle.storage.regular_files import open_regular
from export.bounds import ANOTHER_ORDER
from export.errors import NotConvertible
from export.front_end.finite_weights import check_finite_weights
from export.given_towers.aten_operations import OPERATIONS
from export.graphs.loading import tf
from export.raised_errors import call_model, failure
from export.recipe.schema import explain
from export.user_lines import at_line

_WRITE_AGAIN = "write it again with write_tower of scripts/torch_tower.py"


class _Operation(BaseModel):
    """One operation: its name in the graph, PyTorch's name, and its arguments; `file.py:12` where
    the module asked for it, if the file says so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    operation: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    line: str = ""


class _Graph(BaseModel):
    """The graph: names of weights; inputs and outputs, whose names outside of the graph map to the
    names inside.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: tuple[str, ...]
    inputs: dict[str, str]
    operations: tuple[_Operation, ...]
    outputs: dict[str, str]


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a file of `numpy.savez`.

    Raises:
      ValueError: An array is compressed, or claims other bytes than it has.
      OSError, KeyError, EOFError, zipfile.BadZipFile: The file cannot be read.
    """
    with open_regular(path) as stream:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            if sum(info.file_size for info in members) > path.stat().st_size:
                raise ValueError("its arrays have more bytes than the file")
            for info in members:
                # A compressed megabyte can become a gigabyte.
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(f"{shown(info.filename)} is compressed")
                with archive.open(info) as member:
                    shape, dtype = _claim(member)
                # NumPy allocates what the header claims.
                if math.prod(shape) * dtype.itemsize > info.file_size:
                    raise ValueError(
                        f"{shown(info.filename)} claims the shape {shown(shape)} of {dtype} and "
                        f"has {info.file_size} bytes"
                    )
        stream.seek(0)
        with np.load(stream) as file:
            return {name: file[name] for name in file.files}


def _claim(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Returns the shape and the dtype in the header of an array."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    return shape, dtype


class ExportedGraphTower:
    """A tower in a file that `write_tower` wrote. Implements `GivenTower`."""

    def __init__(self, path: Path, not_finite: Collection[str] = ()) -> None:
        """Reads the file.

        Args:
          path: The path of the file.
          not_finite: Names of weights that may hold NaN or infinities.

        Raises:
          NotConvertible: The file is damaged or no such file, has a weight that is not finite or an
            operation without a counterpart, or computes other results than PyTorch did.
        """
        self._path = path
        try:
            arrays = _arrays(path)
            self._graph = _Graph.model_validate_json(arrays["graph"].tobytes())
            examples = {name: arrays[f"examples/{name}"] for name in self._graph.inputs}
            results = {name: arrays[f"results/{name}"] for name in self._graph.outputs}
            self._weights = {name: arrays[f"weights/{name}"] for name in self._graph.weights}
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as problem:
            reason = str(problem).partition("\n")[0]
            if isinstance(problem, ValidationError):
                reason = explain(problem, _Graph)
            raise self._error(f"cannot be read: {reason}; {_WRITE_AGAIN}") from problem

        check_finite_weights(f"tower {path}", self._checked_weights(), not_finite)
        self.inputs = {
            name: tf.TensorSpec([None, *value.shape[1:]], value.dtype, name)
            for name, value in examples.items()
        }
        self._check_operations()
        outputs = self({name: tf.constant(value) for name, value in examples.items()})
        for name, expected in results.items():
            # A tower of one output returns it without a name.
            actual = outputs[name] if name else outputs
            self._compare(name, np.asarray(actual), expected)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """See GivenTower.__call__."""
        results = {
            inner_name: inputs[input_name] for input_name, inner_name in self._graph.inputs.items()
        }
        for name, weight in self._weights.items():
            results[name] = tf.constant(weight)
        # The file lists operations in the order in which PyTorch ran them.
        for operation in self._graph.operations:
            results[operation.name] = self._result(operation, results)
        outputs = {name: results[inner_name] for name, inner_name in self._graph.outputs.items()}
        return outputs.get("", outputs)

    def _checked_weights(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yields the weights that must be finite. Buffers and constants may hold infinities, as
        masks do; torch.export begins the names of parameters with `p_`.
        """
        for name, values in self._weights.items():
            if name.startswith("p_") or values.dtype.kind != "f":
                yield name, values
            else:
                yield name, np.where(np.isinf(values), 0, values)

    def _result(self, operation: _Operation, results: Mapping[str, Any]) -> Any:
        try:
            arguments = [_value(value, results) for value in operation.arguments]
            options = {name: _value(value, results) for name, value in operation.options.items()}
            return call_model(OPERATIONS[operation.operation], *arguments, **options)
        except NotConvertible as problem:
            raise self._error(f"{problem}{at_line(operation.line)}") from problem
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as problem:
            reason = failure(problem, "it has no counterpart with these arguments")
            raise self._error(
                f"operation {operation.name!r} ({operation.operation}) of PyTorch"
                f"{at_line(operation.line)}: {reason}"
            ) from problem

    def _check_operations(self) -> None:
        # Each with the first line that asks for it.
        unknown: dict[str, str] = {}
        for node in self._graph.operations:
            if node.operation not in OPERATIONS:
                unknown.setdefault(node.operation, at_line(node.line))
        if unknown:
            names = ", ".join(f"{name}{line}" for name, line in sorted(unknown.items()))
            raise self._error(
                f"operations of PyTorch without a counterpart: {names}; write it with other "
                "operations, or bring the tower as a SavedModel"
            )

    def _compare(self, output: str, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        """Compares an output for the examples with the one that PyTorch computed."""
        label = f"output {output!r}" if output else "the result"
        if actual.shape != expected.shape:
            raise self._error(
                f"{label} has shape {list(actual.shape)}, and PyTorch computed "
                f"{list(expected.shape)}"
            )
        largest_difference = np.max(np.abs(actual.astype(float) - expected), initial=0)
        scale = np.max(np.abs(expected.astype(float)), initial=0)
        # Written so that NaN is rejected, too.
        if not largest_difference <= ANOTHER_ORDER * max(scale, 1e-3):
            raise self._error(
                f"{label} differs from PyTorch's by {largest_difference:.3g}, and PyTorch's "
                f"largest value is {scale:.3g}; at most {ANOTHER_ORDER:g} of it was expected. "
                "Please report the operations of this tower"
            )

    def _error(self, reason: str) -> NotConvertible:
        return NotConvertible(f"tower {self._path}: {reason}")


def _value(argument: Any, results: Mapping[str, Any]) -> Any:
    """Returns the value of an argument that `write_tower` described."""
    if isinstance(argument, list):
        return [_value(entry, results) for entry in argument]
    if not isinstance(argument, dict):
        return argument
    if "dtype" in argument:
        return tf.as_dtype(argument["dtype"])
    return results[argument["result"]]
