"""Buckets: rows that rise or fall with a number in steps: buckets of it, however it was normalised before.

Every operation on the way never falls as its number rises (`log1p`, a division by a positive constant, `searchsorted`,
`floor`), or never rises (`2024 - x`), so all of them together are a step function. TensorFlow itself computes its
value at numbers between which a step must be, until the two are neighbors in float32: what a bundle then compares with
are these numbers. Logarithms and their like, as TensorFlow computes them, tremble by a few float32 numbers around a
step: there it has one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format.manifest import BucketIds
from export.frameworks.loading import tf
from export.graph.input_paths import Followed, Values, run
from export.graph.origins import Source
from export.id_rules.found import Vocabularies, from_row

STEPS_MAX = 1 << 16
SEARCHES = frozenset({"UpperBound", "LowerBound"})
SERIES = frozenset({"Log", "Log1p", "Exp", "Expm1", "Tanh", "Sigmoid", "Softplus", "Erf"})
"""Computed by series: a few numbers beside each other may fall where they should rise."""
_ALONE = SERIES | {"Bucketize", "Cast", "Floor", "Ceil", "Round", "Rint", "Sqrt", "Relu", "Neg"}
_WITH_ANY = frozenset({"AddV2", "Add", "Sub", "Maximum", "Minimum"})
"""Of a constant, on either side."""
_SCALED = frozenset({"Mul", "RealDiv", "DivNoNan", "FloorDiv"})
"""By a constant that is not zero."""
KNOWN = _ALONE | _WITH_ANY | _SCALED | SEARCHES
_NEIGHBORS = 64
"""Numbers beside each step that are tried, too; only they may be of the row beside it, and only if series say so."""
_WHOLE_MAX = 1 << 24
"""Integers up to here are the same in float32."""

Numbers = NDArray[Any]


def find_steps(values: Values, call: Followed, rows: int | None) -> tuple[Source, BucketIds] | None:
    """Returns the number that rows rise or fall with, and the buckets that they are of it.

    Args:
      values: rows of a table.
      call: they are of.
      rows: of the table; None: as many as there may be.
    Returns:
      None where they are no steps, or more than `STEPS_MAX`.
    """
    chain = _chain(values, call) if values.tensor.dtype.is_integer else None
    if chain is None:
        return None
    steps, number = chain
    source = call.origin(number)
    dtype = number.tensor.dtype
    if not isinstance(source, Source) or dtype.name not in ("float32", "int32", "int64"):
        return None
    searched = any(each.type in {"Bucketize", *SEARCHES} for each in steps)
    if not (dtype.name == "float32" or searched):
        return None  # integers' arithmetic has rules of its own

    def row(numbers: Numbers) -> NDArray[np.int64]:
        found: Numbers = numbers.astype(dtype.as_numpy_dtype)
        for each in steps:
            found = _computed(each, call, found)
        whole: NDArray[np.int64] = found.astype(np.int64)
        return whole if rows is None else np.clip(whole, -1, rows)

    boundaries = _buckets(row, dtype.as_numpy_dtype, exact=not any(each.type in SERIES for each in steps))
    return None if boundaries is None else (source, boundaries)


def _chain(values: Values, call: Followed) -> tuple[list[Values], Values] | None:
    """Returns operations in the order in which they are done, and what the first one takes."""
    steps: list[Values] = []
    while True:
        found = call.origin(values)
        if isinstance(found, Source):
            return (steps[::-1], values) if steps else None
        taken = _taken(found, call)
        if taken is None:
            return None
        steps.append(found)
        values = taken


def _taken(values: Values, call: Followed) -> Values | None:
    """Returns what an operation makes something of that never turns as it rises; None if that is not known."""
    kind, inputs = values.type, values.inputs
    if kind in SEARCHES:
        among = call.constant(values.tensor.op.inputs[0])
        one = among is not None and among.ndim == 2 and among.shape[0] == 1
        return values.of_tensor(values.tensor.op.inputs[1]) if one else None
    numbers = [call.number(each) for each in inputs]
    open_ = [place for place, each in enumerate(numbers) if each is None]
    if len(open_) != 1:
        return None
    (place,) = open_
    beside = numbers[1 - place] if len(inputs) == 2 else None
    known = kind in _ALONE or (beside is not None and kind in _WITH_ANY) or (kind == "ClipByValue" and place == 0)
    scaled = beside is not None and beside != 0 and (kind == "Mul" or (kind in _SCALED and place == 0))
    return inputs[place] if known or scaled else None


def _computed(values: Values, call: Followed, numbers: Numbers) -> Numbers:
    """Returns what one operation makes of [m] numbers."""
    operation = values.tensor.op
    if values.type in SEARCHES:
        among, searched = operation.inputs
        given = [np.asarray(call.constant(among)), numbers[np.newaxis].astype(searched.dtype.as_numpy_dtype)]
        return np.asarray(run(operation, given)[0]).reshape(-1)
    if values.type == "Cast" and operation.outputs[0].dtype.is_integer and numbers.dtype.kind == "f":
        # Numbers beyond the integers, which no table has a row for, are the smallest one to TensorFlow.
        limits = np.iinfo(operation.outputs[0].dtype.as_numpy_dtype)
        above = np.nextafter(np.asarray(limits.max, numbers.dtype), np.asarray(0, numbers.dtype))
        numbers = np.clip(numbers, limits.min, above)
    given = []
    for each in values.inputs:
        constant = call.number(each)
        given.append(np.asarray(numbers if constant is None else constant, each.tensor.dtype.as_numpy_dtype))
    return np.asarray(run(operation, given)[0])


def _buckets(row: Any, dtype: Any, exact: bool) -> BucketIds | None:
    """Returns the numbers at which rows begin, as buckets; None if rows ever turn, or are too many."""
    real = dtype is np.float32
    number = _number if real else (lambda keys: keys)
    ends = np.array([-_KEYS_MAX, _KEYS_MAX] if real else [-_WHOLE_MAX, _WHOLE_MAX])
    first, last = row(number(ends)).tolist()
    if abs(last - first) > STEPS_MAX or min(first, last) < -1:
        return None
    if not real and row(np.array([np.iinfo(dtype).min, np.iinfo(dtype).max])).tolist() != [first, last]:
        return None  # a step lies beyond what float32 distinguishes
    sign = -1 if last < first else 1

    def rising(keys: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = sign * row(number(keys))
        return found

    wanted = np.arange(sign * first + 1, sign * last + 1)
    low, high = (np.full(wanted.size, end) for end in ends)
    while np.any(high - low > 1):
        middle = low + (high - low) // 2
        there = rising(middle) >= wanted
        low, high = np.where(there, low, middle), np.where(there, middle, high)
    if not _rises(rising, high, ends, exact):
        return None
    return BucketIds(boundaries=tuple(map(float, number(high))), first_row=min(first, last), falling=sign < 0)


def _rises(row: Any, steps: NDArray[np.int64], ends: NDArray[np.int64], exact: bool) -> bool:
    """Returns whether rows never fall, between the ends and close to each step."""
    steps = np.sort(steps)
    near = (np.unique(steps)[:, np.newaxis] + np.arange(-_NEIGHBORS, _NEIGHBORS + 1)).reshape(-1)
    tried = np.linspace(ends[0], ends[1], 1 << 14).astype(np.int64)
    tried = np.union1d(tried, near) if exact else np.setdiff1d(tried, near)
    tried = tried[(tried >= ends[0]) & (tried <= ends[1])]
    return bool(np.array_equal(row(tried), row(ends)[0] + np.searchsorted(steps, tried, side="right")))


_KEYS_MAX = int(np.array(np.finfo(np.float32).max).view(np.int32))
"""Integers from minus this to this stand for the finite numbers of float32, in their order."""


def _number(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the numbers that some keys stand for."""
    bits = np.abs(keys).astype(np.uint32) | np.where(keys < 0, np.uint32(1 << 31), np.uint32(0))
    return bits.view(np.float32)


def rows_of_buckets(rule: BucketIds, values: Any, _vocabularies: Vocabularies) -> Any:
    """Returns what TensorFlow makes of [m] numbers by a rule."""
    found = bucketized(values, rule.boundaries)
    return (len(rule.boundaries) - found if rule.falling else found) + rule.first_row


def bucketized(values: Any, boundaries: Sequence[float]) -> Any:
    """Returns how many boundaries are not above each number, by TensorFlow."""
    return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=list(map(float, boundaries))), tf.int64)


def describe_buckets(rule: BucketIds) -> str:
    """Returns how numbers become rows, in a few words."""
    turned = ", the largest number first" if rule.falling else ""
    return f"bucket of {len(rule.boundaries) + 1}{from_row(max(rule.first_row, 0))}{turned}"
