"""Traces the calls of the recipe: the user's model runs in a graph in which a placeholder replaces
each lookup.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, cast

from bundle.format.identifiers import identifier
from export.errors import ExportError, NotConvertible, UsageError
from export.front_end.calls import Call
from export.graphs.internals import current_line
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.graphs.walks import PYTHON_CODE
from export.model_code.definition_modules import explained
from export.raised_errors import one_line
from export.recipe.schema import InputSection
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source, sources_of
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.graph.tower_results import Returned
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.records import Lookup, MakeTable, batch_size
from export.tensorflow_models.lookups.retrieval_layers import queries_recorded
from export.user_lines import at_line, line_of_exception, line_of_operation

_TAKES_ARRAY = re.compile(r"'dict' object|\bdict\b.*(dtype|shape|Tensor)|SymbolicTensor")
"""Errors of code that takes one array for its argument, and was given a dict."""
_OTHER_DTYPE = re.compile(r"has type (\w+) that does not match expected type of (\w+)")


def resolve_call(root: Any, call: Call) -> Callable[[Mapping[str, Any]], Any]:
    """Returns what runs a call in inference mode; it takes the values of its inputs by their names.

    Raises:
      UsageError: the model has no such attribute or layer, it cannot be called, or it takes other
        arguments.
    """
    target = reduce(_step_into(call), call.path.split(".") if call.path else (), root)
    if hasattr(type(target), "with_call"):
        # What stands for the model gives the user's function its arguments.
        return cast(Callable[[Mapping[str, Any]], Any], target.with_call(call))
    if not callable(target):
        raise UsageError(f"{call} is a {type(target).__name__}, which cannot be called")
    # A tf.function would hide the lookups in a graph of its own, so its Python function is traced
    # instead.
    target = getattr(target, "python_function", target)
    constants = _inference_arguments(target, call)
    bind = tf.autograph.experimental.do_not_convert(call.bind)

    def run(values: Mapping[str, Any]) -> Any:
        positional, by_name = bind(values)
        return target(*positional, **by_name, **constants)

    return run


def _step_into(call: Call) -> Callable[[Any, str], Any]:
    """Returns what finds one step of a call's path: an attribute, or a layer of a Keras model by
    its name.
    """

    def step_into(owner: Any, step: str) -> Any:
        if hasattr(owner, step):
            return getattr(owner, step)
        layers = {layer.name: layer for layer in getattr(owner, "layers", ())}
        if step in layers:
            return layers[step]
        known = f"; its layers are {', '.join(layers)}" if layers else ""
        raise UsageError(f"{call}: {type(owner).__name__} has no attribute {step!r}{known}")

    return step_into


def _inference_arguments(target: Any, call: Call) -> dict[str, Any]:
    """Returns the keyword arguments that put a call in inference mode.

    Raises:
      UsageError: the function cannot be called with the arguments of the recipe.
    """
    try:
        signature = inspect.signature(getattr(target, "call", target))
    except (TypeError, ValueError):
        return {}  # of a function that is not written in Python
    positional, by_name = call.bind(dict.fromkeys(call.inputs))
    if by_name.get("training", False) is not False:
        raise UsageError(
            f"{call} is given 'training' by the tower's 'arguments'; a tower is exported in "
            "inference mode: leave it out"
        )
    constants = {}
    if "training" in signature.parameters and "training" not in by_name:
        constants["training"] = False
    try:
        signature.bind(*positional, **by_name, **constants)
    except TypeError as problem:
        names = ", ".join(signature.parameters)
        given = "one dict of inputs" if call.arguments is None else "what 'arguments' names"
        raise UsageError(
            f"{call} takes {names}, and is given {given}: {problem}. Write as the tower's "
            '\'arguments\' what it is given, as in arguments = ["user_id", "movie_id"] or '
            'arguments = { x = "user_id" }'
        ) from problem
    return constants


def zeros(lookup: Lookup) -> Any:
    """Returns zeros of a lookup's shape: while the model is built, nothing reads the values."""
    return tf.zeros([batch_size(lookup.ids[0]), *lookup.shape[1:]])


