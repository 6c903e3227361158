"""Prunes a traced call to one small function for each tower.

A tower needs the features, and so the tables, that remain reachable from its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bundle.format import manifest
from bundle.format.identifiers import distinct_identifiers
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.interface import TracedTower
from export.front_end.specs import FeatureSpec, TowerSpec
from export.graphs.functions import bytes_of, captures_of, line_of_reader, narrowed, type_of
from export.graphs.internals import join, set_input
from export.graphs.loading import tf
from export.graphs.own_values import find_own_values
from export.graphs.walks import PYTHON_CODE, Needed, needed, resource
from export.recipe.schema import InputSection, TowerSection
from export.tensorflow_models.frameworks.placeholders import line_of_early
from export.tensorflow_models.graph.bag_inputs import add_bag_placeholders
from export.tensorflow_models.graph.origins import sources_of
from export.tensorflow_models.graph.tower_results import Returned, tower_results
from export.user_lines import at_line, line_of_operation

_TAKEN = ("float32", "int32", "int64", "string")


@dataclass
class TracedCall:
    """One traced call of the model, in which placeholders replace lookups.

    Attributes:
      call: what was called.
      function: the whole call, a TensorFlow WrappedFunction.
      inputs: its declared inputs, as tensors of the graph.
      lengths: placeholders of the number of ids per example, by input: ragged, sparse, or a dense
        sequence.
      returned: what it returned.
      parts: the recipe's inputs.
      lookups: its Lookups, in the order of the call.
      bags: placeholders of the values of ragged and sparse inputs, from `add_bag_placeholders`.
      features, activations: features and their placeholders, by the feature's name.
    """

    call: Call
    function: Any
    inputs: Mapping[str, Any]
    lengths: Mapping[str, Any]
    returned: Returned
    parts: Mapping[str, InputSection]
    lookups: Sequence[Any]
    bags: dict[str, Any] = field(default_factory=dict)
    features: dict[str, FeatureSpec] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)


def prune(
    name: str,
    part: TowerSection,
    trace: TracedCall,
    layer_tables: Mapping[str, str],
) -> TracedTower:
    """Extracts one tower from a traced call.

    Args:
      name, part: the recipe's tower.
      trace: the call.
      layer_tables: names of the tables of embedding layers, by their resources.
    Raises:
      UsageError: the call does not return what the recipe's outputs name.
      NotConvertible: the tower needs more than activations and dense inputs; names it and the cure.
    """
    chosen = tower_results(name, part, trace.returned)
    with trace.function.graph.as_default():
        results = {output: tf.cast(tensor, tf.float32) for output, tensor in chosen.tensors.items()}
    add_bag_placeholders(
        results.values(),
        trace.activations.values(),
        trace.inputs,
        trace.lengths,
        trace.parts,
        trace.bags,
    )
    _take_batch_from_activations(results.values(), trace)
    _skip_reshapes(results.values(), trace)
    found = needed(results.values(), trace.activations.values())
    inputs = {
        which: trace.activations[which]
        for which in trace.activations
        if trace.activations[which].name in found.stops
    }
    inputs.update(_dense_inputs(name, found, trace))
    _check_no_tables(name, found, captures_of(trace.function, found), layer_tables)
    _check_no_python(name, found)
    _check_no_untrained(name, found, trace.function)
    if not inputs:
        raise NotConvertible(f"tower {name!r}: its outputs depend on no input")
    names = distinct_identifiers(inputs)
    function, variables = narrowed(name, trace.function, list(inputs.values()), results)
    half = _half(found)
    order = {operation.name: n for n, operation in enumerate(trace.function.graph.get_operations())}
    beyond = find_own_values(sorted(found.operations, key=lambda each: order[each.name]))
    spec = TowerSpec(
        name=name,
        role=part.role,
        call=trace.call,
        keys=chosen.keys,
        inputs=tuple(
            manifest.TowerInput(name=names[which], feature=which, **type_of(tensor))
            for which, tensor in inputs.items()
        ),
        outputs=tuple(
            manifest.TowerOutput(name=which, **type_of(tensor)) for which, tensor in results.items()
        ),
        result=_result_name(name, part, results),
        variables=tuple(variable.name for variable in variables),
        half=half,
        largest_bytes=max((bytes_of(variable) for variable in variables), default=0),
        random=beyond.random,
        clock=beyond.clock,
        joining=beyond.joining,
        is_query=chosen.is_query,
    )
    return TracedTower(spec, function, variables, _lines_by_type(found))


def _lines_by_type(found: Needed) -> dict[str, str]:
    """Returns the user's line that made the first operation of each type."""
    first: dict[str, Any] = {}
    for operation in found.operations:
        first.setdefault(operation.type, operation)
    return {kind: line_of_operation(operation) for kind, operation in first.items()}


def _half(found: Needed) -> str:
    """Returns the half-precision dtype that the graph computes in, or ""."""
    dtypes = (tensor.dtype.name for operation in found.operations for tensor in operation.outputs)
    return next((name for name in dtypes if name in ("bfloat16", "float16")), "")


def _result_name(name: str, part: TowerSection, results: Mapping[str, Any]) -> str:
    result = part.result or (next(iter(results)) if len(results) == 1 else None)
    if result not in results:
        raise UsageError(
            f"towers.{name}.result is {part.result!r}; it must be one of its outputs: "
            f"{', '.join(results)}"
        )
    return str(result)


