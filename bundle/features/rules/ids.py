"""Id -> row: identity, arithmetic, hash, vocabulary, buckets and keys. The train/serve skew lives or dies here.

A rule resolves what a caller sent for one input to rows of its feature's table, -1 where the table does not know the
id. What is no id at all is an error that names the input, the value and what was expected. Crosses of several inputs
are `crosses.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.errors import FeatureError
from bundle.features.rules import fingerprints, siphash
from bundle.tables.id_values import Rows, Values, integers, known_kind, numbers, strings
from bundle.tables.key_index import KeyIndex
from bundle.tables.vocabularies import Vocabulary


class Rule(Protocol):
    """How the ids of one input become rows of one table.

    A rule that has an attribute `alike` resolves as every other of its kind that has the same.
    """

    def resolve(self, values: Values) -> Rows:
        """Returns [m] int64 rows, -1 where the id is unknown; raises FeatureError for what is no id."""


class Identity:
    """The id is the row. An id beyond the table is unknown: it never wraps, as int32 ids on a TPU do."""

    def __init__(self, name: str, rows: int) -> None:
        self._name, self._rows = name, rows

    def resolve(self, values: Values) -> Rows:
        """Resolves integers; strings of decimal digits are integers."""
        return within(integers(self._name, values), self._rows)

    @staticmethod
    def resolve_all(rules: Sequence[Identity], columns: Sequence[Values]) -> list[Rows]:
        """Does what `resolve` does, for many at once."""
        found = [integers(rule._name, values) for rule, values in zip(rules, columns, strict=True)]
        return _split(_within_each(np.concatenate(found), [rule._rows for rule in rules], found), found)


class Arithmetic:
    """Row = `first_row` + (id + `shift`) div `divisor` mod `buckets`; without `rows`, any integer is one."""

    def __init__(
        self,
        name: str,
        rows: int | None,
        shift: int = 0,
        divisor: int = 1,
        buckets: int | None = None,
        truncated: bool = False,
        first_row: int = 0,
    ) -> None:
        """Takes what a manifest's page tells."""
        self._name, self._rows, self._shift, self._divisor = name, rows, shift, divisor
        self._buckets, self._truncated, self._first_row = buckets, truncated, first_row
        self.alike = (rows, shift, divisor, buckets, truncated, first_row)

    def resolve(self, values: Values) -> Rows:
        """Resolves integers; strings of decimal digits are integers. Sums beyond int64 wrap, as in TensorFlow.

        Source: TensorFlow 2.20, core/kernels/cwise_ops.h, google::floor_div, floor_mod and mod (the rules).
        """
        found = integers(self._name, values)
        if self._shift:
            found = found + self._shift
        if self._divisor > 1:
            found = found // self._divisor
        if self._buckets is not None:
            found = np.fmod(found, self._buckets) if self._truncated else found % self._buckets
        return within(found + self._first_row if self._first_row else found, self._rows)


class Computed:
    """Row = what operations make of the id, one after the other; without `rows`, any integer is one."""

    def __init__(self, name: str, rows: int | None, operations: Sequence[tuple[str, int | None]]) -> None:
        """Takes what a manifest's page tells: what is done, and by which constant."""
        self._name, self._rows = name, rows
        self._operations = [(_OPERATIONS[do], by) for do, by in operations]
        self.alike = (rows, tuple(operations))

    def resolve(self, values: Values) -> Rows:
        """Resolves integers; strings of decimal digits are integers. What leaves int64 wraps, as in TensorFlow.

        Source: TensorFlow 2.20, core/kernels/cwise_ops.h (the rules).
        """
        found = integers(self._name, values)
        for operation, by in self._operations:
            found = operation(found) if by is None else operation(found, by)
        return within(found, self._rows)


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


