"""The model as it was trained: JAX itself runs it, and rows of tables are read when it needs them.

Its results are compared with the evaluator's towers, and nothing of the evaluator takes part in
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from export.errors import ExportError
from export.front_end.calls import Call
from export.front_end.interface import ComparedOperation, ReferenceInputs, ReferenceRun, Results
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts, TowerSpec, at_path
from export.jax_models.compared_operations import compared_operations
from export.jax_models.functions import JaxFunctions, build_functions
from export.jax_models.loading import jax
from export.jax_models.parameters import StoredParameters
from export.partition.reference_inputs import dense_input, pooled, read_rows, rows_of_ids
from export.raised_errors import call_model, is_own, raised_on_examples
from export.recipe.schema import ExportJob

_INNER_PARAMETERS = ("jaxpr", "call_jaxpr")
"""Parameters of primitives that only call another computation."""
OutputPath = tuple[str | int, ...]
"""The path of a result in what a call returns, as `at_path` takes it."""
MOVING_MODES = ("CLIP", "PROMISE_IN_BOUNDS")
"""Modes in which a gather moves ids outside of a table to its first or last row."""


class Table(ABC):
    """A table as the argument of a computation that gathers rows of it."""

    @abstractmethod
    def gather(self, ids: Any, mode: str, filling: Any) -> Any:
        """Returns [*shape of ids, dim] as JAX's gather does.

        Args:
          ids: The ids; negative ones were counted from the table's end before.
          mode: The name of the gather's mode.
          filling: What it reads outside of the table; None: NaN.
        """

    @abstractmethod
    def whole(self) -> Any:
        """Returns all rows."""


@dataclass(frozen=True)
class _StoredTable(Table):
    """A table that is not in memory. Implements `Table`.

    Attributes:
      read: A function that returns rows of the table by ids that all have a row.
      count: The number of rows; None if rows are found by key, so that any integer may be one.
      filling: The number that the recipe states for ids outside, where the model reads NaN; None if
        it states none.
    """

    read: Callable[[NDArray[Any]], NDArray[Any]]
    count: int | None
    filling: float | None = None

    def gather(self, ids: Any, mode: str, filling: Any) -> Any:
        """See Table.gather.

        Source: JAX 0.10, jax.lax.GatherScatterMode.
        """
        ids = np.asarray(ids)
        if self.count is None:
            return jax.numpy.asarray(self.read(ids))
        nearest = np.clip(ids, 0, self.count - 1)
        vectors = self.read(nearest)
        # Where a program promises that all ids are rows, JAX moves any other id inside, on CPUs
        # and TPUs alike.
        if mode in MOVING_MODES:
            return jax.numpy.asarray(vectors)
        if filling is None:
            filling = np.nan
        if self.filling is not None and np.isnan(filling):
            filling = self.filling
        vectors[ids != nearest] = filling
        return jax.numpy.asarray(vectors)

    def whole(self) -> Any:
        """See Table.whole."""
        raise AssertionError("a table that a tower reads as a whole stays inside the towers")


@dataclass(frozen=True)
class JaxReference:
    """The model as JAX runs it on a CPU. Implements `ReferenceModel`.

    Attributes:
      job, base: The recipe and its folder.
      stored: The model's parameters.
      whole: The whole model as it was traced.
      fixed_batches: Calls whose code runs in one size of the batch only, and that size.
    """

    job: ExportJob
    base: Path
    stored: StoredParameters
    whole: ModelSpec
    fixed_batches: Mapping[Call, int] = field(default_factory=dict)
    framework: str = "JAX"

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,  # noqa: ARG002 models of JAX have no normalization layers
        as_written: bool = False,  # noqa: ARG002 nothing of them is replaced
    ) -> ReferenceRun:
        """See ReferenceModel.run."""
        # Towers may share a call, which runs once.
        paths_of_calls: dict[Call, dict[OutputPath, None]] = {}
        for tower in model.towers.values():
            paths_of_calls.setdefault(tower.call, {}).update(dict.fromkeys(tower.paths.values()))
        returned = {}
        with jax.default_device(jax.devices("cpu")[0]):
            for call, paths in paths_of_calls.items():
                returned[call] = self._call(call, list(paths), inputs)
        results: Results = {}
        for name, tower in model.towers.items():
            values = returned[tower.call]
            results[name] = {
                output: np.asarray(values[path]).astype(np.float32)
                for output, path in tower.paths.items()
            }
        return ReferenceRun(results)

    def with_recipe(self, job: ExportJob) -> Self:
        """See ReferenceModel.with_recipe."""
        return replace(self, job=job)

    def operations(self, tower: TowerSpec, inputs: ReferenceInputs) -> Iterator[ComparedOperation]:
        """See ForeignModel.operations."""
        functions = build_functions(self.job, self.base)
        parameters = self._parameters(functions, inputs)
        (examples, *_) = self._batches(functions, tower.call, inputs)
        with jax.default_device(jax.devices("cpu")[0]):
            traced, jaxpr = _traced(functions, tower.call, list(tower.paths.values()), examples)
            pairs = [(value, None) for value in [*parameters, *examples.ordered()]]
            yield from compared_operations(jaxpr, traced.jaxpr.consts, pairs, _run_equation)

    def _call(
        self, call: Call, paths: Sequence[OutputPath], inputs: ReferenceInputs
    ) -> dict[OutputPath, Any]:
        """Returns some results of a call on examples, by their paths. Runs in the batch of training
        if its code runs in no other.
        """
        functions = build_functions(self.job, self.base)
        parameters = self._parameters(functions, inputs)
        batches = self._batches(functions, call, inputs)
        try:
            return _run_call(functions, call, paths, parameters, batches)
        except ExportError:
            raise
        except Exception as problem:
            if is_own(problem):
                raise
            are_synthetic = self.job.verify.examples is None
            raise raised_on_examples(str(call), problem, are_synthetic=are_synthetic) from problem

    def _batches(
        self, functions: JaxFunctions, call: Call, inputs: ReferenceInputs
    ) -> list[_Examples]:
        """Returns examples in the batches in which the code of a call runs."""
        arrays = self._arrays(functions, call, inputs)
        sizes = {name: functions.activations.positions(name) for name in arrays}
        examples = _Examples(inputs.n, arrays, sizes)
        # The order of its inputs does not change the size of the batch that code runs in.
        batch_sizes = {
            fixed.in_order(sorted(fixed.inputs)): size for fixed, size in self.fixed_batches.items()
        }
        batch_size = batch_sizes.get(call.in_order(sorted(call.inputs)))
        if batch_size is None:
            return [examples]
        return examples.in_batches(batch_size)

    def _arrays(
        self, functions: JaxFunctions, call: Call, inputs: ReferenceInputs
    ) -> dict[str, Any]:
        """Returns the arrays of a call's inputs, with activations in the place of ids."""
        bags = functions.activations.bags
        arrays = {
            name: jax.numpy.asarray(dense_input(name, self.job, inputs))
            for name in functions.activations.plain_inputs(call.inputs)
        }
        for name in call.inputs:
            if name not in bags:
                continue
            # A dense input has an activation for each of its ids, a ragged one for each example.
            if self.job.inputs[name].shape:
                ids = dense_input(name, self.job, inputs)
                vectors = rows_of_ids(bags[name], ids, inputs, self.whole)
            else:
                vectors = pooled(name, bags[name], inputs, self.whole)
            arrays[name] = jax.numpy.asarray(vectors)
        return arrays

    def _parameters(self, functions: JaxFunctions, inputs: ReferenceInputs) -> list[Any]:
        """Returns the leaves of the parameters: arrays, and tables that are read on demand."""
        specified = functions.specs.tables if functions.specs is not None else {}
        tables = {
            table.config_name: table
            for table in self.whole.tables.values()
            if table.config_name not in specified
        }
        parameters: list[Any] = []
        for leaf_path, leaf in functions.leaves.items():
            if leaf_path in tables:
                parameters.append(self._table(leaf, tables[leaf_path], inputs))
            elif leaf_path in functions.variables and self.stored.key(leaf_path):
                parameters.append(jax.numpy.asarray(self.stored.read(leaf_path)))
            else:
                # No tower reads this parameter.
                parameters.append(None)
        return parameters

    def _table(self, leaf: Any, table: TableFacts, inputs: ReferenceInputs) -> _StoredTable:
        def read(ids: NDArray[Any]) -> NDArray[Any]:
            return read_rows(table, ids, inputs).astype(leaf.dtype)

        count = None if table.name in inputs.keyed else table.rows
        filling = 0.0 if self._states_zeros(table) else None
        return _StoredTable(read, count, filling)

    def _states_zeros(self, table: TableFacts) -> bool:
        """Returns whether the recipe states zeros for unknown ids of features of a table."""
        for spec in self.whole.features.values():
            if not isinstance(spec, FeatureSpec) or spec.entry.table != table.name:
                continue
            for name in spec.reads:
                section = self.job.features.get(name)
                # The default rule is zeros, too, and states nothing.
                if section is None or "unknown" not in section.model_fields_set:
                    continue
                if section.unknown.rule == "zeros":
                    return True
        return False


