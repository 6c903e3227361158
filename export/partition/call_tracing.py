"""Traces the calls of the recipe: the user's model runs in a graph in which a placeholder replaces
each lookup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bundle.format.identifiers import identifier
from export.errors import ExportError, NotConvertible, UsageError
from export.front_end.calls import Call
from export.front_end.interface import CallResults
from export.graphs.internals import current_line
from export.graphs.loading import tf
from export.graphs.placeholders import infers_shapes
from export.graphs.tensors import input_spec, with_booleans
from export.graphs.walks import PYTHON_CODE, needed
from export.model_code.definition_modules import explained
from export.partition.graph.input_paths import CallGraph, Values
from export.partition.graph.origins import Source, sources_of
from export.partition.graph.pruning import TracedCall
from export.partition.graph.tower_results import Returned
from export.partition.ids.capture import find_rule
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.lookups.records import TracedLookup, batch_size
from export.partition.traceable_model import Replacements, TraceableModel
from export.raised_errors import is_own, one_line
from export.recipe.schema import InputSection
from export.user_lines import at_line, line_of_exception, line_of_operation

_TAKES_ARRAY = re.compile(
    r"'dict' object|\bdict\b.*(dtype|shape|Tensor)|SymbolicTensor|'dict' and |: '-1'$|"
    r"unhashable type: 'slice'|non-tensor type, but got a tensor|converted to a dimension"
)
"""Errors of code that takes one array for its argument, and was given a dict."""
_OF_TENSORS = re.compile(r"\b(shapes?|dimensions?|ranks?|d?types?)\b", re.IGNORECASE)
"""Errors about the shapes and types of tensors, which those of the inputs may have caused."""
_OTHER_DTYPE = re.compile(r"has type (\w+) that does not match expected type of (\w+)")
"""TensorFlow's error about an operand of another dtype: the dtypes that it has and should have."""


def trace_call(
    model: TraceableModel, call: Call, sections: Mapping[str, InputSection]
) -> TracedCall:
    """Traces one call of the model.

    Args:
      model: The model.
      call: The call.
      sections: The inputs that the call takes, as the recipe declares them.

    Raises:
      NotConvertible: The model raises an error; the message names the user's line.
      UsageError: The recipe declares a string as numbers, or the reverse.
    """
    run_in_graph = model.function(call)
    lengths: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    recorder = _Recorder(tensors, lengths, has_own_inputs=model.has_own_inputs)
    uses_of_name: Counter[str] = Counter()

    def create_variable(make_variable: Callable[..., Any], **options: Any) -> Any:
        # wrap_function needs distinct variable names; Keras 3 layers that are built here may share
        # one.
        name = options.get("name") or "Variable"
        uses_of_name[name] += 1
        options["name"] = name
        if uses_of_name[name] > 1:
            options["name"] = f"{name}_{uses_of_name[name]}"
        return make_variable(**options)

    def body(inputs: Mapping[str, Any]) -> Any:
        recorder.graph = tf.compat.v1.get_default_graph()
        tensors.update(_with_row_lengths(inputs, sections, lengths))
        with tf.variable_creator_scope(create_variable):
            return _without_placeholders(run_in_graph(with_booleans(tensors, sections)))

    runs_eagerly = tf.config.functions_run_eagerly()
    # tf.functions inside the call become part of the one graph.
    tf.config.run_functions_eagerly(True)
    try:
        replacements = Replacements(recorder.record, recorder.record_gather, recorder.lengths_of)
        with model.intercepting(replacements) as queries:
            # A WrappedFunction, since it can be pruned: each tower is a part of this graph.
            specs = {name: input_spec(section) for name, section in sections.items()}
            function = tf.compat.v1.wrap_function(body, [specs])
    except ExportError:
        raise
    except Exception as problem:
        if is_own(problem):
            raise
        line = at_line(line_of_exception(problem))
        explanation = explained(problem)
        if explanation:
            raise UsageError(f"{call} raised {explanation}{line}") from problem
        raise NotConvertible(
            f"{call} with inputs {', '.join(sections)} raised {one_line(problem)}{line}"
            f"{_remedy(problem, call, sections)}{_python_code_remedy(recorder.graph)}"
        ) from problem
    finally:
        # The setting is that of the whole process.
        tf.config.run_functions_eagerly(runs_eagerly)

    _check_casts(function.graph, tensors)
    # The queries of other graphs are those in which Keras infers shapes.
    queries_in_graph = [
        query for query in queries if getattr(query, "graph", None) is function.graph
    ]
    returned = Returned(function.structured_outputs, model.output_names(call), queries_in_graph)
    return TracedCall(call, function, tensors, lengths, returned, sections, recorder.lookups)


