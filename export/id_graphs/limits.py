"""The smallest and the largest integer that a graph of ids can compute."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from bundle.format.id_graphs import (
    ConstantNode,
    CrossNode,
    GraphIds,
    InputNode,
    LookupTable,
    OperationNode,
    SplitNode,
)

_RESULTS = {
    "Bucketize": "int32",
    "StringLength": "int32",
    "StringToHashBucket": "int64",
    "StringToHashBucketFast": "int64",
    "StringToHashBucketStrong": "int64",
}
"""Result types of operations whose operands do not have that type. The result of any other
operation has the type of its last operand, or of an attribute.
"""
_TYPE_ATTRIBUTES = ("DstT", "out_type")
_SELECTS = ("Select", "SelectV2")
_SELECTED_IN_TABLE = {"NotEqual": 0, "GreaterEqual": 0, "Equal": 1, "Less": 1}
"""The position, 0 or 1, of the value that a selection returns for a key in a lookup table, where
its condition compares a looked-up value with the value of keys that the table lacks.
"""


class Limits(NamedTuple):
    """The integers that the result of a node lies between.

    Attributes:
      dtype: NumPy's name of the type; "" of a result that is no integer.
      first, last: The smallest and the largest result, or bounds beyond them.
      missing: The result for keys that a lookup table lacks, which may lie outside the range; None
        if there is no such result.
    """

    dtype: str
    first: int
    last: int
    missing: int | None = None

    @property
    def low(self) -> int:
        """The smallest of all results."""
        if self.missing is None:
            return self.first
        return min(self.first, self.missing)

    @property
    def high(self) -> int:
        """The largest of all results."""
        if self.missing is None:
            return self.last
        return max(self.last, self.missing)

    def may_be(self, number: int) -> bool:
        """Returns whether a result may be a number."""
        return self.first <= number <= self.last or number == self.missing


_NO_INTEGERS = Limits("", 0, 0)


def limits_of(graph: GraphIds, sizes: Sequence[int]) -> Limits:
    """Returns the limits of the results of a graph: those of its type where no others are known.

    Args:
      graph: The graph.
      sizes: The number of keys of each lookup table of the graph.
    """
    limits: list[Limits] = []
    # Operands come before the nodes that read them.
    for node in graph.nodes:
        if isinstance(node, InputNode):
            limits.append(_of_type(node.dtype))
        elif isinstance(node, SplitNode):
            limits.append(_NO_INTEGERS)
        elif isinstance(node, ConstantNode):
            limits.append(_of_constant(node))
        elif isinstance(node, CrossNode):
            limits.append(Limits("int64", 0, node.num_buckets - 1))
        elif node.op in _SELECTS:
            limits.append(_of_selected(graph, node, limits))
        else:
            operands = [limits[operand] for operand in node.inputs]
            limits.append(_of_operation(graph, node, operands, sizes))
    return limits[-1]


def _of_type(dtype: str) -> Limits:
    if not dtype.startswith(("int", "uint")) or dtype == "int64_or_string":
        return _NO_INTEGERS
    ends = np.iinfo(dtype)
    return Limits(dtype, int(ends.min), int(ends.max))


def _of_constant(node: ConstantNode) -> Limits:
    integers = [value for value in node.values if isinstance(value, int)]
    if not node.dtype.startswith(("int", "uint")) or not integers:
        return _NO_INTEGERS
    return Limits(node.dtype, min(integers), max(integers))


def _of_operation(
    graph: GraphIds, node: OperationNode, operands: Sequence[Limits], sizes: Sequence[int]
) -> Limits:
    """Returns the limits of an operation's result, from the limits of its operands.

    Args:
      graph: The graph that the operation belongs to.
      node: The operation.
      operands: The limits of its operands.
      sizes: The number of keys of each lookup table of the graph.
    """
    dtype = _result_type(node, operands)
    widest = _of_type(dtype)
    if not widest.dtype:
        return widest
    if node.op == "LookupTableFindV2":
        table_index = node.attributes["table"]
        return _of_table(graph.tables[table_index], sizes[table_index], operands[1])
    if node.op in _LAST_BY_ATTRIBUTES:
        return Limits(dtype, 0, _LAST_BY_ATTRIBUTES[node.op](node.attributes))

    if node.op == "Cast" and operands[0].dtype:
        fits = widest.low <= operands[0].low and operands[0].high <= widest.high
        if fits:
            return operands[0]._replace(dtype=dtype)
    if node.op in _ENDS and all(operand.dtype for operand in operands):
        low, high = _ENDS[node.op](*operands)
        # Integers beyond the type wrap around, to any value. Unknown ends fail here, too.
        if widest.low <= low <= high <= widest.high:
            return Limits(dtype, low, high)
    return widest


def _result_type(node: OperationNode, operands: Sequence[Limits]) -> str:
    """Returns the type of an operation's result; "" if it is no integer."""
    if node.op == "GatherV2":
        return operands[0].dtype
    if node.op in _RESULTS:
        return _RESULTS[node.op]
    for attribute in _TYPE_ATTRIBUTES:
        if attribute in node.attributes:
            return str(node.attributes[attribute])
    return operands[-1].dtype


