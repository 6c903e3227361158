"""Ids by the model's own operations: what lies between inputs and the rows of a table, as it is.

Nothing is recognized. A computation is right because each of its operations is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
)
from export.front_end.specs import Keys
from export.graphs.functions import asserts_without
from export.graphs.walks import ID_DTYPES
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_graphs import buckets
from export.tensorflow_models.id_graphs.resolved_ids import ResolvedIds
from export.tensorflow_models.id_graphs.vocabularies import UNNAMED, exported, text_of

_FIND = "LookupTableFindV2"
_STACK_JOIN = "ReduceJoin"
"""Of a stack of texts: the join of these."""
_INPUT_DTYPES = frozenset({"int32", "int64", "float32", "string"})
_CONSTANT_DTYPES = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64"),
        *("float32", "float64", "string"),
    }
)
_DTYPES = _CONSTANT_DTYPES | {"uint32", "uint64", "float16"}
"""Of what operations compute."""
_WHOLE_MAX = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Integers up to these limits are exact in each float type."""
_ROWS_TRIED = 1 << 20
"""Rows of a larger table are tried in equal distances."""
_CASTS = frozenset({"Cast", "Floor", "Ceil", "Round", "Rint"})


class NotComputed(Exception):
    """No operation of the table computes these values."""

    def __init__(self, values: Values) -> None:
        super().__init__(values.type)
        self.values = values


def find_graph(ids: Values, call: CallGraph) -> ResolvedIds | Values:
    """Follows ids back to inputs through operations that a bundle computes.

    Args:
      ids: integers, or what other operations make integers of.
      call: the traced call.

    Returns:
      The resolved ids, or the values that no operation of the table computes.
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
      ids: rows of a table, or what another rule takes.
      call: the traced call.
      rows: of the table; None: another rule takes the ids.

    Returns:
      The resolved ids, without a rule if they are the input's own, or the values whose computation
      is not known.
    """
    computed = find_graph(ids, call)
    if not isinstance(computed, ResolvedIds):
        return (None if rows is None else _find_buckets(ids, call, rows)) or computed
    if computed.others:
        combined = call.origin(ids)
        return combined if isinstance(combined, Values) else ids
    assert isinstance(computed.rule, GraphIds)  # noqa: S101 - of find_graph
    if _keeps_ids(computed.rule, rows):
        return ResolvedIds(computed.source)
    return computed


def _keeps_ids(graph: GraphIds, rows: int | None) -> bool:
    """Returns whether a graph leads each row of a table to itself, and nothing else to a row.

    Args:
      graph: computes rows.
      rows: of the table; None: all integers are to be kept.
    """
    before = np.dtype(object if graph.dtype == "string" else graph.dtype)
    for node in graph.nodes[1:]:
        if not isinstance(node, OperationNode) or node.op != "Cast" or before.kind not in "iuf":
            return False
        after = np.dtype(node.attributes["DstT"])
        if after.kind == "f":
            # A float beyond its significand is another integer, but like the id no row of the
            # table.
            if before.kind == "f" or rows is None or rows > _WHOLE_MAX.get(after.name, 0):
                return False
        elif after.name not in ID_DTYPES:
            return False
        elif before.kind == "f":
            if graph.dtype == "float32":  # numbers become integers
                return False
        elif after.itemsize < before.itemsize:
            return False  # ids wrap around
        before = after
    return True


def only_casts(graph: GraphIds, rows: int) -> bool:
    """Returns whether a graph makes integers of what is sent, and keeps all rows of a table: a
    recipe's rule can take its place.
    """
    for node in graph.nodes[1:]:
        if not isinstance(node, OperationNode) or node.op not in _CASTS:
            return False
        to = node.attributes.get("DstT", "int64")
        if to not in ID_DTYPES and rows > _WHOLE_MAX.get(to, 0):
            return False
    return True


def row_of_others(graph: GraphIds, rows: int) -> int | None:
    """Returns the row that a graph leads ids to that are no rows of a table, -1 for none; None if
    it does not lead each row to itself, or others to several rows.

    A recipe's rule can take the place of such a check of bounds: what it makes is a row, or none.
    """
    if graph.tables or graph.dtype not in ("int32", "int64"):
        return None
    ends = np.iinfo(graph.dtype)
    inside = np.unique(np.linspace(0, rows - 1, min(rows, _ROWS_TRIED), dtype=np.int64))
    outside = np.array([ends.min, -rows - 1, -2, -1, rows, rows + 1, ends.max])
    try:
        results = rule_of(graph, {}).resolve("", np.concatenate([inside, outside]))
    except FeatureError:
        return None
    if (results[: inside.size] != inside).any():
        return None
    others = set(within(results[inside.size :], rows).tolist())
    return others.pop() if len(others) == 1 else None


