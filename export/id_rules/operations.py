"""Rows of ids as TensorFlow's own operations, by the rules of a manifest.

Self-contained SavedModels and small tables inside towers look ids up by them, and checks compare
them with the rows that a bundle finds.
Source: TensorFlow 2.20 and Keras 2.20 / 3.15.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import manifest
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.format.manifest import (
    BucketIds,
    Cast,
    ChainedIds,
    ComputedIds,
    CrossedIds,
    CrossKey,
    GraphIds,
    HashIds,
    IdRule,
    JoinedIds,
    TextIds,
    TextStep,
    VocabularyIds,
)
from export.graphs.loading import tf
from export.recipe.schema import VocabularyPart

Vocabularies = Mapping[str, Any]
"""TensorFlow lookup tables by name: key -> position, -1 if unknown."""


def rows_of(rule: IdRule | None, values: Any, vocabularies: Vocabularies) -> Any:
    """Returns [m] int64 rows of [m] ids by a rule or chain, in TensorFlow; unknown ids have rows
    outside the table.
    """
    for each in links_of(rule):
        values = _ROWS_BY[type(each)](each, values, vocabularies)
    return tf.cast(values, tf.int64)


def links_of(rule: IdRule | None) -> tuple[Any, ...]:
    """Returns the rules of a chain, or a single rule; () where the id is the row."""
    if isinstance(rule, ChainedIds):
        return rule.rules
    return (rule,) if type(rule) in _ROWS_BY else ()


def _rows_by_hash(rule: HashIds, values: Any, _vocabularies: Vocabularies) -> Any:
    rows = hashed(values, rule.buckets, rule.key) + rule.first_row
    if rule.mask is None:
        return rows
    masked = texts_of(values) == str(rule.mask)
    return tf.where(masked, tf.zeros([], tf.int64), rows)


def _rows_by_vocabulary(rule: VocabularyIds, values: Any, vocabularies: Vocabularies) -> Any:
    if values.dtype != tf.string:
        values = tf.cast(values, tf.int64)
    position = vocabularies[rule.vocabulary].lookup(values)  # -1 outside the vocabulary
    rows = tf.where(position < 0, _oov_rows(rule, values, position), position + rule.first_row)
    if rule.mask is None:
        return rows
    return tf.where(values == rule.mask, tf.zeros([], tf.int64), rows)


def _oov_rows(rule: VocabularyIds, values: Any, position: Any) -> Any:
    """Returns the rows of values outside a vocabulary; `position` where they have none."""
    if not rule.oov_buckets:
        return position
    if rule.oov_hash == "modulo" and values.dtype != tf.string:
        bucket = values % rule.oov_buckets
    else:
        bucket = hashed(values, rule.oov_buckets)
    return tf.cast(bucket, tf.int64) + rule.oov_first_row


def _computed_rows(rule: ComputedIds, values: Any, _vocabularies: Vocabularies) -> Any:
    operations = {
        "add": tf.add,
        "multiply": tf.multiply,
        "divide": tf.math.floordiv,
        "remainder": tf.math.floormod,
        "truncated_remainder": tf.truncatemod,
        "at_least": tf.maximum,
        "at_most": tf.minimum,
        "absolute": lambda ids, _: tf.abs(ids),
        "int32": lambda ids, _: tf.cast(tf.cast(ids, tf.int32), tf.int64),
    }
    found = tf.cast(values, tf.int64)
    for each in rule.operations:
        found = operations[each.do](found, tf.constant(each.by or 0, tf.int64))
    return found


def _rows_by_graph(rule: GraphIds, values: Any, vocabularies: Vocabularies) -> Any:
    results: list[Any] = []
    for node in rule.nodes:
        if isinstance(node, InputNode):
            result = values if node.dtype == "string" else tf.cast(values, node.dtype)
        elif isinstance(node, ConstantNode):
            constants = [float(value) if _is_float(node) else value for value in node.values]
            result = tf.constant(constants if node.is_list else constants[0], node.dtype)
        elif node.op == "LookupTableFindV2":
            entry = rule.vocabularies[node.attributes["vocabulary"]]
            keys, default = (results[operand] for operand in node.inputs)
            result = _found(entry, keys, default, vocabularies)
        else:
            result = run_operation(node, [results[operand] for operand in node.inputs])
        results.append(result)
    return results[-1]


def _is_float(node: ConstantNode) -> bool:
    return node.dtype.startswith("float")  # its values may be the words NaN and Infinity


def _found(entry: VocabularyIds, keys: Any, default: Any, vocabularies: Vocabularies) -> Any:
    wide = keys if keys.dtype == tf.string else tf.cast(keys, tf.int64)
    position = vocabularies[entry.vocabulary].lookup(wide)
    value = tf.cast(position + entry.first_row, default.dtype)
    return tf.where(position < 0, default, value)


def run_operation(node: OperationNode, operands: list[Any]) -> Any:
    """Returns the result of the operation that a node names."""
    operation = getattr(tf.raw_ops, node.op)
    if node.op in ("LowerBound", "UpperBound"):  # search in each row of a matrix
        among, searched = operands
        attributes = {"out_type": tf.as_dtype(node.attributes["out_type"])}
        rows = operation(sorted_inputs=among[tf.newaxis], values=searched[tf.newaxis], **attributes)
        return rows[0]
    if node.op == "StringJoin":
        return operation(inputs=operands, **node.attributes)
    names = list(inspect.signature(operation).parameters)
    arguments = dict(zip(names, operands, strict=False)) | node.attributes
    if node.op == "GatherV2":
        arguments["axis"] = 0
    return operation(**arguments)


def _rows_by_bucket(rule: BucketIds, values: Any, _vocabularies: Vocabularies) -> Any:
    boundaries = [float(boundary) for boundary in rule.boundaries]
    bucket = tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)
    if rule.falling:
        bucket = len(boundaries) - bucket
    return bucket + rule.first_row


def hashed(values: Any, buckets: int, key: tuple[int, int] | None = None) -> Any:
    """Returns the hashes of [m] ids, in TensorFlow."""
    strings = tf.strings
    if key is not None:
        return strings.to_hash_bucket_strong(texts_of(values), buckets, list(key))
    return strings.to_hash_bucket_fast(texts_of(values), buckets)


def texts_of(values: Any) -> Any:
    """Returns ids as strings: integers in decimal."""
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def cast(entry: Cast, values: Any) -> Any:
    """Returns ids as the integers that a rule takes."""
    if entry.of == "int64":
        return tf.cast(tf.cast(values, entry.to), tf.int64)
    rounded = {
        "toward_zero": tf.identity,
        "down": tf.floor,
        "up": tf.math.ceil,
        "half_even": tf.round,
    }[entry.rounding]
    return tf.cast(tf.cast(rounded(tf.cast(values, tf.float32)), entry.to), tf.int64)


def words(rule: TextIds, texts: Any) -> Any:
    """Returns the words of [batch] texts in TensorFlow, ragged; [batch] strings for texts that are
    not split.
    """
    strings = tf.strings
    texts = changed(rule.steps, texts)
    if rule.split is None:
        return texts
    if rule.split == "whitespace":
        found = strings.split(texts)
    else:
        found = strings.unicode_split(texts, "UTF-8")
    if rule.ngrams:
        found = strings.ngrams(found, rule.ngrams, separator=" ")
    if rule.length is not None:
        found = found[:, : rule.length]
    return found


def changed(steps: Iterable[TextStep], texts: Any) -> Any:
    """Applies changes to texts in TensorFlow."""
    strings = tf.strings
    plain = {"lower": strings.lower, "upper": strings.upper, "strip": strings.strip}
    for step in steps:
        what = re.escape(step.what) if step.do == "replace" else f"[{re.escape(step.what)}]"
        texts = strings.regex_replace(texts, what, step.by) if step.what else plain[step.do](texts)
    return texts


def crossed(rule: CrossedIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns the rows of a cross as a SparseTensor, one for each combination of an example's
    values.

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
    if key.ids is None and key.dtype == "string":
        return values
    rows = rows_of(key.ids, values, vocabularies)
    if key.rows is None:
        return rows
    known = (rows >= 0) & (rows < key.rows)
    unknown_row = -1 if key.unknown_row is None else key.unknown_row
    return tf.where(known, rows, tf.constant(unknown_row, tf.int64))


def rows_by_tensorflow(
    rule: manifest.IdRule,
    values: NDArray[Any],
    vocabularies: Mapping[str, VocabularyPart],
    base: Path,
) -> NDArray[np.int64]:
    """Returns [m] rows of [m] ids by TensorFlow's own operations, which read a vocabulary's file as
    training does.
    """
    values = values.astype(np.float32) if isinstance(rule, manifest.BucketIds) else values
    opened = {}
    for each in manifest.vocabularies_of(rule):
        part = vocabularies[each.vocabulary]
        values = values.astype(np.int64) if part.dtype == "int64" else values
        opened[each.vocabulary] = positions_in_file(part, base)
    return np.asarray(rows_of(rule, tf.constant(values), opened).numpy(), np.int64)


def positions_in_file(part: VocabularyPart, base: Path) -> Any:
    """Returns TensorFlow's lookup table of a vocabulary's file: key -> position, -1 if unknown."""
    path = str((base / part.file).resolve())
    index = tf.lookup.TextFileIndex
    lines = tf.lookup.TextFileInitializer(
        path, tf.as_dtype(part.dtype), index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    return tf.lookup.StaticHashTable(lines, -1)


_ROWS_BY: Mapping[type, Callable[[Any, Any, Vocabularies], Any]] = MappingProxyType(
    {
        HashIds: _rows_by_hash,
        VocabularyIds: _rows_by_vocabulary,
        ComputedIds: _computed_rows,
        BucketIds: _rows_by_bucket,
        GraphIds: _rows_by_graph,
    }
)
"""The rules of one value, of which chains consist: [m] ids -> [m] int64 rows."""
