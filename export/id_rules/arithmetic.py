"""Recognises what a model computes of integers before it looks them up: sums, products, quotients, remainders, limits.

Source: TensorFlow 2.20: AddV2, Sub, Mul, Neg, FloorDiv, FloorMod, TruncateMod, Minimum, Maximum, ClipByValue and Abs of
integers, which wrap around at 32 or 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bundle.format.manifest import ArithmeticIds, Cast, ComputedIds, IdOperation, IdRule, Unknown
from export.graph.input_paths import Followed, Values
from export.graph.origins import Source, hands_on
from export.graph.specs import Keys

COMPUTED = frozenset(
    {
        *("AddV2", "Sub", "Mul", "Neg", "FloorDiv", "FloorMod", "TruncateMod"),
        *("Minimum", "Maximum", "ClipByValue", "Abs"),
    }
)
_ROUNDED: dict[str, Literal["down", "up", "half_even"]] = {
    "Floor": "down",
    "Ceil": "up",
    "Round": "half_even",
    "Rint": "half_even",
}
_LIMITS = {bits: (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64)}

Steps = tuple[IdOperation, ...]


@dataclass(frozen=True)
class FoundIds:
    """Where ids come from, and what is done to them on the way; as in FeatureSpec."""

    source: Source
    rule: IdRule | None = None
    unknown: Unknown | None = None
    keys: tuple[Keys, ...] = ()
    cast: Cast | None = None


def find_whole(values: Values, call: Followed) -> FoundIds | None:
    """Returns the input that integers are, or what is cast to them; None if they are computed otherwise."""
    found = call.origin(values)
    if isinstance(found, Source):
        return FoundIds(found, cast=Cast(of="int64", to="int32") if _narrows(values, call) else None)
    to = found.tensor.dtype.name
    if found.type != "Cast" or to not in ("int32", "int64") or not found.inputs[0].tensor.dtype.is_floating:
        return None
    number = call.origin(found.inputs[0])
    rounding = _ROUNDED.get("" if isinstance(number, Source) else number.type, "toward_zero")
    if isinstance(number, Values) and rounding != "toward_zero":
        number = call.origin(number.inputs[0])
    cast = Cast(of="float32", to=to, rounding=rounding)
    return FoundIds(number, cast=cast) if isinstance(number, Source) else None


def find_computed(values: Values, call: Followed, exact: bool = False) -> FoundIds | None:
    """Returns the input that integers are computed of by constants, and how; None if it is otherwise.

    Unless it is to be `exact`, sums that wrap around, which no table has a row for, are told as if they did not.
    """
    traced = _traced(values, call) if values.tensor.dtype.is_integer else None
    if traced is None:
        return None
    found, operations = traced
    # An id beyond the table is unknown: it never wraps.
    if not exact and all(each.do in ("add", "int32") for each in operations):
        shift = sum(each.by or 0 for each in operations)
        cast = None if found.cast is not None and found.cast.of == "int64" else found.cast
        return replace(found, rule=ArithmeticIds(shift=shift) if shift else None, cast=cast)
    return replace(found, rule=_arithmetic(operations) or ComputedIds(operations=operations))


def _narrows(values: Values, call: Followed) -> bool:
    """Tells whether large integers wrap around on their way from where they are computed, and so are others."""
    tensor = values.tensor
    while tensor.name not in call.sources and tensor.op.inputs:
        before = tensor.op.inputs[0]
        if tensor.op.type == "Cast" and before.dtype.is_integer and before.dtype.size > tensor.dtype.size:
            return True
        if not hands_on(tensor.op):
            return False
        tensor = before
    return False


def _traced(values: Values, call: Followed) -> tuple[FoundIds, Steps] | None:
    """Returns where integers come from, and each operation that was done to them since, the first one first."""
    steps: list[tuple[IdOperation | None, int]] = []
    while True:
        found = find_whole(values, call)
        if found is not None:
            break
        last = call.origin(values)
        if isinstance(last, Source) or last.type not in COMPUTED or not last.tensor.dtype.is_integer:
            return None
        if _narrows(values, call):
            steps.append((None, 32))
        numbers = [call.number(each) for each in last.inputs]
        operations = _told(last.type, [None if each is None else int(each) for each in numbers])
        if operations is None:
            return None
        steps += [(each, 8 * last.tensor.dtype.size) for each in reversed(operations)]
        values = last.inputs[numbers.index(None)]
    return found, _wrapped(steps[::-1], _LIMITS[8 * values.tensor.dtype.size])


def _told(kind: str, numbers: Sequence[int | None]) -> Steps | None:
    """Returns an operation of integers as data; a number is None where it is what the others are done to."""
    open_ = [place for place, each in enumerate(numbers) if each is None]
    given = [each for each in numbers if each is not None]
    if len(open_) != 1 or len(given) != {"Neg": 0, "Abs": 0, "ClipByValue": 2}.get(kind, 1):
        return None
    if any(abs(each) > _LIMITS[64][1] for each in given):
        return None
    return _operations(kind, given, first=open_ == [0])


def _operations(kind: str, given: Sequence[int], first: bool) -> Steps | None:
    if kind in ("AddV2", "Mul", "Minimum", "Maximum"):
        named = {"AddV2": "add", "Mul": "multiply", "Minimum": "at_most", "Maximum": "at_least"}
        return (_operation(named[kind], given[0]),)
    if kind == "Sub":
        return (_operation("add", -given[0]),) if first else (_operation("multiply", -1), _operation("add", given[0]))
    if kind == "ClipByValue":
        return (_operation("at_most", given[1]), _operation("at_least", given[0])) if first else None
    if kind in ("Neg", "Abs"):
        return (_operation("multiply", -1) if kind == "Neg" else _operation("absolute"),)
    named = {"FloorDiv": "divide", "FloorMod": "remainder", "TruncateMod": "truncated_remainder"}
    return (_operation(named[kind], given[0]),) if first and given[0] > 0 else None


def _operation(do: str, by: int | None = None) -> IdOperation:
    return IdOperation.model_validate({"do": do, "by": by})


def _wrapped(steps: Sequence[tuple[IdOperation | None, int]], reach: tuple[int, int]) -> Steps:
    """Puts a wrap to 32 bits where integers may leave them.

    Args:
      steps: operations, and of how many bits; None is one that does nothing else.
      reach: the smallest and the largest integer at first.
    """
    told: list[IdOperation] = []
    for operation, bits in steps:
        if operation is not None:
            told.append(operation)
            reach = _reach(operation, reach)
        limits = _LIMITS[bits]
        if reach[0] < limits[0] or reach[1] > limits[1]:
            reach = limits
            told += [_operation("int32")] if bits == 32 else []
    return tuple(told)


def _reach(operation: IdOperation, reach: tuple[int, int]) -> tuple[int, int]:
    """Returns how far integers reach after an operation that does not wrap."""
    (low, high), by = reach, operation.by or 0
    ends = sorted((low * by, high * by))
    reaches = {
        "add": (low + by, high + by),
        "multiply": (ends[0], ends[1]),
        "divide": (low // max(by, 1), high // max(by, 1)),
        "remainder": (0, by - 1),
        "truncated_remainder": (1 - by if low < 0 else 0, by - 1 if high > 0 else 0),
        "at_least": (max(low, by), max(high, by)),
        "at_most": (min(low, by), min(high, by)),
        "absolute": (0, max(abs(low), abs(high))),
    }
    return reaches[operation.do]


def reach_of(rule: ArithmeticIds | ComputedIds) -> tuple[int, int]:
    """Returns the smallest and the largest integer that a rule may make; those of 64 bits where it may wrap around."""
    if isinstance(rule, ArithmeticIds):
        if rule.buckets is None:
            return _LIMITS[64]
        return rule.first_row + (1 - rule.buckets) * rule.truncated, rule.first_row + rule.buckets - 1
    reach = _LIMITS[64]
    for each in rule.operations:
        reach = _LIMITS[32] if each.do == "int32" else _reach(each, reach)
        if reach[0] < _LIMITS[64][0] or reach[1] > _LIMITS[64][1]:
            reach = _LIMITS[64]
    return reach


def _arithmetic(operations: Steps) -> ArithmeticIds | None:
    """Returns operations as the rule that services have known longest, if they are in its order."""
    rule = ArithmeticIds()
    for each in operations:
        by, divided = each.by or 0, rule.divisor > 1 or rule.buckets is not None
        if each.do == "add" and not divided:
            changed = {"shift": rule.shift + by}
        elif each.do == "add":
            changed = {"first_row": rule.first_row + by}
        elif each.do == "divide" and not divided:
            changed = {"divisor": by}
        elif each.do in ("remainder", "truncated_remainder") and rule.buckets is None and not rule.first_row:
            changed = {"buckets": by, "truncated": each.do == "truncated_remainder"}
        else:
            return None
        if changed.get("first_row", 0) < 0:
            return None
        rule = rule.model_copy(update=changed)
    return rule
