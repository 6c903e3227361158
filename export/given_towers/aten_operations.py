"""Operations of PyTorch (ATen) as operations of TensorFlow.

Each takes the first argument of ATen's schema that is called `self` or `input` by its place, and
all others by their names. Sizes that depend on the batch are scalar
tensors, all others are numbers.

Source: PyTorch 2.13, aten/src/ATen/native/native_functions.yaml.
"""

# ruff: noqa: PLW0108 arguments come by ATen's names

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.errors import NotConvertible
from export.graphs.loading import tf

Operation = Callable[..., Any]

_END = 1 << 31
"""From here on, the end of a slice is the end of the dimension."""


def _binary(compute: Callable[[Any, Any], Any]) -> Operation:
    def operation(values: Any, other: Any, alpha: float = 1) -> Any:
        first, second = _same_dtype(values, other)
        return compute(first, second if alpha == 1 else second * tf.cast(alpha, second.dtype))

    return operation


def _same_dtype(first: Any, second: Any) -> tuple[Any, Any]:
    """Returns two operands in the dtype that PyTorch computes in: of tensors rather than of
    numbers, and of floats rather than of integers.
    """
    if not (tf.is_tensor(first) or tf.is_tensor(second)):
        return first, second  # sizes
    dtypes = [each.dtype for each in (first, second) if tf.is_tensor(each)]
    with_float = any(isinstance(each, float) for each in (first, second))
    dtype = max(dtypes, key=_rank)
    if with_float and not dtype.is_floating:
        dtype = tf.float32
    return tf.cast(first, dtype), tf.cast(second, dtype)


def _rank(dtype: Any) -> tuple[bool, bool, int]:
    return dtype.is_floating, dtype.is_integer, dtype.size


def _float(values: Any) -> Any:
    return values if values.dtype.is_floating else tf.cast(values, tf.float32)


def _divide(values: Any, other: Any, rounding_mode: str | None = None) -> Any:
    first, second = _same_dtype(values, other)
    if rounding_mode == "floor":
        return tf.math.floordiv(first, second)
    quotient = tf.math.divide(_float(first), _float(second))
    if rounding_mode is None:
        return quotient
    towards_zero = tf.sign(quotient) * tf.floor(tf.abs(quotient))
    return tf.cast(towards_zero, first.dtype)


def _power(values: Any, exponent: Any) -> Any:
    first, second = _same_dtype(values, exponent)
    return tf.pow(first, second)


