"""Prunes a traced call to one small function for each tower.

A tower needs the features, and so the tables, that remain reachable from its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bundle.format import manifest
from bundle.format.identifiers import distinct_identifiers, identifier
from export.errors import NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.interface import TracedTower
from export.front_end.specs import FeatureSpec, TowerSpec, dense_name
from export.graphs.functions import bytes_of, captures_of, line_of_reader, narrowed, type_of
from export.graphs.internals import join, set_input
from export.graphs.loading import tf
from export.graphs.own_values import find_own_values
from export.graphs.placeholders import line_of_early
from export.graphs.random_operations import find_random_operation
from export.graphs.walks import PYTHON_CODE, Needed, needed, resource
from export.partition.graph.origins import sources_of
from export.partition.graph.tower_results import Returned, tower_results
from export.recipe.schema import InputSection, TowerSection
from export.user_lines import at_line, line_of_operation

_INPUT_DTYPES = ("float32", "int32", "int64", "string")
"""The types of the dense inputs of towers."""


@dataclass
class TracedCall:
    """One traced call of the model, in which placeholders replace lookups.

    Attributes:
      call: The call of the recipe.
      function: The whole call, a TensorFlow WrappedFunction.
      inputs: The declared inputs, as tensors of the graph.
      lengths: The placeholders of the number of ids per example, by input: ragged, sparse, or a
        dense sequence.
      returned: What the call returned.
      sections: The inputs of the call, as the recipe declares them.
      lookups: The TracedLookups, in the order of the call.
      bags: The placeholders of the values of ragged and sparse inputs, [batch, length_max], as
        `<input>@padded`, for weights of another input's ids as `<that input>@weights`.
      features, activations: The features and their placeholders, by the feature's name.
    """

    call: Call
    function: Any
    inputs: Mapping[str, Any]
    lengths: Mapping[str, Any]
    returned: Returned
    sections: Mapping[str, InputSection]
    lookups: Sequence[Any]
    bags: dict[str, Any] = field(default_factory=dict)
    features: dict[str, FeatureSpec] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)


def prune(
    name: str,
    section: TowerSection,
    trace: TracedCall,
    layer_tables: Mapping[str, str],
) -> TracedTower:
    """Extracts one tower from a traced call.

    Args:
      name, section: The name of the tower, and its section of the recipe.
      trace: The traced call.
      layer_tables: The names of the tables of embedding layers, by their resources.

    Raises:
      UsageError: The call does not return what the recipe's outputs name.
      NotConvertible: The tower needs more than activations and dense inputs; names it and the cure.
    """
    chosen = tower_results(name, section, trace.returned)
    # Outputs are float32 in a bundle, whatever the model computes in.
    with trace.function.graph.as_default():
        results = {output: tf.cast(tensor, tf.float32) for output, tensor in chosen.tensors.items()}
    _add_bag_placeholders(results.values(), trace)
    _take_batch_from_activations(results.values(), trace)
    _skip_reshapes(results.values(), trace)

    # After these changes of the graph, which leave operations and inputs behind.
    part_of_graph = needed(results.values(), trace.activations.values())
    inputs = {
        feature: activation
        for feature, activation in trace.activations.items()
        if activation.name in part_of_graph.stops
    }
    inputs.update(_dense_inputs(name, part_of_graph, trace))
    captures = captures_of(trace.function.graph, part_of_graph)
    _check_no_tables(name, part_of_graph, captures, layer_tables)
    _check_no_python(name, part_of_graph)
    _check_not_random(name, results.values(), trace.activations.values())
    _check_no_untrained(name, part_of_graph, trace.function)
    if not inputs:
        raise NotConvertible(f"tower {name!r}: its outputs depend on no input")

    names = distinct_identifiers(inputs)
    function, variables = narrowed(name, trace.function, list(inputs.values()), results)
    operations = trace.function.graph.get_operations()
    order = {operation.name: index for index, operation in enumerate(operations)}
    # In the order of the graph, so that a message names the first operation of the user's code.
    own_values = find_own_values(
        sorted(part_of_graph.operations, key=lambda operation: order[operation.name])
    )
    spec = TowerSpec(
        name=name,
        role=section.role,
        call=trace.call,
        paths=chosen.paths,
        inputs=tuple(
            manifest.TowerInput(name=names[feature], feature=feature, **type_of(tensor))
            for feature, tensor in inputs.items()
        ),
        outputs=tuple(
            manifest.TowerOutput(name=output, **type_of(tensor))
            for output, tensor in results.items()
        ),
        result=_result_name(name, section, results),
        variables=tuple(variable.name for variable in variables),
        half=_half_precision_dtype(part_of_graph),
        largest_bytes=max((bytes_of(variable) for variable in variables), default=0),
        clock=own_values.clock,
        joining=own_values.joining,
        is_query=chosen.is_query,
    )
    return TracedTower(spec, function, variables, _lines_by_type(part_of_graph))


def _lines_by_type(part_of_graph: Needed) -> dict[str, str]:
    """Returns the user's line that made the first operation of each type."""
    first_operations: dict[str, Any] = {}
    for operation in part_of_graph.operations:
        first_operations.setdefault(operation.type, operation)
    return {kind: line_of_operation(operation) for kind, operation in first_operations.items()}


