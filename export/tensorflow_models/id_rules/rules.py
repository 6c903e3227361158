"""The rules of one value, recognized in a traced graph.

Each has its own module. Chains, texts and crosses consist of them.
Source: TensorFlow 2.20 and Keras 2.20 / 3.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from bundle.format.manifest import (
    BucketIds,
    ComputedIds,
    HashIds,
    VocabularyIds,
)
from export.graphs.walks import ID_DTYPES
from export.tensorflow_models.graph.input_paths import CallGraph, Values
from export.tensorflow_models.graph.origins import Source
from export.tensorflow_models.id_rules import buckets, hashes, integers, vocabularies
from export.tensorflow_models.id_rules.integers import find_integer, has_same_source
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.vocabularies import row_of_unknown, rows_beyond, text_of


class RuleModule(Protocol):
    """The module of one rule."""

    OPERATIONS: frozenset[str]
    """The operations that it is recognized by."""

    def find(self, values: Values, call: CallGraph, rows: int | None, /) -> ResolvedIds | None:
        """Returns the input and rule of what an operation computes; None if it is another one."""


RULES: Mapping[type, RuleModule] = {
    HashIds: hashes,
    VocabularyIds: vocabularies,
    ComputedIds: integers,
    BucketIds: buckets,
}
Find = Callable[[Values, CallGraph, int | None], ResolvedIds | Values]
_WHOLE_FLOATS = {"float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8}
"""Integers up to these limits are exact in each float type."""


_NESTED_MAX = 32
"""Maximum number of selects and casts around each other that one rule is searched through."""


def find_ids(
    ids: Values, call: CallGraph, rows: int | None, nested: int = 0
) -> ResolvedIds | Values:
    """Follows ids back to an input through one rule.

    Args:
      ids: rows of a table.
      call: the traced call.
      rows: of the table; None: they are integers that another rule takes.
      nested: number of selects and casts that the search went through before.
    Returns:
      The resolved ids, or the values whose computation no rule describes.
    """
    return call.searched("rule", ids, rows, lambda: _find_ids(ids, call, rows, nested))


def _find_ids(ids: Values, call: CallGraph, rows: int | None, nested: int) -> ResolvedIds | Values:
    found = call.origin(ids)
    if isinstance(found, Source):
        # A cast that wraps around gives ids beyond int32 rows of a table.
        exact = find_integer(ids, call) if ids.tensor.dtype.is_integer else None
        return exact or ResolvedIds(found)
    around = {"SelectV2": _selected, "Cast": _cast_to_float_and_back}.get(found.type)
    result = None
    if around is not None and found.inputs and nested < _NESTED_MAX:
        result = around(found, call, rows, nested + 1)
    for module in RULES.values():
        if result is None and (found.inputs or module is buckets):
            # A final wrap-around is searched for only where it can lead to a row.
            result = module.find(ids if module is integers and rows is None else found, call, rows)
    return found if result is None else result


def find_ids_after(
    tensor: Any, ids: Values, call: CallGraph, rows: int | None, find: Find = find_ids
) -> ResolvedIds | None:
    """Returns the rule that computes ids from an inner tensor, treated as an input; None if `find`
    finds none.
    """
    link = Source(tensor.name, "dense")
    found = find(ids, call.treated_as_input(tensor, link), rows)
    return found if isinstance(found, ResolvedIds) and found.source.name == link.name else None


def _selected(values: Values, call: CallGraph, rows: int | None, nested: int) -> ResolvedIds | None:
    """Returns a rule with a row for unknown ids, a mask, or rows for keys outside a vocabulary."""
    condition, first, second = values.inputs
    for taken, other, inside in ((first, second, True), (second, first, False)):
        row = call.number(other)
        if row is None:
            continue
        found = find_ids(taken, call, rows, nested)
        if not isinstance(found, ResolvedIds):
            return None
        if found.rule is None and _is_bounds_check(condition, found, call, rows, inside):
            # No rule describes two rows: one of ids below the table, one of those beyond it.
            unknown = row_of_unknown(row, rows)
            return replace(found, unknown=unknown) if found.unknown in (None, unknown) else None
        mask = _mask(condition, found, call) if row == 0 and not inside else None
        if (
            mask is not None
            and isinstance(found.rule, VocabularyIds | HashIds)
            and found.rule.mask is None
        ):
            return replace(found, rule=found.rule.model_copy(update={"mask": mask}))
        return None
    listed, beyond = (first, second) if condition.type == "NotEqual" else (second, first)
    # The -1 of a key outside the vocabulary is replaced before the lookup, so it is no row that
    # Keras 3 counts from the end.
    found = find_ids(listed, replace(call, from_end=False), rows, nested)
    compared = [_place(each, call) for each in condition.inputs if call.number(each) != -1]
    missing = condition.type in ("Equal", "NotEqual") and compared == [_place(listed, call)]
    if (
        not (missing and isinstance(found, ResolvedIds) and isinstance(found.rule, VocabularyIds))
        or found.unknown
    ):
        return None
    others = find_ids(beyond, call, rows, nested)
    hashed = rows_beyond(others, found) if isinstance(others, ResolvedIds) else None
    return replace(found, rule=found.rule.model_copy(update=hashed)) if hashed is not None else None


def _place(values: Values, call: CallGraph) -> tuple[str, int | None]:
    found = call.origin(values)
    return (found.name, found.place) if isinstance(found, Source) else (found.tensor.name, found.at)


def _mask(condition: Values, found: ResolvedIds, call: CallGraph) -> int | str | None:
    """Returns the id that a condition compares with."""
    if (
        condition.type != "Equal"
        or not condition.inputs
        or not has_same_source(condition.inputs[0], found, call)
    ):
        return None
    value = call.constant(condition.inputs[1].tensor)
    if value is None or value.size != 1:
        return None
    one = value.flat[0]
    if isinstance(one, bytes):
        return text_of(one)
    return int(one) if value.dtype.kind in "iu" else None


def _cast_to_float_and_back(
    values: Values, call: CallGraph, rows: int | None, nested: int
) -> ResolvedIds | None:
    """Returns integers that are cast to floats and back, as by an Input without a dtype or a Keras
    3 Sequential.
    """
    number = call.origin(values.inputs[0])
    if (
        values.tensor.dtype.name not in ID_DTYPES
        or isinstance(number, Source)
        or number.type != "Cast"
        or not number.inputs[0].tensor.dtype.is_integer
    ):
        return None
    # A float beyond its significand is another integer, but like the id that was sent it is no row
    # of the table.
    if rows is None or rows > _WHOLE_FLOATS.get(number.tensor.dtype.name, 0):
        return None
    found = find_ids(number.inputs[0], call, rows, nested)
    return found if isinstance(found, ResolvedIds) else None


def _is_bounds_check(
    condition: Values, found: ResolvedIds, call: CallGraph, rows: int | None, inside: bool
) -> bool:
    """Returns whether a condition tests that ids are inside the table (or outside it), at one end
    at least.

    TensorFlow finds no row for ids beyond the other end.
    """
    both, lower, upper = (
        ("LogicalAnd", "GreaterEqual", "Less") if inside else ("LogicalOr", "Less", "GreaterEqual")
    )
    limits: dict[str, Any] = {}
    for part in condition.inputs if condition.type == both else [condition]:
        if len(part.inputs) != 2 or not has_same_source(part.inputs[0], found, call):
            return False
        limits[part.type] = call.number(part.inputs[1])
    if rows is None or (call.from_end and lower not in limits):
        return False  # counted from the table's end, ids below 0 have rows of their own
    comparison = "NotEqual" if inside else "Equal"
    one = limits[comparison] if list(limits) == [comparison] else None
    beyond = one is not None and not 0 <= one < rows
    return beyond or limits in ({lower: 0, upper: rows}, {upper: rows}, {lower: 0})
