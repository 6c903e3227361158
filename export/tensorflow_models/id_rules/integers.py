"""Integers: cast, or computed by sums, products, quotients, remainders and limits.

Source: TensorFlow 2.20: AddV2, Sub, Mul, Neg, FloorDiv, FloorMod, TruncateMod, Minimum, Maximum,
ClipByValue and Abs of integers, which wrap around at 32 or 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from bundle.format.manifest import Cast, ComputedIds, IdOperation
from export.graphs.walks import ID_DTYPES
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds

_EITHER_WAY = {"AddV2": "add", "Mul": "multiply", "Minimum": "at_most", "Maximum": "at_least"}
_BY_POSITIVE = {"FloorDiv": "divide", "FloorMod": "remainder", "TruncateMod": "truncated_remainder"}
_OF_ONE: dict[str, tuple[str, int | None]] = {"Neg": ("multiply", -1), "Abs": ("absolute", None)}
OPERATIONS = frozenset({"Sub", "ClipByValue", *_EITHER_WAY, *_BY_POSITIVE, *_OF_ONE})
Rounding = Literal["down", "up", "half_even", "toward_zero"]
_ROUNDED: dict[str, Rounding] = {
    "Floor": "down",
    "Ceil": "up",
    "Round": "half_even",
    "Rint": "half_even",
}
OPERATIONS_MAX = 64
"""Maximum number of operations that one rule is followed through."""
_LIMITS = {bits: (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64)}

WRAPPED = ComputedIds(operations=(IdOperation(do="int32"),))
"""A cast of int64 to int32."""

Steps = tuple[IdOperation, ...]


def find_integer(values: Values, call: CallGraph) -> ResolvedIds | None:
    """Returns the input of integers that are unchanged or cast from it; None if they
    are computed.
    """
    found = call.origin(values)
    if isinstance(found, Source):
        wraps = Cast(of="int64", to="int32") if may_wrap(values, call) else None
        return ResolvedIds(found, cast=wraps)
    to = found.tensor.dtype.name
    if found.type != "Cast" or to not in ID_DTYPES or not found.inputs[0].tensor.dtype.is_floating:
        return None
    number = call.origin(found.inputs[0])
    rounding: Rounding = "toward_zero"
    if isinstance(number, Values) and number.type in _ROUNDED:
        rounding = _ROUNDED[number.type]
        number = call.origin(number.inputs[0])
    cast = Cast(of="float32", to=to, rounding=rounding)
    return ResolvedIds(number, cast=cast) if isinstance(number, Source) else None


def find(values: Values, call: CallGraph, _rows: int | None) -> ResolvedIds | None:
    """Returns the input and rule of integers that are cast from floats, or computed with constants;
    else None.
    """
    found = find_integer(values, call)
    if found is not None:
        return found
    steps: list[tuple[IdOperation | None, int]] = []
    while found is None:
        last = call.origin(values)
        if (
            len(steps) > OPERATIONS_MAX
            or isinstance(last, Source)
            or last.type not in OPERATIONS
            or last.tensor.dtype.name not in ID_DTYPES
        ):
            return None
        if may_wrap(values, call):
            steps.append((None, 32))
        numbers = [call.number(each) for each in last.inputs]
        operations = _operations(
            last.type, [None if each is None else int(each) for each in numbers]
        )
        if operations is None:
            return None
        steps += [(each, 8 * last.tensor.dtype.size) for each in reversed(operations)]
        values = last.inputs[numbers.index(None)]
        found = find_integer(values, call)
    operations = _wrapped(steps[::-1], _LIMITS[8 * values.tensor.dtype.size])
    return replace(found, rule=ComputedIds(operations=operations))


def has_same_source(values: Values, found: ResolvedIds, call: CallGraph) -> bool:
    """Returns whether values are the input values that some ids come from."""
    same = find_integer(values, call) if values.tensor.dtype.is_integer else None
    if same is None:
        return call.origin(values) == found.source and found.cast is None
    if same.source != found.source:
        return False
    if found.rule is not None:
        return same.cast == found.cast
    # Integers that wrap around are no rows of the table, cast or not.
    real = [
        None if each is None or each.of != "float32" else each for each in (same.cast, found.cast)
    ]
    return real[0] == real[1]


def find_raw(values: Values, call: CallGraph) -> ResolvedIds | None:
    """Returns the input of unchanged integers or strings, or of integers as decimal strings; else
    None.
    """
    if values.tensor.dtype.is_integer:
        return find_integer(values, call)
    texts = call.origin(values)
    if isinstance(texts, Source):
        return ResolvedIds(texts)
    return find_integer(texts.inputs[0], call) if is_decimal(texts) else None


def is_decimal(texts: Values) -> bool:
    """Returns whether texts are integers in decimal, without spaces, zeros or signs in front."""
    if texts.type != "AsString" or not texts.inputs[0].tensor.dtype.is_integer:
        return False
    operation = texts.tensor.op
    # The fill is a flag of C's printf, which has an effect without a width, too.
    return bool(operation.get_attr("width") <= 0 and operation.get_attr("fill") == b"")


def may_wrap(values: Values, call: CallGraph) -> bool:
    """Returns whether a cast to fewer bits may have changed integers since they were computed."""
    while (before := call.before(values)) is not None:
        if before.tensor.dtype.size > values.tensor.dtype.size:
            return True
        values = before
    return False


def _operations(kind: str, numbers: Sequence[int | None]) -> Steps | None:
    """Returns an operation on integers as data; the None among its numbers is its
    variable operand.
    """
    given = [each for each in numbers if each is not None]
    first = numbers[0] is None
    if len(given) != len(numbers) - 1 or any(abs(each) > _LIMITS[64][1] for each in given):
        return None
    done: list[tuple[str, int | None]] = []
    if kind in _OF_ONE:
        done = [_OF_ONE[kind]]
    elif kind == "ClipByValue":
        smallest, largest = given
        done = [("at_most", largest), ("at_least", smallest)] if first else []
    else:
        (by,) = given
        if kind == "Sub":
            done = [("add", -by)] if first else [("multiply", -1), ("add", by)]
        elif kind in _EITHER_WAY or (first and by > 0):
            done = [((_EITHER_WAY | _BY_POSITIVE)[kind], by)]
    return tuple(IdOperation.model_validate({"do": do, "by": by}) for do, by in done) or None


def _wrapped(steps: Sequence[tuple[IdOperation | None, int]], reach: tuple[int, int]) -> Steps:
    """Adds a wrap to 32 bits wherever integers may exceed them.

    Args:
      steps: operations with their bits; None only wraps.
      reach: the smallest and the largest integer before them.
    """
    done: list[IdOperation] = []
    for operation, bits in steps:
        if operation is not None:
            done.append(operation)
            reach = _reach(operation, reach)
        limits = _LIMITS[bits]
        if reach[0] < limits[0] or reach[1] > limits[1]:
            reach = limits
            done += [IdOperation(do="int32")] if bits == 32 else []
    return tuple(done)


def _reach(operation: IdOperation, reach: tuple[int, int]) -> tuple[int, int]:  # noqa: PLR0911 - one per operation
    """Returns the range of integers after an operation that does not wrap."""
    low, high = reach
    by = operation.by or 0
    match operation.do:
        case "add":
            return low + by, high + by
        case "multiply":
            return min(low * by, high * by), max(low * by, high * by)
        case "divide":
            return low // by, high // by
        case "remainder":
            return 0, by - 1
        case "truncated_remainder":
            smallest = 1 - by if low < 0 else 0
            largest = by - 1 if high > 0 else 0
            return smallest, largest
        case "at_least":
            return max(low, by), max(high, by)
        case "at_most":
            return min(low, by), min(high, by)
        case "absolute":
            return 0, max(abs(low), abs(high))
    raise ValueError(operation.do)


def reach_of(rule: ComputedIds) -> tuple[int, int]:
    """Returns the smallest and the largest result of a rule; those of 64 bits if it may wrap
    around.
    """
    reach = _LIMITS[64]
    for each in rule.operations:
        reach = _LIMITS[32] if each.do == "int32" else _reach(each, reach)
        if reach[0] < _LIMITS[64][0] or reach[1] > _LIMITS[64][1]:
            reach = _LIMITS[64]
    return reach
