"""The user's model as its factory returned it, and its calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from export.errors import UsageError
from export.front_end.call_targets import inference_arguments, target_of
from export.front_end.calls import Call
from export.front_end.specs import TableFacts
from export.graphs.internals import variable_class
from export.graphs.loading import tf
from export.graphs.placeholders import restoring_up_to
from export.graphs.walks import resource
from export.partition.graph.input_paths import TRACED_CALL
from export.partition.table_names import TableNames
from export.partition.traceable_model import Replacements, TraceableModel
from export.partition.tracing import TracedModel, trace_towers
from export.raised_errors import call_model
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.keras_graphs import (
    KerasGraph,
    built_model,
    connected,
    is_of_graph,
)
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.lookups.interception import early_lookups, lookups_intercepted
from export.tensorflow_models.lookups.retrieval_layers import queries_recorded
from export.tensorflow_models.model.object_paths import object_paths, short_name
from export.tensorflow_models.model.roots import build_root

Build = Callable[[ExportJob, Path], Any]
"""(recipe, its folder) -> the model: an object whose attributes can be called."""


class BuiltModel(TraceableModel):
    """A model of TensorFlow or Keras, which allocates no table."""

    def __init__(self, job: ExportJob, base: Path, build: Build = build_root) -> None:
        """Builds the model.

        Args:
          job: The recipe.
          base: The recipe's folder, which the factory's file is relative to.
          build: Builds the recipe's model.

        Raises:
          UsageError: There is no such factory.
          NotConvertible: The factory raises, or its result does not fit the kind of checkpoint.
        """
        self.layer_tables: dict[str, str] = {}
        # A factory that calls its model reads what may stay inside a tower as a whole.
        with (
            restoring_up_to(job.code.inline_bytes_max),
            early_lookups(self._make_table),
        ):
            self._built = build(job, base)
        self.has_own_inputs = isinstance(self._built, KerasGraph)
        self.has_initial_values = not isinstance(self._built, NamedGraph)

    @property
    def root(self) -> Any:
        """What the factory returned."""
        return built_model(self._built)

    def function(self, call: Call) -> Callable[[Mapping[str, Any]], Any]:
        """See TraceableModel.function."""
        return graph_call(self._built, call)

    def output_names(self, call: Call) -> tuple[str, ...]:
        """See TraceableModel.output_names: a functional model of Keras has some."""
        names = getattr(target_of(self.root, call), "output_names", None)
        return tuple(names or ())

    @contextlib.contextmanager
    def intercepting(self, replacements: Replacements) -> Iterator[list[Any]]:
        """See TraceableModel.intercepting."""
        with lookups_intercepted(self._make_table, *replacements), queries_recorded() as queries:
            yield queries

    def table_names(self, variables: Mapping[str, Any]) -> dict[str, TableNames]:
        """See TraceableModel.table_names: a name is the object path without what Keras adds to it,
        or, for a layer in a numbered list of Keras, the layer's name.
        """
        names = super().table_names(variables)
        for key, (path, owner) in object_paths(self.root).items():
            if key in names and path:
                names[key] = TableNames(short_name(path, owner), path, path)
        return names

    def _make_table(self, table: TableFacts) -> Any:
        """Returns the variable of an embedding layer's table."""
        shape = (table.rows, table.dim)
        variable = variable_class()(
            shape=shape, dtype=tf.float32, trainable=True, name=table.config_name
        )
        self.layer_tables[resource(variable.handle)] = table.name
        return variable


def trace_model(
    job: ExportJob, base: Path, inside: bool = False, build: Build = build_root
) -> TracedModel:
    """Builds and partitions the recipe's model, as `BuiltModel` and `trace_towers` do."""
    return trace_towers(job, base, BuiltModel(job, base, build), inside)


def resolve_call(root: Any, call: Call) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function that runs a call in inference mode on the values of its inputs, by name.

    Raises:
      UsageError: The model has no such attribute or layer, it cannot be called, or it takes other
        arguments.
    """
    if isinstance(root, KerasGraph):

        def run_rebuilt(values: Mapping[str, Any]) -> Any:
            with root.rebuilt() as model:
                return resolve_call(model, call)(values)

        return run_rebuilt
    target = target_of(root, call)
    if isinstance(target, NamedGraph):
        # It passes the user's function its arguments.
        return target.with_call(call)
    if not callable(target):
        raise UsageError(f"{call} is a {type(target).__name__}, which cannot be called")
    # A tf.function would hide the lookups in a graph of its own, so its Python function is traced
    # instead.
    target = getattr(target, "python_function", target)
    constants = inference_arguments(target, call)
    # AutoGraph converts what `run` calls; the exporter's own code is not meant.
    arguments_of = tf.autograph.experimental.do_not_convert(call.bind)

    def run(values: Mapping[str, Any]) -> Any:
        positional, by_name = arguments_of(values)
        if is_of_graph(target):
            return connected(target, positional, by_name)
        return call_model(target, *positional, **by_name, **constants)

    return run


def graph_call(root: Any, call: Call) -> Callable[[Mapping[str, Any]], Any]:
    """Returns a function that runs a call in the graph that is being built.

    Raises:
      UsageError: The call cannot be resolved.
    """
    target = resolve_call(root, call)

    def called(values: Mapping[str, Any]) -> Any:
        return target(values)

    if isinstance(root, NamedGraph | KerasGraph):
        # AutoGraph does not convert code of TF1, whose programs build a graph themselves.
        return called
    converted = tf.autograph.to_graph(called)

    def run(values: Mapping[str, Any]) -> Any:
        # By the name that wrap_function gives its graph, tf-keras takes code for that of TF1: a
        # layer that is created there would turn the model's layers of its class into TF1's.
        tf.compat.v1.get_default_graph().name = TRACED_CALL
        return converted(values)

    return run
