"""Operations of PyTorch (ATen) as operations of TensorFlow.

Every function has the parameters of ATen's schema in their order. Sizes that depend on the batch
are scalar tensors, all other sizes are numbers.

Source: PyTorch 2.15, aten/src/ATen/native/native_functions.yaml.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.errors import NotConvertible
from export.graphs.elementwise import ELEMENTWISE, function_of
from export.graphs.loading import tf

_PROMOTION_ORDER = (tf.bool, tf.int32, tf.int64, tf.float32, tf.float64)
"""The dtypes of towers, each kind after the one that is promoted to it."""
_NUMBER_DTYPES = {bool: tf.bool, int: tf.int64, float: tf.float32}
"""The dtype that PyTorch has for a number of Python."""


def _promote(*operands: Any) -> list[Any]:
    """Returns operands in the dtype that PyTorch computes in."""
    tensors = [
        tf.convert_to_tensor(operand, _NUMBER_DTYPES.get(type(operand))) for operand in operands
    ]

    def priority(tensor: Any) -> tuple[int, bool, int]:
        kind = (tensor.dtype != tf.bool) + tensor.dtype.is_floating
        # A number, or a tensor without dimensions, decides on the kind, and on the size only among
        # its like.
        return kind, tensor.shape.rank != 0, _PROMOTION_ORDER.index(tensor.dtype)

    dtype = max(tensors, key=priority).dtype
    return [tf.cast(tensor, dtype) for tensor in tensors]


def _binary(
    compute: Callable[..., Any], of_bools: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Returns a function of two promoted operands, and of bools another one if there is one."""

    def run(first: Any, second: Any) -> Any:
        operands = _promote(first, second)
        if of_bools is not None and operands[0].dtype == tf.bool:
            return of_bools(*operands)
        return compute(*operands)

    return run


_multiply = _binary(ELEMENTWISE["mul"], tf.logical_and)


