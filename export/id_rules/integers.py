"""Integers: as they are, cast to, or computed by sums, products, quotients, remainders and limits.

Source: TensorFlow 2.20: AddV2, Sub, Mul, Neg, FloorDiv, FloorMod, TruncateMod, Minimum, Maximum, ClipByValue and Abs of
integers, which wrap around at 32 or 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from bundle.format.manifest import Cast, ComputedIds, IdOperation
from export.frameworks.loading import tf
from export.graph.input_paths import Followed, Values
from export.graph.origins import Source, hands_on
from export.id_rules.found import FoundIds, Vocabularies

_EITHER_WAY = {"AddV2": "add", "Mul": "multiply", "Minimum": "at_most", "Maximum": "at_least"}
_BY_POSITIVE = {"FloorDiv": "divide", "FloorMod": "remainder", "TruncateMod": "truncated_remainder"}
_OF_ONE: dict[str, tuple[str, int | None]] = {"Neg": ("multiply", -1), "Abs": ("absolute", None)}
COMPUTED = frozenset({"Sub", "ClipByValue", *_EITHER_WAY, *_BY_POSITIVE, *_OF_ONE})
_ROUNDED: dict[str, Literal["down", "up", "half_even"]] = {
    "Floor": "down",
    "Ceil": "up",
    "Round": "half_even",
    "Rint": "half_even",
}
_LIMITS = {bits: (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64)}

Steps = tuple[IdOperation, ...]


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


def find_computed(values: Values, call: Followed) -> FoundIds | None:
    """Returns the input that integers are computed of by constants, and how; None if it is otherwise."""
    traced = _traced(values, call) if values.tensor.dtype.is_integer else None
    return None if traced is None else replace(traced[0], rule=ComputedIds(operations=traced[1]))


def is_made_of(values: Values, found: FoundIds, call: Followed) -> bool:
    """Returns whether values are what some ids are made of."""
    same = find_whole(values, call) if values.tensor.dtype.is_integer else None
    if same is None:
        return call.origin(values) == found.source and found.cast is None
    real = [None if each is None or each.of != "float32" else each for each in (same.cast, found.cast)]
    return same.source == found.source and real[0] == real[1]


def find_sent(values: Values, call: Followed) -> FoundIds | None:
    """Returns the input that integers or strings are, as its decimal strings, too; None of others."""
    if values.tensor.dtype.is_integer:
        return find_whole(values, call)
    texts = call.origin(values)
    if isinstance(texts, Source):
        return FoundIds(texts)
    decimal = texts.type == "AsString" and texts.tensor.op.get_attr("width") <= 0
    return find_whole(texts.inputs[0], call) if decimal and texts.inputs[0].tensor.dtype.is_integer else None


def _narrows(values: Values, call: Followed) -> bool:
    """Returns whether large integers wrap around on their way from where they are computed, and so are others."""
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
        operations = _operations(last.type, [None if each is None else int(each) for each in numbers])
        if operations is None:
            return None
        steps += [(each, 8 * last.tensor.dtype.size) for each in reversed(operations)]
        values = last.inputs[numbers.index(None)]
    return found, _wrapped(steps[::-1], _LIMITS[8 * values.tensor.dtype.size])


def _operations(kind: str, numbers: Sequence[int | None]) -> Steps | None:
    """Returns an operation of integers as data; a number is None where it is what the others are done to."""
    given, first = [each for each in numbers if each is not None], numbers[0] is None
    if len(given) != len(numbers) - 1 or any(abs(each) > _LIMITS[64][1] for each in given):
        return None
    by = given[0] if given else 0
    done: list[tuple[str, int | None]] = []
    if kind == "Sub":
        done = [("add", -by)] if first else [("multiply", -1), ("add", by)]
    elif kind == "ClipByValue":
        done = [("at_most", given[1]), ("at_least", by)] if first else []
    elif kind in _OF_ONE:
        done = [_OF_ONE[kind]]
    elif kind in _EITHER_WAY or (first and by > 0):
        done = [((_EITHER_WAY | _BY_POSITIVE)[kind], by)]
    return tuple(IdOperation.model_validate({"do": do, "by": by}) for do, by in done) or None


def _wrapped(steps: Sequence[tuple[IdOperation | None, int]], reach: tuple[int, int]) -> Steps:
    """Puts a wrap to 32 bits where integers may leave them.

    Args:
      steps: operations, and of how many bits; None is one that does nothing else.
      reach: the smallest and the largest integer at first.
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


def reach_of(rule: ComputedIds) -> tuple[int, int]:
    """Returns the smallest and the largest integer that a rule may make; those of 64 bits where it may wrap around."""
    reach = _LIMITS[64]
    for each in rule.operations:
        reach = _LIMITS[32] if each.do == "int32" else _reach(each, reach)
        if reach[0] < _LIMITS[64][0] or reach[1] > _LIMITS[64][1]:
            reach = _LIMITS[64]
    return reach


def rows_of_computed(rule: ComputedIds, values: Any, _vocabularies: Vocabularies) -> Any:
    """Returns what TensorFlow makes of [m] integers by a rule."""
    done = {
        "add": tf.add,
        "multiply": tf.multiply,
        "divide": tf.math.floordiv,
        "remainder": tf.math.floormod,
        "truncated_remainder": tf.truncatemod,
        "at_least": tf.maximum,
        "at_most": tf.minimum,
    }
    found = tf.cast(values, tf.int64)
    for each in rule.operations:
        if each.by is not None:
            found = done[each.do](found, tf.constant(each.by, tf.int64))
        else:
            found = tf.abs(found) if each.do == "absolute" else tf.cast(tf.cast(found, tf.int32), tf.int64)
    return found


def cast(entry: Cast, values: Any) -> Any:
    """Returns ids as the integers that a rule is given."""
    if entry.of == "int64":
        return tf.cast(tf.cast(values, entry.to), tf.int64)
    rounded = {"toward_zero": tf.identity, "down": tf.floor, "up": tf.math.ceil, "half_even": tf.round}[entry.rounding]
    return tf.cast(tf.cast(rounded(tf.cast(values, tf.float32)), entry.to), tf.int64)


def describe_computed(rule: ComputedIds) -> str:
    """Returns how rows are computed, in a few words."""
    words = {"multiply": "*", "divide": "div", "remainder": "mod", "truncated_remainder": "mod (as in C)"}
    words |= {"at_least": "at least", "at_most": "at most", "absolute": "without its sign", "int32": "wrapped to int32"}
    described = []
    for each in rule.operations:
        by = each.by or 0
        sign = "-" if by < 0 else "+"
        described.append(
            f"{sign} {abs(by)}" if each.do == "add" else f"{words[each.do]} {'' if each.by is None else by}"
        )
    return f"the id {', '.join(map(str.strip, described))}"
