"""Finds buckets: rows that are a step function of a number, however it is normalized before.

Each operation is monotonic (`log1p`, a division by a positive constant, `searchsorted`, `floor`,
`2024 - x`), so their composition is a step function. Bisection with TensorFlow's own operations
finds each step, until its two sides are neighbors in float32; these numbers are the boundaries of
the bundle. TensorFlow's logarithms and similar functions are not monotonic within a few float32
numbers of a step: there the boundary is one of these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from export.graphs.walks import ID_DTYPES
from export.tensorflow_models.graph.input_paths import CallGraph, Values, run
from export.tensorflow_models.graph.origins import Source

OPERATIONS_MAX = 64
"""Maximum number of operations that a step function is followed through."""
STEPS_MAX = 1 << 16
"""Maximum number of steps, all of which are bisected at once."""
SEARCHES = frozenset({"UpperBound", "LowerBound"})
SERIES = frozenset({"Log", "Log1p", "Exp", "Expm1", "Tanh", "Sigmoid", "Softplus", "Erf"})
"""Operations that are computed by series: not monotonic between a few neighboring numbers."""
_UNARY = SERIES | {"Bucketize", "Cast", "Floor", "Ceil", "Round", "Rint", "Sqrt", "Relu", "Neg"}
"""Monotonic operations of one operand."""
_BINARY = frozenset({"AddV2", "Add", "Sub", "Maximum", "Minimum"})
"""Operations that are monotonic with a constant on either side."""
_SCALING = frozenset({"Mul", "RealDiv", "DivNoNan", "FloorDiv"})
"""Operations that are monotonic with a constant other than zero."""
_NEIGHBOR_COUNT = 64
"""The number of values on each side of a step that are tested, too; with series, only these may
have the neighboring row.
"""
_TESTED_COUNT = 1 << 14
"""The number of values, spread over all of a type, that are tested, too."""
_WHOLE_MAX = 1 << 24
"""Integers up to here are exact in float32."""

Numbers = NDArray[Any]


class Steps(NamedTuple):
    """A step function of an input.

    Attributes:
      source: The input.
      values: The values of the input, or integers that they are cast to.
      boundaries: The float32 numbers at which steps begin, ascending.
      first_row: The smallest result.
      falling: Whether results fall as the input rises.
    """

    source: Source
    values: Values
    boundaries: tuple[float, ...]
    first_row: int
    falling: bool


def find(values: Values, call: CallGraph, rows: int | None = None) -> Steps | None:
    """Returns the step function of an input by which integers are computed.

    Args:
      values: Integers.
      call: The traced call.
      rows: The number of rows of the table that they are rows of, outside of which all integers are
        alike; None: they are rows of no table.

    Returns:
      The function; None if they are no step function, or have more than `STEPS_MAX` steps.
    """
    if not values.tensor.dtype.is_integer:
        return None
    chain = _chain(values, call)
    if chain is None:
        return None
    operations, source, numbers_of_input = chain
    dtype = numbers_of_input.tensor.dtype
    # Arithmetic of integers has its own operations.
    is_searched = any(operation.type in {"Bucketize", *SEARCHES} for operation in operations)
    is_number = dtype.name == "float32" or (dtype.name in ("int32", "int64") and is_searched)
    if not is_number:
        return None

    # Rows below 0 may count from the table's end.
    rows_below = 0
    if rows is not None and call.from_end:
        rows_below = rows

    def row(numbers: Numbers) -> NDArray[np.int64]:
        results: Numbers = numbers.astype(dtype.as_numpy_dtype)
        for operation in operations:
            results = _compute(operation, call, results)
        integers: NDArray[np.int64] = results.astype(np.int64)
        if rows is None:
            return integers
        # One step leads to all rows outside of the table on each side.
        return np.clip(integers, -1 - rows_below, rows) + rows_below

    is_exact = not any(operation.type in SERIES for operation in operations)
    steps = _steps(source, numbers_of_input, row, is_exact)
    if steps is None:
        return None
    return steps._replace(first_row=steps.first_row - rows_below)


def _chain(values: Values, call: CallGraph) -> tuple[list[Values], Source, Values] | None:
    """Returns operations in the order in which they run, the input that the first of them reads,
    and the values that it reads; None if a result is not known to be monotonic in one input.
    """
    operations: list[Values] = []
    while len(operations) <= OPERATIONS_MAX:
        origin = call.origin(values)
        if isinstance(origin, Source):
            if not operations:
                return None
            return operations[::-1], origin, values
        operand = _monotonic_operand(origin, call)
        if operand is None:
            return None
        operations.append(origin)
        values = operand
    return None


def _monotonic_operand(values: Values, call: CallGraph) -> Values | None:
    """Returns the operand in which an operation is known to be monotonic; None if there is none."""
    kind = values.type
    operands = values.inputs
    if kind in SEARCHES:
        sorted_numbers = call.constant(values.tensor.op.inputs[0])
        # One list for all examples.
        if sorted_numbers is None or sorted_numbers.shape[0] != 1:
            return None
        return values.of_tensor(values.tensor.op.inputs[1])

    constants = [call.number(operand) for operand in operands]
    if constants.count(None) != 1 or (kind == "Cast" and not _is_cast_to_numbers(values)):
        return None
    position = constants.index(None)
    is_monotonic = kind in _UNARY | _BINARY or (kind == "ClipByValue" and position == 0)
    is_scaling = kind == "Mul" or (kind in _SCALING and position == 0)
    # A product with zero, or a quotient by it, is the same for all numbers.
    if is_scaling and len(operands) == 2:
        is_monotonic = constants[1 - position] != 0
    if not is_monotonic:
        return None
    return operands[position]


def _is_cast_to_numbers(values: Values) -> bool:
    """Returns whether a cast keeps the order of numbers: bools and narrow integers do not."""
    dtype = values.tensor.dtype
    return bool(dtype.is_floating or dtype.name in ID_DTYPES)


def _compute(values: Values, call: CallGraph, numbers: Numbers) -> Numbers:
    """Applies one operation to [m] numbers."""
    operation = values.tensor.op
    if values.type in SEARCHES:
        sorted_numbers, searched = operation.inputs
        # Both operands have an axis of examples, which is one here.
        operands = [
            np.asarray(call.constant(sorted_numbers)),
            numbers[np.newaxis].astype(searched.dtype.as_numpy_dtype),
        ]
        return np.asarray(run(operation, operands)[0]).reshape(-1)

    operands = []
    for operand in values.inputs:
        argument = call.number(operand)
        if argument is None:
            argument = numbers
        operands.append(np.asarray(argument, operand.tensor.dtype.as_numpy_dtype))
    return np.asarray(run(operation, operands)[0])


def _steps(source: Source, values: Values, row: Any, is_exact: bool) -> Steps | None:
    """Returns the numbers at which rows begin; None if rows are not monotonic or too many.

    Numbers are searched by integer keys: integers are their own keys, and the keys of floats number
    them in order. So neighboring keys are neighboring numbers, and bisection ends.

    Args:
      source: The input.
      values: The values of the input.
      row: Returns the rows of numbers.
      is_exact: Whether all operations round once, so that rows never fall near a step.
    """
    dtype = values.tensor.dtype.as_numpy_dtype
    is_float = dtype is np.float32
    key_max = _KEYS_MAX if is_float else _WHOLE_MAX

    def number(keys: NDArray[np.int64]) -> Numbers:
        return _number(keys) if is_float else keys

    ends = np.array([-key_max, key_max])
    first, last = row(number(ends)).tolist()
    if abs(last - first) > STEPS_MAX or min(first, last) < -1:
        return None
    if not is_float and not _is_constant_beyond(row, np.iinfo(dtype), first, last):
        return None
    sign = -1 if last < first else 1

    def rising(keys: NDArray[np.int64]) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = sign * row(number(keys))
        return rows

    # All steps at once: 32 rounds, whatever their number.
    row_of_step = np.arange(sign * first + 1, sign * last + 1)
    low = np.full(row_of_step.size, ends[0])
    high = np.full(row_of_step.size, ends[1])
    while np.any(high - low > 1):
        middle = low + (high - low) // 2
        is_reached = rising(middle) >= row_of_step
        low = np.where(is_reached, low, middle)
        high = np.where(is_reached, middle, high)
    if not _rises(rising, high, ends, is_exact):
        return None
    boundaries = tuple(map(float, number(high)))
    first_row = min(first, last)
    return Steps(source, values, boundaries, first_row, falling=sign < 0)


def _is_constant_beyond(row: Any, limits: Any, first: int, last: int) -> bool:
    """Returns whether integers that float32 may not distinguish have the first and the last row:
    no step is among them, and no sum or product of them that wraps around has another row.
    """
    spacing = (
        1 << limits.bits
    ) // _TESTED_COUNT - 1  # odd: products with powers of two differ, too
    tested_keys = limits.min + spacing * np.arange(_TESTED_COUNT)
    below = tested_keys[tested_keys < -_WHOLE_MAX]
    above = np.append(tested_keys[tested_keys > _WHOLE_MAX], limits.max)
    is_first_below = np.all(row(below) == first)
    is_last_above = np.all(row(above) == last)
    return bool(is_first_below and is_last_above)


def _rises(row: Any, steps: NDArray[np.int64], ends: NDArray[np.int64], is_exact: bool) -> bool:
    """Returns whether rows never fall, overall and close to each step."""
    steps = np.sort(steps)
    offsets = np.arange(-_NEIGHBOR_COUNT, _NEIGHBOR_COUNT + 1)
    near = np.add.outer(np.unique(steps), offsets).reshape(-1)
    low, high = ends.tolist()
    tested_keys = np.linspace(low, high, _TESTED_COUNT).astype(np.int64)
    if is_exact:
        tested_keys = np.union1d(tested_keys, near)
    else:
        # Near a step, series switch back and forth between two rows.
        tested_keys = np.setdiff1d(tested_keys, near)
    tested_keys = np.clip(tested_keys, low, high)
    first_row = row(ends)[0]
    steps_below = np.searchsorted(steps, tested_keys, side="right")
    return bool(np.array_equal(row(tested_keys), first_row + steps_below))


_KEYS_MAX = int(np.finfo(np.float32).max.view(np.int32))
"""The keys from minus this one to this one number the finite float32 values in order."""


def _number(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the float32 values of keys: the key of a positive number is its bits, and the key of
    a negative number is that of its absolute value, negated.
    """
    sign_bit = 1 << 31
    bits = np.where(keys < 0, -keys | sign_bit, keys)
    return bits.astype(np.uint32).view(np.float32)