@dataclass(frozen=True)
class _Examples:
    """Examples as the inputs of a call.

    Attributes:
      count: The number of examples; further entries of the arrays fill up the batch.
      arrays: Arrays by input.
      sizes: The number of entries of an input's first axis that belong to one example.
    """

    count: int
    arrays: Mapping[str, Any]
    sizes: Mapping[str, int]

    def ordered(self) -> list[Any]:
        """Returns the arrays in the order in which JAX takes the values of a dictionary: by their
        keys.
        """
        return [self.arrays[name] for name in sorted(self.arrays)]

    def in_batches(self, batch: int) -> list[_Examples]:
        """Returns the examples in batches of one size; the first example fills up the last."""
        return [
            self._batch(first, min(batch, self.count - first), batch)
            for first in range(0, self.count, batch)
        ]

    def _batch(self, first: int, count: int, batch: int) -> _Examples:
        """Returns `count` examples from the example `first` on, in a batch of a size."""
        arrays = {}
        for name, array in self.arrays.items():
            size = self.sizes[name]
            examples = array[first * size : (first + count) * size]
            repetitions = (batch - count, *(1 for _ in array.shape[1:]))
            filling = jax.numpy.tile(array[:size], repetitions)
            arrays[name] = jax.numpy.concatenate([examples, filling])
        return _Examples(count, arrays, self.sizes)


