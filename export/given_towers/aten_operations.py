"""Operations of PyTorch (ATen) as operations of TensorFlow.

Each takes the arguments of ATen's schema in their order. Sizes that depend on the batch are scalar
tensors, all others are numbers.

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

_PROMOTED = (tf.bool, tf.int32, tf.int64, tf.float32)
"""The dtypes of towers; operands get the one that comes last."""


def _promoted(*operands: Any) -> list[Any]:
    """Returns operands in the dtype that PyTorch computes in."""
    tensors = [tf.convert_to_tensor(each) for each in operands]
    dtype = max((tensor.dtype for tensor in tensors), key=_PROMOTED.index)
    return [tf.cast(tensor, dtype) for tensor in tensors]


def _binary(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda first, second: compute(*_promoted(first, second))


def _divide(values: Any, other: Any) -> Any:
    first, second, _ = _promoted(values, other, 1.0)
    return first / second


def _clamp(values: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        values = tf.maximum(*_promoted(values, low))
    if high is not None:
        values = tf.minimum(*_promoted(values, high))
    return values


def _linear(values: Any, weight: Any, bias: Any = None) -> Any:
    product = tf.matmul(values, tf.transpose(weight))  # LiteRT's fully connected layer
    return product if bias is None else product + bias


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
    scores += tf.where(mask, 0.0, -math.inf) if mask.dtype == tf.bool else mask
    reached = tf.reduce_any(scores > -math.inf, axis=-1, keepdims=True)
    return tf.matmul(tf.where(reached, tf.nn.softmax(scores), 0.0), value)


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
    known = values.shape[dim]
    return tf.shape(values)[dim] if known is None else known


def _view(values: Any, size: Sequence[Any]) -> Any:
    known = [-1 if tf.is_tensor(each) else each for each in size]
    # LiteRT computes with one size that is not known better than with a computed shape.
    return tf.reshape(values, known if known.count(-1) == 1 else tf.stack(size))


def _expand(values: Any, size: Sequence[Any]) -> Any:
    """Repeats dimensions of size 1; a size of -1 keeps a dimension."""
    for _ in range(len(size) - len(values.shape)):
        values = tf.expand_dims(values, 0)
    sizes = [
        _size(values, dim) if isinstance(each, int) and each == -1 else each
        for dim, each in enumerate(size)
    ]
    return tf.broadcast_to(values, tf.stack(sizes))


def _select(values: Any, dim: int, index: Any) -> Any:
    before = [slice(None)] * (dim % len(values.shape))
    return values[(*before, index)]


def _index(values: Any, indices: Sequence[Any]) -> Any:
    """Gathers at positions of one dimension, or of several that lie side by side."""
    dims = [dim for dim, each in enumerate(indices) if each is not None]
    first = dims[0]
    last = dims[-1]
    given = indices[first : last + 1]
    if len(dims) != len(given) or any(each.dtype == tf.bool for each in given):
        raise NotConvertible(
            "PyTorch's indexing by a mask, or of dimensions that do not lie side by side, has no "
            "counterpart: use torch.where or torch.gather"
        )
    sizes = [_size(values, dim) for dim in range(len(values.shape))]
    position = 0
    for dim, each in enumerate(given, start=first):
        size = tf.cast(sizes[dim], each.dtype)
        position = position * size + tf.math.floormod(each, size)  # -1 is the last one
    joined = math.prod(sizes[first : last + 1])
    values = _view(values, [*sizes[:first], joined, *sizes[last + 1 :]])
    return tf.gather(values, position, axis=first)


def _sum(values: Any, dim: Any = None, keepdim: bool = False) -> Any:
    counted = values if values.dtype.is_floating else tf.cast(values, tf.int64)
    return tf.reduce_sum(counted, dim, keepdim)


def _norm(values: Any, order: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    if order != 2:
        raise NotConvertible(f"a norm of order {order} has no counterpart; take the one of order 2")
    return tf.sqrt(tf.reduce_sum(tf.square(values), dim, keepdim))


_OF_ONE = ("abs", "erf", "exp", "log", "log1p", "neg", "rsqrt", "sqrt", "tanh")
_OF_TWO = ("add", "eq", "ge", "gt", "le", "lt", "mul", "ne", "sub")

OPERATIONS: dict[str, Callable[..., Any]] = {
    # Elements
    **{name: ELEMENTWISE[name] for name in _OF_ONE},
    **dict.fromkeys(("bitwise_not", "logical_not"), tf.logical_not),
    "gelu": lambda values, approximate="none": tf.nn.gelu(values, approximate == "tanh"),
    "leaky_relu": lambda values, slope=0.01: tf.nn.leaky_relu(values, slope),
    "reciprocal": tf.math.reciprocal,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    # Two operands, and choices
    **{name: _binary(ELEMENTWISE[name]) for name in _OF_TWO},
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
    "where": lambda condition, *values: tf.where(condition, *_promoted(*values)),
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
    "cat": lambda tensors, dim=0: tf.concat(_promoted(*tensors), axis=dim),
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
    "linalg_vector_norm": _norm,
    "mean": tf.reduce_mean,
    "sum": _sum,
    # Sizes, in Python
    "operator.getitem": lambda values, place: values[place],
    "operator.mul": lambda size, other: size * other,
    "sym_size": _size,
}
"""Name -> what computes it."""
