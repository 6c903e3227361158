"""The rows that a computation of JAX looks up, computed by JAX itself: jitted, as training ran it.

The computation runs with tables that record which rows are gathered from them. What these depend on
is compiled, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.front_end.calls import Call
from export.front_end.interface import OwnRows
from export.front_end.specs import ModelSpec
from export.jax_models.functions import JaxFunctions
from export.jax_models.loading import jax
from export.jax_models.reference import MOVING_MODES, Table, needed_part, run_computation
from export.raised_errors import call_model
from export.recipe.schema import ExportJob

BATCH = 4096
"""The number of examples that one call computes: JAX compiles a function for each size."""


@dataclass(frozen=True)
class JaxTrainer:
    """JAX, which trained the functions of a recipe. Implements `Trainer`.

    Attributes:
      job: The recipe.
      functions: The functions that the factory returned.
      spec: The model as it was traced.
    """

    job: ExportJob
    functions: JaxFunctions
    spec: ModelSpec
    framework: str = "JAX"
    has_int64: bool = True  # inputs of 64 bits are rejected where JAX would cut them
    is_stated: bool = True

    def lookups(self) -> dict[str, list[OwnRows]]:
        """See Trainer.lookups."""
        lookups: dict[str, list[OwnRows]] = {}
        for call in dict.fromkeys(tower.call for tower in self.spec.towers.values()):
            # Activations come from lookups of SparseCores, whose ids no function computes.
            if self.functions.activations.bags.keys().isdisjoint(call.inputs):
                for name, rows in self._lookups_of_call(call).items():
                    lookups.setdefault(name, []).extend(rows)
        return lookups

    def _lookups_of_call(self, call: Call) -> dict[str, list[OwnRows]]:
        inputs = {}
        for name in call.inputs:
            section = self.job.inputs[name]
            inputs[name] = jax.ShapeDtypeStruct((BATCH, *section.shape), section.dtype)
        traced = jax.jit(self.functions.function_of_jax(call)).trace(
            self.functions.parameters, inputs
        )
        table_names = {table.config_name for table in self.spec.tables.values()}
        arguments = [
            RecordingTable(leaf.shape, leaf.dtype) if path in table_names else leaf
            for path, leaf in self.functions.leaves.items()
        ]
        rows_by_position = rows_of_lookups(traced.jaxpr, arguments, inputs)
        paths = list(self.functions.leaves)
        return {paths[position]: rows for position, rows in rows_by_position.items()}


@dataclass(frozen=True)
class RecordingTable(Table):
    """A table that records its gathers, and whose rows are zeros.

    Attributes:
      shape: The number of rows and their size.
      dtype: The type of their values.
      gathers: The rows of each gather, -1 for ids outside of the table.
    """

    shape: tuple[int, int]
    dtype: Any
    gathers: list[Any] = field(default_factory=list)

    def gather(self, ids: Any, mode: str, filling: Any) -> Any:  # noqa: ARG002 - no row is filled
        """See Table.gather."""
        row_count, dim = self.shape
        nearest = jax.numpy.clip(ids, 0, row_count - 1)
        rows = nearest
        if mode not in MOVING_MODES:
            rows = jax.numpy.where(ids == nearest, ids, -1)
        self.gathers.append(rows)
        return jax.numpy.zeros((*ids.shape, dim), self.dtype)

    def whole(self) -> Any:
        """See Table.whole."""
        return jax.numpy.zeros(self.shape, self.dtype)


def rows_of_lookups(
    closed: Any, arguments: Sequence[Any], inputs: Mapping[str, Any]
) -> dict[int, list[OwnRows]]:
    """Returns what computes the rows of each lookup.

    Args:
      closed: The computation, a ClosedJaxpr, of the arguments and then the inputs in the order of
        their names.
      arguments: The parameters: RecordingTables, and `jax.ShapeDtypeStruct` of all others.
      inputs: A `jax.ShapeDtypeStruct` for each input, of a batch of `BATCH` examples.

    Returns:
      Lookups by the position of their table among the arguments. A lookup whose ids depend on
      other parameters is left out.
    """
    tables = {
        position: argument
        for position, argument in enumerate(arguments)
        if isinstance(argument, RecordingTable)
    }
    plain = [argument for argument in arguments if not isinstance(argument, RecordingTable)]
    names = sorted(inputs)
    jaxpr = needed_part(closed.jaxpr)

    def gathers(parameters: Sequence[Any], values: Sequence[Any]) -> list[list[Any]]:
        for table in tables.values():
            table.gathers.clear()
        remaining = iter(parameters)
        every = [
            argument if isinstance(argument, RecordingTable) else next(remaining)
            for argument in arguments
        ]
        run_computation(jaxpr, closed.consts, [*every, *values])
        return [list(table.gathers) for table in tables.values()]

    recorded = jax.make_jaxpr(gathers)(plain, [inputs[name] for name in names])
    lookups: dict[int, list[OwnRows]] = {}
    first = 0
    for position, table in tables.items():
        lookups[position] = []
        for output in range(first, first + len(table.gathers)):
            rows = _rows_of_output(recorded, output, len(plain), names)
            if rows is not None:
                lookups[position].append(OwnRows(tuple(rows.shapes), rows))
        first += len(table.gathers)
    return lookups


def _rows_of_output(
    recorded: Any, output: int, parameter_count: int, names: Sequence[str]
) -> _Rows | None:
    """Returns what computes one result from inputs; None if it depends on parameters."""
    from jax.interpreters import partial_eval

    is_output = [index == output for index in range(len(recorded.jaxpr.outvars))]
    jaxpr, is_used = partial_eval.dce_jaxpr(recorded.jaxpr, is_output)
    if any(is_used[:parameter_count]):
        return None
    used_names = [name for name, used in zip(names, is_used[parameter_count:], strict=True) if used]
    shapes = {name: variable.aval for name, variable in zip(used_names, jaxpr.invars, strict=True)}
    return _Rows(jaxpr, recorded.consts, shapes)


class _Rows:
    """Computes the rows of a lookup, in batches of one size. A `ComputeRows`.

    Attributes:
      shapes: The shape and the dtype of each input in a batch.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], shapes: Mapping[str, Any]) -> None:
        self.shapes = shapes

        def rows(*values: Any) -> Any:
            (result,) = run_computation(jaxpr, consts, values)
            return result

        self._rows = jax.jit(rows)

    def __call__(self, columns: Mapping[str, NDArray[Any]], n: int) -> NDArray[np.int64]:
        """See ComputeRows."""
        parts = []
        for first in range(0, n, BATCH):
            count = min(BATCH, n - first)
            values = []
            for name, aval in self.shapes.items():
                examples = columns[name].reshape(n, -1)[first : first + count]
                # The last batch is filled up with its first example.
                filling = np.repeat(examples[:1], BATCH - count, axis=0)
                batch = np.concatenate([examples, filling]).astype(aval.dtype)
                values.append(batch.reshape(aval.shape))
            with jax.default_device(jax.devices("cpu")[0]):
                result = np.asarray(call_model(self._rows, *values))
            parts.append(result.reshape(BATCH, -1)[:count].reshape(-1))
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
