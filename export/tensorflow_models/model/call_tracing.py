"""Traces the calls of the recipe: the user's model runs in a graph in which a placeholder replaces
each lookup.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from export.errors import ExportError, NotConvertible, UsageError
from export.graphs.internals import current_line
from export.graphs.loading import tf
from export.graphs.tensors import input_spec
from export.graphs.walks import PYTHON_CODE, identifier
from export.raised_errors import one_line
from export.recipe.schema import InputPart, name_of_call
from export.tensorflow_models.frameworks.named_graphs import NamedGraph
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source, sources_of
from export.tensorflow_models.graph.pruning import TracedCall
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.records import Lookup, MakeTable, batch_size
from export.user_lines import at_line, line_of_exception, line_of_operation

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OTHER_DTYPE = re.compile(r"has type (\w+) that does not match expected type of (\w+)")


def resolve_call(root: Any, path: str) -> Callable[[Mapping[str, Any]], Any]:
    """Returns the callable that a tower's `call` names: it takes one dict of inputs and runs in
    inference mode.

    Raises:
      UsageError: the model has no such attribute, or it cannot be called.
    """
    target = root
    for step in path.split(".") if path else ():
        if not hasattr(target, step):
            raise UsageError(f"call {path!r}: {type(target).__name__} has no attribute {step!r}")
        target = getattr(target, step)
    if not callable(target):
        raise UsageError(
            f"{name_of_call(path)} is a {type(target).__name__}, which cannot be called"
        )
    # A tf.function would hide the lookups in a graph of its own, so its Python function is traced
    # instead.
    target = getattr(target, "python_function", target)
    try:
        parameters = inspect.signature(getattr(target, "call", target)).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind in _POSITIONAL
    ]
    if len(needed) > 1:
        raise UsageError(
            f"{name_of_call(path)} takes {', '.join(needed)}; a call takes one dict of inputs: add "
            "a method to the model that does, and name it"
        )
    return functools.partial(target, training=False) if "training" in parameters else target


def zeros(lookup: Lookup) -> Any:
    """Returns zeros of a lookup's shape: while the model is built, nothing reads the values."""
    return tf.zeros([batch_size(lookup.ids[0]), *lookup.shape[1:]])


def trace_call(
    root: Any, path: str, parts: Mapping[str, InputPart], make_table: MakeTable
) -> TracedCall:
    """Traces one call of the model.

    Args:
      root: the model.
      path: the attribute path of the callable.
      parts: the inputs that it takes.
      make_table: as for `lookups_intercepted`.
    Raises:
      NotConvertible: the model raises an error; names the user's line.
      UsageError: the recipe declares a string as numbers, or the reverse.
    """
    target = resolve_call(root, path)
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
            return _without_placeholders(converted(dict(given)))

    eagerly = tf.config.functions_run_eagerly()
    # tf.functions inside the call become part of the one graph.
    tf.config.run_functions_eagerly(True)
    try:
        answers = (recorder.record, recorder.record_gather, recorder.lengths_of)
        with lookups_intercepted(make_table, *answers):
            function = tf.compat.v1.wrap_function(
                body, [{name: input_spec(part) for name, part in parts.items()}]
            )
    except ExportError:
        raise
    except Exception as problem:
        raise NotConvertible(
            f"{name_of_call(path)} with inputs {', '.join(parts)} raised {one_line(problem)}"
            f"{at_line(line_of_exception(problem))}; "
            f"{_cure(problem, parts)}{_python_code_cure(recorder.graph)}"
        ) from problem
    finally:
        tf.config.run_functions_eagerly(eagerly)
    _check_casts(function.graph, given)
    return TracedCall(
        function, given, lengths, function.structured_outputs, parts, recorder.lookups
    )


def _without_placeholders(result: Any) -> Any:
    """Returns the result of a call with copies of what is a placeholder itself: only what reads a
    lookup's placeholder can read something else in its place.
    """
    if isinstance(result, Mapping):
        return {name: _without_placeholders(part) for name, part in result.items()}
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
    inputs: Mapping[str, Any], parts: Mapping[str, InputPart], lengths: dict[str, Any]
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


def _cure(problem: Exception, parts: Mapping[str, InputPart]) -> str:
    """Returns what to change, as far as the message shows.

    Args:
      problem: What the call raised.
      parts: The inputs that it was given.
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
            "it was given the inputs that the recipe declares: declare every input that the "
            "model reads"
        )
    return (
        "each input has the kind, dtype and shape that the recipe declares: compare them with "
        "those of training"
    )
