"""The smallest and the largest integer of a graph. Random programs are compared with them in
tests/differential/test_id_graphs.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format.graph_builder import GraphBuilder
from bundle.format.id_graphs import LookupTable
from export.id_graphs.limits import limits_of
from tests.id_graphs import bucket_ids, hash_ids, vocabulary_ids

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
WRAPPED = [("Cast", "int32"), ("Cast", "int64")]
NINE = ("FloorMod", 10)


@pytest.mark.parametrize(
    ("steps", "limits"),
    [
        ([("Maximum", 0)], (0, INT64[1])),
        ([NINE], (0, 9)),
        ([NINE, ("Minimum", 4)], (0, 4)),
        ([("TruncateMod", 10)], (-9, 9)),
        ([NINE, ("AddV2", -7), ("Mul", -3)], (-6, 21)),
        ([NINE, ("Sub", 5), ("FloorDiv", 2)], (-3, 2)),
        ([NINE, ("AddV2", -7), ("Abs", None)], (0, 7)),
        ([("AddV2", 1), *WRAPPED], INT32),
        # These wrap around, or divide by what may be negative.
        ([("AddV2", 1)], INT64),
        ([("FloorDiv", -1)], INT64),
    ],
)
def test_limits_of_operations_are_exact_where_nothing_wraps_around(
    steps: list[tuple[str, Any]], limits: tuple[int, int]
) -> None:
    builder = GraphBuilder("int64")
    for op, constant in steps:
        value = builder.last
        if op == "Cast":
            builder.compute(op, value, DstT=constant)
        elif constant is None:
            builder.compute(op, value)
        else:
            builder.compute(op, value, builder.constant(constant))
    actual = limits_of(builder.graph(), ())
    assert (actual.low, actual.high) == limits


def limited(low: int, high: int) -> Any:
    builder = GraphBuilder("int64")
    builder.limited(builder.last, low, high)
    return builder.graph()


def selected(low: int, high: int) -> Any:
    """Returns hashes of 10 buckets, and constants in place of some."""
    builder = GraphBuilder("string")
    text = builder.last
    is_empty = builder.compute("Equal", text, builder.constant("", "string"))
    is_a = builder.compute("Equal", text, builder.constant("a", "string"))
    rows = builder.compute("SelectV2", is_a, builder.constant(high), builder.hashed(text, 10))
    builder.compute("SelectV2", is_empty, builder.constant(low), rows)
    return builder.graph()


def looked_up(default: int, is_complete: bool = False) -> Any:
    builder = GraphBuilder("int64")
    table = LookupTable(vocabulary="v", first_value=2, is_complete=is_complete)
    builder.positions(builder.last, table, default)
    return builder.graph()


@pytest.mark.parametrize(
    ("graph", "limits"),
    [
        (selected(-5, 12), (-5, 12)),
        (hash_ids(50, first_row=3), (3, 52)),
        (bucket_ids([0.5, 2.0], first_row=-1), (-1, 1)),
        (looked_up(9, is_complete=True), (2, 4)),
        (vocabulary_ids("v", first_row=4, oov_buckets=4, mask=""), (0, 6)),
    ],
)
def test_limits_of_hashes_tables_and_choices_are_exact(graph: Any, limits: tuple[int, int]) -> None:
    actual = limits_of(graph, [3 for _ in graph.tables])
    assert (actual.low, actual.high) == limits


def test_value_of_unknown_keys_lies_apart_from_those_of_a_table() -> None:
    limits = limits_of(looked_up(-1), [3])
    assert [row for row in range(-3, 7) if limits.may_be(row)] == [-1, 2, 3, 4]