class Hash:
    """Row = `first_row` + FarmHash Fingerprint64(the string, or the integer's decimal string) mod `buckets`."""

    def __init__(self, name: str, rows: int, buckets: int, first_row: int = 0) -> None:
        self._name, self._rows, self._buckets, self._first_row = name, rows, buckets, first_row

    def resolve(self, values: Values) -> Rows:
        """Resolves integers and strings.

        Source: TensorFlow 2.20, core/kernels/string_to_hash_bucket_fast_op.h and AsString (the rule).
        """
        found = (hashes(self._name, values) % np.uint64(self._buckets)).astype(np.int64)
        if self._first_row:
            found += self._first_row
        return found if self._first_row + self._buckets <= self._rows else within(found, self._rows)

    @staticmethod
    def resolve_all(rules: Sequence[Hash], columns: Sequence[Values]) -> list[Rows]:
        """Does what `resolve` does, for many at once: one hashing of all integers."""
        ids = [known_kind(rule._name, values) for rule, values in zip(rules, columns, strict=True)]
        whole = [values for values in ids if values.dtype == np.int64]
        hashed = iter(_split(fingerprints.of_integers(np.concatenate(whole)), whole) if whole else ())
        found = [
            next(hashed) if values.dtype == np.int64 else hashes(rule._name, values)
            for rule, values in zip(rules, ids, strict=True)
        ]
        sizes = [values.size for values in found]
        places = np.concatenate(found) % np.array([rule._buckets for rule in rules], np.uint64).repeat(sizes)
        rows = places.view(np.int64) + np.array([rule._first_row for rule in rules], np.int64).repeat(sizes)
        return _split(_within_each(rows, [rule._rows for rule in rules], found), found)


class KeptHash:
    """As Hash, with a key of its own, or an id that is kept apart as row 0."""

    def __init__(
        self,
        name: str,
        rows: int,
        buckets: int,
        first_row: int = 0,
        key: tuple[int, int] | None = None,
        mask: int | str | None = None,
    ) -> None:
        """Takes what a manifest's page tells."""
        self._name, self._rows, self._buckets, self._first_row = name, rows, buckets, first_row
        self._key, self._mask = key, None if mask is None else str(mask)
        self.alike = (rows, buckets, first_row, key, self._mask)

    def resolve(self, values: Values) -> Rows:
        """Resolves integers and strings.

        Source: TensorFlow 2.20, core/kernels/string_to_hash_bucket_op.h; tf-keras 2.20 and Keras 3.15,
        layers/preprocessing/hashing.py (the rules).
        """
        ids = known_kind(self._name, values)
        found = (hashes(self._name, ids, self._key) % np.uint64(self._buckets)).astype(np.int64) + self._first_row
        if self._mask is not None:
            texts = ids.tolist() if ids.dtype == object else map(str, ids.tolist())
            found[[text == self._mask for text in texts]] = 0
        return within(found, self._rows)


class Listed:
    """Row = `first_row` + position of the id in a vocabulary; ids that it lacks may be hashed to rows of their own."""

    def __init__(
        self,
        name: str,
        rows: int,
        vocabulary: Vocabulary,
        first_row: int = 0,
        oov_buckets: int = 0,
        oov_first_row: int = 0,
        oov_hash: Literal["fingerprint", "modulo"] = "fingerprint",
        mask: int | str | None = None,
    ) -> None:
        """Takes what a manifest's page tells."""
        self._name, self._rows, self._vocabulary, self._first_row = name, rows, vocabulary, first_row
        self._oov_buckets, self._oov_first_row, self._oov_hash = oov_buckets, oov_first_row, oov_hash
        self._mask = mask
        self.alike = (rows, id(vocabulary), first_row, oov_buckets, oov_first_row, oov_hash, mask)

    def resolve(self, values: Values) -> Rows:
        """Resolves integers or strings, whichever the vocabulary holds.

        Source: TensorFlow 2.20, python/ops/lookup_ops.py, IdTableWithHashBuckets.lookup; tf-keras 2.20 and Keras 3.12,
        layers/preprocessing/index_lookup.py, _lookup_dense (the rules).
        """
        rows = self._vocabulary.find(self._name, values)
        if self._first_row:
            rows = np.where(rows < 0, rows, rows + self._first_row)
        if self._oov_buckets or self._mask is not None:
            ids = (integers if self._vocabulary.dtype == "int64" else strings)(self._name, values)
            unknown = np.flatnonzero(rows < 0) if self._oov_buckets else np.empty(0, np.int64)
            if unknown.size:
                rows[unknown] = self._oov_first_row + self._oov(ids[unknown])
            if self._mask is not None:
                rows[ids == self._mask] = 0
        return within(rows, self._rows)

    def _oov(self, ids: Values) -> Rows:
        if self._oov_hash == "modulo" and ids.dtype == np.int64:
            return ids % self._oov_buckets
        return (hashes(self._name, ids) % np.uint64(self._oov_buckets)).astype(np.int64)


