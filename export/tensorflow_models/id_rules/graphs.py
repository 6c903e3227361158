"""Ids by the model's own operations: what lies between one input and the rows of a table, as it is.

Nothing is recognized. A computation is right because each of its operations is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from bundle.features.rules.operations import OPERATIONS, is_simple
from bundle.format.id_graphs import (
    CONSTANT_MAX,
    OPERATIONS_MAX,
    ConstantNode,
    InputNode,
    OperationNode,
)
from bundle.format.manifest import BucketIds, GraphIds, VocabularyIds
from export.front_end.specs import Keys
from export.graphs.functions import asserts_without
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules import buckets
from export.tensorflow_models.id_rules.chains import find_chain
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.vocabularies import UNNAMED, exported, text_of

_FIND = "LookupTableFindV2"
_INPUT_DTYPES = frozenset({"int32", "int64", "float32", "string"})
_CONSTANT_DTYPES = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64"),
        *("float32", "float64", "string"),
    }
)
_DTYPES = _CONSTANT_DTYPES | {"uint32", "uint64", "float16"}
"""Of what operations compute."""


class NotComputed(Exception):
    """No operation of the table computes these values."""

    def __init__(self, values: Values) -> None:
        super().__init__(values.type)
        self.values = values


def find_graph(ids: Values, call: CallGraph) -> ResolvedIds | Values:
    """Follows ids back to one input through operations that a bundle computes.

    Args:
      ids: rows of a table, or what another rule takes.
      call: the traced call.

    Returns:
      The resolved ids, or the values that no operation of the table computes.
    """
    capture = _Capture(call)
    try:
        capture.add(ids)
    except NotComputed as problem:
        return problem.values
    if capture.source is None or not ids.tensor.dtype.is_integer:
        return ids
    rule = GraphIds(nodes=capture.needed(), vocabularies=tuple(capture.vocabularies))
    return ResolvedIds(capture.source, rule, keys=tuple(capture.keys))


def find_rule(ids: Values, call: CallGraph, rows: int | None) -> ResolvedIds | Values:
    """Follows ids back to one input through rules, or else through the model's own operations.

    Args:
      ids: rows of a table, or what another rule takes.
      call: the traced call.
      rows: of the table; None: another rule takes the ids.

    Returns:
      The resolved ids, or the values whose computation is not known.
    """
    found = find_chain(ids, call, rows)
    if isinstance(found, ResolvedIds):
        return found
    computed = find_graph(ids, call)
    return computed if isinstance(computed, ResolvedIds) else found


@dataclass
class _Capture:
    """The nodes of a graph in the order of their computation, each behind its operands."""

    call: CallGraph
    source: Source | None = None
    nodes: list[Any] = field(default_factory=list)
    vocabularies: list[VocabularyIds] = field(default_factory=list)
    keys: list[Keys] = field(default_factory=list)
    positions: dict[tuple[Any, ...], int] = field(default_factory=dict)
    """Of nodes, by the values that they compute."""

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
                path.extend(pending)
                if not pending:
                    if not self._is_placed(values):
                        self._place(values, self._node(values, operands))
                    path.pop()
            except NotComputed:
                self._place_buckets(path)

    def needed(self) -> tuple[Any, ...]:
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
        else:
            operands = []
        if not operands or not _is_known(operation):
            raise NotComputed(values)
        if values.of == 1:
            self._check_shapes(values, operands)
        return [self._passed(operand) for operand in operands]

    def _check_shapes(self, values: Values, operands: list[Values]) -> None:
        """Checks that an operation computes one result of each value.

        Raises:
          NotComputed: values of different examples meet, or constants have axes.
        """
        if values.type in OPERATIONS and OPERATIONS[values.type].lists:
            return
        shape = values.tensor.shape
        computed = [operand for operand in operands if self._constant(operand) is None]
        if len(computed) > 1 and shape.rank is None:
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
        operation = OPERATIONS[values.type]
        inputs = [self.positions[_key(operand)] for operand in operands]
        for position in operation.lists:
            inputs.insert(position, self._list(Values(values.tensor.op.inputs[position])))
        attributes = {name: _attribute(values, name) for name in operation.attributes}
        return OperationNode(op=values.type, inputs=tuple(inputs), attributes=attributes)

    def _input(self, values: Values) -> InputNode:
        source = self.call.sources[values.tensor.name]
        dtype = values.tensor.dtype.name
        if values.of != 1:
            if source.part != "dense" or per_example(values.tensor) != values.of:
                raise NotComputed(values)
            source = Source(source.name, source.part, values.at)
        if self.source not in (None, source) or dtype not in _INPUT_DTYPES:
            raise NotComputed(values)
        if source.part not in ("dense", "values"):
            raise NotComputed(values)
        self.source = source
        return InputNode(dtype=dtype)

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
        # A layer without rows for unknown keys fails on them; operations behind it see none.
        if listed is None or asserts_without(values.tensor, -1):
            raise NotComputed(values)
        keys: tuple[Any, ...] = tuple(
            text_of(key) if isinstance(key, bytes) else key for key in listed[0]
        )
        if None in keys:
            raise NotComputed(values)
        self.keys.append(keys)
        self.vocabularies.append(VocabularyIds(vocabulary=UNNAMED, first_row=listed[1]))
        inputs = tuple(self.positions[_key(operand)] for operand in operands)
        attributes = {"vocabulary": len(self.vocabularies) - 1}
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
            found = (
                buckets.find(values, self.call, None) if values.tensor.dtype.is_integer else None
            )
            if found is None or not isinstance(found.rule, BucketIds):
                continue
            whole = replace(found.source, place=None)
            tensor = self.call.tensor_of(whole, values.tensor.graph)
            if tensor.dtype.name != "float32":
                continue
            of = 1 if found.source.place is None else per_example(tensor) or 0
            raw = Values(tensor, found.source.place or 0, of)
            if not self._is_placed(raw):
                self._place(raw, self._input(raw))
            self._add_buckets(values, self.positions[_key(raw)], found.rule)
            return
        raise NotComputed(failed)

    def _add_buckets(self, values: Values, number: int, rule: BucketIds) -> None:
        """Adds the nodes of buckets of a number."""
        dtype = values.tensor.dtype.name
        first = len(self.nodes)
        boundaries = {"boundaries": list(rule.boundaries)}
        # Rows fall from the largest one, or rise from the first.
        end = rule.first_row + (len(rule.boundaries) if rule.falling else 0)
        op = "Sub" if rule.falling else "AddV2"
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
