"""Captures the model's own operations between inputs and the rows of a table as a graph of ids.

No pattern is recognized: a graph is right because each of its operations is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.ids.operations import OPERATIONS, is_simple
from bundle.features.ids.rules import rule_of, within
from bundle.format.id_graphs import (
    CONSTANT_MAX,
    OPERATIONS_MAX,
    ConstantNode,
    GraphIds,
    InputNode,
    LookupTable,
    OperationNode,
    reading,
)
from export.front_end.specs import Keys
from export.graphs.functions import asserts_without, unknown_resource
from export.graphs.internals import table_of
from export.graphs.walks import ID_DTYPES
from export.partition.graph.input_paths import CallGraph, Values, per_example
from export.partition.graph.origins import Source
from export.partition.ids import buckets
from export.partition.ids.resolved_ids import ResolvedIds
from export.partition.ids.vocabularies import UNNAMED, exported, text_of
from export.user_lines import at_line, line_of_operation

_FIND = "LookupTableFindV2"
_STACK_JOIN = "ReduceJoin"
"""TensorFlow's operation that joins the texts of a stack."""
_INPUT_DTYPES = frozenset({"int32", "int64", "float32", "string"})
"""The types of values that callers can send."""
_CONSTANT_DTYPES = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64"),
        *("float32", "float64", "string"),
    }
)
_DTYPES = _CONSTANT_DTYPES | {"uint32", "uint64", "float16"}
"""The types of values that operations compute."""
_WHOLE_MAX = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Integers up to these limits are exact in each float type."""
_ROWS_TESTED = 1 << 20
"""Maximum number of rows that are computed to find out whether a graph keeps them; those of a
larger table are taken in equal distances.
"""
_CASTS = frozenset({"Cast", "Floor", "Ceil", "Round", "Rint"})


class NotComputed(Exception):
    """No operation that a bundle has computes these values."""

    def __init__(self, values: Values) -> None:
        super().__init__(values.type)
        self.values = values


def find_graph(ids: Values, call: CallGraph) -> ResolvedIds | Values:
    """Follows ids back to inputs through operations that a bundle computes.

    Args:
      ids: Integers, or values that other operations turn into integers.
      call: The traced call.

    Returns:
      The resolved ids, or the values that no operation of a bundle computes.
    """
    return call.searched("graph", ids, None, lambda: _find_graph(ids, call))


def _find_graph(ids: Values, call: CallGraph) -> ResolvedIds | Values:
    capture = _Capture(call)
    try:
        capture.add(ids)
    except NotComputed as problem:
        return problem.values
    return capture.resolved() or ids


def _find_buckets(ids: Values, call: CallGraph, rows: int) -> ResolvedIds | None:
    """Returns the input that rows of a table are a step function of, and its buckets."""
    steps = buckets.find(ids, call, rows)
    if steps is None:
        return None
    capture = _Capture(call)
    try:
        capture.add_steps(ids, steps)
    except NotComputed:
        return None
    return capture.resolved()


def find_rule(ids: Values, call: CallGraph, rows: int | None) -> ResolvedIds | Values:
    """Follows ids back to one input, through the model's own operations.

    Args:
      ids: Rows of a table, or the values that another rule takes.
      call: The traced call.
      rows: The number of rows of the table; None: another rule takes the ids.

    Returns:
      The resolved ids, without a rule if they are the input's own, or the values whose computation
      is not known.
    """
    computed = find_graph(ids, call)
    if not isinstance(computed, ResolvedIds):
        bucketed = None
        if rows is not None:
            bucketed = _find_buckets(ids, call, rows)
        return bucketed or computed
    if computed.other_sources:
        # A message names the operation that combines the inputs.
        combined = call.origin(ids)
        if isinstance(combined, Values):
            return combined
        return ids
    assert computed.rule is not None  # noqa: S101 - of find_graph
    if _keeps_ids(computed.rule, rows):
        return ResolvedIds(computed.source)
    return computed


def _keeps_ids(graph: GraphIds, rows: int | None) -> bool:
    """Returns whether a graph leads each row of a table to itself, and nothing else to a row.

    Args:
      graph: The graph that computes rows.
      rows: The number of rows of the table; None: all integers are to be kept.
    """
    dtype_before = np.dtype(object)
    if graph.dtype != "string":
        dtype_before = np.dtype(graph.dtype)
    for node in graph.nodes[1:]:
        is_number = dtype_before.kind in "iuf"
        if not isinstance(node, OperationNode) or node.op != "Cast" or not is_number:
            return False
        dtype = np.dtype(node.attributes["DstT"])
        if dtype.kind == "f":
            # A float beyond its significand is another integer, but like the id no row of the
            # table.
            if dtype_before.kind == "f" or rows is None or rows > _WHOLE_MAX.get(dtype.name, 0):
                return False
        elif dtype.name not in ID_DTYPES:
            return False
        elif dtype_before.kind == "f":
            # Fractions that callers send become integers, which are other numbers.
            if graph.dtype == "float32":
                return False
        elif dtype.itemsize < dtype_before.itemsize:
            # Ids wrap around.
            return False
        dtype_before = dtype
    return True


def only_casts(graph: GraphIds, rows: int) -> bool:
    """Returns whether a graph only casts sent values to integers, and keeps all rows of a table, so
    that a recipe's rule can replace it.
    """
    for node in graph.nodes[1:]:
        if not isinstance(node, OperationNode) or node.op not in _CASTS:
            return False
        # All but casts return their operand's type.
        dtype = node.attributes.get("DstT", "int64")
        if dtype not in ID_DTYPES and rows > _WHOLE_MAX.get(dtype, 0):
            return False
    return True


def row_of_others(graph: GraphIds, rows: int) -> int | None:
    """Returns the row to which a graph leads ids that are no rows of a table, -1 for none; None if
    the graph does not lead each row to itself, or leads other ids to several rows.

    A recipe's rule can replace such a check of bounds: it leads each id to a row, or to none.
    """
    if graph.tables or graph.dtype not in ("int32", "int64"):
        return None
    limits = np.iinfo(graph.dtype)
    count = min(rows, _ROWS_TESTED)
    inside = np.unique(np.linspace(0, rows - 1, count, dtype=np.int64))
    # The limits of the type, and the ids next to the table, also where ids count from its end.
    outside = np.array([limits.min, -rows - 1, -2, -1, rows, rows + 1, limits.max])
    ids = np.concatenate([inside, outside])
    try:
        results = rule_of(graph, {}).resolve("", ids)
    except FeatureError:
        return None
    if (results[: inside.size] != inside).any():
        return None
    rows_of_others = set(within(results[inside.size :], rows).tolist())
    if len(rows_of_others) != 1:
        return None
    return int(rows_of_others.pop())


@dataclass
class _Capture:
    """The nodes of a graph in the order of their computation, each behind its operands.

    Attributes:
      call: The traced call.
      sources: The inputs, in the order in which they are read first.
      nodes: The nodes.
      tables: The vocabularies that nodes search.
      keys: The keys of these vocabularies.
      positions: The position of the node that computes some values, by the key of the values.
      readers: The values that an operation computes from some values, by the key of the latter.
    """

    call: CallGraph
    sources: list[Source] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    tables: list[LookupTable] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    positions: dict[tuple[Any, ...], int] = field(default_factory=dict)
    readers: dict[tuple[Any, ...], Values] = field(default_factory=dict)

    def add(self, ids: Values) -> None:
        """Adds all nodes that compute ids.

        Raises:
          NotComputed: An operation has no function in a bundle; the error holds its values.
        """
        # Without recursion: a graph may be deeper than Python's stack.
        path = [self.call.followed(ids)]
        while path:
            values = path[-1]
            # Paths meet again: another path may have added the node of these values.
            if self._has_node(values):
                path.pop()
                continue
            try:
                operands = self._operands(values)
                pending = [operand for operand in operands if not self._has_node(operand)]
                if len(path) + len(pending) > OPERATIONS_MAX:
                    raise NotComputed(values)
                if not pending:
                    self._append(values, self._node(values, operands))
                    path.pop()
                    continue
                self.readers.update((operand.key, values) for operand in pending)
                path.extend(reversed(pending))  # inputs in the order of the operands
            except NotComputed:
                self._add_buckets(path)

    def resolved(self) -> ResolvedIds | None:
        """Returns the inputs and the graph of the values that were added last; None if they read no
        input.
        """
        # Nodes that buckets replaced are left out: they are not computed, and may reject values
        # that the buckets take.
        last = len(self.nodes) - 1
        whole = GraphIds.model_construct(nodes=tuple(self.nodes), tables=tuple(self.tables))
        sources = [self.sources[number] for number in whole.inputs_of(last)]
        if not sources:
            return None
        graph = whole.part(last)
        first, *following = sources
        keys = tuple(self.keys)
        return ResolvedIds(first, graph, keys=keys, other_sources=tuple(following))

    def _has_node(self, values: Values) -> bool:
        return values.key in self.positions

    def _append(self, values: Values, node: Any) -> None:
        """Adds the node that computes values.

        Raises:
          NotComputed: The graph is larger than a manifest allows.
        """
        if len(self.nodes) == OPERATIONS_MAX:
            raise NotComputed(values)
        self.positions[values.key] = len(self.nodes)
        self.nodes.append(node)

    def _operands(self, values: Values) -> list[Values]:
        """Returns the values that an operation reads; none of an input or a constant."""
        if values.tensor.name in self.call.sources or self._constant(values) is not None:
            return []
        operation = values.tensor.op
        if values.type == _FIND:
            operands = list(values.inputs[1:])
        elif values.type in OPERATIONS and OPERATIONS[values.type].lists:
            operands = [values.of_tensor(operation.inputs[1])]
        elif values.type in OPERATIONS:
            operands = list(values.inputs)
        elif values.type == _STACK_JOIN:
            operands = [values.of_tensor(tensor) for tensor in self._stack_parts(operation)]
        else:
            operands = []
        if not operands or not _is_known(operation):
            raise NotComputed(values)
        if values.count == 1:
            self._check_shapes(values, operands)
        return [self.call.followed(operand) for operand in operands]

    def _stack_parts(self, join: Any) -> list[Any]:
        """Returns the texts that are joined side by side, [batch] each; [] for any other join."""
        stack, axis = join.inputs
        if stack.op.type != "Pack" or stack.shape.rank != 2:
            return []
        # Stacked and joined along the axis behind the batch.
        if stack.op.get_attr("axis") not in (1, -1):
            return []
        if self.call.number(Values(axis)) not in (1, -1):
            return []
        return list(stack.op.inputs)

    def _check_shapes(self, values: Values, operands: list[Values]) -> None:
        """Checks that an operation computes one result of each value.

        Raises:
          NotComputed: Values of different examples meet, or constants have axes.
        """
        takes_lists = values.type in OPERATIONS and OPERATIONS[values.type].lists
        if values.type == _STACK_JOIN or takes_lists:
            return
        result_shape = values.tensor.shape
        if result_shape.rank is None:
            # With one operand that is computed, the constants are of one value.
            computed = [operand for operand in operands if self._constant(operand) is None]
            if len(computed) != 1:
                raise NotComputed(values)
            return
        for operand in operands:
            shape = operand.tensor.shape
            is_one = shape.is_fully_defined() and math.prod(shape.as_list()) == 1
            # Shapes of unknown sizes are never equal, but their texts are.
            if not is_one and str(shape) != str(result_shape):
                raise NotComputed(values)

    def _node(self, values: Values, operands: list[Values]) -> Any:
        """Returns the node of values whose operands have theirs."""
        if values.tensor.name in self.call.sources:
            return self._input(values)
        constant = self._constant(values)
        if constant is not None:
            return _constant_node(values, constant)
        if values.type == _FIND:
            return self._find(values, operands)
        if values.type == _STACK_JOIN:
            texts = tuple(self.positions[operand.key] for operand in operands)
            separator = {"separator": _attribute(values, "separator")}
            return OperationNode(op="StringJoin", inputs=texts, attributes=separator)
        operation = OPERATIONS[values.type]
        inputs = [self.positions[operand.key] for operand in operands]
        for position in operation.lists:
            constants = Values(values.tensor.op.inputs[position])
            inputs.insert(position, self._list(constants))
        attributes = {name: _attribute(values, name) for name in operation.attributes}
        return OperationNode(op=values.type, inputs=tuple(inputs), attributes=attributes)

    def _input(self, values: Values) -> InputNode:
        """Adds an input, and returns its node.

        Raises:
          NotComputed: It is no value of an example; the error holds the values that read it.
        """
        source = self.call.sources[values.tensor.name]
        dtype = values.tensor.dtype.name
        is_column = source.part == "dense" and per_example(values.tensor) == values.count
        is_value = source.part in ("dense", "values") and (values.count == 1 or is_column)
        if dtype not in _INPUT_DTYPES or not is_value:
            raise NotComputed(self.readers.get(values.key, values))
        if values.count != 1:
            source = Source(source.name, source.part, values.position)
        self.sources.append(source)
        return InputNode(dtype=dtype, input=len(self.sources) - 1)

    def _constant(self, values: Values) -> NDArray[Any] | None:
        """Returns the value of a tensor that depends on no input; None for any other."""
        if values.tensor.dtype.name not in _CONSTANT_DTYPES:
            return None
        return self.call.constant(values.tensor)

    def _list(self, values: Values) -> int:
        """Adds a constant as a list, and returns its position."""
        constant = self._constant(values)
        if constant is None or not 0 < constant.size <= CONSTANT_MAX:
            raise NotComputed(values)
        has_one_axis = constant.shape[:-1] in ((), (1,))
        if not has_one_axis:
            raise NotComputed(values)
        self.nodes.append(_constants(values, constant.reshape(-1), is_list=True))
        return len(self.nodes) - 1

    def _find(self, values: Values, operands: list[Values]) -> OperationNode:
        """Returns the node of a search for keys in a vocabulary.

        Raises:
          NotComputed: Its keys or values have no form in a bundle.
          NotConvertible: The vocabulary has no keys yet, or is no constant.
        """
        table = self.call.resource(values.tensor.op.inputs[0])
        if table is None:
            raise NotComputed(values)
        if table_of(table) is None:
            line = at_line(line_of_operation(values.tensor.op))
            raise unknown_resource("the computation of ids", line)
        vocabulary = exported(values, table)
        if vocabulary is None:
            raise NotComputed(values)
        listed, first_value = vocabulary
        keys = tuple(_integer_or_text(key) for key in listed)
        # The texts of requests and manifests are UTF-8.
        if None in keys:
            raise NotComputed(values)
        self.keys.append(cast(Keys, keys))
        lookup_table = LookupTable(
            vocabulary=UNNAMED,
            first_value=first_value,
            # A layer without values for unknown keys fails on them.
            is_complete=asserts_without(values.tensor, -1),
        )
        self.tables.append(lookup_table)
        inputs = tuple(self.positions[operand.key] for operand in operands)
        attributes = {"table": len(self.tables) - 1}
        return OperationNode(op=values.type, inputs=inputs, attributes=attributes)

    def _add_buckets(self, path: list[Values]) -> None:
        """Replaces the operations that compute integers on a path by buckets of an input, if the
        integers are a step function of it: the last bit of a logarithm differs between libraries.

        Args:
          path: The values on the way from the result; the last ones have no function. Shortened to
            those that have buckets.

        Raises:
          NotComputed: No values of the path have buckets.
        """
        failed = path[-1]
        # From the operation without a function towards the result.
        while path:
            values = path.pop()
            steps = buckets.find(values, self.call)
            if steps is not None:
                self.add_steps(values, steps)
                return
        raise NotComputed(failed)

    def add_steps(self, values: Values, steps: buckets.Steps) -> None:
        """Adds integers as buckets of an input.

        Raises:
          NotComputed: The input is of no known type.
        """
        self.add(steps.values)
        number = self.positions[self.call.followed(steps.values).key]
        graph = steps.function.graph()
        assert graph is not None  # noqa: S101 - of find
        positions = [number]
        for node in graph.nodes[1:]:
            self.nodes.append(reading(node, dict(enumerate(positions))))
            positions.append(len(self.nodes) - 1)
        dtype = values.tensor.dtype.name
        cast = OperationNode(op="Cast", inputs=(positions[-1],), attributes={"DstT": dtype})
        self._append(values, cast)


def _is_known(operation: Any) -> bool:
    """Returns whether a function computes an operation with its attributes and dtypes."""
    read = list(operation.inputs)
    # The first operand of a search is the table.
    if operation.type == _FIND:
        read = read[1:]
    tensors = [*read, operation.outputs[0]]
    if any(tensor.dtype.name not in _DTYPES for tensor in tensors):
        return False
    condition = _CONDITIONS.get(operation.type)
    return condition is None or condition(operation)


def _has_simple_pattern(operation: Any) -> bool:
    pattern = text_of(operation.get_attr("pattern"))
    rewrite = text_of(operation.get_attr("rewrite"))
    if not pattern or rewrite is None or "\\" in rewrite:  # a reference to what was matched
        return False
    return is_simple(pattern)


def _has_one_list(operation: Any) -> bool:
    is_list = operation.inputs[0].shape.rank == 1
    return bool(is_list and operation.get_attr("batch_dims") == 0)


_CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "Bucketize": lambda operation: all(map(math.isfinite, operation.get_attr("boundaries"))),
    "Cast": lambda operation: not operation.get_attr("Truncate"),
    "GatherV2": _has_one_list,
    "Round": lambda operation: operation.inputs[0].dtype.is_floating,
    "StaticRegexReplace": _has_simple_pattern,
    "StringLower": lambda operation: operation.get_attr("encoding") == b"",  # else Unicode's
    "StringUpper": lambda operation: operation.get_attr("encoding") == b"",
    "Substr": lambda operation: operation.get_attr("unit") == b"BYTE",
}
"""The conditions under which a bundle's function computes an operation, by the operation's type."""


def _attribute(values: Values, name: str) -> Any:
    """Returns an attribute of an operation as a manifest writes it."""
    value = values.tensor.op.get_attr(name)
    if isinstance(value, bytes):
        text = text_of(value)
        if text is None:
            raise NotComputed(values)
        return text
    return getattr(value, "name", value)


def _constant_node(values: Values, constant: NDArray[Any]) -> ConstantNode:
    """Returns the node of a constant that meets each value of other operands.

    Raises:
      NotComputed: The constant is a list, and each value of the operands meets another value in it.
    """
    if constant.size == 1:
        return _constants(values, constant.reshape(-1))
    if constant.size == values.count:
        return _constants(values, constant.reshape(-1)[values.position : values.position + 1])
    raise NotComputed(values)


def _constants(values: Values, constants: NDArray[Any], *, is_list: bool = False) -> ConstantNode:
    """Returns the node of [k] constants."""
    if constants.dtype.kind == "b":
        constants = constants.astype(int)
    manifest_values: list[Any] = constants.tolist()
    if values.tensor.dtype.name == "string" and constants.dtype.kind == "i":
        # tf.zeros_like of texts returns empty texts.
        manifest_values = [""] * len(manifest_values)
    elif constants.dtype.kind in "OS":
        manifest_values = [text_of(value) for value in manifest_values]
        if None in manifest_values:
            raise NotComputed(values)
    elif constants.dtype.kind == "f":
        manifest_values = [_finite_or_text(value) for value in manifest_values]
    return ConstantNode(
        dtype=values.tensor.dtype.name, values=tuple(manifest_values), is_list=is_list
    )


def _integer_or_text(key: int | bytes) -> int | str | None:
    """Returns a key as a vocabulary has it; None if it is no text in UTF-8."""
    if isinstance(key, bytes):
        return text_of(key)
    return key


def _finite_or_text(value: float) -> float | str:
    """Returns a number as a manifest writes it: JSON has no infinities, and no NaN."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"