class Buckets:
    """Row = `first_row` + number of boundaries that are <= the value, or above it, compared as float32."""

    def __init__(
        self, name: str, rows: int, boundaries: Sequence[float], first_row: int = 0, falling: bool = False
    ) -> None:
        """Takes what a manifest's page tells."""
        self._name, self._rows, self._first_row, self._falling = name, rows, first_row, falling
        self._boundaries = np.asarray(boundaries, np.float32)

    def resolve(self, values: Values) -> Rows:
        """Resolves numbers, whole or not.

        Source: TensorFlow 2.20, core/kernels/bucketize_op.cc (the rule: std::upper_bound).
        """
        found = np.searchsorted(self._boundaries, numbers(self._name, values), side="right")
        found = self._boundaries.size - found if self._falling else found
        return within(found.astype(np.int64, copy=False) + self._first_row, self._rows)

    @staticmethod
    def resolve_all(rules: Sequence[Buckets], columns: Sequence[Values]) -> list[Rows]:
        """Does what `resolve` does, for many at once: one search in all boundaries."""
        found = [numbers(rule._name, values) for rule, values in zip(rules, columns, strict=True)]
        counts = [rule._boundaries.size for rule in rules]
        # Complex numbers are ordered by their real part first: here, by whose boundary it is.
        boundaries = np.repeat(np.arange(len(rules)), counts) + 1j * np.concatenate(
            [rule._boundaries for rule in rules]
        )
        sizes = [values.size for values in found]
        wanted = np.repeat(np.arange(len(rules)), sizes) + 1j * np.concatenate(found)
        starts, firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]), np.array([rule._first_row for rule in rules])
        falling = np.array([rule._falling for rule in rules])
        # Row = first + (place - start), or first + (count - (place - start)).
        firsts = firsts + np.where(falling, counts + starts, -starts)
        places = np.searchsorted(boundaries, wanted, side="right")
        if falling.any():
            places = np.where(falling.repeat(sizes), -places, places)
        rows = places + firsts.repeat(sizes)
        return _split(_within_each(rows, [rule._rows for rule in rules], found), found)


class Keyed:
    """Row = what a key index holds for the id."""

    def __init__(self, name: str, rows: int, keys: KeyIndex) -> None:
        self._name, self._rows, self._keys = name, rows, keys
        self.alike = (rows, id(keys))

    def resolve(self, values: Values) -> Rows:
        """Resolves integers; strings of decimal digits are integers."""
        return within(self._keys.find(integers(self._name, values)), self._rows)


class Chained:
    """Row = what rules make of the id, one after another."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def resolve(self, values: Values) -> Rows:
        """Resolves what the first rule does."""
        for rule in self._rules:
            values = rule.resolve(values)
        return values


class FromEnd:
    """Row = what another rule makes; below 0 it is counted from the table's end."""

    def __init__(self, rule: Rule, rows: int) -> None:
        """Takes a rule that makes integers without a limit, and the table's rows."""
        self._rule, self._rows = rule, rows

    def resolve(self, values: Values) -> Rows:
        """Resolves what the other rule does."""
        found = self._rule.resolve(values)
        return within(np.where(found < 0, found + self._rows, found), self._rows)


