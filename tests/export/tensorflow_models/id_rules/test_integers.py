"""Bounds of what a rule gives: they decide where it wraps, and whether rows are negative."""

from __future__ import annotations

from typing import Any

import pytest

from bundle.format.manifest import ComputedIds
from export.tensorflow_models.id_rules.integers import reach_of

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize(
    ("operations", "reach"),
    [
        ([("at_least", 0)], (0, INT64[1])),
        ([("at_most", 0)], (INT64[0], 0)),
        ([("at_least", 3), ("at_least", 1)], (3, INT64[1])),
        ([("at_least", 3), ("at_least", 5)], (5, INT64[1])),
        ([("remainder", 10), ("at_most", 4)], (0, 4)),
        ([("remainder", 10), ("at_most", 40)], (0, 9)),
        ([("remainder", 10), ("add", -20), ("at_least", -15)], (-15, -11)),
        ([("truncated_remainder", 10)], (-9, 9)),
        ([("at_least", 0), ("truncated_remainder", 10)], (0, 9)),
        ([("at_least", -1), ("truncated_remainder", 10)], (-9, 9)),
        ([("at_most", 0), ("truncated_remainder", 10)], (-9, 0)),
        ([("at_most", 1), ("truncated_remainder", 10)], (-9, 9)),
        ([("remainder", 10), ("multiply", 3)], (0, 27)),
        ([("remainder", 10), ("multiply", -3)], (-27, 0)),
        ([("remainder", 10), ("add", -7), ("multiply", 3)], (-21, 6)),
        ([("remainder", 10), ("add", -7), ("multiply", -3)], (-6, 21)),
        ([("remainder", 10), ("add", -5), ("divide", 2)], (-3, 2)),
        ([("remainder", 10), ("add", -7), ("absolute", None)], (0, 7)),
        ([("remainder", 10), ("add", -2), ("absolute", None)], (0, 7)),
        ([("int32", None)], INT32),
        ([("int32", None), ("add", 1)], (INT32[0] + 1, INT32[1] + 1)),
        ([("add", 1), ("int32", None)], INT32),
        # These may wrap around.
        ([("add", 1)], INT64),
        ([("add", -1)], INT64),
        ([("multiply", 2), ("remainder", 5)], (0, 4)),
        ([("int32", None), ("multiply", 1 << 32)], (INT32[0] << 32, INT32[1] << 32)),
        ([("int32", None), ("multiply", 1 << 33)], INT64),
        ([("absolute", None)], INT64),
    ],
)
def test_reach_of_a_rule_is_that_of_its_operations(
    operations: list[tuple[str, int | None]], reach: tuple[int, int]
) -> None:
    steps: list[dict[str, Any]] = [{"do": do, "by": by} for do, by in operations]
    rule = ComputedIds.model_validate({"operations": steps})
    assert reach_of(rule) == reach
