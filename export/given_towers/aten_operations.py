"""Operations of PyTorch (ATen) as operations of TensorFlow.

Every function has the parameters of ATen's schema in their order. Sizes that depend on the batch
are scalar tensors, all other sizes are numbers.

Source: PyTorch 2.13, aten/src/ATen/native/native_functions.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.errors import NotConvertible
from export.graphs.elementwise import ELEMENTWISE
from export.graphs.loading import tf

_PROMOTION_ORDER = (tf.bool, tf.int32, tf.int64, tf.float32)
"""The dtypes of towers; operands are promoted to the one of their dtypes that comes last here."""


def _promote(*operands: Any) -> list[Any]:
    """Returns operands in the dtype that PyTorch computes in."""
    tensors = [tf.convert_to_tensor(operand) for operand in operands]
    dtype = max((tensor.dtype for tensor in tensors), key=_PROMOTION_ORDER.index)
    return [tf.cast(tensor, dtype) for tensor in tensors]


def _binary(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, second: compute(*_promote(first, second))


def _divide(dividend: Any, divisor: Any) -> Any:
    # PyTorch divides integers as floats; the third operand promotes both.
    dividend, divisor, _ = _promote(dividend, divisor, 1.0)
    return dividend / divisor


def _clamp(values: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        values = tf.maximum(*_promote(values, low))
    if high is not None:
        values = tf.minimum(*_promote(values, high))
    return values


def _linear(values: Any, weight: Any, bias: Any = None) -> Any:
    # A product with a matrix becomes LiteRT's fully connected layer.
    product = tf.matmul(values, tf.transpose(weight))
    if bias is None:
        return product
    return product + bias


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    _dropout: float = 0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """Computes `scaled_dot_product_attention`: zeros where a mask excludes every key."""
    scores = tf.matmul(query, key, transpose_b=True)
    scores *= scale or 1 / math.sqrt(query.shape[-1])
    if is_causal:
        mask = tf.constant(np.tril(np.ones(scores.shape[-2:], bool)))
    if mask is None:
        return tf.matmul(tf.nn.softmax(scores), value)
    if mask.dtype == tf.bool:
        mask = tf.where(mask, 0.0, -math.inf)
    scores += mask
    # A softmax of nothing but minus infinity would be NaN.
    has_key = tf.reduce_any(scores > -math.inf, axis=-1, keepdims=True)
    return tf.matmul(tf.where(has_key, tf.nn.softmax(scores), 0.0), value)


def _layer_norm(
    values: Any, sizes: Sequence[int], weight: Any, bias: Any, eps: float, _cudnn: bool = True
) -> Any:
    axes = list(range(-len(sizes), 0))
    mean, variance = tf.nn.moments(values, axes, keepdims=True)
    return tf.nn.batch_normalization(values, mean, variance, bias, weight, eps)


def _batch_norm(
    values: Any, weight: Any, bias: Any, mean: Any, variance: Any, _momentum: float, eps: float
) -> list[Any]:
    """Normalizes columns; PyTorch also returns statistics, for training."""
    columns = tf.ensure_shape(values, [None, None])
    return [tf.nn.batch_normalization(columns, mean, variance, bias, weight, eps)]


def _size(values: Any, dim: int) -> Any:
    static_size = values.shape[dim]
    if static_size is None:
        return tf.shape(values)[dim]
    return static_size


def _view(values: Any, sizes: Sequence[Any]) -> Any:
    static_sizes = [-1 if tf.is_tensor(size) else size for size in sizes]
    # LiteRT computes with one open size better than with a computed shape.
    if static_sizes.count(-1) == 1:
        return tf.reshape(values, static_sizes)
    return tf.reshape(values, tf.stack(sizes))


def _expand(values: Any, sizes: Sequence[Any]) -> Any:
    """Repeats dimensions of size 1; a size of -1 keeps a dimension."""
    for _ in range(len(sizes) - len(values.shape)):
        values = tf.expand_dims(values, 0)
    expanded_sizes = list(sizes)
    for dim, size in enumerate(sizes):
        if isinstance(size, int) and size == -1:
            expanded_sizes[dim] = _size(values, dim)
    return tf.broadcast_to(values, tf.stack(expanded_sizes))


def _select(values: Any, dim: int, index: Any) -> Any:
    outer_dims = [slice(None)] * (dim % len(values.shape))
    return values[(*outer_dims, index)]


def _index(values: Any, indices: Sequence[Any]) -> Any:
    """Gathers at positions of one dimension, or of several adjacent dimensions."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    first = dims[0]
    last = dims[-1]
    adjacent_indices = indices[first : last + 1]
    has_mask = any(index is not None and index.dtype == tf.bool for index in adjacent_indices)
    if len(dims) != len(adjacent_indices) or has_mask:
        raise NotConvertible(
            "PyTorch's indexing by a mask, or of dimensions that do not lie side by side, has no "
            "counterpart: use torch.where or torch.gather"
        )

    # The indexed dimensions become one, in which an entry has one position.
    sizes = [_size(values, dim) for dim in range(len(values.shape))]
    position = 0
    for dim, index in enumerate(adjacent_indices, start=first):
        size = tf.cast(sizes[dim], index.dtype)
        # Negative indices count from the end.
        position = position * size + tf.math.floormod(index, size)
    joined_size = math.prod(sizes[first : last + 1])
    values = _view(values, [*sizes[:first], joined_size, *sizes[last + 1 :]])
    return tf.gather(values, position, axis=first)