class Known:
    """What is given are rows."""

    def resolve(self, values: Values) -> Rows:
        """Returns them as they are."""
        return values

    @staticmethod
    def resolve_all(_: Sequence[Known], columns: Sequence[Values]) -> list[Rows]:
        """Does what `resolve` does, for many at once."""
        return list(columns)


def resolve_all(rules: Sequence[Rule], columns: Sequence[Values]) -> list[Rows]:
    """Returns what each rule makes of its column: the same as `resolve`, many rules of a kind in one go."""
    found: list[Rows] = [np.empty(0, np.int64)] * len(rules)
    kinds: dict[type, list[int]] = {}
    for place, rule in enumerate(rules):
        kinds.setdefault(type(rule), []).append(place)
    for kind, places in kinds.items():
        together = _one_by_one if len(places) == 1 else getattr(kind, "resolve_all", _alike_together)
        rows = together([rules[place] for place in places], [columns[place] for place in places])
        for place, each in zip(places, rows, strict=True):
            found[place] = each
    return found


def _one_by_one(rules: Sequence[Rule], columns: Sequence[Values]) -> list[Rows]:
    return [rule.resolve(values) for rule, values in zip(rules, columns, strict=True)]


def _alike_together(rules: Sequence[Rule], columns: Sequence[Values]) -> list[Rows]:
    """Resolves the columns of rules that differ in nothing but their input's name as one column."""
    found: list[Rows] = [np.empty(0, np.int64)] * len(rules)
    groups: dict[Any, list[int]] = {}
    for place, (rule, values) in enumerate(zip(rules, columns, strict=True)):
        groups.setdefault((getattr(rule, "alike", place), values.dtype), []).append(place)
    for places in groups.values():
        sent = [columns[place] for place in places]
        try:
            rows = _split(rules[places[0]].resolve(np.concatenate(sent)), sent)
        except FeatureError:  # it names the first input: the one that is meant says it itself
            rows = _one_by_one([rules[place] for place in places], sent)
        for place, each in zip(places, rows, strict=True):
            found[place] = each
    return found


def hashes(name: str, values: Values, key: tuple[int, int] | None = None) -> NDArray[np.uint64]:
    """Returns [m] uint64 hashes of strings, or of the decimal strings of integers: fingerprints, with a key SipHash.

    Raises:
      FeatureError: a value is no id, or no Unicode text.
    """
    ids = known_kind(name, values)
    if ids.dtype == np.int64:
        return fingerprints.of_integers(ids) if key is None else siphash.of_strings(list(map(str, ids.tolist())), key)
    try:
        return fingerprints.of_strings(ids.tolist()) if key is None else siphash.of_strings(ids.tolist(), key)
    except UnicodeEncodeError as problem:
        raise FeatureError(name, f"a string is no Unicode text: {problem}; UTF-8 was expected") from problem


def within(rows: Rows, count: int | None) -> Rows:
    """Returns rows with -1 in place of those outside [0, count), all as they are without a count."""
    if count is None:
        return rows
    # Seen as unsigned, negative rows are huge: one comparison finds both ends. Counting is much cheaper than any().
    beyond = rows.view(np.uint64) >= np.uint64(count)
    return np.where(beyond, -1, rows) if np.count_nonzero(beyond) else rows


def _within_each(rows: Rows, counts: Sequence[int], parts: Sequence[NDArray[Any]]) -> Rows:
    limits = np.array(counts, np.uint64).repeat([part.size for part in parts])
    beyond = rows.view(np.uint64) >= limits
    return np.where(beyond, -1, rows) if np.count_nonzero(beyond) else rows


def _split(whole: NDArray[Any], parts: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    ends = np.cumsum([0, *(part.size for part in parts)]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
