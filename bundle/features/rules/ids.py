"""One input's ids -> rows, by the rules of the manifest. The train/serve skew lives or
dies here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.rules.graphs import Graph
from bundle.features.rules.hashing import hashes
from bundle.format.features import Cast
from bundle.format.id_rules import (
    BucketIds,
    ChainedIds,
    ComputedIds,
    GraphIds,
    HashIds,
    IdentityIds,
    IdOperation,
    KeyedIds,
    VocabularyIds,
)
from bundle.tables.id_values import Rows, Values, integers, known_kind, numbers, strings
from bundle.tables.key_index import KeyIndex
from bundle.tables.vocabularies import Vocabulary

OneInput = (
    IdentityIds
    | ComputedIds
    | HashIds
    | VocabularyIds
    | BucketIds
    | GraphIds
    | ChainedIds
    | KeyedIds
)
"""Rules that make a row of one value."""
Evaluation = Callable[[str, Values], NDArray[Any]]
"""Takes the input's name, for errors, and [m] ids; returns [m] int64, or uint64 of hashes."""


@dataclass(frozen=True)
class Rule:
    """How the ids of one input become rows.

    Attributes:
      evaluate: makes a number of each id.
      alike: equal for rules whose `evaluate` does the same.
      buckets: row = `first_row` + number mod `buckets`; 0: the number is the row.
    """

    evaluate: Evaluation
    alike: Hashable
    buckets: int = 0
    first_row: int = 0

    def resolve(self, feature: str, values: Values) -> Rows:
        """Returns [m] int64 rows; negative, or beyond the table, where an id is unknown.

        Raises:
          FeatureError: a value is no id; names `feature`.
        """
        found = self.evaluate(feature, values)
        if self.buckets:
            found = (found % np.uint64(self.buckets)).astype(np.int64) + self.first_row
        return found

    def after(self, change: Evaluation, alike: Hashable) -> Rule:
        """Returns the rule of ids that are changed first; `alike` says what `change` does."""
        evaluate = self.evaluate

        def changed(feature: str, values: Values) -> NDArray[Any]:
            return evaluate(feature, change(feature, values))

        return Rule(changed, (alike, self.alike), self.buckets, self.first_row)


class RuleSet:
    """Rules of several features, which are resolved together: those that are alike evaluate their
    ids as one.
    """

    def __init__(self, rules: Sequence[Rule], features: Sequence[str]) -> None:
        """Takes the rule of each feature, and what errors call its input."""
        self._rules = rules
        self._features = features
        self._groups: dict[tuple[np.dtype[Any], ...], list[list[int]]] = {}
        self._hashed = [place for place, rule in enumerate(rules) if rule.buckets]
        self._buckets = np.array([rules[place].buckets for place in self._hashed], np.uint64)
        self._first_rows = np.array([rules[place].first_row for place in self._hashed], np.int64)

    def resolve(self, columns: Sequence[Values]) -> list[Rows]:
        """Returns what `Rule.resolve` does of each column."""
        dtypes = tuple([values.dtype for values in columns])
        if dtypes not in self._groups:
            self._groups[dtypes] = self._grouped(dtypes)
        found: list[NDArray[Any]] = [_NO_ROWS] * len(columns)
        for places in self._groups[dtypes]:
            if len(places) == 1:
                (place,) = places
                evaluate = self._rules[place].evaluate
                found[place] = evaluate(self._features[place], columns[place])
            else:
                self._evaluate(places, columns, found)
        if self._hashed:
            parts = [found[place] for place in self._hashed]
            sizes = [part.size for part in parts]
            buckets = np.concatenate(parts) % self._buckets.repeat(sizes)
            rows = buckets.astype(np.int64) + self._first_rows.repeat(sizes)
            for place, each in zip(self._hashed, split(rows, parts), strict=True):
                found[place] = each
        return found

    def _grouped(self, dtypes: Sequence[np.dtype[Any]]) -> list[list[int]]:
        groups: dict[Any, list[int]] = {}
        for place, (rule, dtype) in enumerate(zip(self._rules, dtypes, strict=True)):
            groups.setdefault((rule.alike, dtype), []).append(place)
        return list(groups.values())

    def _evaluate(
        self, places: Sequence[int], columns: Sequence[Values], found: list[NDArray[Any]]
    ) -> None:
        """Evaluates the ids of rules that are alike; writes what each makes to `found`."""
        sent = [columns[place] for place in places]
        evaluate = self._rules[places[0]].evaluate
        name = self._features[places[0]]
        try:
            whole = evaluate(name, np.concatenate(sent))
        except FeatureError:  # it names the first input of them: each speaks for itself
            for place, values in zip(places, sent, strict=True):
                found[place] = evaluate(self._features[place], values)
            return
        for place, each in zip(places, split(whole, sent), strict=True):
            found[place] = each


