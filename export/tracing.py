"""Builds the user's model without its tables, traces each call once, and prunes it at its lookups into towers.

What is asked of the model, and why it is cut here: docs/adr/0002-layer-cut.md.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.cuts.embedding_layers import intercepted
from export.cuts.lookups import Lookup, batch_size
from export.errors import ExportError, NotConvertible, UsageError
from export.frameworks import load_tensorflow
from export.model_code import load_factory
from export.origins import Source, Sources, origin, sources_of
from export.pruning import INLINE_ROWS_MAX, TracedCall, TracedTower, identifier, prune, resource
from export.settings import ExportJob, InputPart, TowerPart
from export.towers import DenseSpec, FeatureSpec, ModelSpec, TableFacts, check_precisions

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_RAISED = re.compile(r"^\s*(\w*(?:Error|Exception): .*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class TracedModel:
    """The model without its tables, and its towers.

    Attributes:
      spec: what was found.
      towers: in the recipe's order.
      root: what the factory returned.
      tables: the variable that stands for each table of `spec.tables`.
      configs: the layer's FeatureConfig of each feature that is looked up.
    """

    spec: ModelSpec
    towers: tuple[TracedTower, ...]
    root: Any
    tables: Mapping[str, Any]
    configs: Mapping[str, Any]


def trace_towers(job: ExportJob, base: Path, inside: bool = False) -> TracedModel:
    """Builds and cuts the recipe's model; allocates no table.

    Args:
      job: the recipe.
      base: its folder, which the factory's file is relative to.
      inside: Keras Embeddings of any size may stay in the towers; the large ones are not allocated, and hold no value.
    Raises:
      UsageError: the recipe names a call, input, output or factory that is not there.
      NotConvertible: the model cannot be cut as it is; names the feature, table or operation, and the cure.
    """
    check_precisions(job)
    tf = load_tensorflow()
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    stand_ins: dict[str, tuple[str, Any]] = {}

    def stand_in(table: TableFacts) -> Any:
        shape = (table.rows, table.dim)
        variable = UninitializedVariable(shape=shape, dtype=tf.float32, trainable=True, name=table.config_name)
        stand_ins[resource(variable.handle)] = (table.name, variable)
        return variable

    factory = load_factory(job.code.factory, base)
    with intercepted(stand_in, zeros, tracked=True):
        root = _built_unallocated(factory) if inside else None
        root = factory() if root is None else root
        _refuse_partial(root)
    traces: dict[tuple[str, tuple[str, ...]], TracedCall] = {}
    towers = []
    for name, part in job.towers.items():
        key = (part.call, call_inputs(name, part, job))
        if key not in traces:
            traces[key] = _trace(root, key[0], {which: job.inputs[which] for which in key[1]}, stand_in)
        tables = {what: table for what, (table, _) in stand_ins.items()}
        towers.append(prune(name, part, traces[key], tables, None if inside else INLINE_ROWS_MAX))
    variables: dict[str, Any] = {}
    for trace in traces.values():
        for table, variable in trace.variables.items():
            _add_table(variables, table, variable)
    spec = _describe(traces.values(), towers)
    configs = {name: config for trace in traces.values() for name, config in trace.configs.items()}
    return TracedModel(spec, tuple(towers), root, {name: variables[name] for name in spec.tables}, configs)


def call_inputs(name: str, part: TowerPart, job: ExportJob) -> tuple[str, ...]:
    """Returns the names of the inputs that a tower's call takes."""
    for which in part.inputs:
        if which not in job.inputs:
            raise UsageError(f"towers.{name}.inputs names {which!r}; the recipe's inputs: {', '.join(job.inputs)}")
    return part.inputs or tuple(job.inputs)


def resolve_call(root: Any, path: str) -> Callable[[Mapping[str, Any]], Any]:
    """Returns what a tower's `call` names, taking one dict of inputs, in inference mode.

    Raises:
      UsageError: the model has no such attribute, or it cannot be called.
    """
    target = root
    for step in path.split(".") if path else ():
        if not hasattr(target, step):
            raise UsageError(f"call {path!r}: {type(target).__name__} has no attribute {step!r}")
        target = getattr(target, step)
    if not callable(target):
        raise UsageError(f"call {path or 'the model itself'!r} is a {type(target).__name__}, which cannot be called")
    # A tf.function would put the lookups into a graph of its own, out of sight: its Python function is traced instead.
    target = getattr(target, "python_function", target)
    try:
        parameters = inspect.signature(getattr(target, "call", target)).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    needed = [name for name, each in parameters.items() if each.default is each.empty and each.kind in _POSITIONAL]
    if len(needed) > 1:
        raise UsageError(
            f"call {path or 'the model itself'!r} takes {', '.join(needed)}; a call takes one dict of inputs: add "
            "a method to the model that does, and name it"
        )
    return functools.partial(target, training=False) if "training" in parameters else target