def _half_precision_dtype(part_of_graph: Needed) -> str:
    """Returns the half-precision dtype that the graph computes in, or ""."""
    for operation in part_of_graph.operations:
        for tensor in operation.outputs:
            if tensor.dtype.name in ("bfloat16", "float16"):
                return str(tensor.dtype.name)
    return ""


def _result_name(name: str, section: TowerSection, results: Mapping[str, Any]) -> str:
    """Returns the output that is a tower's result: the only one, unless the recipe names one.

    Raises:
      UsageError: There are several and the recipe names none, or names another one.
    """
    result = section.result
    if not result and len(results) == 1:
        (result,) = results
    if result not in results:
        raise UsageError(
            f"towers.{name}.result is {section.result!r}; it must be one of its outputs: "
            f"{', '.join(results)}"
        )
    return str(result)


def _add_bag_placeholders(results: Iterable[Any], trace: TracedCall) -> None:
    """Adds a placeholder for every ragged or sparse input whose values the results depend on.

    Only the batch of a tower's inputs is variable: values are padded to one length, and lengths are
    a separate input.
    """
    sources = sources_of(trace.inputs)
    for placeholder in needed(results, trace.activations.values()).placeholders:
        source = sources.get(placeholder.name)
        if source is None or source.part != "values":
            continue
        name = source.name
        feature = dense_name(name, "padded")
        owner = trace.sections[name].weights_for
        # Weights without lengths of their own share those of their ids.
        if owner is not None and owner in trace.lengths and name not in trace.lengths:
            name = owner
            feature = dense_name(owner, "weights")
        size = trace.sections[name].length_max
        with placeholder.graph.as_default():
            padded = tf.compat.v1.placeholder(
                placeholder.dtype, [None, size], name=identifier(feature)
            )
            # The model's own operations take the values alone, in the order of the examples.
            is_value = tf.sequence_mask(trace.lengths[name], size)
            join(placeholder, tf.boolean_mask(padded, is_value))
        trace.bags[feature] = padded


def _take_batch_from_activations(results: Iterable[Any], trace: TracedCall) -> None:
    """Replaces `tf.shape` of ids or lengths by the shape of their activation: usually only the
    batch is needed.
    """
    # Reversed: the first feature that reads an input is the one whose activation is taken.
    feature_of_input = {
        feature.entry.inputs[0]: name
        for name, feature in reversed(trace.features.items())
        if len(feature.entry.inputs) == 1
    }
    input_of_tensor = {
        tensor.name: name for name, tensor in trace.lengths.items() if name in feature_of_input
    }
    for feature in trace.features.values():
        name = feature.entry.inputs[0]
        if feature.encoding == "dense" and name in feature_of_input:
            input_of_tensor[trace.inputs[name].name] = name

    for operation in needed(results, trace.activations.values()).operations:
        if operation.type != "Shape" or operation.inputs[0].name not in input_of_tensor:
            continue
        ids = operation.inputs[0]
        activation = trace.activations[feature_of_input[input_of_tensor[ids.name]]]
        with trace.function.graph.as_default():
            alike = _with_sizes(activation, ids.shape.as_list()[1:])
            if ids.dtype == tf.string:
                # Numbers cannot be cast to texts, so that the shape itself is replaced.
                shape = operation.outputs[0]
                join(shape, tf.shape(alike, shape.dtype))
                continue
            alike = tf.cast(alike, ids.dtype)
        set_input(operation, 0, alike)


def _with_sizes(activation: Any, sizes: list[int]) -> Any:
    """Returns numbers of an activation in the shape [batch, *sizes], whatever their values."""
    numbers = activation[..., 0]
    _, *number_sizes = numbers.shape.as_list()
    if math.prod(number_sizes) == math.prod(sizes):
        return tf.reshape(numbers, [-1, *sizes])
    # A bag, or one of several ids: one row for each example.
    ones = [1] * len(sizes)
    row_per_example = tf.reshape(numbers, [-1, *ones])
    return tf.tile(row_per_example, [1, *sizes])


def _skip_reshapes(results: Iterable[Any], trace: TracedCall) -> None:
    """Bypasses reshapes to the same shape, of which feature columns add one with seven more
    operations per feature.
    """
    for operation in needed(results, trace.activations.values()).operations:
        for position, tensor in enumerate(operation.inputs):
            if tensor.op.type == "Reshape" and _keeps_shape(tensor.op):
                set_input(operation, position, tensor.op.inputs[0])