def _run_call(
    functions: JaxFunctions,
    call: Call,
    paths: Sequence[OutputPath],
    parameters: Sequence[Any],
    batches: Sequence[_Examples],
) -> dict[OutputPath, Any]:
    """Returns some results of a call for the examples of all batches, which have one size."""
    traced, jaxpr = _traced(functions, call, paths, batches[0])
    results_by_batch: list[list[Any]] = []
    for examples in batches:
        arguments = [*parameters, *examples.ordered()]
        results = run_computation(jaxpr, traced.jaxpr.consts, arguments)
        # A result without axes is no output of a tower.
        results_by_batch.append([np.atleast_1d(array)[: examples.count] for array in results])
    joined = [np.concatenate(arrays) for arrays in zip(*results_by_batch, strict=True)]
    return dict(zip(paths, joined, strict=True))


def _traced(
    functions: JaxFunctions, call: Call, paths: Sequence[OutputPath], examples: _Examples
) -> tuple[Any, Any]:
    """Returns a call as JAX traces it, and the computation of some of its results."""
    function = functions.function_of_jax(call)

    # Other results, such as those for training alone, may read tables as a whole.
    def wanted_results(parameters: Any, inputs: Any) -> list[Any]:
        result = function(parameters, inputs)
        return [at_path(result, path) for path in paths]

    traced = jax.jit(wanted_results).trace(functions.parameters, dict(examples.arrays))
    return traced, needed_part(traced.jaxpr.jaxpr)