@dataclass
class _Capture:
    """The nodes of a graph in the order of their computation, each behind its operands."""

    call: CallGraph
    sources: list[Source] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    tables: list[LookupTable] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    positions: dict[tuple[Any, ...], int] = field(default_factory=dict)
    """Of nodes, by the values that they compute."""
    readers: dict[tuple[Any, ...], Values] = field(default_factory=dict)
    """What reads values, by these."""

    def add(self, ids: Values) -> None:
        """Adds all nodes that ids are computed by.

        Raises:
          NotComputed: an operation has no function, or several inputs are read; names it.
        """
        # Without recursion: a graph may be deeper than Python's stack.
        path = [self._passed(ids)]
        while path:
            values = path[-1]
            try:
                operands = [] if self._is_placed(values) else self._operands(values)
                pending = [operand for operand in operands if not self._is_placed(operand)]
                if len(path) + len(pending) > OPERATIONS_MAX:
                    raise NotComputed(values)
                self.readers.update((_key(operand), values) for operand in pending)
                path.extend(reversed(pending))  # inputs in the order of the operands
                if not pending:
                    if not self._is_placed(values):
                        self._place(values, self._node(values, operands))
                    path.pop()
            except NotComputed:
                self._place_buckets(path)

    def resolved(self) -> ResolvedIds | None:
        """Returns the inputs and the graph of the values that were added last; None if they read no
        input.
        """
        sources: list[Source] = []
        nodes = []
        for node in self._needed():
            if isinstance(node, InputNode):
                sources.append(self.sources[node.input])
                nodes.append(node.model_copy(update={"input": len(sources) - 1}))
            else:
                nodes.append(node)
        if not sources:
            return None
        graph = GraphIds(nodes=tuple(nodes), tables=tuple(self.tables))
        return ResolvedIds(sources[0], graph, keys=tuple(self.keys), others=tuple(sources[1:]))

    def _needed(self) -> tuple[Any, ...]:
        """Returns the nodes that the last one is computed from, and itself: what stands behind
        buckets is not computed, and may reject values that the buckets take.
        """
        read = {len(self.nodes) - 1}
        for position in reversed(range(len(self.nodes))):
            if position in read:
                read.update(getattr(self.nodes[position], "inputs", ()))
        moved = {position: place for place, position in enumerate(sorted(read))}
        nodes = [self.nodes[position] for position in moved]
        return tuple(
            node.model_copy(update={"inputs": tuple(moved[operand] for operand in node.inputs)})
            if isinstance(node, OperationNode)
            else node
            for node in nodes
        )

    def _passed(self, values: Values) -> Values:
        """Follows values back through operations that only pass them on; casts compute."""
        while values.type != "Cast" and (before := self.call.before(values)) is not None:
            values = before
        return values

    def _is_placed(self, values: Values) -> bool:
        return _key(values) in self.positions

    def _place(self, values: Values, node: Any) -> None:
        if len(self.nodes) == OPERATIONS_MAX:
            raise NotComputed(values)
        self.positions[_key(values)] = len(self.nodes)
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
            operands = [values.of_tensor(tensor) for tensor in self._stacked(operation)]
        else:
            operands = []
        if not operands or not _is_known(operation):
            raise NotComputed(values)
        if values.of == 1:
            self._check_shapes(values, operands)
        return [self._passed(operand) for operand in operands]

    def _stacked(self, join: Any) -> list[Any]:
        """Returns the texts that are joined side by side, [batch] each; [] if others are."""
        stack, axis = join.inputs
        is_stack = stack.op.type == "Pack" and stack.shape.rank == 2
        is_side_by_side = is_stack and stack.op.get_attr("axis") in (1, -1)
        is_joined_so = self.call.number(Values(axis)) in (1, -1)
        return list(stack.op.inputs) if is_side_by_side and is_joined_so else []

    def _check_shapes(self, values: Values, operands: list[Values]) -> None:
        """Checks that an operation computes one result of each value.

        Raises:
          NotComputed: values of different examples meet, or constants have axes.
        """
        takes_lists = values.type in OPERATIONS and OPERATIONS[values.type].lists
        if values.type == _STACK_JOIN or takes_lists:
            return
        shape = values.tensor.shape
        computed = [operand for operand in operands if self._constant(operand) is None]
        if shape.rank is None and len(computed) == 1:
            return  # constants are of one value
        if shape.rank is None:
            raise NotComputed(values)
        for operand in operands:
            own = operand.tensor.shape
            is_one = own.is_fully_defined() and math.prod(own.as_list()) == 1
            if not is_one and str(own) != str(shape):
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
            texts = tuple(self.positions[_key(operand)] for operand in operands)
            separator = {"separator": _attribute(values, "separator")}
            return OperationNode(op="StringJoin", inputs=texts, attributes=separator)
        operation = OPERATIONS[values.type]
        inputs = [self.positions[_key(operand)] for operand in operands]
        for position in operation.lists:
            inputs.insert(position, self._list(Values(values.tensor.op.inputs[position])))
        attributes = {name: _attribute(values, name) for name in operation.attributes}
        return OperationNode(op=values.type, inputs=tuple(inputs), attributes=attributes)

    def _input(self, values: Values) -> InputNode:
        source = self.call.sources[values.tensor.name]
        dtype = values.tensor.dtype.name
        is_column = source.part == "dense" and per_example(values.tensor) == values.of
        if (
            dtype not in _INPUT_DTYPES
            or source.part not in ("dense", "values")
            or not (values.of == 1 or is_column)
        ):
            raise NotComputed(self.readers.get(_key(values), values))
        if values.of != 1:
            source = Source(source.name, source.part, values.at)
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
        one_axis = constant is not None and constant.shape[:-1] in ((), (1,))
        if constant is None or not one_axis or not 0 < constant.size <= CONSTANT_MAX:
            raise NotComputed(values)
        self.nodes.append(_constants(values, constant.reshape(-1), is_list=True))
        return len(self.nodes) - 1

    def _find(self, values: Values, operands: list[Values]) -> OperationNode:
        """Returns the node of a search for keys in a vocabulary."""
        table = self.call.resource(values.tensor.op.inputs[0])
        listed = None if table is None else exported(values, table)
        if listed is None:
            raise NotComputed(values)
        keys: tuple[Any, ...] = tuple(
            text_of(key) if isinstance(key, bytes) else key for key in listed[0]
        )
        if None in keys:
            raise NotComputed(values)
        self.keys.append(keys)
        lookup_table = LookupTable(
            vocabulary=UNNAMED,
            first_value=listed[1],
            # A layer without values for unknown keys fails on them.
            is_complete=asserts_without(values.tensor, -1),
        )
        self.tables.append(lookup_table)
        inputs = tuple(self.positions[_key(operand)] for operand in operands)
        attributes = {"table": len(self.tables) - 1}
        return OperationNode(op=values.type, inputs=inputs, attributes=attributes)

    def _place_buckets(self, path: list[Values]) -> None:
        """Replaces what computes integers on a path by buckets of an input, if they are a step
        function of one: the last bit of a logarithm differs from one library to another.

        Args:
          path: its last values have no function; shortened to those that have buckets.

        Raises:
          NotComputed: none of them have.
        """
        failed = path[-1]
        while path:
            values = path.pop()
            steps = buckets.find(values, self.call) if values.tensor.dtype.is_integer else None
            if steps is None:
                continue
            self.add_steps(values, steps)
            return
        raise NotComputed(failed)

    def add_steps(self, values: Values, steps: buckets.Steps) -> None:
        """Adds integers as buckets of an input.

        Raises:
          NotComputed: the input is of no known type.
        """
        self.add(steps.values)
        number = self.positions[_key(self._passed(steps.values))]
        dtype = values.tensor.dtype.name
        first = len(self.nodes)
        # Rows fall from the largest one, or rise from the first.
        end = steps.first_row + (len(steps.boundaries) if steps.falling else 0)
        op = "Sub" if steps.falling else "AddV2"
        boundaries = {"boundaries": list(steps.boundaries)}
        self.nodes += [
            OperationNode(op="Bucketize", inputs=(number,), attributes=boundaries),
            ConstantNode(dtype="int32", values=(end,)),
            OperationNode(op=op, inputs=(first + 1, first)),
        ]
        cast = OperationNode(op="Cast", inputs=(first + 2,), attributes={"DstT": dtype})
        self._place(values, cast)


