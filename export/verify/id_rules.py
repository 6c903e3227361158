"""What TensorFlow itself makes of ids, by the recipe and the training program's files: the judge of a bundle's rows.

It shares nothing with `bundle`: hashes, buckets and vocabulary files are read as a training program reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import VerificationFailed
from export.frameworks.loading import load_tensorflow
from export.recipe.schema import BucketRule, FeaturePart, HashRule, VocabularyPart, VocabularyRule

Rows = NDArray[np.int64]


def check_rows(
    feature: str,
    values: NDArray[Any],
    found: Rows,
    part: FeaturePart,
    rows: int,
    vocabularies: Mapping[str, VocabularyPart],
    base: Path,
) -> None:
    """Holds the rows that a bundle finds for ids to those that TensorFlow finds.

    Args:
      feature: its name, for messages.
      values: [m] ids as callers send them.
      found: [m] the bundle's rows, -1 where there is none.
      part: what the recipe says of the feature.
      rows: of its table.
      vocabularies: the recipe's.
      base: folder of the recipe.
    Raises:
      VerificationFailed: they differ; names an id and both rows.
    """
    right = _rows(values, part, rows, vocabularies, base)
    right = np.where((right < 0) | (right >= rows), -1, right)
    if not np.array_equal(found, right):
        place = int(np.argmax(found != right))
        raise VerificationFailed(
            f"feature {feature!r}: id {values.tolist()[place]!r} is row {found[place]} in the bundle and row "
            f"{right[place]} by the recipe's rule ({part.ids.kind}) in TensorFlow; {int((found != right).sum())} of "
            f"{found.size} differ; nothing is published"
        )


def _rows(
    values: NDArray[Any], part: FeaturePart, rows: int, vocabularies: Mapping[str, VocabularyPart], base: Path
) -> Rows:
    tf = load_tensorflow()
    rule = part.ids
    if isinstance(rule, BucketRule):
        numbers = tf.constant(values, tf.float32)
        found = tf.raw_ops.Bucketize(input=numbers, boundaries=[float(each) for each in rule.boundaries])
    elif isinstance(rule, HashRule):
        texts = tf.constant(values, tf.string) if values.dtype == object else tf.strings.as_string(tf.constant(values))
        found = tf.strings.to_hash_bucket_fast(texts, rule.buckets or rows)
    elif isinstance(rule, VocabularyRule):
        page = vocabularies[rule.vocabulary]
        lookup = tf.lookup
        lines = lookup.TextFileInitializer(
            str(base / page.file),
            tf.as_dtype(page.dtype),
            lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            lookup.TextFileIndex.LINE_NUMBER,
        )
        wanted = values.astype(np.int64) if page.dtype == "int64" else values
        sent = tf.constant(wanted, tf.as_dtype(page.dtype))
        position = lookup.StaticHashTable(lines, -1).lookup(sent).numpy()
        found = tf.where(position < 0, _beyond(rule, sent), position + rule.first_row)
        if rule.mask is not None:
            found = tf.where(sent == tf.constant(rule.mask, sent.dtype), tf.zeros([], tf.int64), found)
    else:
        return values.astype(np.int64)
    return np.asarray(found.numpy(), np.int64)


def _beyond(rule: VocabularyRule, sent: Any) -> Any:
    """Returns the rows of ids that the vocabulary does not hold."""
    tf = load_tensorflow()
    if not rule.oov_buckets:
        return tf.fill(tf.shape(sent), tf.constant(-1, tf.int64))
    if rule.oov_hash == "modulo" and sent.dtype == tf.int64:
        found = tf.math.floormod(sent, tf.constant(rule.oov_buckets, tf.int64))
    else:
        texts = sent if sent.dtype == tf.string else tf.strings.as_string(sent)
        found = tf.strings.to_hash_bucket_fast(texts, rule.oov_buckets)
    return found + (rule.oov_first_row or 0)
