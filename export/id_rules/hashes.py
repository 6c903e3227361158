"""Hashes of strings, and of integers as their decimal strings.

Source: TensorFlow 2.20: the operations of `tf.strings.to_hash_bucket_fast` and `_strong`, on which
the layer Hashing of tf-keras 2.20 and Keras 3.15 is based.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bundle.format.manifest import HashIds
from export.frameworks.loading import tf
from export.graph.input_paths import CallGraph, Values
from export.graph.origins import Source
from export.id_rules.integers import find_raw
from export.id_rules.resolved_ids import ResolvedIds, Vocabularies, from_row

OPERATIONS = frozenset({"StringToHashBucketFast", "StringToHashBucketStrong"})


def find(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns the input whose values are hashed, and the rule; None if they are computed."""
    if values.type == "AddV2":
        return _shifted(values, call, rows)
    found = find_raw(values.inputs[0], call) if values.type in OPERATIONS else None
    if found is None:
        return None
    operation = values.tensor.op
    key = tuple(operation.get_attr("key")) if values.type == "StringToHashBucketStrong" else None
    return replace(found, rule=HashIds(buckets=operation.get_attr("num_buckets"), key=key))


def _shifted(values: Values, call: CallGraph, rows: int | None) -> ResolvedIds | None:
    """Returns a hash whose first row is shifted."""
    for ids, other in (values.inputs, values.inputs[::-1]):
        shift = call.number(other)
        hashed = call.origin(ids)
        found = None if shift is None or isinstance(hashed, Source) else find(hashed, call, rows)
        if found is not None and isinstance(found.rule, HashIds) and shift >= 0:
            return replace(
                found,
                rule=found.rule.model_copy(update={"first_row": found.rule.first_row + int(shift)}),
            )
    return None


def rows_of(rule: HashIds, values: Any, _vocabularies: Vocabularies) -> Any:
    """Returns the rows of [m] ids by a rule, in TensorFlow."""
    rows = hashed(values, rule.buckets, rule.key) + rule.first_row
    return (
        rows
        if rule.mask is None
        else tf.where(texts_of(values) == str(rule.mask), tf.zeros([], tf.int64), rows)
    )


def hashed(values: Any, buckets: int, key: tuple[int, int] | None = None) -> Any:
    """Returns the hashes of [m] ids, in TensorFlow."""
    strings = tf.strings
    if key is not None:
        return strings.to_hash_bucket_strong(texts_of(values), buckets, list(key))
    return strings.to_hash_bucket_fast(texts_of(values), buckets)


def texts_of(values: Any) -> Any:
    """Returns ids as strings: integers in decimal."""
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def describe(rule: HashIds) -> str:
    """Returns how ids become rows, in a few words."""
    how = "hash" if rule.key is None else "hash with a key"
    kept = "" if rule.mask is None else f", but {rule.mask!r} is row 0"
    return f"{how} mod {rule.buckets}{from_row(rule.first_row)}{kept}"