def call_results(
    model: TraceableModel,
    call: Call,
    sections: Mapping[str, InputSection],
    attribute_calls: Sequence[tuple[str, Any]] = (),
) -> CallResults:
    """Returns the results of a call that could be outputs of a tower; see `trace_call`.

    Args:
      model, call, sections: See `trace_call`.
      attribute_calls: A list that tracing fills with the calls of attributes, and their arguments.
    """
    traced = trace_call(model, call, sections)
    returned = traced.returned
    results: Iterable[tuple[Any, Any]] = [(None, returned.value)]
    if isinstance(returned.value, Mapping):
        results = returned.value.items()
    elif returned.is_sequence:
        results = zip(returned.names or range(len(returned.value)), returned.value, strict=False)
    outputs = {}
    reads = {}
    for key, tensor in results:
        # Integers and texts are no outputs that a tower could have.
        if isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating and tensor.shape.rank:
            outputs[key] = tuple(tensor.shape.as_list()[1:])
            reads[key] = _inputs_of([tensor], traced)
    ids = [tensor for lookup in traced.lookups for tensor in _components(lookup.ids)]
    parts = [part for name, given in attribute_calls for part in _part_calls(name, given, traced)]
    return CallResults(
        outputs,
        reads,
        _inputs_of(ids, traced),
        _rows_of_inputs(traced),
        bool(returned.queries),
        tuple(dict.fromkeys(parts)),
    )


def _rows_of_inputs(traced: TracedCall) -> dict[str, int]:
    """Returns the number of rows of the smallest table in which the values of an input are rows as
    they are, by its name.
    """
    call_graph = CallGraph(sources_of(traced.inputs), {})
    rows: dict[str, int] = {}
    for lookup in traced.lookups:
        if lookup.rule is not None or lookup.unknown is not None:
            continue
        ids = getattr(lookup.ids[0], "values", lookup.ids[0])
        resolved = find_rule(Values(ids), call_graph, lookup.table.rows)
        if isinstance(resolved, ResolvedIds) and resolved.rule is None:
            name = resolved.source.name
            rows[name] = min(lookup.table.rows, rows.get(name, lookup.table.rows))
    return rows


def _part_calls(name: str, given: Any, traced: TracedCall) -> Iterator[Call]:
    """Yields the call of an attribute that takes inputs as they are, as one or in a dict."""
    names = {id(tensor): input_name for input_name, tensor in traced.inputs.items()}
    if id(given) in names:
        input_name = names[id(given)]
        yield Call(name, (input_name,), (input_name,))
        return
    # The keys of a dict are to be the names of inputs, or the recipe could not write it.
    is_dict = isinstance(given, Mapping) and bool(given)
    if is_dict and all(names.get(id(tensor)) == key for key, tensor in given.items()):
        yield Call(name, tuple(given))


def _inputs_of(results: list[Any], traced: TracedCall) -> frozenset[str]:
    """Returns the names of the inputs that results are computed from, through lookups, too."""
    operations: set[str] = set()
    tensors = results
    lookups = list(traced.lookups)
    while tensors:
        part_of_graph = needed(tensors, ())
        operations.update(tensor.op.name for tensor in part_of_graph.placeholders)
        operations.update(operation.name for operation in part_of_graph.operations)
        # Behind the placeholder of a lookup are its ids and weights.
        tensors = []
        for lookup in list(lookups):
            if lookup.activation.op.name in operations:
                lookups.remove(lookup)
                tensors += _components([lookup.ids, lookup.weights])
    return frozenset(
        name
        for name, tensor in traced.inputs.items()
        if any(component.op.name in operations for component in _components(tensor))
    )


def _components(tensors: Any) -> list[Any]:
    """Returns the dense tensors that tensors consist of; None has none."""
    return [
        component
        for component in tf.nest.flatten(tensors, expand_composites=True)
        if component is not None
    ]