def _clamp(values: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 names of ATen
    if min is not None:
        values = tf.maximum(*_same_dtype(values, min))
    if max is not None:
        values = tf.minimum(*_same_dtype(values, max))
    return values


def _gelu(values: Any, approximate: str = "none") -> Any:
    return tf.nn.gelu(values, approximate=approximate == "tanh")


def _add_product(values: Any, mat1: Any, mat2: Any, beta: float = 1, alpha: float = 1) -> Any:
    product = tf.matmul(mat1, mat2)
    if alpha != 1:
        product *= alpha
    return product + (values if beta == 1 else values * beta)


def _sizes(size: Sequence[Any]) -> Any:
    if any(tf.is_tensor(each) for each in size):
        return tf.stack([tf.cast(each, tf.int32) for each in size])
    return np.asarray(size, np.int32)


def _view(values: Any, size: Sequence[Any]) -> Any:
    open_sizes = [place for place, each in enumerate(size) if tf.is_tensor(each)]
    if len(open_sizes) == 1 and -1 not in [each for each in size if not tf.is_tensor(each)]:
        # LiteRT computes with one size that is not known better than with a computed shape.
        size = [-1 if place in open_sizes else each for place, each in enumerate(size)]
    return tf.reshape(values, _sizes(size))


def _expand(values: Any, size: Sequence[Any], implicit: bool = False) -> Any:  # noqa: ARG001
    added = len(size) - len(values.shape)
    shape = [*[1] * added, *values.shape.as_list()]
    kept = [
        known is None or (not tf.is_tensor(wanted) and wanted in (-1, known))
        for known, wanted in zip(shape, size, strict=True)
    ]
    if all(kept):
        return values
    sizes = [
        _size(values, place - added) if keeps and place >= added else wanted
        for place, (keeps, wanted) in enumerate(zip(kept, size, strict=True))
    ]
    return tf.broadcast_to(values, _sizes(sizes))


def _transpose(values: Any, dim0: int, dim1: int) -> Any:
    order = list(range(len(values.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return tf.transpose(values, order)


def _squeeze(values: Any, dim: int | Sequence[int]) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    return tf.squeeze(values, [each for each in dims if values.shape[each] == 1])


def _slice(values: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if end is not None and not tf.is_tensor(end) and end >= _END:
        end = None
    place: list[Any] = [slice(None)] * (dim % len(values.shape))
    return values[(*place, slice(start, end, step))]


def _select(values: Any, dim: int, index: Any) -> Any:
    place: list[Any] = [slice(None)] * (dim % len(values.shape))
    return values[(*place, index)]


def _split(values: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    return tf.split(values, list(split_sizes), axis=dim)


def _pad(values: Any, pad: Sequence[int], value: float = 0) -> Any:
    """Pads the last dimensions: `pad` begins with those of the last one."""
    pairs = [(pad[place], pad[place + 1]) for place in range(0, len(pad), 2)]
    before = [(0, 0)] * (len(values.shape) - len(pairs))
    return tf.pad(values, [*before, *reversed(pairs)], constant_values=tf.cast(value, values.dtype))


def _index(values: Any, indices: Sequence[Any]) -> Any:
    """Gathers at places of one dimension, or of several that lie side by side."""
    places = [place for place, each in enumerate(indices) if each is not None]
    first = places[0]
    last = places[-1]
    given = [indices[place] for place in places]
    if len(places) != last - first + 1 or any(each.dtype == tf.bool for each in given):
        raise NotConvertible(
            "PyTorch's indexing by a mask, or of dimensions that do not lie side by side, has no "
            "counterpart: use torch.where, torch.gather or torch.index_select"
        )
    sizes = values.shape[first : last + 1].as_list()
    index = given[0]
    for size, each in zip(sizes[1:], given[1:], strict=True):
        index = index * size + each
    if len(given) > 1:
        shape = values.shape.as_list()
        joined = [-1 if size is None else size for size in (*shape[:first], *shape[last + 1 :])]
        joined.insert(first, int(np.prod(sizes)))
        values = tf.reshape(values, joined)
    return _take(values, first, index)


def _take(values: Any, dim: int, index: Any) -> Any:
    """Gathers along a dimension; negative indices count from the end."""
    size = tf.cast(tf.shape(values)[dim], index.dtype)
    return tf.gather(values, tf.where(index < 0, index + size, index), axis=dim)


def _gather(values: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:  # noqa: ARG001
    last = len(values.shape) - 1
    if dim % len(values.shape) != last:
        raise NotConvertible(
            f"torch.gather along dimension {dim} of {last + 1} has no counterpart; transpose the "
            "tensors and gather along the last one"
        )
    return tf.gather(values, index, batch_dims=last)


def _embedding(weight: Any, indices: Any, **_training: Any) -> Any:
    return tf.gather(weight, indices)


def _repeat(values: Any, repeats: Sequence[Any]) -> Any:
    added = len(repeats) - len(values.shape)
    for _ in range(added):
        values = tf.expand_dims(values, 0)
    return tf.tile(values, _sizes(repeats))


def _filled(size: Sequence[Any], value: Any, dtype: Any) -> Any:
    return tf.fill(_sizes(size), tf.cast(value, dtype))


def _full(size: Sequence[Any], fill_value: Any, dtype: Any = None, **_place: Any) -> Any:
    default = tf.float32 if isinstance(fill_value, float) else tf.int64
    if isinstance(fill_value, bool):
        default = tf.bool
    return _filled(size, fill_value, dtype or default)


def _full_like(values: Any, fill_value: Any, dtype: Any = None, **_place: Any) -> Any:
    return tf.fill(tf.shape(values), tf.cast(fill_value, dtype or values.dtype))


def _range(end: Any, start: Any = 0, step: Any = 1, dtype: Any = None, **_place: Any) -> Any:
    if any(tf.is_tensor(each) for each in (start, end, step)):
        return tf.cast(tf.range(start, end, step), dtype or tf.int64)
    found = np.arange(start, end, step)
    default = tf.float32 if found.dtype.kind == "f" else tf.int64
    return tf.constant(found.astype((dtype or default).as_numpy_dtype))


def _upper_triangle(row: int, col: int, offset: int = 0, **_place: Any) -> Any:
    return tf.constant(np.stack(np.triu_indices(row, offset, col)).astype(np.int64))


def _cast(values: Any, dtype: Any = None, **_place: Any) -> Any:
    return values if dtype is None else tf.cast(values, dtype)


def _reduction(reduce: Callable[..., Any], of_integers: Any = None) -> Operation:
    def operation(values: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        if dtype is not None:
            values = tf.cast(values, dtype)
        elif of_integers is not None and not values.dtype.is_floating:
            values = tf.cast(values, of_integers)
        return reduce(values, axis=None if dim in ([], None) else dim, keepdims=keepdim)

    return operation


def _norm(values: Any, ord: float = 2, dim: Any = None, keepdim: bool = False) -> Any:  # noqa: A002
    axis = dim[0] if dim is not None and len(dim) == 1 else dim
    return tf.norm(values, ord=ord, axis=axis, keepdims=keepdim)


def _normalized(values: Any, dims: Sequence[int], eps: float) -> tuple[Any, Any, Any]:
    mean = tf.reduce_mean(values, axis=dims, keepdims=True)
    variance = tf.reduce_mean(tf.math.squared_difference(values, mean), axis=dims, keepdims=True)
    scale = tf.math.rsqrt(variance + eps)
    return (values - mean) * scale, mean, scale


def _layer_norm(
    values: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    dims = list(range(-len(normalized_shape), 0))
    found, mean, scale = _normalized(values, dims, eps)
    return [_scaled(found, weight, bias), mean, scale]


def _batch_norm(
    values: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,  # noqa: ARG001 for training
    eps: float,
) -> Any:
    shape = [1, -1, *[1] * (len(values.shape) - 2)]
    mean = tf.reshape(running_mean, shape)
    variance = tf.reshape(running_var, shape)
    found = (values - mean) * tf.math.rsqrt(variance + eps)
    weight = None if weight is None else tf.reshape(weight, shape)
    bias = None if bias is None else tf.reshape(bias, shape)
    return [_scaled(found, weight, bias), None, None]


def _scaled(values: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        values *= weight
    return values if bias is None else values + bias


def _size(values: Any, dim: int) -> Any:
    known = values.shape[dim]
    return tf.shape(values)[dim] if known is None else known


OPERATIONS: dict[str, Operation] = {
    # Elements
    "abs": tf.abs,
    "add": _binary(lambda first, second: first + second),
    "bitwise_and": _binary(lambda first, second: first & second),
    "bitwise_not": lambda values: ~values,
    "bitwise_or": _binary(lambda first, second: first | second),
    "clamp": _clamp,
    "div": _divide,
    "eq": _binary(tf.equal),
    "erf": tf.math.erf,
    "exp": tf.exp,
    "ge": _binary(tf.greater_equal),
    "gelu": _gelu,
    "gt": _binary(tf.greater),
    "le": _binary(tf.less_equal),
    "leaky_relu": lambda values, negative_slope=0.01: tf.nn.leaky_relu(values, negative_slope),
    "log": tf.math.log,
    "log1p": tf.math.log1p,
    "logical_and": _binary(tf.logical_and),
    "logical_not": lambda values: tf.logical_not(tf.cast(values, tf.bool)),
    "logical_or": _binary(tf.logical_or),
    "lt": _binary(tf.less),
    "maximum": _binary(tf.maximum),
    "minimum": _binary(tf.minimum),
    "mul": _binary(lambda first, second: first * second),
    "ne": _binary(tf.not_equal),
    "neg": tf.negative,
    "pow": _power,
    "reciprocal": tf.math.reciprocal,
    "relu": tf.nn.relu,
    "remainder": _binary(tf.math.floormod),
    "rsqrt": tf.math.rsqrt,
    "sigmoid": tf.sigmoid,
    "sqrt": tf.sqrt,
    "sub": _binary(lambda first, second: first - second),
    "tanh": tf.tanh,
    "where": lambda condition, values, other: tf.where(condition, *_same_dtype(values, other)),
    # Products
    "addmm": _add_product,
    "bmm": lambda values, mat2: tf.matmul(values, mat2),
    "mm": lambda values, mat2: tf.matmul(values, mat2),
    # Shapes
    "_unsafe_view": _view,
    "cat": lambda tensors, dim=0: tf.concat(tensors, axis=dim),
    "constant_pad_nd": _pad,
    "expand": _expand,
    "permute": lambda values, dims: tf.transpose(values, dims),
    "repeat": _repeat,
    "reshape": lambda values, shape: _view(values, shape),
    "select": _select,
    "slice": _slice,
    "split_with_sizes": _split,
    "squeeze": _squeeze,
    "sym_size": _size,
    "transpose": _transpose,
    "unsqueeze": lambda values, dim: tf.expand_dims(values, dim),
    "view": _view,
    # Copies and constants
    "_to_copy": _cast,
    "alias": lambda values: values,
    "arange": _range,
    "clone": lambda values, **_place: values,
    "detach": lambda values: values,
    "full": _full,
    "full_like": _full_like,
    "lift_fresh_copy": lambda values: values,
    "ones_like": lambda values, **how: _full_like(values, 1, **how),
    "scalar_tensor": lambda s, dtype=tf.float32, **_place: tf.cast(s, dtype),
    "triu_indices": _upper_triangle,
    "zeros_like": lambda values, **how: _full_like(values, 0, **how),
    # Gathers
    "embedding": _embedding,
    "gather": _gather,
    "index": _index,
    "index_select": _take,
    # Reductions
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_softmax": lambda values, dim, **_half: tf.nn.softmax(values, axis=dim),
    "amax": _reduction(tf.reduce_max),
    "amin": _reduction(tf.reduce_min),
    "any": _reduction(tf.reduce_any, of_integers=tf.bool),
    "cumsum": lambda values, dim, dtype=None: tf.cumsum(_cast(values, dtype), axis=dim),
    "linalg_vector_norm": _norm,
    "mean": _reduction(tf.reduce_mean),
    "native_layer_norm": _layer_norm,
    "sum": _reduction(tf.reduce_sum, of_integers=tf.int64),
    # Sizes, in Python
    "operator.add": lambda values, other: values + other,
    "operator.floordiv": lambda values, other: values // other,
    "operator.getitem": lambda values, other: values[other],
    "operator.mul": lambda values, other: values * other,
    "operator.sub": lambda values, other: values - other,
}
"""Name -> what computes it."""