def input_spec(part: InputPart) -> Any:
    """Returns the TensorFlow type of one declared input, the batch left open."""
    tf = load_tensorflow()
    dtype = tf.as_dtype(part.dtype)
    if part.kind == "ragged":
        return tf.RaggedTensorSpec([None, None], dtype, ragged_rank=1, row_splits_dtype=tf.int64)
    if part.kind == "sparse":
        return tf.SparseTensorSpec([None, None], dtype)
    return tf.TensorSpec([None, *part.shape], dtype)


def zeros(lookup: Lookup) -> Any:
    """Answers a lookup with zeros of its shape: while the model is built, nobody reads the values."""
    tf = load_tensorflow()
    activation = tf.zeros([batch_size(lookup.ids[0]), *lookup.shape[1:]])
    return activation if tf.executing_eagerly() else tf.ensure_shape(activation, lookup.shape)


def _trace(root: Any, path: str, parts: Mapping[str, InputPart], stand_in: Callable[[TableFacts], Any]) -> TracedCall:
    tf = load_tensorflow()
    target = resolve_call(root, path)
    lookups: list[tuple[Lookup, Any]] = []
    seen: dict[str, Any] = {}

    def record(lookup: Lookup) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or "scratch_graph" in getattr(graph, "name", ""):
            return zeros(lookup)  # Keras asks for shapes only
        if graph is not seen["graph"]:
            raise NotConvertible(
                f"feature {lookup.path!r} is looked up inside a tf.function, tf.cond or tf.while_loop of the model; "
                "call the embedding layer outside it"
            )
        shape = lookup.shape if lookup.kind != "single" else (None, lookup.table.dim)
        activation = tf.compat.v1.placeholder(tf.float32, shape, name=identifier(lookup.path))
        lookups.append((lookup, activation))
        return activation if shape == lookup.shape else tf.expand_dims(activation, 1)

    def called(inputs: Mapping[str, Any]) -> Any:
        return target(inputs)

    converted = tf.autograph.to_graph(called)

    def body(inputs: Mapping[str, Any]) -> Any:
        seen.update(graph=tf.compat.v1.get_default_graph(), inputs=dict(inputs))
        return converted(dict(inputs))

    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # tf.functions inside the call become part of the one graph
    try:
        with intercepted(stand_in, record, tracked=True):
            function = tf.compat.v1.wrap_function(body, [{name: input_spec(part) for name, part in parts.items()}])
    except ExportError:
        raise
    except Exception as problem:
        raise NotConvertible(
            f"call {path or 'of the model itself'!r} with inputs {', '.join(parts)} raised {_told(problem)}"
        ) from problem
    finally:
        tf.config.run_functions_eagerly(eagerly)
    trace = TracedCall(function, seen["inputs"], function.structured_outputs)
    _name_lookups(trace, lookups, parts)
    return trace


def _built_unallocated(factory: Callable[[], Any]) -> Any:
    """Builds the model without memory for variables shaped like large tables; None if it needs their values."""
    tf = load_tensorflow()
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    def create(make: Callable[..., Any], **how: Any) -> Any:
        shape = tf.TensorShape(how.get("shape"))
        if shape.rank != 2 or not shape.is_fully_defined() or shape[0] <= INLINE_ROWS_MAX:
            return make(**how)
        dtype = how.get("dtype") or tf.float32
        return UninitializedVariable(shape=shape, dtype=dtype, trainable=how.get("trainable"), name=how.get("name"))

    try:
        with tf.variable_creator_scope(create):
            return factory()
    except NotConvertible:  # the factory calls the model it built
        return None


def _told(problem: Exception) -> str:
    """Returns an exception in one line: Keras and AutoGraph wrap what was raised in pages of call stacks."""
    raised = _RAISED.findall(str(problem))
    return raised[-1] if raised else f"{type(problem).__name__}: {' '.join(str(problem).split())}"