def trace_call(
    root: Any, call: Call, parts: Mapping[str, InputSection], make_table: MakeTable
) -> TracedCall:
    """Traces one call of the model.

    Args:
      root: the model.
      call: the call.
      parts: the inputs that it is given.
      make_table: as for `lookups_intercepted`.
    Raises:
      NotConvertible: the model raises an error; names the user's line.
      UsageError: the recipe declares a string as numbers, or the reverse.
    """
    target = resolve_call(root, call)
    lengths: dict[str, Any] = {}
    given: dict[str, Any] = {}
    recorder = _Recorder(given, lengths)

    def called(inputs: Mapping[str, Any]) -> Any:
        return target(inputs)

    converted = called if isinstance(root, NamedGraph) else tf.autograph.to_graph(called)

    names: dict[str, int] = {}

    def create_variable(make_variable: Callable[..., Any], **how: Any) -> Any:
        # wrap_function needs distinct variable names; Keras 3 layers that are built here may share
        # one.
        name = how.get("name") or "Variable"
        names[name] = names.get(name, 0) + 1
        return make_variable(
            **{**how, "name": name if names[name] == 1 else f"{name}_{names[name]}"}
        )

    def body(inputs: Mapping[str, Any]) -> Any:
        recorder.graph = tf.compat.v1.get_default_graph()
        given.update(_with_row_lengths(inputs, parts, lengths))
        with tf.variable_creator_scope(create_variable):
            return _without_placeholders(converted(with_booleans(given, parts)))

    eagerly = tf.config.functions_run_eagerly()
    # tf.functions inside the call become part of the one graph.
    tf.config.run_functions_eagerly(True)
    try:
        answers = (recorder.record, recorder.record_gather, recorder.lengths_of)
        with lookups_intercepted(make_table, *answers), queries_recorded() as queries:
            function = tf.compat.v1.wrap_function(
                body, [{name: input_spec(part) for name, part in parts.items()}]
            )
    except ExportError:
        raise
    except Exception as problem:
        line = at_line(line_of_exception(problem))
        explanation = explained(problem)
        if explanation:
            raise UsageError(f"{call} raised {explanation}{line}") from problem
        raise NotConvertible(
            f"{call} with inputs {', '.join(parts)} raised {one_line(problem)}{line}; "
            f"{_cure(problem, call, parts)}{_python_code_cure(recorder.graph)}"
        ) from problem
    finally:
        tf.config.run_functions_eagerly(eagerly)
    _check_casts(function.graph, given)
    in_graph = [
        query for query in queries if getattr(query, "graph", None) is function.graph
    ]  # others are of graphs in which Keras infers shapes
    returned = Returned(function.structured_outputs, _output_names(root, call), in_graph)
    return TracedCall(call, function, given, lengths, returned, parts, recorder.lookups)


def _output_names(root: Any, call: Call) -> tuple[str, ...]:
    """Returns the names that a functional model of Keras has for the list of its results."""
    target = reduce(_step_into(call), call.path.split(".") if call.path else (), root)
    return tuple(getattr(target, "output_names", None) or ())


def with_booleans(values: Mapping[str, Any], parts: Mapping[str, InputSection]) -> dict[str, Any]:
    """Returns the values of inputs as a call takes them: numbers that stand for a bool as one."""
    return {
        name: tf.cast(value, tf.bool) if parts[name].dtype == "bool" else value
        for name, value in values.items()
    }


def _without_placeholders(result: Any) -> Any:
    """Returns the result of a call with copies of what is a placeholder itself: only what reads a
    lookup's placeholder can read something else in its place.
    """
    if isinstance(result, Mapping):
        return {name: _without_placeholders(part) for name, part in result.items()}
    if isinstance(result, list | tuple):
        return [_without_placeholders(part) for part in result]
    if tf.is_symbolic_tensor(result) and result.op.type == "Placeholder":
        return tf.identity(result)
    return result


def _check_casts(graph: Any, given: Mapping[str, Any]) -> None:
    """Checks that nothing is cast between strings and numbers, which TensorFlow only does in a
    graph that never runs.

    Keras adds such a cast where an input has another dtype than its layer was made for.

    Raises:
      UsageError: An input is cast; names it.
      NotConvertible: Something else is cast; names the line.
    """
    followed = CallGraph(sources_of(given), {})
    for operation in graph.get_operations():
        if operation.type != "Cast":
            continue
        (before,) = operation.inputs
        (after,) = operation.outputs
        if (before.dtype == tf.string) == (after.dtype == tf.string):
            continue
        line = at_line(line_of_operation(operation))
        source = followed.origin(Values(before))
        if not isinstance(source, Source):
            raise NotConvertible(
                f"the model casts {before.dtype.name} to {after.dtype.name}{line}, which "
                "TensorFlow cannot do; use tf.strings.as_string or tf.strings.to_number"
            )
        raise UsageError(
            f"input {source.name!r} is {before.dtype.name} in the recipe, and the model takes "
            f"{after.dtype.name}{line}; write the dtype of training as inputs.{source.name}.dtype"
        )