def needed_part(jaxpr: Any) -> Any:
    """Returns a computation without the equations that its results do not need: these may read
    parameters that are left out.
    """
    from jax.interpreters import partial_eval

    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def run_computation(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Runs a computation by JAX's own primitives; gathers from tables read only their rows."""
    from jax.extend.core import Literal

    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    last_readers: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        last_readers |= {atom: eqn for atom in eqn.invars if not isinstance(atom, Literal)}
    last_readers |= {atom: None for atom in jaxpr.outvars if not isinstance(atom, Literal)}
    for eqn in jaxpr.eqns:
        inputs = [atom.val if isinstance(atom, Literal) else values[atom] for atom in eqn.invars]
        values.update(zip(eqn.outvars, _run_equation(eqn, inputs), strict=True))
        # All values of a transformer for thousands of examples would take many gigabytes.
        for atom in [*eqn.invars, *eqn.outvars]:
            if not isinstance(atom, Literal) and last_readers.get(atom, eqn) is eqn:
                values.pop(atom, None)
    return [atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars]


def _run_equation(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    if any(isinstance(value, Table) for value in inputs):
        return _run_with_tables(eqn, inputs)
    return _bind(eqn, inputs)


def _run_with_tables(eqn: Any, inputs: list[Any]) -> Sequence[Any]:
    params: Mapping[str, Any] = eqn.params
    if eqn.primitive.name == "scan":
        return _run_scan(eqn, inputs)
    if eqn.primitive.name == "while":
        return _run_while(params, inputs)
    if eqn.primitive.name == "cond":
        index, *arguments = inputs
        by_branch = [_run_closed(branch, arguments) for branch in params["branches"]]
        # Tables record the lookups of all branches, and the index may be known only later.
        return [
            jax.lax.select_n(jax.numpy.int32(index), *map(_whole, results))
            for results in zip(*by_branch, strict=True)
        ]
    inner = next((params[name] for name in _INNER_PARAMETERS if name in params), None)
    if inner is not None:
        return _run_closed(inner, inputs)
    table = inputs[0]
    # Results that no tower needs may read other parts of a table.
    if not isinstance(table, Table) or not _gathers_rows(eqn):
        return _bind(eqn, [_whole(value) for value in inputs])
    indices = inputs[1]
    # `lax.dynamic_slice` has an index of the columns, too, and keeps the axis of the one row.
    row_index = params["dimension_numbers"].start_index_map.index(0)
    rows = table.gather(indices[..., row_index], params["mode"].name, params["fill_value"])
    (result,) = eqn.outvars
    return [rows.reshape(result.aval.shape)]


def _gathers_rows(eqn: Any) -> bool:
    """Returns whether an equation gathers whole rows of its first argument, a matrix."""
    if eqn.primitive.name != "gather":
        return False
    axes = eqn.params["dimension_numbers"].start_index_map
    _, dim = eqn.invars[0].aval.shape
    return 0 in axes and eqn.params["slice_sizes"] == (1, dim)


def _whole(value: Any) -> Any:
    if isinstance(value, Table):
        return value.whole()
    return value


def _run_closed(inner: Any, arguments: Sequence[Any]) -> list[Any]:
    # A closed computation holds its constants; an open one has none.
    return run_computation(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), arguments)


def _run_scan(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Runs a loop step by step, each of which reads rows of tables.

    Source: JAX 0.10, jax.lax.scan.
    """
    params = eqn.params
    # JAX 0.10 states two numbers, later releases the structure of the arguments.
    if "num_consts" in params:
        const_count = params["num_consts"]
        carry_count = params["num_carry"]
    else:
        const_count, carry_count, _ = map(len, params["ft_in"].unpack())
    consts = inputs[:const_count]
    carry = inputs[const_count : const_count + carry_count]
    sequences = [_whole(value) for value in inputs[const_count + carry_count :]]
    steps = list(range(params["length"]))
    if params["reverse"]:
        steps.reverse()
    outputs: dict[int, list[Any]] = {}
    for step in steps:
        entries = [sequence[step] for sequence in sequences]
        results = _run_closed(params["jaxpr"], [*consts, *carry, *entries])
        carry = results[:carry_count]
        outputs[step] = results[carry_count:]

    stacked = []
    for position, variable in enumerate(eqn.outvars[carry_count:]):
        entries = [outputs[step][position] for step in sorted(outputs)]
        shape = variable.aval.shape
        stacked.append(jax.numpy.array(entries, variable.aval.dtype).reshape(shape))
    return [*carry, *stacked]


def _run_while(params: Mapping[str, Any], inputs: Sequence[Any]) -> Sequence[Any]:
    """Runs a loop until its condition is false.

    Source: JAX 0.10, jax.lax.while_loop.
    """
    condition_count = params["cond_nconsts"]
    carry_begin = condition_count + params["body_nconsts"]
    condition_consts = inputs[:condition_count]
    body_consts = inputs[condition_count:carry_begin]
    carry = inputs[carry_begin:]
    while True:
        (continues,) = _run_closed(params["cond_jaxpr"], [*condition_consts, *carry])
        if not continues:
            return carry
        carry = _run_closed(params["body_jaxpr"], [*body_consts, *carry])


def _bind(eqn: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    # Outside of a compiled function, JAX compiles each operation of a shard_map anew in each call.
    if eqn.primitive.name == "shard_map":
        compiled = jax.jit(_bind_primitive, static_argnums=(0, 1))
        results: Sequence[Any] = compiled(eqn.primitive, tuple(sorted(eqn.params.items())), *inputs)
        return results
    # Source: JAX 0.10, jax/_src/core.py, eval_jaxpr.
    params = eqn.primitive.get_bind_params(eqn.params)
    results = call_model(eqn.primitive.bind, *inputs, **params)
    if not eqn.primitive.multiple_results:
        return [results]
    return list(results)


def _bind_primitive(primitive: Any, params: tuple[tuple[str, Any], ...], *inputs: Any) -> Any:
    return list(primitive.bind(*inputs, **primitive.get_bind_params(dict(params))))