def _take_batch_from_activations(results: Iterable[Any], trace: TracedCall) -> None:
    """Replaces `tf.shape` of ids or lengths by the shape of their activation: usually only the
    batch is needed.
    """
    found = needed(results, trace.activations.values())
    readers = {
        feature.entry.inputs[0]: name
        for name, feature in reversed(trace.features.items())
        if len(feature.entry.inputs) == 1
    }
    shaped = {tensor.name: which for which, tensor in trace.lengths.items() if which in readers}
    for feature in trace.features.values():
        which = feature.entry.inputs[0]
        if feature.encoding == "dense" and which in readers:
            shaped[trace.inputs[which].name] = which
    for operation in found.operations:
        if operation.type == "Shape" and operation.inputs[0].name in shaped:
            ids = operation.inputs[0]
            activation = trace.activations[readers[shaped[ids.name]]]
            rest = ids.shape.as_list()[1:]
            with trace.function.graph.as_default():
                first = activation[..., 0]
                if math.prod(first.shape.as_list()[1:]) == math.prod(rest):
                    same = tf.reshape(first, [-1, *rest])
                else:
                    # A bag, or one of several ids: one row for each example.
                    same = tf.tile(tf.reshape(first, [-1, *[1] * len(rest)]), [1, *rest])
                if ids.dtype == tf.string:
                    join(operation.outputs[0], tf.shape(same, operation.outputs[0].dtype))
                    continue
                same = tf.cast(same, ids.dtype)
            set_input(operation, 0, same)


def _skip_reshapes(results: Iterable[Any], trace: TracedCall) -> None:
    """Bypasses reshapes to the same shape, of which feature columns add one with seven more
    operations per feature.
    """
    for operation in needed(results, trace.activations.values()).operations:
        for position, tensor in enumerate(operation.inputs):
            if (
                tensor.op.type == "Reshape"
                and tensor.shape.rank
                and tensor.shape.as_list().count(None) <= 1
            ):
                before = tensor.op.inputs[0]
                if before.shape.rank and before.shape.as_list() == tensor.shape.as_list():
                    set_input(operation, position, before)


def _dense_inputs(name: str, found: Needed, trace: TracedCall) -> dict[str, Any]:
    """Returns a tower's inputs other than activations: dense inputs, lengths and padded values."""
    sources = sources_of(trace.inputs)
    known = {tensor.name: which for which, tensor in trace.bags.items()}
    known |= {tensor.name: f"{which}@lengths" for which, tensor in trace.lengths.items()}
    inputs: dict[str, Any] = {}
    for placeholder in found.placeholders:
        source = sources.get(placeholder.name)
        which = known.get(placeholder.name) or (
            f"{source.name}@values" if source is not None else ""
        )
        whole = placeholder.name in known or (source is not None and source.part == "dense")
        if which and not (whole and placeholder.dtype.name in _TAKEN):
            what = f"input {which.rpartition('@')[0]!r} of dtype {placeholder.dtype.name}"
            line = line_of_reader(placeholder, found)
            raise NotConvertible(
                f"tower {name!r} reads {what} itself{line}, beside its lookup; only dense numbers, "
                "and how many ids an "
                "example has, go into a tower: give the model a dense input with what it reads"
            )
        if which:
            inputs[which] = placeholder
    order = list(trace.inputs)
    return {
        which: inputs[which]
        for which in sorted(inputs, key=lambda each: order.index(each.rpartition("@")[0]))
    }


def _check_no_untrained(name: str, found: Needed, function: Any) -> None:
    """Rejects rows read while the model was built: they are constants, which are neither trained
    nor saved.
    """
    held = [
        tf.get_static_value(each.outputs[0]) for each in found.operations if each.type == "Const"
    ]
    held += [
        outer.numpy() for outer, _ in captures_of(function, found) if outer.dtype == tf.float32
    ]
    line = next(filter(None, map(line_of_early, held)), "")
    if line:
        raise NotConvertible(
            f"tower {name!r} takes rows of a table that were read while the model was "
            f"made{at_line(line)}, as of a "
            "layer that is given numbers in place of inputs, positions(tf.range(8)) of a "
            "functional model: they are "
            "constants, which no training changes and no checkpoint holds. Look them up in the "
            "call of a layer or of a model of your own, and train that"
        )


def _check_no_python(name: str, found: Needed) -> None:
    for operation in found.operations:
        if operation.type in PYTHON_CODE:
            raise NotConvertible(
                f"tower {name!r} runs Python code by operation {operation.name!r} (tf.py_function "
                "or tf.numpy_function)"
                f"{at_line(line_of_operation(operation))}, which no bundle can hold; compute it "
                "with TensorFlow's own "
                "operations, or before the model and pass the result as an input"
            )


def _check_no_tables(
    name: str, found: Needed, captures: list[tuple[Any, Any]], layer_tables: Mapping[str, str]
) -> None:
    for outer, inner in captures:
        if resource(outer) in layer_tables:
            raise NotConvertible(
                f"tower {name!r} reads table {layer_tables[resource(outer)]!r} other than by its "
                "embedding layer"
                f"{line_of_reader(inner, found)}; no such table goes into a tower: look rows up "
                "by the layer only"
            )
