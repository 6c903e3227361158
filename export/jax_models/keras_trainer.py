"""Keras on JAX, which trained a model of Keras 3, or may have: the archive does not say which.

A process has one backend of Keras, and the exporter's is TensorFlow. So another process builds the
model on JAX, without values, and computes the rows that it looks up.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import NotConvertible
from export.front_end.call_targets import inference_arguments, target_of
from export.front_end.calls import call_of
from export.front_end.interface import OwnRows
from export.graphs.loading import run_keras_on
from export.jax_models.loading import jax, prefer_cpus
from export.jax_models.own_rows import BATCH, RecordingTable, rows_of_lookups
from export.model_code.factories import factory_of
from export.raised_errors import call_model, is_own, one_line
from export.recipe.schema import ExportJob

_TIMEOUT_S = 600
"""How long the other process may take for one response."""


@dataclass(frozen=True)
class KerasTrainer:
    """JAX, on which Keras trained a model, or may have. Implements `Trainer`.

    Attributes:
      job, base: The recipe and its folder.
      tables: The `config_name` of each table, by its position among the model's variables.
    """

    job: ExportJob
    base: Path
    tables: Mapping[int, str]
    framework: str = "JAX"
    has_int64: bool = False

    @property
    def is_stated(self) -> bool:
        """See Trainer.is_stated."""
        return self.job.code.trained_with is not None

    def lookups(self) -> Mapping[str, Sequence[OwnRows]] | None:
        """See Trainer.lookups."""
        trained_with = self.job.code.trained_with
        if trained_with == "torch":
            raise NotConvertible(
                "Keras ran on PyTorch in training, which the exporter does not run"
            )
        if find_spec("jax") is None:
            raise NotConvertible("JAX is not installed")
        tables = self._process.request(None)
        if isinstance(tables, str):
            if self.is_stated:
                raise NotConvertible(tables)
            # Code that runs on TensorFlow alone was trained there.
            return None
        lookups = {}
        for name, inputs_of_lookups in tables.items():
            lookups[name] = [
                OwnRows(inputs, _RemoteRows(self._process, name, position))
                for position, inputs in enumerate(inputs_of_lookups)
            ]
        return lookups

    @cached_property
    def _process(self) -> _Process:
        return _Process(self.job, self.base, self.tables)


class _Process:
    """The process in which Keras runs on JAX. It ends with this one, or when it is not needed."""

    def __init__(self, job: ExportJob, base: Path, tables: Mapping[int, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, far_end = context.Pipe()
        process = context.Process(target=_serve, args=(far_end, job, base, tables), daemon=True)
        process.start()
        far_end.close()

    def request(self, message: Any) -> Any:
        """Returns the response to a message.

        Raises:
          NotConvertible: The process ended, or does not respond in time.
          RuntimeError: The exporter has a bug; the message has its traceback.
        """
        try:
            self._connection.send(message)
            is_ready = self._connection.poll(_TIMEOUT_S)
            response = self._connection.recv() if is_ready else None
        except (EOFError, OSError) as problem:
            raise NotConvertible("the process in which Keras runs on JAX ended") from problem
        if not is_ready:
            raise NotConvertible(f"Keras on JAX computes for more than {_TIMEOUT_S} s")
        if isinstance(response, RuntimeError):
            raise response
        return response


@dataclass(frozen=True)
class _RemoteRows:
    """Computes the rows of a lookup in the other process. A `ComputeRows`."""

    process: _Process
    table: str
    position: int

    def __call__(self, columns: Mapping[str, NDArray[Any]], n: int) -> NDArray[np.int64]:
        """See ComputeRows."""
        rows: NDArray[np.int64] | str = self.process.request(
            (self.table, self.position, columns, n)
        )
        if isinstance(rows, str):
            raise NotConvertible(rows)
        return rows


def _serve(connection: Connection, job: ExportJob, base: Path, tables: Mapping[int, str]) -> None:
    """Computes rows in a process of its own."""
    prefer_cpus()
    run_keras_on("jax")
    connection.recv()
    try:
        lookups = _lookups(job, base, tables)
    except Exception as problem:  # noqa: BLE001 - the user's code raises errors of any type
        connection.send(_failure(problem))
        return
    connection.send({name: [rows.inputs for rows in every] for name, every in lookups.items()})
    while True:
        try:
            table, position, columns, n = connection.recv()
        except EOFError:
            return
        try:
            response = lookups[table][position].compute(columns, n)
        except Exception as problem:  # noqa: BLE001 - libraries raise errors of any type
            response = _failure(problem)
        connection.send(response)


def _failure(problem: Exception) -> str | RuntimeError:
    """Returns what the other process responds with: why the model does not run on JAX, or a bug."""
    if is_own(problem):
        return RuntimeError("".join(traceback.format_exception(problem)))
    return f"the model does not run on JAX: {one_line(problem)}"


def _lookups(job: ExportJob, base: Path, tables: Mapping[int, str]) -> dict[str, list[OwnRows]]:
    """Returns what computes the rows of each lookup, by the `config_name` of its table."""
    import keras

    lookups: dict[str, list[OwnRows]] = {}
    built: list[Any] = []

    def build() -> int:
        built.append(factory_of(job, base)())
        return 0

    # Variables have no values, which tables would fill the memory with.
    with keras.StatelessScope(initialize_variables=False):
        jax.eval_shape(build)
        (model,) = built
        for call in dict.fromkeys(call_of(name, job) for name in job.towers):
            target = target_of(model, call)
            constants = inference_arguments(target, call)

            def run(inputs: Mapping[str, Any]) -> Any:
                positional, by_name = call.bind(inputs)  # noqa: B023 - traced in this iteration
                return call_model(target, *positional, **by_name, **constants)  # noqa: B023

            inputs = {}
            for name in call.inputs:
                section = job.inputs[name]
                dtype = jax.dtypes.canonicalize_dtype(section.dtype)
                inputs[name] = jax.ShapeDtypeStruct((BATCH, *section.shape), dtype)
            # The first call may make variables.
            jax.eval_shape(run, inputs)
            rows_by_position = _lookups_of_call(run, model.variables, tables, inputs)
            for position, rows in rows_by_position.items():
                lookups.setdefault(tables[position], []).extend(rows)
    return lookups


def _lookups_of_call(
    run: Any, variables: Sequence[Any], tables: Collection[int], inputs: Mapping[str, Any]
) -> dict[int, list[OwnRows]]:
    import keras

    def function(values: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
        state = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state, initialize_variables=False):
            return run(inputs)

    shapes = [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
    traced = jax.jit(function).trace(shapes, inputs)
    arguments = [
        RecordingTable(shape.shape, shape.dtype) if position in tables else shape
        for position, shape in enumerate(shapes)
    ]
    return rows_of_lookups(traced.jaxpr, arguments, inputs)
