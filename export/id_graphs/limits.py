"""The smallest and the largest integer that a graph of ids can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bundle.format.id_graphs import ConstantNode, GraphIds, InputNode, LookupTable, OperationNode

_RESULTS = {
    "Bucketize": "int32",
    "StringLength": "int32",
    "StringToHashBucket": "int64",
    "StringToHashBucketFast": "int64",
    "StringToHashBucketStrong": "int64",
}
"""Types that no operand has; of others, it is that of the last operand, or an attribute."""
_TYPES = ("DstT", "out_type")
_SELECTS = ("Select", "SelectV2")
_SELECTED_IN_TABLE = {"NotEqual": 0, "GreaterEqual": 0, "Equal": 1, "Less": 1}
"""Which of two values is selected of a key in a lookup table, where a comparison with the value of
other keys tells them apart.
"""


class Limits(NamedTuple):
    """Results of a node.

    Attributes:
      dtype: as NumPy names it; "" of what is no integer.
      first, last: the smallest and the largest one, at least.
      other: one more, that of keys which a lookup table lacks; None: none.
    """

    dtype: str
    first: int
    last: int
    other: int | None = None

    @property
    def low(self) -> int:
        """The smallest of all."""
        return self.first if self.other is None else min(self.first, self.other)

    @property
    def high(self) -> int:
        """The largest of all."""
        return self.last if self.other is None else max(self.last, self.other)

    def may_be(self, number: int) -> bool:
        """Returns whether a result may be a number."""
        return self.first <= number <= self.last or number == self.other


def limits_of(graph: GraphIds, sizes: Sequence[int]) -> Limits:
    """Returns the limits of what a graph computes; those of its type where nothing is known.

    Args:
      graph: the graph.
      sizes: how many keys each of its lookup tables has.
    """
    limits: list[Limits] = []
    for node in graph.nodes:
        if isinstance(node, InputNode):
            limits.append(_any(node.dtype))
        elif isinstance(node, ConstantNode):
            limits.append(_of_constant(node))
        elif node.op in _SELECTS:
            limits.append(_of_selected(graph, node, limits))
        else:
            operands = [limits[operand] for operand in node.inputs]
            limits.append(_of_operation(graph, node, operands, sizes))
    return limits[-1]


def _any(dtype: str) -> Limits:
    if not dtype.startswith(("int", "uint")) or dtype == "int64_or_string":
        return Limits("", 0, 0)
    ends = np.iinfo(dtype)
    return Limits(dtype, int(ends.min), int(ends.max))


def _of_constant(node: ConstantNode) -> Limits:
    integers = [value for value in node.values if isinstance(value, int)]
    if not node.dtype.startswith(("int", "uint")) or not integers:
        return Limits("", 0, 0)
    return Limits(node.dtype, min(integers), max(integers))


def _of_operation(
    graph: GraphIds, node: OperationNode, operands: Sequence[Limits], sizes: Sequence[int]
) -> Limits:
    dtypes = [node.attributes[name] for name in _TYPES if name in node.attributes]
    dtype = _RESULTS.get(node.op) or (dtypes[0] if dtypes else operands[-1].dtype)
    if node.op == "GatherV2":
        dtype = operands[0].dtype
    widest = _any(dtype)
    if not widest.dtype:
        return widest
    if node.op == "LookupTableFindV2":
        which = node.attributes["table"]
        return _of_table(graph.tables[which], sizes[which], operands[1])
    if node.op in _OF_ATTRIBUTES:
        return Limits(dtype, 0, _OF_ATTRIBUTES[node.op](node.attributes))
    if node.op == "Cast" and operands[0].dtype:
        fits = widest.low <= operands[0].low and operands[0].high <= widest.high
        return operands[0]._replace(dtype=dtype) if fits else widest
    if node.op in _ENDS and all(operand.dtype for operand in operands):
        low, high = _ENDS[node.op](*operands)
        if widest.low <= low <= high <= widest.high:  # else it wraps around
            return Limits(dtype, low, high)
    return widest


def _of_table(table: LookupTable, size: int, others: Limits) -> Limits:
    other = None if table.is_complete else others.first  # a constant
    return Limits(others.dtype, table.first_value, table.first_value + size - 1, other)


def _of_selected(graph: GraphIds, node: OperationNode, limits: Sequence[Limits]) -> Limits:
    """Returns the limits of two results, each where the condition selects it."""
    condition, *results = node.inputs
    first, second = (limits[result] for result in results)
    comparison = graph.nodes[condition]
    which = _SELECTED_IN_TABLE.get(comparison.op, 0)
    if isinstance(comparison, OperationNode) and _finds_others(comparison, results[which], limits):
        first = first._replace(other=None) if which == 0 else first
        second = second._replace(other=None) if which == 1 else second
    if not (first.dtype and second.dtype):
        return Limits("", 0, 0)
    if None not in (first.other, second.other) and first.other != second.other:
        return Limits(first.dtype, min(first.low, second.low), max(first.high, second.high))
    other = second.other if first.other is None else first.other
    return Limits(first.dtype, min(first.first, second.first), max(first.last, second.last), other)


def _finds_others(comparison: OperationNode, looked_up: int, limits: Sequence[Limits]) -> bool:
    """Returns whether a comparison finds, among the values of keys that a node looks up, that of
    those which its table lacks.
    """
    if comparison.op not in _SELECTED_IN_TABLE:
        return False
    compared, bound = comparison.inputs
    of_equality = comparison.op in ("Equal", "NotEqual")
    if of_equality and bound == looked_up:
        compared, bound = bound, compared
    other = limits[looked_up].other
    if compared != looked_up or other is None or limits[bound].low != limits[bound].high:
        return False
    return other == limits[bound].low if of_equality else other < limits[bound].low


def _corners(compute: Callable[[int, int], int]) -> Callable[..., tuple[int, int]]:
    """Returns the ends of an operation that has them where its operands have theirs."""

    def ends(first: Limits, second: Limits) -> tuple[int, int]:
        results = [
            compute(one, other)
            for one in (first.low, first.high)
            for other in (second.low, second.high)
        ]
        return min(results), max(results)

    return ends


def _of_quotient(first: Limits, second: Limits) -> tuple[int, int]:
    if second.low < 1:
        return 1, 0  # not known
    return _corners(lambda one, other: one // other)(first, second)


def _of_remainder(_first: Limits, second: Limits) -> tuple[int, int]:
    return (0, second.high - 1) if second.low > 0 else (1, 0)


def _of_truncated_remainder(first: Limits, second: Limits) -> tuple[int, int]:
    if second.low < 1:
        return 1, 0
    largest = second.high - 1
    return (-largest if first.low < 0 else 0), (largest if first.high > 0 else 0)


def _of_absolute(number: Limits) -> tuple[int, int]:
    largest = max(abs(number.low), abs(number.high))
    return (
        0 if number.low <= 0 <= number.high else min(abs(number.low), abs(number.high))
    ), largest


def _of_clip(number: Limits, low: Limits, high: Limits) -> tuple[int, int]:
    return max(min(number.low, high.low), low.low), max(min(number.high, high.high), low.high)


_ENDS: Mapping[str, Callable[..., tuple[int, int]]] = {
    "Abs": _of_absolute,
    "Add": _corners(lambda one, other: one + other),
    "AddV2": _corners(lambda one, other: one + other),
    "ClipByValue": _of_clip,
    "FloorDiv": _of_quotient,
    "FloorMod": _of_remainder,
    "GatherV2": lambda among, _positions: (among.low, among.high),
    "Maximum": _corners(max),
    "Minimum": _corners(min),
    "Mul": _corners(lambda one, other: one * other),
    "Neg": lambda number: (-number.high, -number.low),
    "Sub": _corners(lambda one, other: one - other),
    "TruncateMod": _of_truncated_remainder,
}
_OF_ATTRIBUTES: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "Bucketize": lambda attributes: len(attributes["boundaries"]),
    "StringToHashBucket": lambda attributes: int(attributes["num_buckets"]) - 1,
    "StringToHashBucketFast": lambda attributes: int(attributes["num_buckets"]) - 1,
    "StringToHashBucketStrong": lambda attributes: int(attributes["num_buckets"]) - 1,
}
