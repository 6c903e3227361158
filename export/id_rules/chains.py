"""Finds chains of rules: a hash, a vocabulary, buckets or arithmetic applied to the result of another rule.

A graph is split at a tensor between its input and the ids: the computations before and after it are rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from bundle.format.manifest import (
    BucketIds,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    CrossKey,
    HashIds,
    IdentityIds,
    IdOperation,
    IdRule,
    TextIds,
    VocabularyIds,
)
from export.graph.input_paths import CallGraph, Values, per_example
from export.graph.origins import keeps_values
from export.id_rules.integers import reach_of
from export.id_rules.recognition import find_ids, find_ids_after
from export.id_rules.resolved_ids import ResolvedIds

_LINKS = ComputedIds | HashIds | VocabularyIds | BucketIds
_WRAPPED = ComputedIds(operations=(IdOperation(do="int32"),))
_TRIED_MAX = 64
"""Maximum number of tensors at which a split is tried."""


def find_chain(ids: Values, call: CallGraph, rows: int | None) -> ResolvedIds | Values:
    """Follows ids back to an input through one or more rules; arguments and result as for `find_ids`."""
    found = find_ids(ids, call, rows)
    if isinstance(found, ResolvedIds):
        return found
    for tensor in _split_points(found.tensor, call):
        after = find_ids_after(tensor, ids, call, rows)
        if after is None:
            continue
        place = after.source.place
        before = find_chain(
            Values(tensor) if place is None else Values(tensor, place, per_example(tensor) or 0), call, None
        )
        chained = followed_by(before, after) if isinstance(before, ResolvedIds) else None
        if chained is not None:
            return chained
    return found


def followed_by(before: ResolvedIds, after: ResolvedIds) -> ResolvedIds | None:
    """Returns the chain of two rules; None if no rule describes it.

    Args:
      before: resolved without a table, since its integers need not be rows.
      after: what is computed from the result of `before`.
    """
    first = _links(before)
    if first is None or (after.rule is not None and not isinstance(after.rule, _LINKS | ChainedIds)):
        return None
    rules = (*first, *((_WRAPPED,) if after.cast is not None else ()), *rules_of(after.rule))
    if before.cast is not None and rules and isinstance(rules[0], BucketIds):
        return None
    return ResolvedIds(before.source, _chained(rules), after.unknown, (*before.keys, *after.keys), before.cast)


def crossed_by(before: Sequence[ResolvedIds], after: ResolvedIds) -> ResolvedIds | None:
    """Returns a cross of values that other rules compute; None if no rule describes it.

    Args:
      before: the rule of each of its keys, resolved without a table.
      after: the cross.
    """
    assert isinstance(after.rule, CrossedIds)  # noqa: S101 - checked before
    entries = [key_of(each, key) for each, key in zip(before, after.rule.keys, strict=True)]
    known = tuple(each for each in entries if each is not None)
    if len(known) < len(entries):
        return None
    listed = iter(after.keys)
    own = [(next(listed),) if isinstance(key.ids, VocabularyIds) else () for key in after.rule.keys]
    keys = tuple(each for found, its in zip(before, own, strict=True) for each in (*found.keys, *its))
    return replace(after, rule=after.rule.model_copy(update={"keys": known}), keys=keys)


def key_of(before: ResolvedIds, key: CrossKey) -> CrossKey | None:
    """Returns a key of a cross with the rule that its values are computed by; None if no key describes it.

    Args:
      before: that rule, resolved without a table.
      key: what the cross does to its result, with the dtype of the raw input.
    """
    first = _links(before)
    if first is None or (before.cast is not None and before.cast.of == "float32"):
        return None
    first = (*((_WRAPPED,) if before.cast is not None else ()), *first)
    if not first:
        return key
    if isinstance(first[0], BucketIds):
        plain = len(first) == 1 and first[0].first_row == 0 and not first[0].falling and key.ids is None
        return CrossKey(dtype="int64", boundaries=first[0].boundaries) if plain else None
    rule, rows = before.rule, row_count(before)
    if key.ids is None and before.cast is None and rows is not None:
        row = None if before.unknown is None else before.unknown.row
        return CrossKey.model_validate({**key.model_dump(), "ids": rule, "rows": rows, "unknown_row": row})
    rules = (*first, *(() if isinstance(key.ids, IdentityIds) else rules_of(key.ids)))
    # Padding is known for computed values only, not for raw ones: see `may_be_none`.
    return key.model_copy(update={"ids": _chained(rules), "padding": None}) if key.boundaries is None else None


def may_be_none(before: ResolvedIds) -> bool:
    """Returns whether ids resolved without a table may be -1, the padding of columns in a dense tensor."""
    rules = _links(before)
    last = rules[-1] if rules else None
    if isinstance(last, ComputedIds):
        return reach_of(last)[0] < 0
    return not isinstance(last, HashIds | BucketIds) and not (isinstance(last, VocabularyIds) and last.oov_buckets)


def rules_of(rule: IdRule | None) -> tuple[Any, ...]:
    """Returns the rules of a chain, or a single rule."""
    return () if rule is None else rule.rules if isinstance(rule, ChainedIds) else (rule,)


def _chained(rules: tuple[Any, ...]) -> Any:
    return ChainedIds(rules=rules) if len(rules) > 1 else rules[0] if rules else None


def _links(found: ResolvedIds) -> tuple[Any, ...] | None:
    """Returns the rules of ids if another rule can follow them; else None."""
    rules = rules_of(found.rule)
    if any(not isinstance(each, _LINKS) for each in rules):
        return None
    if found.unknown is None:
        return rules
    last = rules[-1] if rules else None
    if not isinstance(last, VocabularyIds) or last.oov_buckets or found.unknown.row is None:
        return None
    # What it lacks is a row: the only one of its kind.
    return (*rules[:-1], last.model_copy(update={"oov_buckets": 1, "oov_first_row": found.unknown.row}))


def row_count(found: ResolvedIds) -> int | None:
    """Returns how many rows a rule of one input or of a text's words has; None if it is not bounded."""
    rule = found.rule.ids if isinstance(found.rule, TextIds) else found.rule
    if isinstance(rule, HashIds):
        return rule.first_row + rule.buckets
    if isinstance(rule, ComputedIds):
        low, high = reach_of(rule)
        return high + 1 if low >= 0 and high < 1 << 62 else None
    if isinstance(rule, VocabularyIds):
        unknown = 0 if found.unknown is None or found.unknown.row is None else found.unknown.row + 1
        return max(rule.first_row + len(found.keys[0]), rule.oov_first_row + rule.oov_buckets, unknown)
    return None


def _split_points(tensor: Any, call: CallGraph) -> Iterator[Any]:
    """Yields the integer and string tensors between a tensor and the inputs, the nearest first."""
    queue, seen = [tensor], {tensor.name}
    tried = 0
    while queue and tried < _TRIED_MAX:
        each = queue.pop(0)
        if each is not tensor and not keeps_values(each.op) and (each.dtype.is_integer or each.dtype.name == "string"):
            tried += 1
            yield each
        for before in each.op.inputs:
            if before.name not in seen and before.name not in call.sources and call.constant(before) is None:
                seen.add(before.name)
                queue.append(before)