def _name_lookups(trace: TracedCall, lookups: list[tuple[Lookup, Any]], parts: Mapping[str, InputPart]) -> None:
    """Finds the input behind each lookup; the feature is called as it."""
    sources = sources_of(trace.inputs)
    for lookup, activation in lookups:
        name = _input_of(lookup.path, "ids", lookup.ids[0], sources)
        part = parts[name]
        if part.dtype not in ("int32", "int64"):
            raise NotConvertible(f"input {name!r} is {part.dtype}, and feature {lookup.path!r} takes it as ids")
        if lookup.encoding == "dense" and math.prod(part.shape) != (lookup.length or 1):
            raise NotConvertible(
                f"input {name!r} has shape {part.shape} in each example, and feature {lookup.path!r} is given ids of "
                f"shape {lookup.ids[0].shape}; each example's ids must stay together"
            )
        weights = None
        if lookup.weights is not None:
            weights = _input_of(lookup.path, "weights", lookup.weights, sources)
            if parts[weights].weights_for != name:
                raise UsageError(
                    f"input {weights!r} holds the weights of {name!r} in feature {lookup.path!r}; "
                    f'write inputs.{weights}.weights_for = "{name}"'
                )
        feature = FeatureSpec(
            name=name,
            table=lookup.table.name,
            kind=lookup.kind,
            encoding=lookup.encoding,
            combiner=lookup.combiner,
            length=lookup.length if lookup.kind == "sequence" else None,
            weights=weights,
            ids_dtype=part.dtype,
        )
        known = trace.features.setdefault(name, feature)
        if known != feature:
            raise NotConvertible(
                f"input {name!r} is looked up twice: in table {known.table!r} ({known.kind}) and in table "
                f"{feature.table!r} ({feature.kind}); give the model one input for each"
            )
        trace.tables.setdefault(feature.table, lookup.table)
        trace.configs.setdefault(name, lookup.config)
        _add_table(trace.variables, feature.table, lookup.variable)
        if name in trace.activations:
            _join(activation, trace.activations[name])
            continue
        trace.activations[name] = activation
        if lookup.encoding == "dense":
            trace.ids[name] = trace.inputs[name]


def _add_table(variables: dict[str, Any], name: str, variable: Any) -> None:
    """Notes which variable a table is; what follows knows tables by their names alone."""
    if variables.setdefault(name, variable) is not variable:
        raise NotConvertible(
            f"two tables are called {name!r}; give their TableConfigs different names, and where the checkpoint does "
            "not know the new one, tell its variable as tables.<new name>.key in the recipe"
        )


def _input_of(path: str, what: str, value: Any, sources: Sources) -> str:
    """Returns the input that ids or weights are, whole and unchanged."""
    tf = load_tensorflow()
    if isinstance(value, tf.RaggedTensor):
        parts = {"values": value.values, "splits": value.row_splits}
    elif isinstance(value, tf.SparseTensor):
        parts = {"values": value.values, "indices": value.indices}
    else:
        parts = {"dense": value}
    names = set()
    for part, tensor in parts.items():
        source = origin(tensor, sources)
        if not isinstance(source, Source) or source.part != part:
            at = f"operation {source.name!r} ({source.type})" if not isinstance(source, Source) else repr(source.name)
            raise NotConvertible(
                f"{what} of feature {path!r} are computed by {at} of the model, not taken from an input as it is; "
                "give the embedding layer an input that holds the rows, and state the rule from id to row in the "
                "recipe's features.<input>.ids"
            )
        names.add(source.name)
    # Weights may share the structure of their ids, and differ in their values only.
    name = origin(next(iter(parts.values())), sources).name
    if len(names) > 1 and what == "ids":
        raise NotConvertible(f"ids of feature {path!r} are put together from inputs {', '.join(sorted(names))}")
    return str(name)


def _join(second: Any, first: Any) -> None:
    """Lets all that reads the activation of a repeated lookup read the first one's."""
    for operation in second.consumers():
        for position, tensor in enumerate(operation.inputs):
            if tensor is second:
                operation._update_input(position, first)


def _refuse_partial(root: Any) -> None:
    tf = load_tensorflow()
    if isinstance(root, tf.Module) or hasattr(root, "_trackable_children"):
        for trackable in tf.train.TrackableView(root).descendants():
            if type(trackable).__name__ == "PartialTPUEmbedding":
                raise NotConvertible(
                    "the model has a PartialTPUEmbedding layer, whose small tables are Keras Embeddings and are not "
                    "taken out yet; use TPUEmbedding for all of its tables"
                )


def _describe(traces: Iterable[TracedCall], towers: Iterable[TracedTower]) -> ModelSpec:
    specs = {tower.spec.name: tower.spec for tower in towers}
    features: dict[str, FeatureSpec | DenseSpec] = {}
    tables: dict[str, TableFacts] = {}
    embedded: dict[str, FeatureSpec] = {}
    for trace in traces:
        for which, feature in trace.features.items():
            if embedded.setdefault(which, feature) != feature:
                raise NotConvertible(f"two calls look input {which!r} up differently: {embedded[which]}, {feature}")
        tables.update(trace.tables)
    for tower in specs.values():
        for tensor in tower.inputs:
            which = tensor.feature
            if which in embedded:
                features[which] = embedded[which]
                continue
            shape = tuple(size for size in tensor.shape[1:] if size is not None)
            dense = DenseSpec(which, tensor.dtype, shape)  # type: ignore[arg-type]
            if features.setdefault(which, dense) != dense:
                raise NotConvertible(f"input {which!r} is looked up in one call and read as it is in another")
    used = {feature.table for feature in features.values() if isinstance(feature, FeatureSpec)}
    return ModelSpec({which: tables[which] for which in tables if which in used}, features, specs)