def _of_table(table: LookupTable, size: int, default: Limits) -> Limits:
    # The default is a constant, so that either of its limits is its value. A complete table has
    # none: the model fails on keys that the table lacks.
    last = table.first_value + size - 1
    if table.is_complete:
        return Limits(default.dtype, table.first_value, last)
    return Limits(default.dtype, table.first_value, last, missing=default.first)


def _of_selected(graph: GraphIds, node: OperationNode, limits: Sequence[Limits]) -> Limits:
    """Returns the limits of a selection between two results.

    A condition may keep the value of missing keys out of the result that it selects for other keys.
    """
    condition, *result_indexes = node.inputs
    first, second = (limits[index] for index in result_indexes)

    comparison = graph.nodes[condition]
    selected = _SELECTED_IN_TABLE.get(comparison.op, 0)
    if isinstance(comparison, OperationNode) and _separates_missing_keys(
        comparison, result_indexes[selected], limits
    ):
        if selected == 0:
            first = first._replace(missing=None)
        else:
            second = second._replace(missing=None)

    if not (first.dtype and second.dtype):
        return _NO_INTEGERS
    if None not in (first.missing, second.missing) and first.missing != second.missing:
        # Limits have one value for missing keys: two different ones widen the range.
        return Limits(first.dtype, min(first.low, second.low), max(first.high, second.high))
    missing = second.missing if first.missing is None else first.missing
    smallest = min(first.first, second.first)
    largest = max(first.last, second.last)
    return Limits(first.dtype, smallest, largest, missing)


def _separates_missing_keys(
    comparison: OperationNode, looked_up: int, limits: Sequence[Limits]
) -> bool:
    """Returns whether a comparison separates the keys that a lookup table has from those that it
    lacks.

    Args:
      comparison: The comparison.
      looked_up: The index of the node whose result comes from the table.
      limits: The limits of all nodes before the selection.
    """
    if comparison.op not in _SELECTED_IN_TABLE:
        return False
    compared, bound = comparison.inputs
    is_equality = comparison.op in ("Equal", "NotEqual")
    # The operands of an equality can be exchanged; an order says which of them is the bound.
    if is_equality and bound == looked_up:
        compared, bound = bound, compared

    missing = limits[looked_up].missing
    bound_is_constant = limits[bound].low == limits[bound].high
    if compared != looked_up or missing is None or not bound_is_constant:
        return False
    if is_equality:
        return missing == limits[bound].low
    return missing < limits[bound].low


_Ends = tuple[int, int]
"""The smallest and the largest result of an operation."""
_UNKNOWN: _Ends = (1, 0)
"""Ends of results that have no limits but those of their type: the smallest is above the largest.
"""


def _corners(compute: Callable[[int, int], int]) -> Callable[..., _Ends]:
    """Returns the ends of an operation whose results are extreme where its operands are extreme."""

    def ends(first: Limits, second: Limits) -> _Ends:
        results = [
            compute(first_end, second_end)
            for first_end, second_end in product((first.low, first.high), (second.low, second.high))
        ]
        return min(results), max(results)

    return ends


def _of_quotient(dividend: Limits, divisor: Limits) -> _Ends:
    if divisor.low < 1:
        return _UNKNOWN
    return _corners(operator.floordiv)(dividend, divisor)


def _of_remainder(_dividend: Limits, divisor: Limits) -> _Ends:
    if divisor.low < 1:
        return _UNKNOWN
    return 0, divisor.high - 1


def _of_truncated_remainder(dividend: Limits, divisor: Limits) -> _Ends:
    if divisor.low < 1:
        return _UNKNOWN
    # A remainder of truncation has the sign of the dividend.
    largest = divisor.high - 1
    low = -largest
    high = largest
    if dividend.low >= 0:
        low = 0
    if dividend.high <= 0:
        high = 0
    return low, high


def _of_absolute(number: Limits) -> _Ends:
    magnitudes = (abs(number.low), abs(number.high))
    if number.low <= 0 <= number.high:
        return 0, max(magnitudes)
    return min(magnitudes), max(magnitudes)


def _of_clip(number: Limits, low: Limits, high: Limits) -> _Ends:
    smallest = max(min(number.low, high.low), low.low)
    largest = max(min(number.high, high.high), low.high)
    return smallest, largest


_ENDS: Mapping[str, Callable[..., _Ends]] = {
    "Abs": _of_absolute,
    "Add": _corners(operator.add),
    "AddV2": _corners(operator.add),
    "ClipByValue": _of_clip,
    "FloorDiv": _of_quotient,
    "FloorMod": _of_remainder,
    "GatherV2": lambda values, _positions: (values.low, values.high),
    "Maximum": _corners(max),
    "Minimum": _corners(min),
    "Mul": _corners(operator.mul),
    "Neg": lambda number: (-number.high, -number.low),
    "Sub": _corners(operator.sub),
    "TruncateMod": _of_truncated_remainder,
}
_LAST_BY_ATTRIBUTES: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "Bucketize": lambda attributes: len(attributes["boundaries"]),
    "StringToHashBucket": lambda attributes: int(attributes["num_buckets"]) - 1,
    "StringToHashBucketFast": lambda attributes: int(attributes["num_buckets"]) - 1,
    "StringToHashBucketStrong": lambda attributes: int(attributes["num_buckets"]) - 1,
}