def split(whole: NDArray[Any], parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Cuts an array into pieces as long as `parts`."""
    if len(parts) == 1:
        return [whole]
    sizes = [part.size for part in parts]
    ends = accumulate(sizes, initial=0)
    return [whole[start:end] for start, end in pairwise(ends)]


def within(rows: Rows, limits: NDArray[np.uint64] | int) -> Rows:
    """Returns rows with -1 in place of those outside [0, limit)."""
    # Seen as unsigned, negative rows are huge: one comparison finds both ends.
    (beyond,) = (rows.view(np.uint64) >= np.uint64(limits)).nonzero()
    if not beyond.size:
        return rows
    kept = rows.copy()
    kept[beyond] = -1
    return kept


def rule_of(
    entry: OneInput,
    vocabularies: Mapping[str, Vocabulary],
    keys: Mapping[str, KeyIndex] | None = None,
) -> Rule:
    """Returns the rule that a manifest entry describes.

    Raises:
      KeyError: its vocabulary or key index is not among those given, which are open.
    """
    match entry:
        case IdentityIds():
            return Rule(integers, "identity")
        case HashIds() if entry.mask is None:
            hashing: Evaluation = hashes
            if entry.key is not None:
                hashing = partial(hashes, key=entry.key)
            return Rule(hashing, ("hash", entry.key), entry.buckets, entry.first_row)
    return Rule(_evaluation(entry, vocabularies, keys or {}), entry.model_dump_json())


def _evaluation(
    entry: OneInput, vocabularies: Mapping[str, Vocabulary], keys: Mapping[str, KeyIndex]
) -> Evaluation:
    evaluation: Evaluation
    match entry:
        case ComputedIds():
            evaluation = partial(_computed, entry.operations)
        case HashIds():
            evaluation = partial(_masked, entry)
        case VocabularyIds():
            evaluation = partial(_listed, entry, vocabularies[entry.vocabulary])
        case BucketIds():
            evaluation = partial(_bucketed, entry, np.asarray(entry.boundaries, np.float32))
        case GraphIds():
            opened = [vocabularies[each.vocabulary] for each in entry.vocabularies]
            evaluation = Graph(entry, opened).rows
        case KeyedIds():
            evaluation = partial(_keyed, keys[entry.keys])
        case ChainedIds():
            rules = [rule_of(each, vocabularies) for each in entry.rules]
            evaluation = partial(_chained, rules)
        case _:
            raise TypeError(entry)
    return evaluation


def cast(entry: Cast, feature: str, values: Values) -> Rows:
    """Casts what is sent to integers.

    Source: TensorFlow 2.20, core/kernels/cast_op_impl.h: static_cast, which on x86-64 gives the
    smallest integer of a number beyond the integers (the rule).
    """
    if entry.of == "int64":
        return integers(feature, values).astype(entry.to).astype(np.int64)
    rounded = _ROUNDED[entry.rounding](numbers(feature, values))
    limits = np.iinfo(entry.to)
    # Beyond the largest integer there is no float32 below the next power of two.
    beyond = (rounded < np.float32(limits.min)) | (rounded >= np.float32(limits.max))
    within_limits = np.where(beyond, np.float32(0), rounded).astype(np.int64)
    return np.where(beyond, limits.min, within_limits)


def _computed(operations: Sequence[IdOperation], feature: str, values: Values) -> Rows:
    # Source: TensorFlow 2.20, core/kernels/cwise_ops.h, google::floor_div, floor_mod and mod (the
    # rules).
    found = integers(feature, values)
    for each in operations:
        operands = () if each.by is None else (each.by,)
        found = _OPERATIONS[each.do](found, *operands)
    return found


def _masked(entry: HashIds, feature: str, values: Values) -> Rows:
    # Source: tf-keras 2.20 and Keras 3.15, layers/preprocessing/hashing.py (the rule).
    ids = known_kind(feature, values)
    buckets = hashes(feature, ids, entry.key) % np.uint64(entry.buckets)
    rows = buckets.astype(np.int64) + entry.first_row
    mask = str(entry.mask)
    is_masked = [str(each) == mask for each in ids.tolist()]
    rows[is_masked] = 0
    return rows


def _listed(entry: VocabularyIds, vocabulary: Vocabulary, feature: str, values: Values) -> Rows:
    # Source: TensorFlow 2.20, python/ops/lookup_ops.py, IdTableWithHashBuckets.lookup; tf-keras
    # 2.20 and Keras 3.12, layers/preprocessing/index_lookup.py, _lookup_dense (the rules).
    rows = vocabulary.find(feature, values)
    unknown = rows < 0
    rows = np.where(unknown, rows, rows + entry.first_row)
    if not entry.oov_buckets and entry.mask is None:
        return rows

    read = integers if vocabulary.dtype == "int64" else strings
    ids: Values = read(feature, values)
    if entry.oov_buckets:
        rows[unknown] = entry.oov_first_row + _oov_buckets(entry, feature, ids[unknown])
    if entry.mask is not None:
        rows[ids == entry.mask] = 0
    return rows


def _oov_buckets(entry: VocabularyIds, feature: str, ids: Values) -> Rows:
    """Returns the bucket of each out-of-vocabulary id."""
    if entry.oov_hash == "modulo" and ids.dtype == np.int64:
        buckets: NDArray[Any] = ids % entry.oov_buckets
    else:
        buckets = hashes(feature, ids) % np.uint64(entry.oov_buckets)
    return buckets.astype(np.int64)


def _keyed(index: KeyIndex, feature: str, values: Values) -> Rows:
    return index.find(integers(feature, values))


def _bucketed(
    entry: BucketIds, boundaries: NDArray[np.float32], feature: str, values: Values
) -> Rows:
    # Source: TensorFlow 2.20, core/kernels/bucketize_op.cc (the rule: std::upper_bound).
    found = np.searchsorted(boundaries, numbers(feature, values), side="right")
    buckets = boundaries.size - found if entry.falling else found
    return buckets.astype(np.int64) + entry.first_row


def _chained(rules: Sequence[Rule], feature: str, values: Values) -> Rows:
    for rule in rules:
        values = rule.resolve(feature, values)
    return values


_NO_ROWS = np.empty(0, np.int64)
_ROUNDED = {"toward_zero": np.trunc, "down": np.floor, "up": np.ceil, "half_even": np.rint}
_OPERATIONS: dict[str, Callable[..., Rows]] = {
    "add": np.add,
    "multiply": np.multiply,
    "divide": np.floor_divide,
    "remainder": np.mod,
    "truncated_remainder": np.fmod,
    "at_least": np.maximum,
    "at_most": np.minimum,
    "absolute": np.abs,
    "int32": lambda found: found.astype(np.int32).astype(np.int64),
}