def _key(values: Values) -> tuple[str, int, int]:
    return values.tensor.name, values.at, values.of


def _is_known(operation: Any) -> bool:
    """Returns whether a function computes an operation with its attributes and dtypes."""
    read = list(operation.inputs)[1 if operation.type == _FIND else 0 :]
    if any(tensor.dtype.name not in _DTYPES for tensor in (*read, operation.outputs[0])):
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
    return bool(operation.inputs[0].shape.rank == 1 and operation.get_attr("batch_dims") == 0)


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
"""What functions of operations expect of their attributes and operands."""


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
      NotComputed: it is a list, of which a different value meets each.
    """
    if constant.size == 1:
        return _constants(values, constant.reshape(-1))
    if constant.size == values.of:
        return _constants(values, constant.reshape(-1)[values.at : values.at + 1])
    raise NotComputed(values)


def _constants(values: Values, constants: NDArray[Any], *, is_list: bool = False) -> ConstantNode:
    """Returns the node of [k] constants."""
    if constants.dtype.kind == "b":
        constants = constants.astype(int)
    written: list[Any] = constants.tolist()
    if values.tensor.dtype.name == "string" and constants.dtype.kind == "i":
        written = [""] * len(written)  # of zeros like texts
    elif constants.dtype.kind in "OS":
        written = [text_of(value) for value in written]
        if None in written:
            raise NotComputed(values)
    elif constants.dtype.kind == "f":
        written = [value if math.isfinite(value) else _infinite(value) for value in written]
    return ConstantNode(dtype=values.tensor.dtype.name, values=tuple(written), is_list=is_list)


def _infinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