def _sum(values: Any, dim: Any = None, keepdim: bool = False) -> Any:
    # PyTorch sums booleans and all integers as int64.
    if not values.dtype.is_floating:
        values = tf.cast(values, tf.int64)
    return tf.reduce_sum(values, dim, keepdim)


def _norm(values: Any, order: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    if order != 2:
        raise NotConvertible(f"a norm of order {order} has no counterpart; use the norm of order 2")
    return tf.sqrt(tf.reduce_sum(tf.square(values), dim, keepdim))


_UNARY = (
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "neg",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
_BINARY = ("add", "atan2", "eq", "ge", "gt", "le", "lt", "mul", "ne", "sub")

OPERATIONS: dict[str, Callable[..., Any]] = {
    # Elements
    **{name: ELEMENTWISE[name] for name in _UNARY},
    **dict.fromkeys(("bitwise_not", "logical_not"), tf.logical_not),
    "gelu": lambda values, approximate="none": tf.nn.gelu(values, approximate == "tanh"),
    "leaky_relu": lambda values, slope=0.01: tf.nn.leaky_relu(values, slope),
    "reciprocal": tf.math.reciprocal,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    # Two operands, and choices
    **{name: _binary(ELEMENTWISE[name]) for name in _BINARY},
    "bitwise_and": tf.logical_and,
    "bitwise_or": tf.logical_or,
    "clamp": _clamp,
    "div": _divide,
    "hardtanh": _clamp,
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
    "maximum": _binary(tf.maximum),
    "minimum": _binary(tf.minimum),
    "pow": _binary(tf.pow),
    "where": lambda condition, *values: tf.where(condition, *_promote(*values)),
    # Products and layers
    "_native_batch_norm_legit_no_training": _batch_norm,
    **dict.fromkeys(("bmm", "matmul", "mm"), tf.matmul),
    "einsum": lambda equation, operands: tf.einsum(equation, *operands),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "scaled_dot_product_attention": _attention,
    "softmax": tf.nn.softmax,
    # Shapes and dtypes
    "_to_copy": tf.cast,
    "cat": lambda tensors, dim=0: tf.concat(_promote(*tensors), axis=dim),
    "clone": tf.identity,
    "expand": _expand,
    "full_like": lambda values, fill, dtype=None: tf.fill(
        tf.shape(values), tf.cast(fill, dtype or values.dtype)
    ),
    "permute": tf.transpose,
    "select": _select,
    "slice": lambda values, dim=0, start=None, end=None, step=1: _select(
        values, dim, slice(start, end, step)
    ),
    "split_with_sizes": lambda values, sizes, dim=0: tf.split(values, sizes, axis=dim),
    "squeeze": tf.squeeze,
    "unsqueeze": tf.expand_dims,
    "view": _view,
    # Gathers
    "embedding": lambda weight, indices, *_training: tf.gather(weight, indices),
    "gather": lambda values, dim, index: tf.experimental.numpy.take_along_axis(values, index, dim),
    "index": _index,
    # Reductions
    "amax": tf.reduce_max,
    "amin": tf.reduce_min,
    "linalg_vector_norm": _norm,
    "mean": tf.reduce_mean,
    "sum": _sum,
    # Sizes, in Python
    "operator.getitem": lambda values, position: values[position],
    "operator.mul": lambda size, factor: size * factor,
    "sym_size": _size,
}
"""Name of an operation -> the function that computes it."""
