"""Finds rules that follow one another: what a hash, a vocabulary, buckets or arithmetic make of what others made.

A graph is split at a tensor between its input and the ids: whatever makes a row of that tensor's values, and whatever
makes those of the input, are rules on their own.
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
from export.graph.input_paths import Followed, Values, per_example
from export.graph.origins import hands_on
from export.id_rules.found import FoundIds
from export.id_rules.integers import reach_of
from export.id_rules.recognition import find_behind, find_ids

_LINKS = ComputedIds | HashIds | VocabularyIds | BucketIds
_WRAPPED = ComputedIds(operations=(IdOperation(do="int32"),))
_TRIED_MAX = 64
"""Tensors at which a graph is split."""


def find_chain(ids: Values, call: Followed, rows: int | None) -> FoundIds | Values:
    """Follows ids back to an input, by one rule or several; arguments and result as of `find_ids`."""
    found = find_ids(ids, call, rows)
    if isinstance(found, FoundIds):
        return found
    for tensor in _between(found.tensor, call):
        behind = find_behind(tensor, ids, call, rows)
        if behind is None:
            continue
        place = behind.source.place
        before = find_chain(
            Values(tensor) if place is None else Values(tensor, place, per_example(tensor) or 0), call, None
        )
        chained = followed_by(before, behind) if isinstance(before, FoundIds) else None
        if chained is not None:
            return chained
    return found


def followed_by(before: FoundIds, behind: FoundIds) -> FoundIds | None:
    """Returns ids of which one rule makes integers, and another rows of these; None where no rule describes both.

    Args:
      before: found without a table, so that it finds integers that are no rows, too.
      behind: of what `before` makes.
    """
    first = _links(before)
    if first is None or (behind.rule is not None and not isinstance(behind.rule, _LINKS | ChainedIds)):
        return None
    rules = (*first, *((_WRAPPED,) if behind.cast is not None else ()), *rules_of(behind.rule))
    if before.cast is not None and rules and isinstance(rules[0], BucketIds):
        return None
    return FoundIds(before.source, _chained(rules), behind.unknown, (*before.keys, *behind.keys), before.cast)


def crossed_by(before: Sequence[FoundIds], behind: FoundIds) -> FoundIds | None:
    """Returns ids of a cross whose values are made of what is sent; None where no rule describes both.

    Args:
      before: of each of its keys, found without a table.
      behind: the cross.
    """
    assert isinstance(behind.rule, CrossedIds)  # noqa: S101 - checked before
    entries = [key_of(each, key) for each, key in zip(before, behind.rule.keys, strict=True)]
    known = tuple(each for each in entries if each is not None)
    if len(known) < len(entries):
        return None
    listed = iter(behind.keys)
    own = [(next(listed),) if isinstance(key.ids, VocabularyIds) else () for key in behind.rule.keys]
    keys = tuple(each for found, its in zip(before, own, strict=True) for each in (*found.keys, *its))
    return replace(behind, rule=behind.rule.model_copy(update={"keys": known}), keys=keys)


def key_of(before: FoundIds, key: CrossKey) -> CrossKey | None:
    """Returns a key of a cross whose values are made of what is sent; None where no rule describes both.

    Args:
      before: found without a table.
      key: what is done to what `before` makes; its dtype is that of what is sent.
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
    # What fills a tensor up is known of what is made, not of these: see `may_be_none`.
    return key.model_copy(update={"ids": _chained(rules), "padding": None}) if key.boundaries is None else None


def may_be_none(before: FoundIds) -> bool:
    """Returns whether ids that are found without a table may be -1, which fills columns of a dense tensor up."""
    rules = _links(before)
    last = rules[-1] if rules else None
    if isinstance(last, ComputedIds):
        return reach_of(last)[0] < 0
    return not isinstance(last, HashIds | BucketIds) and not (isinstance(last, VocabularyIds) and last.oov_buckets)


def rules_of(rule: IdRule | None) -> tuple[Any, ...]:
    """Returns the rules that follow one another in a rule of one input."""
    return () if rule is None else rule.rules if isinstance(rule, ChainedIds) else (rule,)


def _chained(rules: tuple[Any, ...]) -> Any:
    return ChainedIds(rules=rules) if len(rules) > 1 else rules[0] if rules else None


def _links(found: FoundIds) -> tuple[Any, ...] | None:
    """Returns the rules of ids that others go on with, which know of no table; None if there are none such."""
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


def row_count(found: FoundIds) -> int | None:
    """Returns how many rows a rule of one input has, or that of a text's words; None if the rule does not say so."""
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


def _between(tensor: Any, call: Followed) -> Iterator[Any]:
    """Yields what a tensor is computed of, the nearest first: integers and strings that are none of its inputs."""
    queue, seen = [tensor], {tensor.name}
    tried = 0
    while queue and tried < _TRIED_MAX:
        each = queue.pop(0)
        if each is not tensor and not hands_on(each.op) and (each.dtype.is_integer or each.dtype.name == "string"):
            tried += 1
            yield each
        for before in each.op.inputs:
            if before.name not in seen and before.name not in call.sources and call.constant(before) is None:
                seen.add(before.name)
                queue.append(before)
