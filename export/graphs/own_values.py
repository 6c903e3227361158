"""Finds operations of a traced call whose results for an example depend on more than its own
values: on time, or, as far as their axes show it, on the other examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from export.graphs.loading import tf
from export.user_lines import line_of_operation

_CLOCK = "Timestamp"
"""The operation of tf.timestamp."""
_OVER_AXES = frozenset(
    {
        *("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm", "ArgMax", "ArgMin"),
        *("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"),
    }
)
"""Operations whose second input is the axes that they join."""


@dataclass(frozen=True)
class OwnValues:
    """The first operation of each kind, with the user's line that made it; "" where there is none.

    Attributes:
      clock: The first operation that reads the clock.
      joining: The first operation that joins examples.
    """

    clock: str = ""
    joining: str = ""


def find_own_values(operations: Iterable[Any]) -> OwnValues:
    """Looks at operations of a graph, in the order in which they were made."""
    operations = list(operations)

    def first(matches: Callable[[Any], bool]) -> str:
        operation = next(filter(matches, operations), None)
        if operation is None:
            return ""
        line = line_of_operation(operation)
        if not line:
            return str(operation.type)
        return f"{line}, {operation.type}"

    return OwnValues(
        clock=first(lambda operation: operation.type == _CLOCK),
        joining=first(_joins_examples),
    )


def _joins_examples(operation: Any) -> bool:
    """Returns whether an operation joins values along an axis of unknown size, the batch's."""
    if operation.type == "MatMul":
        first, second = (tensor.shape for tensor in operation.inputs)
        if first.rank != 2 or second.rank != 2:
            return False
        # Only the batch has an unknown size: a product sums over it, or has a column for each
        # example.
        summed_size = first[0 if operation.get_attr("transpose_a") else 1]
        column_count = second[0 if operation.get_attr("transpose_b") else 1]
        return summed_size is None or column_count is None
    if operation.type.startswith("FusedBatchNorm"):
        return bool(operation.get_attr("is_training"))
    if operation.type not in _OVER_AXES:
        return False

    values, axes = operation.inputs
    joined_axes = tf.get_static_value(axes)
    if joined_axes is None or not values.shape.rank or values.shape[0] is not None:
        return False
    # An axis may be counted from the end.
    return bool(((joined_axes % values.shape.rank) == 0).any())
