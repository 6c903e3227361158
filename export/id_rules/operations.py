"""Id rules as TensorFlow's own operations: what `bundle/features/rules` is for services.

A manifest's page tells a rule; the model's own operations, or those of the recipe's training program, are what it was
told from (`export/id_rules/recognition.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bundle.format import manifest
from export.frameworks.loading import load_tensorflow

Vocabularies = Mapping[str, Any]
"""Key -> position, -1 if unknown, as TensorFlow's lookup tables, by name."""


def rows_of(rule: manifest.IdRule, values: Any, vocabularies: Vocabularies) -> Any:
    """Returns [m] int64 rows of [m] ids by a rule of one input; outside the table where it does not know them."""
    if isinstance(rule, manifest.TextIds):
        values, rule = values if rule.split else words(rule, values), rule.ids
    for each in rule.rules if isinstance(rule, manifest.ChainedIds) else (rule,):
        values = _rows_of_one(each, values, vocabularies)
    return values


def _rows_of_one(rule: manifest.IdRule, values: Any, vocabularies: Vocabularies) -> Any:
    tf = load_tensorflow()
    if isinstance(rule, manifest.ArithmeticIds):
        found = tf.cast(values, tf.int64) + rule.shift
        found = found // rule.divisor if rule.divisor > 1 else found
        if rule.buckets is not None:
            found = (tf.truncatemod if rule.truncated else tf.math.floormod)(found, tf.constant(rule.buckets, tf.int64))
        return found + rule.first_row
    if isinstance(rule, manifest.ComputedIds):
        found = tf.cast(values, tf.int64)
        for each in rule.operations:
            found = _operated(found, each)
        return found
    if isinstance(rule, manifest.HashIds):
        rows = _hashed(values, rule.buckets, rule.key) + rule.first_row
        return rows if rule.mask is None else tf.where(_texts(values) == str(rule.mask), tf.zeros([], tf.int64), rows)
    if isinstance(rule, manifest.BucketIds):
        found = _bucketized(values, rule.boundaries)
        return (len(rule.boundaries) - found if rule.falling else found) + rule.first_row
    if isinstance(rule, manifest.VocabularyIds):
        values = values if values.dtype == tf.string else tf.cast(values, tf.int64)
        position = vocabularies[rule.vocabulary].lookup(values)
        beyond = position
        if rule.oov_buckets:
            modulo = rule.oov_hash == "modulo" and values.dtype != tf.string
            beyond = values % rule.oov_buckets if modulo else _hashed(values, rule.oov_buckets)
            beyond = tf.cast(beyond, tf.int64) + rule.oov_first_row
        rows = tf.where(position < 0, beyond, position + rule.first_row)
        return rows if rule.mask is None else tf.where(values == rule.mask, tf.zeros([], tf.int64), rows)
    return tf.cast(values, tf.int64)


def _operated(values: Any, operation: manifest.IdOperation) -> Any:
    tf = load_tensorflow()
    if operation.by is None:
        return tf.abs(values) if operation.do == "absolute" else tf.cast(tf.cast(values, tf.int32), tf.int64)
    done = {
        "add": tf.add,
        "multiply": tf.multiply,
        "divide": tf.math.floordiv,
        "remainder": tf.math.floormod,
        "truncated_remainder": tf.truncatemod,
        "at_least": tf.maximum,
        "at_most": tf.minimum,
    }
    return done[operation.do](values, tf.constant(operation.by, tf.int64))


def cast(page: manifest.Cast, values: Any) -> Any:
    """Returns ids as the integers that a rule is given."""
    tf = load_tensorflow()
    if page.of == "int64":
        return tf.cast(tf.cast(values, page.to), tf.int64)
    rounded = {"toward_zero": tf.identity, "down": tf.floor, "up": tf.math.ceil, "half_even": tf.round}[page.rounding]
    return tf.cast(tf.cast(rounded(tf.cast(values, tf.float32)), page.to), tf.int64)


def crossed(rule: manifest.CrossedIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns the rows of a cross as a SparseTensor, one for every combination of an example's values.

    Args:
      rule: the cross.
      inputs: a RaggedTensor of each input's values, without padding.
      vocabularies: that its keys read.
    """
    from tensorflow.python.ops import sparse_ops

    keys = [
        each.with_values(_crossed_key(key, each.values, vocabularies)).to_sparse()
        for key, each in zip(rule.keys, inputs, strict=True)
    ]
    return sparse_ops.sparse_cross_hashed(keys, rule.buckets, rule.hash_key)


def words(rule: manifest.TextIds, texts: Any) -> Any:
    """Returns the words of [batch] texts, ragged; of texts that are not split, [batch] strings."""
    tf = load_tensorflow()
    for step in rule.steps:
        if step.do.startswith("replace"):
            what = re.escape(step.what)
            what = what if step.do == "replace" else f"[{what}]"
            texts = tf.strings.regex_replace(texts, what, step.by)
        else:
            plain = {"lower": tf.strings.lower, "upper": tf.strings.upper, "strip": tf.strings.strip}
            texts = plain[step.do](texts)
    if rule.split is None:
        return texts
    found = tf.strings.split(texts) if rule.split == "whitespace" else tf.strings.unicode_split(texts, "UTF-8")
    found = tf.strings.ngrams(found, rule.ngrams, separator=" ") if rule.ngrams else found
    return found if rule.length is None else found[:, : rule.length]


def joined(rule: manifest.JoinedIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns [batch] int64 rows of one value of each input.

    Args:
      rule: what is made of them.
      inputs: [batch] values of each.
      vocabularies: that it reads.
    """
    parts = [rule.texts[0]]
    for key, values, text in zip(rule.keys, inputs, rule.texts[1:], strict=True):
        parts += [_texts(_crossed_key(key, values, vocabularies)), text]
    return rows_of(rule.ids, load_tensorflow().strings.join(parts), vocabularies)


def _crossed_key(key: manifest.CrossKey, values: Any, vocabularies: Vocabularies) -> Any:
    tf = load_tensorflow()
    if key.steps:
        values = words(manifest.TextIds(steps=key.steps, ids=manifest.HashIds(buckets=1)), values)
    if key.ids is not None:
        rows = rows_of(key.ids, values, vocabularies)
        if key.rows is None:
            return rows
        known = (rows >= 0) & (rows < key.rows)
        return tf.where(known, rows, tf.constant(-1 if key.unknown_row is None else key.unknown_row, tf.int64))
    if key.boundaries is not None:
        return _bucketized(values, key.boundaries)
    return values if key.dtype == "string" else tf.cast(values, tf.int64)


def _bucketized(values: Any, boundaries: Sequence[float]) -> Any:
    tf = load_tensorflow()
    limits = [float(each) for each in boundaries]
    return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=limits), tf.int64)


def _texts(values: Any) -> Any:
    tf = load_tensorflow()
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def _hashed(values: Any, buckets: int, key: tuple[int, int] | None = None) -> Any:
    tf = load_tensorflow()
    if key is not None:
        return tf.strings.to_hash_bucket_strong(_texts(values), buckets, list(key))
    return tf.strings.to_hash_bucket_fast(_texts(values), buckets)
