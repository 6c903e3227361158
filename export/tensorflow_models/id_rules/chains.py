"""Chains of rules: a hash, a vocabulary, buckets or arithmetic applied to the result of another
rule.

A graph is split at a tensor between its input and the ids: the computations before and after it are
rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bundle.format.manifest import (
    BucketIds,
    ChainedIds,
    ComputedIds,
    HashIds,
    TextIds,
    VocabularyIds,
)
from export.graphs.walks import keeps_values
from export.id_rules.operations import links_of
from export.tensorflow_models.graph.input_paths import CallGraph, Values, per_example
from export.tensorflow_models.id_rules.integers import WRAPPED, reach_of
from export.tensorflow_models.id_rules.resolved_ids import ResolvedIds
from export.tensorflow_models.id_rules.rules import find_ids, find_ids_after

_TRIED_MAX = 64
"""Maximum number of tensors at which a split is tried."""


_LINKS_MAX = 64
"""Maximum number of rules in a chain."""


def find_chain(
    ids: Values, call: CallGraph, rows: int | None, links: int = 0
) -> ResolvedIds | Values:
    """Follows ids back to an input through one or more rules.

    Args:
      ids, call, rows: as for `find_ids`.
      links: number of rules that follow.
    Returns:
      As `find_ids`.
    """
    return call.searched("chain", ids, rows, lambda: _find_chain(ids, call, rows, links))


def _find_chain(ids: Values, call: CallGraph, rows: int | None, links: int) -> ResolvedIds | Values:
    found = find_ids(ids, call, rows)
    if isinstance(found, ResolvedIds) or links == _LINKS_MAX:
        return found
    for tensor in _split_points(found.tensor, call):
        whole = Values(tensor)
        # What follows a computation without a rule need not be searched.
        if per_example(tensor) == 1 and not _is_chain(whole, call, links + 1):
            continue
        after = find_ids_after(tensor, ids, call, rows)
        if after is None:
            continue
        place = after.source.place
        values = whole if place is None else Values(tensor, place, per_example(tensor) or 0)
        before = find_chain(values, call, None, links + 1)
        both = followed_by(before, after) if isinstance(before, ResolvedIds) else None
        if both is not None:
            return both
    return found


def _is_chain(values: Values, call: CallGraph, links: int) -> bool:
    return isinstance(find_chain(values, call, None, links), ResolvedIds)


def followed_by(before: ResolvedIds, after: ResolvedIds) -> ResolvedIds | None:
    """Returns the chain of two rules; None if no rule describes it.

    Args:
      before: resolved without a table, since its integers need not be rows.
      after: what is computed from the result of `before`.
    """
    first = links_before(before)
    last = links_of(after.rule)
    if first is None or (after.rule is not None and not last):
        return None
    rules = (*first, *((WRAPPED,) if after.cast is not None else ()), *last)
    if before.cast is not None and rules and isinstance(rules[0], BucketIds):
        return None
    return ResolvedIds(
        before.source, chained(rules), after.unknown, (*before.keys, *after.keys), before.cast
    )


def may_be_none(before: ResolvedIds) -> bool:
    """Returns whether ids resolved without a table may be -1, the padding of columns in a dense
    tensor.
    """
    rules = links_before(before)
    last = rules[-1] if rules else None
    if isinstance(last, ComputedIds):
        return reach_of(last)[0] < 0
    return not isinstance(last, HashIds | BucketIds) and not (
        isinstance(last, VocabularyIds) and last.oov_buckets
    )


def chained(rules: tuple[Any, ...]) -> Any:
    """Returns rules as one rule; None if there are none."""
    if not rules:
        return None
    return ChainedIds(rules=rules) if len(rules) > 1 else rules[0]


def links_before(found: ResolvedIds) -> tuple[Any, ...] | None:
    """Returns the rules of ids if another rule can follow them; else None."""
    rules = links_of(found.rule)
    if found.rule is not None and not rules:
        return None
    if found.unknown is None:
        return rules
    last = rules[-1] if rules else None
    if not isinstance(last, VocabularyIds) or last.oov_buckets or found.unknown.row is None:
        return None
    # What it lacks is a row: the only one of its kind.
    return (
        *rules[:-1],
        last.model_copy(update={"oov_buckets": 1, "oov_first_row": found.unknown.row}),
    )


def row_count(found: ResolvedIds) -> int | None:
    """Returns how many rows a rule of one input or of a text's words has; None if it is not
    bounded.
    """
    rule = found.rule.ids if isinstance(found.rule, TextIds) else found.rule
    if isinstance(rule, ChainedIds):
        rule = rule.rules[-1]
    if isinstance(rule, HashIds):
        return rule.first_row + rule.buckets
    if isinstance(rule, ComputedIds):
        low, high = reach_of(rule)
        return high + 1 if low >= 0 and high < 1 << 62 else None
    if isinstance(rule, VocabularyIds):
        unknown = 0 if found.unknown is None or found.unknown.row is None else found.unknown.row + 1
        return max(
            rule.first_row + len(found.keys[-1]), rule.oov_first_row + rule.oov_buckets, unknown
        )
    return None


def _split_points(tensor: Any, call: CallGraph) -> Iterator[Any]:
    """Yields the integer and string tensors between a tensor and the inputs, the nearest first."""
    queue = [tensor]
    seen = {tensor.name}
    tried = 0
    while queue and tried < _TRIED_MAX:
        each = queue.pop(0)
        if (
            each is not tensor
            and not keeps_values(each.op)
            and (each.dtype.is_integer or each.dtype.name == "string")
        ):
            tried += 1
            yield each
        for before in each.op.inputs:
            if (
                before.name not in seen
                and before.name not in call.sources
                and call.constant(before) is None
            ):
                seen.add(before.name)
                queue.append(before)
