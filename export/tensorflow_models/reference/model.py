"""The reference model: the original, not partitioned, restored by TensorFlow as far as examples
need it, or from what Keras saved.

A table may be larger than memory, so only the rows that the examples read are there
(`tables.py`). Nothing else can read a table that left the towers: one that is read whole stays
inside (`model/inline_tables.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

import numpy as np

from bundle.errors import BundleError
from bundle.features.columns import Column
from export.checkpoint.reader import Checkpoint
from export.errors import CheckpointError, ExportError, NotConvertible
from export.front_end.calls import Call
from export.front_end.interface import ReferenceInputs, ReferenceRun
from export.front_end.specs import DenseSpec, FeatureSpec, ModelSpec, TableFacts, TowerSpec, at_path
from export.graphs.hooks import Hooks
from export.graphs.internals import run_flat
from export.graphs.loading import tf
from export.graphs.placeholders import read_without_value
from export.graphs.tensors import composed, with_booleans
from export.raised_errors import is_own, raised_on_examples
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.hook_points import NORMALIZATIONS
from export.tensorflow_models.frameworks.keras_graphs import KerasGraph, built_model
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.lookups.padded_ids import average_empty_as_zeros
from export.tensorflow_models.lookups.retrieval_layers import queries_recorded
from export.tensorflow_models.model.built_model import graph_call, resolve_call
from export.tensorflow_models.model.dense_copy import restored_bytes_max
from export.tensorflow_models.model.keras_variables import saved_by_keras
from export.tensorflow_models.model.roots import build_root
from export.tensorflow_models.model.saved_models import trained_model
from export.tensorflow_models.model.weights import path_steps
from export.tensorflow_models.reference.tables import ReferenceTables


@dataclass(frozen=True)
class _Run:
    """The result of a call, and the queries that its retrieval layers compared with candidates."""

    returned: Any
    queries: list[Any]


@dataclass(frozen=True)
class TensorFlowReference:
    """The model as TensorFlow restores it. Implements `ReferenceModel`.

    Attributes:
      job, base: The recipe and its folder.
      checkpoint: The checkpoint.
      prefix: The prefix of the checkpoint on a local disk, as TensorFlow restores it.
      whole: The whole model as it was traced.
    """

    job: ExportJob
    base: Path
    checkpoint: Checkpoint
    prefix: Path
    whole: ModelSpec

    def run(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        expect_numbers: bool = False,
        as_written: bool = False,
    ) -> ReferenceRun:
        """See ReferenceModel.run."""
        # The call of one tower may compute the others too, and so read the tables of all.
        facts = dict(self.whole.tables)
        for name in inputs.keyed & facts.keys():
            # Any integer may be a key.
            facts[name] = replace(facts[name], rows=np.iinfo(np.int64).max)
        bytes_max = restored_bytes_max(self.job, self.whole)
        inside: set[str] = set()
        for spec in self.whole.features.values():
            if isinstance(spec, DenseSpec):
                inside.update(spec.tables)
        tables = ReferenceTables(facts, inputs.read_rows, bytes_max, inside)
        numbers: dict[str, Column] = {}
        if expect_numbers:
            numbers = _plain_numbers(model, inputs)

        with (
            _functions_run_eagerly(),
            _numbers_observed(numbers) as expected,
            Hooks() as hooks,
            tables.intercepting(),
            tf.device("/CPU:0"),
        ):
            if model.averages_texts and not as_written:
                average_empty_as_zeros(hooks)
            runs = self._call(model, inputs, tables, facts)
        results = {name: _results(tower, runs) for name, tower in model.towers.items()}
        return ReferenceRun(results, expected)

    def with_recipe(self, job: ExportJob) -> Self:
        """See ReferenceModel.with_recipe."""
        return replace(self, job=job)

    def _call(
        self,
        model: ModelSpec,
        inputs: ReferenceInputs,
        tables: ReferenceTables,
        facts: Mapping[str, TableFacts],
    ) -> dict[Call, _Run]:
        """Builds and restores the model, and runs each call of a tower."""
        root = build_root(self.job, self.base)
        calls = tuple(dict.fromkeys(tower.call for tower in model.towers.values()))
        tensors = {name: self._input(name, inputs) for call in calls for name in call.inputs}

        def run_call(call: Call, in_graph: bool = False) -> _Run:
            arguments = {name: tensors[name] for name in call.inputs}
            return self._run_call(root, call, arguments, facts, in_graph)

        # Code of TF1 builds the graph of each call, and restores it then.
        is_tf1 = isinstance(root, NamedGraph | KerasGraph)
        if not is_tf1:
            for call in sorted(calls, key=lambda call: (call.path, call.inputs)):
                run_call(call)  # builds what the factory has not
        tables.use_model(built_model(root))
        if not is_tf1:
            self._restore(root)
        runs = {call: run_call(call) for call in calls}
        features = [spec for spec in self.whole.features.values() if isinstance(spec, FeatureSpec)]
        if not is_tf1 and any(feature.computes_floats for feature in features):
            # Code that needs the sizes of eager tensors does not run in a graph.
            with contextlib.suppress(NotConvertible):
                runs = {call: run_call(call, in_graph=True) for call in calls}
        return runs

    def _input(self, name: str, inputs: ReferenceInputs) -> Any:
        section = self.job.inputs[name]
        column = inputs.columns[name]
        return composed(name, section, column, inputs.n, inputs.padding.get(name))

    def _run_call(
        self,
        root: Any,
        call: Call,
        inputs: Mapping[str, Any],
        facts: Mapping[str, TableFacts],
        in_graph: bool,
    ) -> _Run:
        """Runs a call on examples, eagerly or in a graph. TF1 has graphs alone.

        Raises:
          NotConvertible: The model raises an error; names the user's line.
        """
        inputs = with_booleans(inputs, self.job.inputs)
        try:
            if isinstance(root, NamedGraph):
                steps = [step for step in call.path.split(".") if step]
                target = reduce(getattr, steps, root)
                returned = target.with_call(call).run(inputs, self._reader(root, facts))
                return _Run(returned, [])
            if isinstance(root, KerasGraph):
                return _Run(self._run_graph(root, call, inputs), [])
            if in_graph:
                return _run_in_graph(root, call, inputs)
            with queries_recorded() as queries:
                returned = resolve_call(root, call)(inputs)
            # Queries without a value are of graphs in which Keras infers shapes.
            return _Run(returned, [query for query in queries if hasattr(query, "numpy")])
        except (ExportError, BundleError):
            raise
        except Exception as problem:
            if is_own(problem):
                raise
            reason = read_without_value(problem)
            if reason:
                raise NotConvertible(reason) from problem
            are_synthetic = self.job.verify.examples is None
            raise raised_on_examples(str(call), problem, are_synthetic=are_synthetic) from problem

    def _run_graph(self, root: KerasGraph, call: Call, inputs: Mapping[str, Any]) -> Any:
        """Builds the graph of a call, restores its model, and runs it."""
        specs = {name: tf.type_spec_from_value(value) for name, value in inputs.items()}
        whole = tf.compat.v1.wrap_function(resolve_call(root, call), [specs])
        # Random operations run in any case, such as the sampler of a loss that nothing here reads.
        function = whole.prune(whole.inputs, whole.structured_outputs)
        self._restore(root.model)
        return run_flat(function, tf.nest.flatten(dict(inputs), expand_composites=True))

    def _reader(self, root: NamedGraph, facts: Mapping[str, TableFacts]) -> Callable[[str], Any]:
        """Returns a reader of variables by their names, by TensorFlow itself; tables that left the
        towers are gathered.
        """
        reader = tf.train.load_checkpoint(str(self.prefix))
        extracted = {table.config_name for table in facts.values()}
        stored_names = reader.get_variable_to_shape_map()

        def read(name: str) -> Any:
            if name in extracted:
                return None
            # Under its own name, TensorFlow reports a variable that is missing.
            return reader.get_tensor(root.key(name, stored_names) or name)

        return read

    def _restore(self, root: Any) -> None:
        """Restores the model by TensorFlow itself; the tables of layers are no part of its object
        graph. What Keras saved is read here: its loaders would read every table.

        Raises:
          CheckpointError: A data file is damaged, or variables are missing.
        """
        trained = trained_model(root, self.checkpoint, self.job.checkpoint.object_path)
        if saved_by_keras(self.checkpoint):
            trained.restore_model()
            return
        root = trained.root
        for step in reversed(path_steps(self.job.checkpoint.object_path)):
            holder = tf.Module()
            setattr(holder, step, root)
            root = holder
        try:
            tf.train.Checkpoint(root).restore(str(self.prefix)).expect_partial()
        except tf.errors.OpError as problem:
            raise CheckpointError(
                f"checkpoint {self.prefix}: TensorFlow cannot restore the model: "
                f"{' '.join(problem.message.split())}"
            ) from problem


def _run_in_graph(root: Any, call: Call, inputs: Mapping[str, Any]) -> _Run:
    """Runs a call as training and a SavedModel do: TensorFlow rewrites a graph before it runs it,
    and its quotient `x / c`, then `x * (1 / c)`, may lie on the other side of a step.
    """
    run = graph_call(root, call)

    def body(values: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        graph = tf.compat.v1.get_default_graph()
        with queries_recorded() as queries:
            returned = run(values)
        return returned, [query for query in queries if getattr(query, "graph", None) is graph]

    specs = {name: tf.type_spec_from_value(value) for name, value in inputs.items()}
    function = tf.compat.v1.wrap_function(body, [specs])
    arguments = tf.nest.flatten(dict(inputs), expand_composites=True)
    returned, queries = run_flat(function, arguments, is_rewritten=True)
    return _Run(returned, queries)


def _results(tower: TowerSpec, runs: Mapping[Call, _Run]) -> dict[str, Any]:
    """Returns the outputs of a tower, [n, ...] float32."""
    run = runs[tower.call]
    returned = run.returned
    if tower.is_query:
        returned = run.queries[-1]
    results = {}
    for output, path in tower.paths.items():
        value = at_path(returned, path)
        results[output] = tf.cast(value, tf.float32).numpy()
    return results


def _plain_numbers(model: ModelSpec, inputs: ReferenceInputs) -> dict[str, Column]:
    """Returns the inputs that towers take as float32 numbers and nothing else."""
    numbers = {}
    for name, readers in model.inputs.items():
        if all(map(_takes_numbers, readers)):
            numbers[name] = inputs.columns[name]
    return numbers


def _takes_numbers(spec: FeatureSpec | DenseSpec) -> bool:
    if not isinstance(spec, DenseSpec):
        return False
    return spec.entry.take == "values" and spec.entry.dtype == "float32"


@contextlib.contextmanager
def _functions_run_eagerly() -> Iterator[None]:
    """Runs every tf.function as Python, inside the `with` block."""
    was_eager = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(was_eager)


@contextlib.contextmanager
def _numbers_observed(numbers: Mapping[str, Column]) -> Iterator[dict[str, Column]]:
    """Fills a dict, inside the `with` block, with the numbers that Normalization layers expect in
    place of inputs that reach them unchanged.
    """
    expected: dict[str, Column] = {}
    if not numbers:
        yield expected
        return

    def observe(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        if tf.executing_eagerly() and tf.is_tensor(inputs):
            for name, column in numbers.items():
                if np.array_equal(np.ravel(inputs), column.values):
                    expected[name] = _as_expected(column, inputs, lambda x: call(layer, x))
        return call(layer, inputs)

    with Hooks() as hooks:
        for point in NORMALIZATIONS:
            hooks.replace(point, observe)
        yield expected


def _as_expected(column: Column, inputs: Any, normalize: Callable[[Any], Any]) -> Column:
    """Returns the numbers that a layer turns into those of a column: the layer is linear, so its
    inverse follows from two of its results.
    """
    shape = tf.shape(inputs)
    low = np.ravel(normalize(tf.zeros(shape)))
    high = np.ravel(normalize(tf.ones(shape)))
    values = (column.values - low) / (high - low)
    return column._replace(values=values.astype(np.float32))