def _without_placeholders(result: Any) -> Any:
    """Returns the result of a call with a copy of each tensor that is itself a placeholder. Another
    tensor can replace a lookup's placeholder only where an operation reads it.
    """
    if isinstance(result, Mapping):
        return {name: _without_placeholders(value) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [_without_placeholders(value) for value in result]
    if tf.is_symbolic_tensor(result) and result.op.type == "Placeholder":
        return tf.identity(result)
    return result


def _check_casts(graph: Any, inputs: Mapping[str, Any]) -> None:
    """Checks that nothing is cast between strings and numbers. TensorFlow can trace such a cast,
    but not run it.

    Keras adds such a cast where an input has another dtype than its layer was made for.

    Raises:
      UsageError: An input is cast; the message names it.
      NotConvertible: A computed value is cast; the message names the line.
    """
    call_graph = CallGraph(sources_of(inputs), {})
    for operation in graph.get_operations():
        if operation.type != "Cast":
            continue
        (before,) = operation.inputs
        (after,) = operation.outputs
        if (before.dtype == tf.string) == (after.dtype == tf.string):
            continue
        line = at_line(line_of_operation(operation))
        source = call_graph.origin(Values(before))
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
    """Replaces lookups by placeholders of the traced graph.

    Attributes:
      lookups: The lookups that were replaced, in the order of the call.
      graph: The traced graph; None before it is traced.
    """

    def __init__(
        self, inputs: Mapping[str, Any], lengths: dict[str, Any], *, has_own_inputs: bool
    ) -> None:
        """Takes the tensors of the call's inputs, and a dict that receives placeholders of lengths;
        tracing fills both. `has_own_inputs`: the model reads inputs that Keras made.
        """
        self.lookups: list[TracedLookup] = []
        self.graph: Any = None
        self._inputs = inputs
        self._lengths = lengths
        self._has_own_inputs = has_own_inputs

    def record(self, lookup: TracedLookup) -> Any:
        """Returns the placeholder of a lookup that cannot run without its table."""
        graph = tf.compat.v1.get_default_graph()
        if tf.executing_eagerly() or infers_shapes():
            # Nothing reads the values.
            return tf.zeros([batch_size(lookup.ids[0]), *lookup.shape[1:]])
        if graph is not self.graph:
            raise NotConvertible(
                f"feature {lookup.path!r} is looked up inside a tf.function, tf.cond or "
                "tf.while_loop of the model"
                f"{at_line(current_line())}; call the embedding layer outside it"
            )
        return self._placeholder(lookup, gather=False)

    def record_gather(self, lookup: TracedLookup) -> Any:
        """Returns the placeholder of a gather from a plain variable; None outside the
        traced graph.
        """
        if tf.compat.v1.get_default_graph() is not self.graph:
            return None
        return self._placeholder(lookup, gather=True)

    def lengths_of(self, ids: Any) -> Any:
        """Returns the number of positions of a dense input that each example uses."""
        source = CallGraph(sources_of(self._inputs), {}).origin(Values(ids))
        if not isinstance(source, Source):
            raise NotConvertible(
                f"a sequence column reads ids that the model computes{at_line(current_line())}; "
                "give it an unchanged input"
            )
        # Columns that read one input share the placeholder of its lengths.
        if source.name not in self._lengths:
            self._lengths[source.name] = _lengths_placeholder(source.name)
        # Longer sequences are truncated.
        length = ids.shape.as_list()[1]
        return tf.minimum(self._lengths[source.name], length)

    def _placeholder(self, lookup: TracedLookup, gather: bool) -> Any:
        # A single id has one vector, also where it has a dimension of its own.
        shape = lookup.shape
        if lookup.kind == "single":
            shape = (None, lookup.table.dim)
        name = identifier(lookup.path)
        # Not by tf.placeholder, which gives code of TF1 the values of its placeholders.
        activation = tf.raw_ops.Placeholder(dtype=tf.float32, shape=shape, name=name)
        if self._has_own_inputs:
            # The model has inputs of its own, which others replace where they are read.
            ids = tuple(_without_placeholders(lookup.ids))
            lookup = replace(lookup, ids=ids, weights=_without_placeholders(lookup.weights))
        recorded = replace(lookup, activation=activation, gather=gather, line=current_line())
        self.lookups.append(recorded)
        if shape == lookup.shape:
            return activation
        return tf.expand_dims(activation, 1)


def _lengths_placeholder(name: str) -> Any:
    """Returns a placeholder of the number of ids that each example has in an input."""
    name = identifier(f"{name}_lengths")
    return tf.raw_ops.Placeholder(dtype=tf.int64, shape=[None], name=name)


def _with_row_lengths(
    inputs: Mapping[str, Any], sections: Mapping[str, InputSection], lengths: dict[str, Any]
) -> dict[str, Any]:
    """Rebuilds ragged and sparse inputs from their values and row lengths.

    Whatever a model computes from row lengths, splits or indices then needs one dense input.
    Weights share the lengths of their ids.
    """
    # Ids before their weights, which share the ids' lengths: what inputs share is the first one's.
    names = sorted(inputs, key=lambda name: sections[name].weights_for is not None)
    tensors = {name: inputs[name] for name in names}
    for name in names:
        section = sections[name]
        values = inputs[name]
        if section.kind == "dense":
            continue

        owner = section.weights_for
        if owner in lengths and sections[owner].kind == section.kind:
            ids = tensors[owner]
            if section.kind == "ragged":
                tensors[name] = ids.with_values(values.values)
            else:
                tensors[name] = tf.SparseTensor(ids.indices, values.values, ids.dense_shape)
            continue

        lengths[name] = _lengths_placeholder(name)
        rows = tf.RaggedTensor.from_row_lengths(values.values, lengths[name], validate=False)
        if section.kind == "ragged":
            tensors[name] = rows
        else:
            tensors[name] = _sparse(rows, lengths[name])
    return tensors


def _sparse(rows: Any, lengths: Any) -> Any:
    """Returns ragged rows as a SparseTensor, whose values stand at the beginning of each row."""
    examples = rows.value_rowids()
    count = tf.size(examples, tf.int64)
    positions = tf.range(count) - tf.gather(rows.row_splits, examples)
    indices = tf.stack([examples, positions], axis=1)
    indices = tf.ensure_shape(indices, [None, 2])
    example_count = tf.size(lengths, tf.int64)
    extent = tf.stack([example_count, tf.reduce_max(lengths)])
    return tf.SparseTensor(indices, rows.values, extent)


def _python_code_remedy(graph: Any) -> str:
    """Returns the remedy for a call that ran Python code before it raised an error, which is then
    the likely cause; "" if it ran none.
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


def _remedy(problem: Exception, call: Call, sections: Mapping[str, InputSection]) -> str:
    """Returns the remedy for an error of a call, as far as its message shows the cause; "" if it
    shows none.

    Args:
      problem: The error that the call raised.
      call: The call.
      sections: The inputs that the call was given.
    """
    text = one_line(problem)
    # From the surest sign to the vaguest: the last remedy fits any call.
    mismatch = _OTHER_DTYPE.search(text)
    declared: list[str] = []
    if mismatch is not None:
        declared = [name for name, section in sections.items() if section.dtype == mismatch[1]]
    if mismatch is not None and declared:
        keys = " or ".join(f"inputs.{name}.dtype" for name in declared)
        return (
            f"; the recipe declares {', '.join(declared)} as {mismatch[1]}, and the model takes "
            f"{mismatch[2]}: write the dtype of training as {keys}"
        )
    if "numpy" in text:
        return (
            "; a call is traced without values: use TensorFlow operations instead of NumPy's and "
            "of .numpy()"
        )
    if text.startswith("OperatorNotAllowedInGraphError"):
        return (
            "; a call is traced without values: use tf.where, tf.cond or tf.unstack instead of "
            "Python statements"
        )
    if call.arguments is None and len(sections) == 1 and _TAKES_ARRAY.search(text):
        (name,) = sections
        return (
            "; it was given one dict, and seems to take the input itself: write arguments = "
            f'["{name}"] in its tower'
        )
    if text.startswith("KeyError"):
        return (
            "; it was given one dict of the inputs that the recipe declares: declare every input "
            "that the model reads. A dot in the name of an input is a level of the dict; where "
            "the model's own name has the dot, write the dict as the tower's 'arguments', as in "
            'arguments = [{ "a.b" = "a.b" }]'
        )
    declared_inputs = ""
    message = text.partition(": ")[2]
    if _OF_TENSORS.search(message):
        described = [f"{name} {_described(section)}" for name, section in sections.items()]
        declared_inputs = f"; the recipe declares {', '.join(described)}"
    return declared_inputs


def _described(section: InputSection) -> str:
    """Returns what the recipe declares about the tensor of an input."""
    if section.kind != "dense":
        return f"as {section.kind} {section.dtype}"
    sizes = ", ".join(map(str, ("batch", *section.shape)))
    return f"as {section.dtype} [{sizes}]"