class _Recorder:
    """Replaces lookups by placeholders of the traced graph."""

    def __init__(self, given: Mapping[str, Any], lengths: dict[str, Any]) -> None:
        self.lookups: list[Lookup] = []
        self.graph: Any = None
        self._given = given
        self._lengths = lengths

    def record(self, lookup: Lookup) -> Any:
        """Returns the placeholder of a lookup that cannot run without its table."""
        graph = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or "scratch_graph" in getattr(graph, "name", ""):
            return zeros(lookup)  # Keras only infers shapes
        if graph is not self.graph:
            raise NotConvertible(
                f"feature {lookup.path!r} is looked up inside a tf.function, tf.cond or "
                "tf.while_loop of the model"
                f"{at_line(current_line())}; call the embedding layer outside it"
            )
        return self._placeholder(lookup, gather=False)

    def record_gather(self, lookup: Lookup) -> Any:
        """Returns the placeholder of a gather from a plain variable; None outside the
        traced graph.
        """
        return (
            self._placeholder(lookup, gather=True)
            if tf.compat.v1.get_default_graph() is self.graph
            else None
        )

    def lengths_of(self, ids: Any) -> Any:
        """Returns how many positions of a dense input each example uses."""
        source = CallGraph(sources_of(self._given), {}).origin(Values(ids))
        if not isinstance(source, Source):
            raise NotConvertible(
                f"a sequence column reads ids that the model computes{at_line(current_line())}; "
                "give it an unchanged input"
            )
        if source.name not in self._lengths:
            made = tf.compat.v1.placeholder(
                tf.int64, [None], name=identifier(f"{source.name}_lengths")
            )
            self._lengths[source.name] = made
        return tf.minimum(self._lengths[source.name], ids.shape.as_list()[1])

    def _placeholder(self, lookup: Lookup, gather: bool) -> Any:
        shape = lookup.shape if lookup.kind != "single" else (None, lookup.table.dim)
        activation = tf.compat.v1.placeholder(tf.float32, shape, name=identifier(lookup.path))
        self.lookups.append(
            replace(lookup, activation=activation, gather=gather, line=current_line())
        )
        return activation if shape == lookup.shape else tf.expand_dims(activation, 1)


def _with_row_lengths(
    inputs: Mapping[str, Any], parts: Mapping[str, InputSection], lengths: dict[str, Any]
) -> dict[str, Any]:
    """Rebuilds ragged and sparse inputs from their values and row lengths.

    Whatever a model computes from row lengths, splits or indices then needs one dense input.
    Weights share the lengths of their ids.
    """
    given = dict(inputs)
    for name in sorted(inputs, key=lambda each: parts[each].weights_for is not None):
        part = parts[name]
        value = inputs[name]
        if part.kind == "dense":
            continue
        owner = (
            part.weights_for
            if part.weights_for in lengths and parts[part.weights_for].kind == part.kind
            else name
        )
        if owner != name:
            same = given[owner]
            given[name] = (
                same.with_values(value.values)
                if part.kind == "ragged"
                else tf.SparseTensor(same.indices, value.values, same.dense_shape)
            )
            continue
        lengths[name] = tf.compat.v1.placeholder(
            tf.int64, [None], name=identifier(f"{name}_lengths")
        )
        rows = tf.RaggedTensor.from_row_lengths(value.values, lengths[name], validate=False)
        if part.kind == "ragged":
            given[name] = rows
            continue
        examples = rows.value_rowids()
        places = tf.range(tf.size(examples, tf.int64)) - tf.gather(rows.row_splits, examples)
        indices = tf.stack([examples, places], axis=1)
        extent = tf.stack([tf.size(lengths[name], tf.int64), tf.reduce_max(lengths[name])])
        given[name] = tf.SparseTensor(tf.ensure_shape(indices, [None, 2]), value.values, extent)
    return given


def _python_code_cure(graph: Any) -> str:
    """Returns what to change in a call that ran Python code before it raised, which is the likely
    cause.
    """
    for operation in graph.get_operations():
        if operation.type in PYTHON_CODE:
            return (
                "; and what tf.py_function or "
                f"tf.numpy_function{at_line(line_of_operation(operation))} returned has "
                "no known shape and cannot be part of a bundle: compute it with TensorFlow's "
                "operations, or before the model and pass the result as an input"
            )
    return ""


def _cure(problem: Exception, call: Call, parts: Mapping[str, InputSection]) -> str:
    """Returns what to change, as far as the message shows.

    Args:
      problem: what the call raised.
      call: the call.
      parts: the inputs that it was given.
    """
    text = one_line(problem)
    mismatch = _OTHER_DTYPE.search(text)
    declared: list[str] = []
    if mismatch is not None:
        declared = [name for name, part in parts.items() if part.dtype == mismatch[1]]
    if mismatch is not None and declared:
        keys = " or ".join(f"inputs.{name}.dtype" for name in declared)
        return (
            f"the recipe declares {', '.join(declared)} as {mismatch[1]}, and the model takes "
            f"{mismatch[2]}: write the dtype of training as {keys}"
        )
    if "numpy" in text:
        return (
            "a call is traced without values: use TensorFlow operations instead of NumPy's and "
            "of .numpy()"
        )
    if text.startswith("OperatorNotAllowedInGraphError"):
        return (
            "a call is traced without values: use tf.where, tf.cond or tf.unstack instead of "
            "Python statements"
        )
    if text.startswith("KeyError"):
        return (
            "it was given one dict of the inputs that the recipe declares: declare every input "
            "that the model reads. A dot in the name of an input is a level of the dict; where "
            "the model's own name has the dot, write the dict as the tower's 'arguments', as in "
            'arguments = [{ "a.b" = "a.b" }]'
        )
    if call.arguments is None and len(parts) == 1 and _TAKES_ARRAY.search(text):
        (name,) = parts
        return (
            "it was given one dict, and seems to take the input itself: write arguments = "
            f'["{name}"] in its tower'
        )
    return (
        "each input has the kind, dtype and shape that the recipe declares: compare them with "
        "those of training"
    )
