"""Inputs of models as tensors: dense, ragged or sparse, as the recipe declares them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bundle.features.columns import Column, checked_offsets
from export.graphs.loading import tf
from export.recipe.schema import InputSection


def input_spec(section: InputSection) -> Any:
    """Returns the TensorFlow type of one declared input, for any batch size."""
    dtype = tf.as_dtype(section.sent_dtype)
    if section.kind == "ragged":
        return tf.RaggedTensorSpec([None, None], dtype, ragged_rank=1, row_splits_dtype=tf.int64)
    if section.kind == "sparse":
        return tf.SparseTensorSpec([None, None], dtype)
    return tf.TensorSpec([None, *section.shape], dtype)


def with_values(ids: Any, values: Any) -> Any:
    """Returns values in the positions of ids: ragged, sparse or dense as the ids are."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(values)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    return tf.reshape(values, tf.shape(ids))


def composed(
    name: str, section: InputSection, column: Column, n: int, padding: int | str | None = None
) -> Any:
    """Returns the values of a column as a tensor: ragged, sparse, or dense and filled up with
    padding, else zeros.
    """
    dtype = tf.as_dtype(section.sent_dtype)
    values = column.values
    if dtype == tf.string and values.dtype != object:
        values = values.astype(str).astype(object)
    splits = checked_offsets(name, column, n)
    ragged = tf.RaggedTensor.from_row_splits(tf.constant(values, dtype), splits)
    if section.kind == "ragged":
        return ragged
    if section.kind == "sparse":
        sparse = ragged.to_sparse()
        # A batch of empty examples would have no column.
        shape = tf.maximum(sparse.dense_shape, [0, 1])
        return tf.SparseTensor(sparse.indices, sparse.values, shape)
    dense = ragged.to_tensor(padding, shape=[n, math.prod(section.shape)])
    return tf.reshape(dense, [n, *section.shape])


def with_booleans(
    values: Mapping[str, Any], sections: Mapping[str, InputSection]
) -> dict[str, Any]:
    """Returns the values of inputs as a call takes them: numbers that stand for a bool as one."""
    converted = dict(values)
    for name, value in values.items():
        if sections[name].dtype == "bool":
            converted[name] = tf.cast(value, tf.bool)
    return converted
