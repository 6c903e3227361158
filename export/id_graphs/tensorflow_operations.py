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
from bundle.format.id_graphs import ConstantNode, CrossNode, InputNode, OperationNode, SplitNode
from bundle.format.manifest import GraphIds, LookupTable
from export.graphs.loading import tf
from export.recipe.schema import VocabularySection

Vocabularies = Mapping[str, Any]
"""TensorFlow lookup tables by name: key -> position, -1 if unknown."""


def rows_of(rule: GraphIds, vocabularies: Vocabularies, *inputs: Any) -> Any:
    """Returns [m] int64 rows of [m] values of each input in TensorFlow; unknown ids have rows
    outside the table.
    """
    return tf.cast(_compute(rule, inputs, vocabularies), tf.int64)


def _compute(rule: GraphIds, inputs: Sequence[Any], vocabularies: Vocabularies) -> Any:
    """Returns the result of the last node, of [m] values of each input."""
    results: list[Any] = []
    for node in rule.nodes:
        # `crossed` and `words` compute these two.
        assert not isinstance(node, CrossNode | SplitNode)  # noqa: S101
        if isinstance(node, InputNode):
            result = _input_ids(inputs[node.input], node.dtype)
        elif isinstance(node, ConstantNode):
            result = _constant(node)
        elif node.op == "LookupTableFindV2":
            table = rule.tables[node.attributes["table"]]
            keys, default = (results[operand] for operand in node.inputs)
            result = _look_up(table, keys, default, vocabularies)
        else:
            result = run_operation(node, [results[operand] for operand in node.inputs])
        results.append(result)
    return results[-1]


def _constant(node: ConstantNode) -> Any:
    values: Sequence[Any] = node.values
    if node.dtype.startswith("float"):
        # A manifest holds NaN and Infinity as words.
        values = [float(value) for value in values]
    return tf.constant(values if node.is_list else values[0], node.dtype)


def _input_ids(values: Any, dtype: str) -> Any:
    """Returns ids in the dtype that the operations of a graph read."""
    if dtype == "string":
        return values
    if dtype == "int64_or_string":
        return texts_of(values)
    return tf.cast(values, dtype)


def _look_up(table: LookupTable, keys: Any, default: Any, vocabularies: Vocabularies) -> Any:
    """Returns the values that a table has for keys; the default for keys that it lacks.

    Of a complete table, such keys fail the call, as they fail the model.
    """
    if keys.dtype != tf.string:
        keys = tf.cast(keys, tf.int64)
    # Keys that are not there have position -1.
    positions = vocabularies[table.vocabulary].lookup(keys)
    values = tf.cast(positions + table.first_value, default.dtype)
    if not table.is_complete:
        return tf.where(positions < 0, default, values)

    message = f"an id is not in vocabulary {table.vocabulary}, and the model fails on such ids"
    all_present = tf.reduce_all(positions >= 0)
    with tf.control_dependencies([tf.debugging.Assert(all_present, [message])]):
        return tf.identity(values)


def run_operation(node: OperationNode, operands: list[Any]) -> Any:
    """Returns the result of the operation that a node names."""
    name = node.op
    if name == "Select":
        # A constant of a graph stands for one of each value, to which the first does not expand.
        name = "SelectV2"
    operation = getattr(tf.raw_ops, name)
    if node.op in ("LowerBound", "UpperBound"):
        # These two search in each row of a matrix; a graph has one list.
        sorted_values, searched_values = operands
        rows = operation(
            sorted_inputs=sorted_values[tf.newaxis],
            values=searched_values[tf.newaxis],
            out_type=tf.as_dtype(node.attributes["out_type"]),
        )
        return rows[0]
    if node.op == "StringJoin":
        return operation(inputs=operands, **node.attributes)

    # TensorFlow's raw operations take keywords alone; operands come first among them.
    parameter_names = list(inspect.signature(operation).parameters)
    arguments = dict(zip(parameter_names, operands, strict=False)) | node.attributes
    if node.op == "GatherV2":
        arguments["axis"] = 0
    return operation(**arguments)


def texts_of(values: Any) -> Any:
    """Returns ids as strings: integers in decimal."""
    if values.dtype == tf.string:
        return values
    return tf.strings.as_string(values)


def words(graph: GraphIds, rule: SplitNode, texts: Any, vocabularies: Vocabularies) -> Any:
    """Returns the words of [batch] texts in TensorFlow, ragged.

    Args:
      graph: The graph.
      rule: Its node that splits texts.
      texts: What callers send.
      vocabularies: The vocabularies that the graph reads.
    """
    strings = tf.strings
    texts = _compute(graph.part(rule.inputs[0]), [texts], vocabularies)
    if rule.split == "characters":
        text_words = strings.unicode_split(texts, "UTF-8")
    else:
        text_words = strings.split(texts, rule.separator)
    if rule.ngrams:
        text_words = strings.ngrams(text_words, rule.ngrams, separator=" ")
    # Runs of words count towards the length, as in Keras's TextVectorization.
    if rule.length is not None:
        text_words = text_words[:, : rule.length]
    if rule.padding is not None:
        padded_words = text_words.to_tensor(rule.padding, shape=[None, rule.length])
        text_words = tf.RaggedTensor.from_tensor(padded_words)
    return text_words


def crossed(
    graph: GraphIds, cross: CrossNode, inputs: Sequence[Any], vocabularies: Vocabularies
) -> Any:
    """Returns the rows of a cross as a SparseTensor, one for each combination of an example's
    values.

    Args:
      graph: The graph.
      cross: Its node of the cross.
      inputs: A RaggedTensor of each input's values, without padding.
      vocabularies: The vocabularies that the graph reads.
    """
    crossed_values = []
    for operand, values in zip(cross.inputs, inputs, strict=True):
        computed = _compute(graph.part(operand), [values.values], vocabularies)
        if computed.dtype != tf.string:
            computed = tf.cast(computed, tf.int64)
        # TensorFlow crosses sparse tensors only.
        crossed_values.append(values.with_values(computed).to_sparse())
    return tf.sparse.cross_hashed(crossed_values, cross.num_buckets, cross.hash_key)


def rows_by_tensorflow(
    rule: GraphIds,
    values: NDArray[Any],
    vocabularies: Mapping[str, VocabularySection],
    base: Path,
) -> NDArray[np.int64]:
    """Returns [m] rows of [m] ids by TensorFlow's own operations, which read a vocabulary's file as
    training does.
    """
    open_vocabularies = {
        table.vocabulary: positions_in_file(vocabularies[table.vocabulary], base)
        for table in manifest.lookup_tables_of(rule)
    }
    rows = rows_of(rule, open_vocabularies, tf.constant(values))
    return np.asarray(rows.numpy(), np.int64)


def positions_in_file(section: VocabularySection, base: Path) -> Any:
    """Returns TensorFlow's lookup table of a vocabulary's file: key -> position, -1 if unknown."""
    path = str((base / section.file).resolve())
    index = tf.lookup.TextFileIndex
    lines = tf.lookup.TextFileInitializer(
        path, tf.as_dtype(section.dtype), index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    return tf.lookup.StaticHashTable(lines, -1)