def _keeps_shape(reshape: Any) -> bool:
    """Returns whether a reshape returns the shape that it takes: at most one size is unknown."""
    before = reshape.inputs[0].shape
    after = reshape.outputs[0].shape
    if not before.rank or not after.rank or after.as_list().count(None) > 1:
        return False
    return bool(before.as_list() == after.as_list())


def _dense_inputs(name: str, part_of_graph: Needed, trace: TracedCall) -> dict[str, Any]:
    """Returns a tower's inputs other than activations: dense inputs, lengths and padded values.

    Raises:
      NotConvertible: The tower reads an input that none can have.
    """
    sources = sources_of(trace.inputs)
    features = {tensor.name: feature for feature, tensor in trace.bags.items()}
    features |= {tensor.name: dense_name(name, "lengths") for name, tensor in trace.lengths.items()}
    inputs: dict[str, Any] = {}
    for placeholder in part_of_graph.placeholders:
        feature = features.get(placeholder.name, "")
        is_whole = feature != ""
        source = sources.get(placeholder.name)
        if source is not None:
            feature = feature or dense_name(source.name, "values")
            is_whole = is_whole or source.part == "dense"
        # What is neither is a captured variable or constant.
        if not feature:
            continue
        if not is_whole or placeholder.dtype.name not in _INPUT_DTYPES:
            subject = f"input {feature.rpartition('@')[0]!r} of dtype {placeholder.dtype.name}"
            line = line_of_reader(placeholder, part_of_graph)
            raise NotConvertible(
                f"tower {name!r} reads {subject} itself{line}, beside its lookup; only dense "
                "numbers, and how many ids an example has, go into a tower: give the model a dense "
                "input with what it reads"
            )
        inputs[feature] = placeholder

    order = list(trace.inputs)

    def position(feature: str) -> int:
        name, _, _ = feature.rpartition("@")
        return order.index(name)

    return {feature: inputs[feature] for feature in sorted(inputs, key=position)}


def _check_no_untrained(name: str, part_of_graph: Needed, function: Any) -> None:
    """Rejects rows read while the model was built: they are constants, which are neither trained
    nor saved.
    """
    constants = [
        tf.get_static_value(operation.outputs[0])
        for operation in part_of_graph.operations
        if operation.type == "Const"
    ]
    constants += [
        outer.numpy()
        for outer, _ in captures_of(function.graph, part_of_graph)
        if outer.dtype == tf.float32
    ]
    line = next(filter(None, map(line_of_early, constants)), "")
    if line:
        raise NotConvertible(
            f"tower {name!r} takes rows of a table that were read while the model was "
            f"made{at_line(line)}, as of a layer that is given numbers in place of inputs, "
            "positions(tf.range(8)) of a functional model: they are constants, which no training "
            "changes and no file of weights holds. A whole model in .keras (or a SavedModel or .h5 "
            "of tf-keras) holds them: save the trained model so, name that as checkpoint.path, and "
            'let the factory return keras.models.load_model("model.keras"). Without a trained '
            "model, look the rows up in the call of a layer or of a model of your own, and train "
            "that"
        )


def _check_no_python(name: str, part_of_graph: Needed) -> None:
    for operation in part_of_graph.operations:
        if operation.type in PYTHON_CODE:
            raise NotConvertible(
                f"tower {name!r} runs Python code by operation {operation.name!r} (tf.py_function "
                f"or tf.numpy_function){at_line(line_of_operation(operation))}, which no bundle "
                "can hold; compute it with TensorFlow's own operations, or before the model and "
                "pass the result as an input"
            )


def _check_not_random(name: str, results: Iterable[Any], activations: Iterable[Any]) -> None:
    operation = find_random_operation(results, activations)
    if operation is not None:
        raise NotConvertible(
            f"tower {name!r} draws random numbers in each call by operation {operation.type}"
            f"{at_line(line_of_operation(operation))}, so the model gives other values for the "
            "same request each time. If they are for training alone, as dropout is, call the "
            "model for inference: training=False. Otherwise make them constant in the factory, "
            "with a function of tf.random.stateless_* and a constant seed (of keras.random: with "
            "an integer as seed), and train with them"
        )


def _check_no_tables(
    name: str,
    part_of_graph: Needed,
    captures: list[tuple[Any, Any]],
    layer_tables: Mapping[str, str],
) -> None:
    for outer, inner in captures:
        table = layer_tables.get(resource(outer))
        if table is not None:
            line = line_of_reader(inner, part_of_graph)
            raise NotConvertible(
                f"tower {name!r} reads table {table!r} directly{line}. A table of an embedding "
                "layer cannot become part of a tower. Read its rows through the layer"
            )
