"""Id rules as TensorFlow's own operations, for self-contained SavedModels, and in a few words, for `explain`.

Each rule of one input has its own module, which also recognizes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bundle.format.manifest import (
    BucketIds,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    CrossKey,
    EmbeddedFeature,
    HashIds,
    IdRule,
    JoinedIds,
    KeyedIds,
    TextIds,
    VocabularyIds,
)
from export.frameworks.loading import tf
from export.id_rules.buckets import bucketized, describe_buckets, rows_of_buckets
from export.id_rules.hashes import describe_hash, rows_of_hash, texts_of
from export.id_rules.integers import describe_computed, rows_of_computed
from export.id_rules.resolved_ids import Vocabularies
from export.id_rules.texts import changed, describe_words, words
from export.id_rules.vocabularies import describe_vocabulary, rows_of_vocabulary

Rows = Callable[[Any, Any, Vocabularies], Any]


def rows_of(rule: IdRule, values: Any, vocabularies: Vocabularies) -> Any:
    """Returns [m] int64 rows of [m] ids by a rule of one input; unknown ids have rows outside the table."""
    if isinstance(rule, TextIds):
        return rows_of(rule.ids, values if rule.split else words(rule, values), vocabularies)
    for each in rule.rules if isinstance(rule, ChainedIds) else (rule,):
        rows: Rows | None = _ROWS.get(type(each))
        values = tf.cast(values, "int64") if rows is None else rows(each, values, vocabularies)
    return values


_ROWS: dict[type, Rows] = {
    HashIds: rows_of_hash,
    VocabularyIds: rows_of_vocabulary,
    BucketIds: rows_of_buckets,
    ComputedIds: rows_of_computed,
}


def crossed(rule: CrossedIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns the rows of a cross as a SparseTensor, one for each combination of an example's values.

    Args:
      rule: the cross.
      inputs: a RaggedTensor of each input's values, without padding.
      vocabularies: those that its keys read.
    """
    keys = [
        each.with_values(_made_by_key(key, each.values, vocabularies)).to_sparse()
        for key, each in zip(rule.keys, inputs, strict=True)
    ]
    return tf.sparse.cross_hashed(keys, rule.buckets, rule.hash_key)


def joined(rule: JoinedIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns [batch] int64 rows of strings joined from one value of each input.

    Args:
      rule: the join.
      inputs: [batch] values of each input.
      vocabularies: those that it reads.
    """
    parts = [rule.texts[0]]
    for key, values, text in zip(rule.keys, inputs, rule.texts[1:], strict=True):
        parts += [texts_of(_made_by_key(key, values, vocabularies)), text]
    return rows_of(rule.ids, tf.strings.join(parts), vocabularies)


def _made_by_key(key: CrossKey, values: Any, vocabularies: Vocabularies) -> Any:
    values = changed(key.steps, values)
    if key.ids is not None:
        rows = rows_of(key.ids, values, vocabularies)
        if key.rows is None:
            return rows
        known = (rows >= 0) & (rows < key.rows)
        return tf.where(known, rows, tf.constant(-1 if key.unknown_row is None else key.unknown_row, tf.int64))
    if key.boundaries is not None:
        return bucketized(values, key.boundaries)
    return values if key.dtype == "string" else tf.cast(values, tf.int64)


def describe_rows(entry: EmbeddedFeature, inputs: tuple[str, ...]) -> str:
    """Returns how the ids of a feature become rows, in a few words.

    Args:
      entry: its manifest entry.
      inputs: the inputs that it reads.
    """
    if isinstance(entry.ids, KeyedIds):
        return f"key of table {entry.table}"
    return _describe(entry.ids, inputs) + (", below 0 from the end" if entry.from_end else "")


def _describe(rule: IdRule, inputs: tuple[str, ...]) -> str:
    if isinstance(rule, CrossedIds):
        return f"cross of {' and '.join(inputs)} mod {rule.buckets}"
    if isinstance(rule, JoinedIds):
        around = zip(rule.texts, (*inputs, ""), strict=True)
        pieces = [piece for text, name in around for piece in (text and repr(text), name)]
        return f"{_describe(rule.ids, inputs)} of the string {' + '.join(filter(None, pieces))}"
    if isinstance(rule, TextIds):
        return f"{_describe(rule.ids, inputs)} of {describe_words(rule)}"
    if isinstance(rule, ChainedIds):
        return ", then ".join(_describe(each, inputs) for each in rule.rules)
    return _DESCRIPTIONS.get(type(rule), lambda _: "the id is the row")(rule)


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    HashIds: describe_hash,
    VocabularyIds: describe_vocabulary,
    BucketIds: describe_buckets,
    ComputedIds: describe_computed,
}