def _scaled_second(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a sum or a difference, of which PyTorch can multiply the second operand."""

    def run(first: Any, second: Any, alpha: float = 1) -> Any:
        if alpha != 1:
            second = _multiply(second, alpha)
        return compute(*_promote(first, second))

    return run


def _divide(dividend: Any, divisor: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return tf.math.floordiv(*_promote(dividend, divisor))
    # PyTorch divides integers as floats; the third operand promotes both.
    *operands, _ = _promote(dividend, divisor, 1.0)
    quotient = operands[0] / operands[1]
    if rounding_mode == "trunc":
        dividend, divisor = _promote(dividend, divisor)
        if not dividend.dtype.is_floating:
            return tf.truncatediv(dividend, divisor)
        return _truncate(quotient)
    return quotient


def _truncate(values: Any) -> Any:
    return tf.sign(values) * tf.floor(tf.abs(values))


def _bucketize(values: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    values, boundaries = _promote(values, boundaries)
    side = "right" if right else "left"
    dtype = tf.int32 if out_int32 else tf.int64
    buckets = tf.searchsorted(boundaries, tf.reshape(values, [-1]), side, dtype)
    return tf.reshape(buckets, tf.shape(values))


def _elu(values: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    # The exponential of large numbers would be infinite, though it is not chosen.
    negative = tf.math.expm1(tf.minimum(values, 0.0) * input_scale)
    return scale * tf.where(values > 0, values, alpha * negative)


def _clamp(values: Any, low: Any = None, high: Any = None) -> Any:
    if low is not None:
        values = tf.maximum(*_promote(values, low))
    if high is not None:
        values = tf.minimum(*_promote(values, high))
    return values


def _product(first: Any, second: Any) -> Any:
    """Multiplies matrices; a vector is a row before the product, and a column behind it."""
    if len(first.shape) == 1:
        return _product(first[None, :], second)[..., 0, :]
    if len(second.shape) == 1:
        return tf.matmul(first, second[:, None])[..., 0]
    return tf.matmul(first, second)


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
    """Normalizes channels, the second dimension; PyTorch also returns statistics, for training."""
    statistics = [mean, variance, bias, weight]
    # The channels of a matrix are its last dimension, along which statistics are repeated.
    for _ in range(len(values.shape) - 2):
        statistics = [entry if entry is None else entry[..., None] for entry in statistics]
    return [tf.nn.batch_normalization(values, *statistics, eps)]


def _convolution(
    values: Any,
    weight: Any,
    bias: Any,
    strides: Sequence[int],
    padding: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    _output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Convolves the last one or two dimensions; the second one is the channels."""
    if transposed or len(strides) > 2:
        raise NotConvertible(
            "a convolution that is transposed, or of three dimensions, has no counterpart"
        )
    dims = range(2, len(values.shape))
    values = tf.pad(_channels_last(values), [[0, 0], *([size, size] for size in padding), [0, 0]])
    weight = tf.transpose(weight, [*dims, 1, 0])
    convolved = [
        tf.nn.convolution(group, group_weight, strides, "VALID", dilations=dilations)
        for group, group_weight in zip(
            tf.split(values, groups, -1), tf.split(weight, groups, -1), strict=True
        )
    ]
    values = tf.concat(convolved, -1)
    if bias is not None:
        values += bias
    return _channels_second(values)


def _channels_last(values: Any) -> Any:
    """Returns values as TensorFlow's kernels for CPUs need them."""
    return tf.transpose(values, [0, *range(2, len(values.shape)), 1])


def _channels_second(values: Any) -> Any:
    last_dim = len(values.shape) - 1
    return tf.transpose(values, [0, last_dim, *range(1, last_dim)])


def _max_pool(
    values: Any,
    sizes: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> list[Any]:
    """Takes the maximum of each window; PyTorch also returns positions."""
    return [_pool(values, "MAX", sizes, strides, ceil_mode or any(padding), dilations)]


def _average_pool(
    values: Any,
    sizes: Sequence[int],
    strides: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    _count_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    return _pool(values, "AVG", sizes, strides, ceil_mode or any(padding) or divisor is not None)


def _pool(
    values: Any,
    kind: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    has_partial_windows: Any,
    dilations: Sequence[int] = (1, 1),
) -> Any:
    if has_partial_windows:
        raise NotConvertible(
            "pooling with padding, ceil_mode or a divisor has no counterpart: use whole windows"
        )
    pooled = tf.nn.pool(
        _channels_last(values), sizes, kind, strides or sizes, "VALID", dilations=dilations
    )
    return _channels_second(pooled)


def _copy(values: Any, new: Any) -> Any:
    """Overwrites values."""
    return tf.broadcast_to(tf.cast(new, values.dtype), tf.shape(values))


def _empty(sizes: Sequence[Any], dtype: Any = None) -> Any:
    # What is not overwritten must not equal what PyTorch found in memory, which is often 0.
    dtype = dtype or tf.float32
    return tf.fill(tf.stack(sizes), tf.constant(dtype.max, dtype))


def _full(sizes: Sequence[Any], fill: Any, dtype: Any = None) -> Any:
    if dtype is None:
        dtype = _NUMBER_DTYPES[type(fill)]
    return tf.fill(tf.stack(sizes), tf.cast(fill, dtype))


def _range(start: Any, end: Any, step: Any = 1, dtype: Any = None) -> Any:
    numbers = (start, end, step)
    if dtype is None:
        has_float = any(isinstance(number, float) for number in numbers)
        dtype = tf.float32 if has_float else tf.int64
    return tf.range(*(tf.cast(number, dtype) for number in numbers))


def _pad(values: Any, sizes: Sequence[int], fill: Any = 0) -> Any:
    """Pads dimensions, from the last one on; a negative size cuts."""
    pairs = [(0, 0)] * len(values.shape)
    for number in range(len(sizes) // 2):
        pairs[-1 - number] = (sizes[2 * number], sizes[2 * number + 1])
    padding = [[max(before, 0), max(after, 0)] for before, after in pairs]
    values = tf.pad(values, padding, constant_values=tf.cast(fill, values.dtype))
    kept = [slice(max(-before, 0), min(after, 0) or None) for before, after in pairs]
    return values[tuple(kept)]


def _repeat(values: Any, repeats: Sequence[Any]) -> Any:
    for _ in range(len(repeats) - len(values.shape)):
        values = tf.expand_dims(values, 0)
    return tf.tile(values, tf.stack(repeats))


def _squeeze(values: Any, dims: Any = None) -> Any:
    """Removes dimensions of size 1. PyTorch keeps those of other sizes, and an open batch."""
    if dims is None:
        dims = range(len(values.shape))
    elif isinstance(dims, int):
        dims = [dims]
    removed_dims = [dim for dim in dims if values.shape[dim] == 1]
    # TensorFlow takes an empty list for all dimensions.
    if not removed_dims:
        return values
    return tf.squeeze(values, removed_dims)


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


def _gather(values: Any, dim: int, positions: Any) -> Any:
    gathered = tf.experimental.numpy.take_along_axis(values, positions, dim)
    # While a graph is traced, NumPy's function forgets the sizes that are known.
    gathered.set_shape(positions.shape)
    return gathered


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


def _scattered(update: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that writes values, or one value, to positions of one dimension."""

    def run(values: Any, dim: int, positions: Any, new: Any) -> Any:
        sizes = tf.shape(positions)
        ranges = [tf.range(sizes[i]) for i in range(len(positions.shape))]
        places = tf.meshgrid(*ranges, indexing="ij")
        places[dim] = tf.cast(positions, tf.int32)
        if tf.is_tensor(new) and len(new.shape):
            # PyTorch reads as many new values as there are positions.
            new = tf.slice(new, tf.zeros_like(sizes), sizes)
        new = tf.broadcast_to(tf.cast(new, values.dtype), sizes)
        return update(values, tf.stack(places, -1), new)

    return run


def _index_put(values: Any, indices: Sequence[Any], new: Any, accumulate: bool = False) -> Any:
    """Writes one value where a mask is true."""
    mask = indices[0]
    is_one_value = math.prod(new.shape) == 1
    if len(indices) != 1 or mask.dtype != tf.bool or accumulate or not is_one_value:
        raise NotConvertible(
            "PyTorch's assignment to positions, or of several values by a mask, has no "
            "counterpart: use torch.where"
        )
    for _ in range(len(values.shape) - len(mask.shape)):
        mask = mask[..., None]
    return tf.where(mask, tf.cast(tf.reshape(new, []), values.dtype), values)


def _slice_scatter(
    values: Any, new: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Writes a slice of one dimension, whose size is a number."""
    size = values.shape[dim]
    # New values stand behind the old ones, and a gather chooses among both.
    sources = list(range(size))
    for number, position in enumerate(range(size)[slice(start, end, step)]):
        sources[position] = size + number
    both = tf.concat([values, tf.cast(new, values.dtype)], dim)
    return tf.gather(both, sources, axis=dim)


def _reduction(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a reduction over all dimensions if none is named, in the dtype that is stated."""

    def run(values: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        if dtype is not None:
            values = tf.cast(values, dtype)
        return compute(values, _dims(dim), keepdim)

    return run


def _dims(dim: Any) -> Any:
    """Returns the dimensions to reduce, as TensorFlow expects them: None is all."""
    if isinstance(dim, list) and not dim:
        return None
    return dim


def _as_int64(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a sum or product: PyTorch adds booleans and all integers as int64."""

    def run(values: Any, *arguments: Any, **options: Any) -> Any:
        if not values.dtype.is_floating:
            values = tf.cast(values, tf.int64)
        return compute(values, *arguments, **options)

    return run


def _any(values: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return tf.reduce_any(tf.cast(values, tf.bool), _dims(dim), keepdim)


def _best(reduce: Callable[..., Any], position: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `max` or `min`: of all values, or of one dimension with the positions in it."""

    def run(values: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(values)
        return [reduce(values, dim, keepdim), position(values, dim, keepdim)]

    return run


def _position(compute: Callable[..., Any]) -> Callable[..., Any]:
    def run(values: Any, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return compute(tf.reshape(values, [-1]), 0, tf.int64)
        positions = compute(values, dim, tf.int64)
        if keepdim:
            positions = tf.expand_dims(positions, dim)
        return positions

    return run


_argmax = _position(function_of("math.argmax"))
_argmin = _position(function_of("math.argmin"))


def _sort(values: Any, dim: int = -1, descending: bool = False) -> list[Any]:
    direction = "DESCENDING" if descending else "ASCENDING"
    positions = tf.argsort(values, dim, direction, stable=True)
    return [_gather(values, dim, positions), tf.cast(positions, tf.int64)]


def _top(
    values: Any, count: int, dim: int = -1, largest: bool = True, _is_sorted: bool = True
) -> list[Any]:
    chosen = slice(0, count)
    return [_select(entries, dim, chosen) for entries in _sort(values, dim, largest)]


def _variance(
    values: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False
) -> Any:
    dims = _dims(dim)
    if correction is None:
        correction = 1
    mean = tf.reduce_mean(values, dims, keepdims=True)
    squares = tf.reduce_sum(tf.square(values - mean), dims, keepdim)
    count = tf.size(values) // tf.size(mean)
    return squares / tf.maximum(tf.cast(count, values.dtype) - correction, 0.0)


def _norm(values: Any, order: float = 2, dim: Any = None, keepdim: bool = False) -> Any:
    dims = _dims(dim)
    sizes = tf.abs(values)
    if order == 2:
        return tf.sqrt(tf.reduce_sum(tf.square(values), dims, keepdim))
    if order == math.inf:
        return tf.reduce_max(sizes, dims, keepdim)
    if order == 0 or math.isinf(order):
        raise NotConvertible(
            f"a norm of order {order} has no counterpart; use a norm of order 1, 2 or inf"
        )
    return tf.reduce_sum(sizes**order, dims, keepdim) ** (1 / order)


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
_BINARY = ("atan2", "eq", "ge", "gt", "le", "lt", "ne")

OPERATIONS: dict[str, Callable[..., Any]] = {
    # Elements
    **{name: ELEMENTWISE[name] for name in _UNARY},
    **dict.fromkeys(("bitwise_not", "logical_not"), tf.logical_not),
    "elu": _elu,
    "gelu": lambda values, approximate="none": tf.nn.gelu(values, approximate == "tanh"),
    "isnan": tf.math.is_nan,
    "leaky_relu": lambda values, slope=0.01: tf.nn.leaky_relu(values, slope),
    "log10": lambda values: tf.math.log(values) / math.log(10),
    "log2": lambda values: tf.math.log(values) / math.log(2),
    "reciprocal": tf.math.reciprocal,
    "relu": tf.nn.relu,
    "round": tf.round,
    "sigmoid": tf.sigmoid,
    "trunc": _truncate,
    # Two operands, and choices
    "bucketize": _bucketize,
    **{name: _binary(ELEMENTWISE[name]) for name in _BINARY},
    "add": _scaled_second(ELEMENTWISE["add"]),
    "bitwise_and": _binary(tf.bitwise.bitwise_and, tf.logical_and),
    "bitwise_or": _binary(tf.bitwise.bitwise_or, tf.logical_or),
    "bitwise_xor": _binary(tf.bitwise.bitwise_xor, tf.math.logical_xor),
    "clamp": _clamp,
    "div": _divide,
    "fmod": _binary(tf.truncatemod),
    "hardtanh": _clamp,
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
    "maximum": _binary(tf.maximum),
    "minimum": _binary(tf.minimum),
    "mul": _multiply,
    "pow": _binary(tf.pow),
    "remainder": _binary(tf.math.floormod),
    "sub": _scaled_second(ELEMENTWISE["sub"]),
    "where": lambda condition, *values: tf.where(condition, *_promote(*values)),
    # Products and layers
    "_log_softmax": lambda values, dim, _to_float: tf.nn.log_softmax(values, dim),
    "_native_batch_norm_legit_no_training": _batch_norm,
    "addmm": lambda bias, first, second: tf.matmul(first, second) + bias,
    "avg_pool2d": _average_pool,
    **dict.fromkeys(("bmm", "matmul", "mm"), _product),
    "convolution": _convolution,
    "einsum": lambda equation, operands: tf.einsum(equation, *operands),
    "layer_norm": _layer_norm,
    "linear": _linear,
    "max_pool2d_with_indices": _max_pool,
    "scaled_dot_product_attention": _attention,
    "softmax": lambda values, dim, dtype=None: tf.nn.softmax(
        tf.cast(values, dtype or values.dtype), dim
    ),
    # Shapes and dtypes
    "_to_copy": tf.cast,
    "arange": _range,
    "cat": lambda tensors, dim=0: tf.concat(_promote(*tensors), axis=dim),
    **dict.fromkeys(("alias", "clone"), tf.identity),
    "constant_pad_nd": _pad,
    "copy": _copy,
    "empty": _empty,
    "expand": _expand,
    "flip": tf.reverse,
    "full": _full,
    "full_like": lambda values, fill, dtype=None: tf.fill(
        tf.shape(values), tf.cast(fill, dtype or values.dtype)
    ),
    "permute": tf.transpose,
    "repeat": _repeat,
    "select": _select,
    "slice": lambda values, dim=0, start=None, end=None, step=1: _select(
        values, dim, slice(start, end, step)
    ),
    "slice_scatter": _slice_scatter,
    "split_with_sizes": lambda values, sizes, dim=0: tf.split(values, sizes, axis=dim),
    "squeeze": _squeeze,
    "unsqueeze": tf.expand_dims,
    "view": _view,
    # Gathers
    "embedding": lambda weight, indices, *_training: tf.gather(weight, indices),
    "gather": _gather,
    "index": _index,
    "index_put": _index_put,
    "scatter": _scattered(tf.tensor_scatter_nd_update),
    "scatter_add": _scattered(tf.tensor_scatter_nd_add),
    "index_select": lambda values, dim, index: tf.gather(values, index, axis=dim),
    # Reductions
    "amax": _reduction(tf.reduce_max),
    "amin": _reduction(tf.reduce_min),
    "any": _any,
    "argmax": _argmax,
    "argmin": _argmin,
    "linalg_vector_norm": _norm,
    "max": _best(tf.reduce_max, _argmax),
    "mean": _reduction(tf.reduce_mean),
    "min": _best(tf.reduce_min, _argmin),
    "prod": _as_int64(_reduction(tf.reduce_prod)),
    "sum": _as_int64(_reduction(tf.reduce_sum)),
    "var": _variance,
    # Along a dimension
    "cumprod": _as_int64(
        lambda values, dim, dtype=None: tf.math.cumprod(tf.cast(values, dtype or values.dtype), dim)
    ),
    "cumsum": _as_int64(
        lambda values, dim, dtype=None: tf.cumsum(tf.cast(values, dtype or values.dtype), dim)
    ),
    "sort": _sort,
    "topk": _top,
    # Sizes, in Python
    "operator.add": operator.add,
    "operator.floordiv": operator.floordiv,
    "operator.getitem": operator.getitem,
    "operator.mul": operator.mul,
    "operator.sub": operator.sub,
    "sym_size": _size,
}
"""Name of an operation -> the function that computes it."""
