"""Prunes a traced call to what some of its results need: one small function for each tower.

Which features, and so which tables, a tower needs follows from what remains reachable.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from export.errors import NotConvertible, UsageError
from export.frameworks import load_tensorflow
from export.origins import Needed, needed, sources_of
from export.settings import TowerPart
from export.towers import FeatureSpec, TableFacts, TensorSpec, TowerSpec

INLINE_ROWS_MAX = 10_000
"""A Keras Embedding up to this size stays inside its tower; a larger one is refused until such tables are cut too."""

_RETURN = "let it return a dict of tensors or one tensor, or let the recipe call a method of the model that does"


@dataclass(frozen=True)
class TracedTower:
    """A tower as a pruned function.

    Attributes:
      spec: what it is.
      function: takes the tensors of `spec.inputs`, in their order; returns a dict by the names of `spec.outputs`.
      variables: the dense variables that it reads, in the order of `spec.variables`.
    """

    spec: TowerSpec
    function: Any
    variables: tuple[Any, ...]

    @property
    def operations(self) -> int:
        """How many operations are left: all that its outputs depend on."""
        return len(self.function.graph.get_operations())


@dataclass
class TracedCall:
    """One traced call of the model, in which placeholders stand for what its lookups return.

    Attributes:
      function: the whole call, a TensorFlow WrappedFunction.
      inputs: its declared inputs as they arrive in the graph.
      result: what it returns.
      features, configs: by the input's name: what is looked up, and the layer's FeatureConfig of it.
      activations, ids: by the input's name: the placeholder, and the ids where dense.
      tables, variables: the tables that are looked up, by name, and what stands for them.
    """

    function: Any
    inputs: Mapping[str, Any]
    result: Any
    features: dict[str, FeatureSpec] = field(default_factory=dict)
    configs: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)
    ids: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, TableFacts] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


def prune(
    name: str,
    part: TowerPart,
    trace: TracedCall,
    stand_ins: Mapping[str, str],
    rows_max: int | None = INLINE_ROWS_MAX,
) -> TracedTower:
    """Cuts one tower out of a traced call.

    Args:
      name, part: the recipe's tower.
      trace: the call.
      stand_ins: name of each table by the resource that stands for it.
      rows_max: of a Keras Embedding that stays in the tower; None: any.
    Raises:
      UsageError: the call does not return what the recipe's outputs name.
      NotConvertible: the tower needs more than activations and dense inputs; names what, and the cure.
    """
    tf = load_tensorflow()
    results, keys = _results(name, part, trace.result)
    with trace.function.graph.as_default():
        results = {which: tf.cast(tensor, tf.float32) for which, tensor in results.items()}
    _take_batch_from_activations(results.values(), trace)
    found = needed(results.values(), trace.activations.values())
    inputs = {
        which: trace.activations[which] for which in trace.activations if trace.activations[which].name in found.stops
    }
    inputs.update(_dense_inputs(name, found, trace))
    known = {resource(variable.handle): variable for variable in trace.function.graph.variables}
    _refuse_tables(name, found, captures_of(trace.function, found), known, stand_ins, rows_max)
    if not inputs:
        raise NotConvertible(f"tower {name!r}: its outputs depend on no input")
    names = distinct_identifiers(inputs)
    function, variables = narrowed(name, trace.function, list(inputs.values()), results)
    half = _half(found)
    spec = TowerSpec(
        name=name,
        role=part.role,
        call=part.call,
        call_inputs=tuple(trace.inputs),
        keys=keys,
        inputs=tuple(_edge(names[which], tensor, which) for which, tensor in inputs.items()),
        outputs=tuple(_edge(which, tensor) for which, tensor in results.items()),
        result=_result_name(name, part, results),
        variables=tuple(variable.name for variable in variables),
        half=half,
    )
    return TracedTower(spec, function, variables)


def _half(found: Needed) -> str:
    """Returns the dtype of less than float32 that is computed in, if there is one."""
    dtypes = (tensor.dtype.name for operation in found.operations for tensor in operation.outputs)
    return next((name for name in dtypes if name in ("bfloat16", "float16")), "")


def narrowed(name: str, function: Any, feeds: Sequence[Any], fetches: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]]:
    """Cuts a function of its own out of a traced one.

    Args:
      name: of the tower, for messages.
      function: a TensorFlow WrappedFunction.
      feeds: tensors of its graph that the new function takes, in their order.
      fetches: tensors of its graph that it returns, by name.
    Returns:
      The function, and the variables that it reads.
    Raises:
      NotConvertible: it needs something that is no variable.
    """
    graph, everything = function.graph, function.graph.captures
    captures = captures_of(function, needed(fetches.values(), feeds))
    _set_captures(graph, captures)  # prune() would hand every variable of the call to every tower
    try:
        cut = function.prune(list(feeds), dict(fetches))
    finally:
        _set_captures(graph, everything)
    known = {resource(variable.handle): variable for variable in graph.variables}
    return cut, _variables(name, known, captures)


def captures_of(function: Any, found: Needed) -> list[tuple[Any, Any]]:
    """Returns what results capture: the variable or constant outside the graph, and its placeholder within."""
    reached = {placeholder.name for placeholder in found.placeholders}
    return [pair for pair in function.graph.captures if pair[1].name in reached]


def _set_captures(graph: Any, pairs: list[tuple[Any, Any]]) -> None:
    graph.function_captures.reset_captures([outer for outer, _ in pairs], [inner for _, inner in pairs])


def _results(name: str, part: TowerPart, returned: Any) -> tuple[dict[str, Any], dict[str, str | None]]:
    tf = load_tensorflow()
    where = f"towers.{name}: call {part.call or 'of the model itself'!r}"
    if not part.outputs:
        if isinstance(returned, Mapping):
            known = ", ".join(map(str, returned))
            raise UsageError(f"{where} returns several results ({known}); name those wanted in towers.{name}.outputs")
        if not isinstance(returned, tf.Tensor):
            raise UsageError(f"{where} returns a {type(returned).__name__}; {_RETURN}")
        chosen: dict[str, Any] = {"result": returned}
        keys: dict[str, str | None] = {"result": None}
    else:
        if not isinstance(returned, Mapping):
            cure = f"leave towers.{name}.outputs out" if isinstance(returned, tf.Tensor) else _RETURN
            raise UsageError(f"{where} returns no dict but a {type(returned).__name__}; {cure}")
        for key in part.outputs.values():
            if key not in returned:
                raise UsageError(
                    f"{where} returns {', '.join(map(str, returned))}; towers.{name}.outputs names {key!r}"
                )
        chosen = {which: returned[key] for which, key in part.outputs.items()}
        keys = dict(part.outputs)
    for which, tensor in chosen.items():
        if not isinstance(tensor, tf.Tensor) or not tensor.dtype.is_floating:
            raise NotConvertible(f"{where}: output {which!r} is {tensor}; a dense tensor of floats was expected")
        if (
            tensor.shape.rank is None
            or tensor.shape.rank < 1
            or None in tensor.shape[1:]
            or tensor.shape[0] is not None
        ):
            raise NotConvertible(
                f"{where}: output {which!r} has shape {tensor.shape}; [batch, ...], and only the batch open, is needed"
            )
    return chosen, keys


def _result_name(name: str, part: TowerPart, results: Mapping[str, Any]) -> str:
    result = part.result or (next(iter(results)) if len(results) == 1 else None)
    if result not in results:
        raise UsageError(
            f"towers.{name}.result is {part.result!r}; it must be one of its outputs: {', '.join(results)}"
        )
    return str(result)


def _take_batch_from_activations(results: Iterable[Any], trace: TracedCall) -> None:
    """Lets `tf.shape(ids)` read the shape of what was looked up: the batch is all that a tower may ask of ids."""
    tf = load_tensorflow()
    found = needed(results, trace.activations.values())
    inputs = {tensor.name: which for which, tensor in trace.ids.items()}
    for operation in found.operations:
        if operation.type == "Shape" and operation.inputs[0].name in inputs:
            which = inputs[operation.inputs[0].name]
            ids, activation = operation.inputs[0], trace.activations[which]
            with trace.function.graph.as_default():
                first = activation[..., 0]
                if first.shape.rank != ids.shape.rank:  # one id in a dimension of its own
                    first = tf.expand_dims(first, 1)
                same = tf.cast(first, ids.dtype)
            operation._update_input(0, same)


def _dense_inputs(name: str, found: Needed, trace: TracedCall) -> dict[str, Any]:
    sources = sources_of(trace.inputs)
    inputs: dict[str, Any] = {}
    for placeholder in found.placeholders:
        source = sources.get(placeholder.name)
        if source is None:
            continue
        which = source.name
        if source.part != "dense":
            raise NotConvertible(
                f"tower {name!r} reads input {which!r} ({source.part}) itself, beside its lookup; "
                "give the model what it needs of it (its lengths, a mask) as a dense input"
            )
        if which in trace.features or any(feature.weights == which for feature in trace.features.values()):
            raise NotConvertible(
                f"tower {name!r} reads input {which!r} itself, beside its lookup; give the model a second, dense input"
            )
        if placeholder.dtype.name not in ("float32", "int32", "int64"):
            raise NotConvertible(
                f"tower {name!r} reads input {which!r} of dtype {placeholder.dtype.name}; only numbers go into a tower"
            )
        inputs[which] = placeholder
    return {which: inputs[which] for which in trace.inputs if which in inputs}


def _refuse_tables(
    name: str,
    found: Needed,
    captures: list[tuple[Any, Any]],
    variables: Mapping[str, Any],
    stand_ins: Mapping[str, str],
    rows_max: int | None,
) -> None:
    for outer, _ in captures:
        if resource(outer) in stand_ins:
            raise NotConvertible(
                f"tower {name!r} reads table {stand_ins[resource(outer)]!r} other than by its embedding layer; "
                "no table goes into a tower: look rows up by the layer only"
            )
    inside = {inner.name: variables[resource(outer)] for outer, inner in captures if resource(outer) in variables}
    for operation in found.operations:
        table = inside.get(operation.inputs[0].name) if operation.type == "ResourceGather" else None
        if table is not None and rows_max is not None and table.shape[0] > rows_max:
            raise NotConvertible(
                f"tower {name!r} gathers from variable {table.name!r} of {table.shape[0]} rows by operation "
                f"{operation.name!r}; only tables of TFRS or tf.tpu embedding layers are taken out of towers, and at "
                f"most {rows_max} rows stay inside; use such a layer for it"
            )


def _variables(name: str, variables: Mapping[str, Any], captures: list[tuple[Any, Any]]) -> tuple[Any, ...]:
    read = []
    for outer, _ in captures:
        if outer.dtype.name != "resource":
            continue  # a constant of the model's code
        variable = variables.get(resource(outer))
        if variable is None:
            raise NotConvertible(
                f"tower {name!r} reads {outer}, which is no variable (a hash table?); move it in front of the model"
            )
        read.append(variable)
    return tuple(read)


def _edge(name: str, tensor: Any, feature: str = "") -> TensorSpec:
    return TensorSpec(name, tensor.dtype.name, tuple(tensor.shape.as_list()), feature)


def resource(handle: Any) -> str:
    """Returns what tells one variable's resource from another's, as long as both live."""
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
