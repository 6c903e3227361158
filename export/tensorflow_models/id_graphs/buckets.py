"""Buckets: rows that are a step function of a number, however it is normalized before.

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
"""Operations that a step function is followed through."""
STEPS_MAX = 1 << 16
SEARCHES = frozenset({"UpperBound", "LowerBound"})
SERIES = frozenset({"Log", "Log1p", "Exp", "Expm1", "Tanh", "Sigmoid", "Softplus", "Erf"})
"""Computed by series: not monotonic between a few neighboring numbers."""
_ALONE = SERIES | {"Bucketize", "Cast", "Floor", "Ceil", "Round", "Rint", "Sqrt", "Relu", "Neg"}
_WITH_ANY = frozenset({"AddV2", "Add", "Sub", "Maximum", "Minimum"})
"""With a constant on either side."""
_SCALED = frozenset({"Mul", "RealDiv", "DivNoNan", "FloorDiv"})
"""With a constant other than zero."""
_NEIGHBORS = 64
"""Numbers on each side of a step that are tested too; with series, only they may have the
neighboring row.
"""
_TRIED = 1 << 14
"""Numbers spread over all those of a type that are tested too."""
_WHOLE_MAX = 1 << 24
"""Integers up to here are exact in float32."""

Numbers = NDArray[Any]


class Steps(NamedTuple):
    """A step function of an input.

    Attributes:
      source: the input.
      values: its values, or integers that they are cast to.
      boundaries: the float32 numbers at which steps begin, ascending.
      first_row: the smallest result.
      falling: whether results fall as the input rises.
    """

    source: Source
    values: Values
    boundaries: tuple[float, ...]
    first_row: int
    falling: bool


def find(values: Values, call: CallGraph, rows: int | None = None) -> Steps | None:
    """Returns the step function that integers are of an input.

    Args:
      values: integers.
      call: the traced call.
      rows: of the table that they are rows of, which any others are outside of; None: none.
    Returns:
      None if they are none, or have more than `STEPS_MAX` steps.
    """
    chain = _chain(values, call) if values.tensor.dtype.is_integer else None
    if chain is None:
        return None
    steps, source, sent = chain
    dtype = sent.tensor.dtype
    # Arithmetic of integers has its own operations.
    searched = any(step.type in {"Bucketize", *SEARCHES} for step in steps)
    is_number = dtype.name == "float32" or (dtype.name in ("int32", "int64") and searched)
    if not is_number:
        return None

    # Rows below 0 may count from the table's end.
    below = rows if rows is not None and call.from_end else 0

    def row(numbers: Numbers) -> NDArray[np.int64]:
        results: Numbers = numbers.astype(dtype.as_numpy_dtype)
        for step in steps:
            results = _computed(step, call, results)
        whole: NDArray[np.int64] = results.astype(np.int64)
        return whole if rows is None else np.clip(whole, -1 - below, rows) + below

    exact = not any(step.type in SERIES for step in steps)
    result = _steps(source, sent, row, exact)
    return result and result._replace(first_row=result.first_row - below)


def _chain(values: Values, call: CallGraph) -> tuple[list[Values], Source, Values] | None:
    """Returns operations in the order in which they run, and the input of the first
    with the values that it takes.
    """
    steps: list[Values] = []
    while len(steps) <= OPERATIONS_MAX:
        found = call.origin(values)
        if isinstance(found, Source):
            return (steps[::-1], found, values) if steps else None
        taken = _taken(found, call)
        if taken is None:
            return None
        steps.append(found)
        values = taken
    return None


def _taken(values: Values, call: CallGraph) -> Values | None:
    """Returns the operand in which an operation is known to be monotonic; else None."""
    kind = values.type
    inputs = values.inputs
    if kind in SEARCHES:
        among = call.constant(values.tensor.op.inputs[0])
        one = among is not None and among.shape[0] == 1
        return values.of_tensor(values.tensor.op.inputs[1]) if one else None
    numbers = [call.number(each) for each in inputs]
    open_ = [place for place, each in enumerate(numbers) if each is None]
    if len(open_) != 1 or (kind == "Cast" and not _is_cast_to_numbers(values)):
        return None
    (place,) = open_
    beside = numbers[1 - place] if len(inputs) == 2 else None
    known = kind in _ALONE | _WITH_ANY or (kind == "ClipByValue" and place == 0)
    scaled = kind == "Mul" or (kind in _SCALED and place == 0)
    return inputs[place] if known or (scaled and beside != 0) else None


def _is_cast_to_numbers(values: Values) -> bool:
    """Returns whether a cast keeps the order of numbers: bools and narrow integers do not."""
    dtype = values.tensor.dtype
    return bool(dtype.is_floating or dtype.name in ID_DTYPES)


def _computed(values: Values, call: CallGraph, numbers: Numbers) -> Numbers:
    """Applies one operation to [m] numbers."""
    operation = values.tensor.op
    if values.type in SEARCHES:
        among, searched = operation.inputs
        given = [
            np.asarray(call.constant(among)),
            numbers[np.newaxis].astype(searched.dtype.as_numpy_dtype),
        ]
        return np.asarray(run(operation, given)[0]).reshape(-1)
    given = []
    for each in values.inputs:
        constant = call.number(each)
        given.append(
            np.asarray(numbers if constant is None else constant, each.tensor.dtype.as_numpy_dtype)
        )
    return np.asarray(run(operation, given)[0])


def _steps(source: Source, values: Values, row: Any, exact: bool) -> Steps | None:
    """Returns the numbers at which rows begin; None if rows are not monotonic or too many."""
    dtype = values.tensor.dtype.as_numpy_dtype
    real = dtype is np.float32
    number = _number if real else (lambda keys: keys)
    ends = np.array([-_KEYS_MAX, _KEYS_MAX] if real else [-_WHOLE_MAX, _WHOLE_MAX])
    first, last = row(number(ends)).tolist()
    if abs(last - first) > STEPS_MAX or min(first, last) < -1:
        return None
    if not real and not _is_constant_beyond(row, np.iinfo(dtype), first, last):
        return None
    sign = -1 if last < first else 1

    def rising(keys: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = sign * row(number(keys))
        return found

    wanted = np.arange(sign * first + 1, sign * last + 1)
    low, high = (np.full(wanted.size, end) for end in ends)
    while np.any(high - low > 1):
        middle = low + (high - low) // 2
        there = rising(middle) >= wanted
        low = np.where(there, low, middle)
        high = np.where(there, middle, high)
    if not _rises(rising, high, ends, exact):
        return None
    return Steps(source, values, tuple(map(float, number(high))), min(first, last), sign < 0)


def _is_constant_beyond(row: Any, limits: Any, first: int, last: int) -> bool:
    """Returns whether integers that float32 may not distinguish have the first and the last row:
    no step is among them, and no sum or product of them that wraps around has another row.
    """
    spacing = (1 << limits.bits) // _TRIED - 1  # odd: products with powers of two differ, too
    tried = limits.min + spacing * np.arange(_TRIED)
    below = tried[tried < -_WHOLE_MAX]
    above = np.append(tried[tried > _WHOLE_MAX], limits.max)
    return bool(np.all(row(below) == first) and np.all(row(above) == last))


def _rises(row: Any, steps: NDArray[np.int64], ends: NDArray[np.int64], exact: bool) -> bool:
    """Returns whether rows never fall, overall and close to each step."""
    steps = np.sort(steps)
    near = (np.unique(steps)[:, np.newaxis] + np.arange(-_NEIGHBORS, _NEIGHBORS + 1)).reshape(-1)
    tried = np.linspace(ends[0], ends[1], _TRIED).astype(np.int64)
    tried = np.union1d(tried, near) if exact else np.setdiff1d(tried, near)
    tried = np.clip(tried, ends[0], ends[1])
    return bool(
        np.array_equal(row(tried), row(ends)[0] + np.searchsorted(steps, tried, side="right"))
    )


_KEYS_MAX = int(np.array(np.finfo(np.float32).max).view(np.int32))
"""Integers from minus this to this number the finite float32 values in order."""


def _number(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the float32 values of such integers."""
    return np.where(keys < 0, -keys | 1 << 31, keys).astype(np.uint32).view(np.float32)
