"""Rows of ids as TensorFlow's own operations, by the rules of a manifest.

Self-contained SavedModels and small tables inside towers look ids up by them, and checks compare
them with the rows that a bundle finds.
Source: TensorFlow 2.20 and Keras 2.20 / 3.15.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.format import manifest
from bundle.format.id_graphs import ConstantNode, InputNode, OperationNode
from bundle.format.manifest import (
    CrossedIds,
    CrossKey,
    GraphIds,
    IdentityIds,
    JoinedIds,
    LookupTable,
    TextIds,
)
from export.graphs.loading import tf
from export.recipe.schema import VocabularySection

Vocabularies = Mapping[str, Any]
"""TensorFlow lookup tables by name: key -> position, -1 if unknown."""


def rows_of(rule: IdentityIds | GraphIds, values: Any, vocabularies: Vocabularies) -> Any:
    """Returns [m] int64 rows of [m] ids in TensorFlow; unknown ids have rows outside the table."""
    if isinstance(rule, GraphIds):
        values = _computed(rule, [values], vocabularies)
    return tf.cast(values, tf.int64)


def _computed(rule: GraphIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns the result of the last node, of [m] values of each input."""
    results: list[Any] = []
    for node in rule.nodes:
        if isinstance(node, InputNode):
            result = _as_taken(inputs[node.input], node.dtype)
        elif isinstance(node, ConstantNode):
            constants = [float(value) if _is_float(node) else value for value in node.values]
            result = tf.constant(constants if node.is_list else constants[0], node.dtype)
        elif node.op == "LookupTableFindV2":
            table = rule.tables[node.attributes["table"]]
            keys, default = (results[operand] for operand in node.inputs)
            result = _looked_up(table, keys, default, vocabularies)
        else:
            result = run_operation(node, [results[operand] for operand in node.inputs])
        results.append(result)
    return results[-1]


def _is_float(node: ConstantNode) -> bool:
    return node.dtype.startswith("float")  # its values may be the words NaN and Infinity


def _as_taken(values: Any, dtype: str) -> Any:
    """Returns ids as the operations of a graph take them."""
    if dtype == "string":
        return values
    return texts_of(values) if dtype == "int64_or_string" else tf.cast(values, dtype)


def _looked_up(table: LookupTable, keys: Any, default: Any, vocabularies: Vocabularies) -> Any:
    wide = keys if keys.dtype == tf.string else tf.cast(keys, tf.int64)
    position = vocabularies[table.vocabulary].lookup(wide)
    value = tf.cast(position + table.first_value, default.dtype)
    if not table.is_complete:
        return tf.where(position < 0, default, value)
    message = f"an id is not in vocabulary {table.vocabulary}, and the model fails on such ids"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(position >= 0), [message])]):
        return tf.identity(value)


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


def texts_of(values: Any) -> Any:
    """Returns ids as strings: integers in decimal."""
    return values if values.dtype == tf.string else tf.strings.as_string(values)


def words(rule: TextIds, texts: Any, vocabularies: Vocabularies) -> Any:
    """Returns the words of [batch] texts in TensorFlow, ragged."""
    strings = tf.strings
    if rule.text is not None:
        texts = _computed(rule.text, [texts], vocabularies)
    if rule.split == "whitespace":
        found = strings.split(texts)
    else:
        found = strings.unicode_split(texts, "UTF-8")
    if rule.ngrams:
        found = strings.ngrams(found, rule.ngrams, separator=" ")
    if rule.length is not None:
        found = found[:, : rule.length]
    return found


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
    """Returns [batch] int64 rows of one value of each input.

    Args:
      rule: what computes them.
      inputs: [batch] values of each input.
      vocabularies: those that it reads.
    """
    return tf.cast(_computed(rule.ids, inputs, vocabularies), tf.int64)


def _made_by_key(key: CrossKey, values: Any, vocabularies: Vocabularies) -> Any:
    """Returns the integers or texts that are crossed."""
    if key.ids is not None:
        values = _computed(key.ids, [values], vocabularies)
    return values if values.dtype == tf.string else tf.cast(values, tf.int64)


def rows_by_tensorflow(
    rule: IdentityIds | GraphIds,
    values: NDArray[Any],
    vocabularies: Mapping[str, VocabularySection],
    base: Path,
) -> NDArray[np.int64]:
    """Returns [m] rows of [m] ids by TensorFlow's own operations, which read a vocabulary's file as
    training does.
    """
    opened = {
        table.vocabulary: positions_in_file(vocabularies[table.vocabulary], base)
        for table in manifest.lookup_tables_of(rule)
    }
    return np.asarray(rows_of(rule, tf.constant(values), opened).numpy(), np.int64)


def positions_in_file(part: VocabularySection, base: Path) -> Any:
    """Returns TensorFlow's lookup table of a vocabulary's file: key -> position, -1 if unknown."""
    path = str((base / part.file).resolve())
    index = tf.lookup.TextFileIndex
    lines = tf.lookup.TextFileInitializer(
        path, tf.as_dtype(part.dtype), index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    return tf.lookup.StaticHashTable(lines, -1)
