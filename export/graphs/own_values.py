"""Finds operations of a traced call whose results for an example depend on more than its own
values: on chance, on time, or, as far as their axes tell, on the other examples of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from export.graphs.loading import tf
from export.user_lines import line_of_operation

_RANDOM = re.compile(
    r"(Stateless|Stateful)?(Random|Truncated|ParameterizedTruncated|Multinomial|UniformFull)\w*"
    r"|StatelessDropout|StatefulStandardNormal\w*|StatefulUniform\w*|StatefulRandomBinomial"
)
_CLOCK = "Timestamp"
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
      random: draws random numbers.
      clock: reads the clock.
      joining: joins examples.
    """

    random: str = ""
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
        return f"{line}, {operation.type}" if line else operation.type

    return OwnValues(
        random=first(lambda operation: _RANDOM.fullmatch(operation.type) is not None),
        clock=first(lambda operation: operation.type == _CLOCK),
        joining=first(_joins_examples),
    )


def _joins_examples(operation: Any) -> bool:
    """Returns whether an operation joins values along an axis of unknown size, the batch's."""
    if operation.type == "MatMul":
        left, right = (tensor.shape for tensor in operation.inputs)
        if left.rank != 2 or right.rank != 2:
            return False
        summed = left[0 if operation.get_attr("transpose_a") else 1]
        columns = right[0 if operation.get_attr("transpose_b") else 1]
        return summed is None or columns is None
    if operation.type.startswith("FusedBatchNorm"):
        return bool(operation.get_attr("is_training"))
    if operation.type not in _OVER_AXES:
        return False
    values, axes = operation.inputs
    joined = tf.get_static_value(axes)
    if joined is None or not values.shape.rank or values.shape[0] is not None:
        return False
    return bool(((joined % values.shape.rank) == 0).any())
