"""Calls of JAX as users write them, by the primitive that each is there for; and a model of them.

A call takes arrays of `N` examples, which its group names, and returns arrays with a row for each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from numpy.typing import NDArray

Call = Callable[..., Any]
N = 5
"""The number of examples. No other axis has this size, so that one in its place is noticed."""
DTYPES = ("float32", "bfloat16")
RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(0, 1, (6, 3)).astype(np.float32)
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
ROW = np.array([[2.0, -1.0, 0.5, 3.0]], np.float32)
KERNEL = RANDOM.normal(0, 1, (2, 4, 6)).astype(np.float32)
FILTERS = RANDOM.normal(0, 1, (6, 1, 2, 2)).astype(np.float32)
MESH = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
ON_ONE_DEVICE = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())


def for_each(x: Any, value: Any) -> Any:
    """Repeats a value that all examples have together."""
    return jnp.broadcast_to(value, (x.shape[0], *value.shape))


def in_one_shard(x: Any) -> Any:
    part = jax.sharding.PartitionSpec("devices")

    def add_one(y: Any) -> Any:
        return jnp.tanh(y) + jnp.ones((), y.dtype)

    return jax.shard_map(add_one, mesh=MESH, in_specs=part, out_specs=part)(x)


def running_sums(x: Any, reverse: bool = False) -> Any:
    def add(total: Any, column: Any) -> Any:
        total = 0.5 * total + column
        return total, (total, column * 2)

    last, every = lax.scan(add, jnp.zeros(x.shape[0], x.dtype), x.T, reverse=reverse)
    return last, jnp.stack(every).T


def doubled(x: Any, steps: int) -> Any:
    """Doubles numbers in a loop whose condition JAX evaluates."""
    return lax.while_loop(
        lambda state: state[0] < steps, lambda state: (state[0] + 1, state[1] * 2), (0, x)
    )[1]


def branch(number: Any, x: Any) -> Any:
    return lax.switch(number, [lambda y: y, lambda y: y + 1, lambda y: y * 3], x)


def convolved(x: Any, padding: Any, stride: int = 1, dilation: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        KERNEL.astype(x.dtype),
        (stride,),
        padding,
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


def product(formula: str) -> Call:
    """Returns a product of examples and weights, written both ways round."""
    first, rest = formula.split(",")
    second, result = rest.split("->")
    sizes = {"i": 3, "j": 4, "k": 2, "l": 6}
    weights = RANDOM.normal(0, 1, [sizes[axis] for axis in second])

    def multiply(x: Any) -> Any:
        factor = jnp.asarray(weights, x.dtype)
        reversed_formula = f"{second},{first}->{result}"
        return jnp.einsum(formula, x, factor), jnp.einsum(reversed_formula, factor, x)

    return multiply


def slices_of_each(sizes: tuple[int, int]) -> Call:
    """Returns a slice of the table for each example."""

    def slice_of(ids: Any) -> Any:
        return lax.dynamic_slice(jnp.asarray(TABLE), (ids[0], ids[1]), sizes)

    vectorized: Call = jax.vmap(slice_of)
    return vectorized


def with_unused_noise(x: Any) -> Any:
    jax.random.normal(jax.random.key(0), (4,))
    return x + 1


def attention(x: Any) -> Any:
    heads = x[:, :, None]
    return jax.nn.dot_product_attention(heads, heads, heads, mask=(x[:, None, None, :, 0] > -1))


@jax.jit  # type: ignore[untyped-decorator]
def remainder(ids: Any, count: Any) -> Any:
    """Has the name of a function of `jax.numpy`, and computes something else."""
    return jnp.where(ids < 0, 0, jnp.abs(ids) % (1 + jnp.abs(count % 99)))


with_own_gradient = jax.custom_vjp(jnp.sin)
with_own_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, gradient: (gradient,))

CALLS: dict[str, dict[str, tuple[Call, ...]]] = {
    # [N, 3, 4] numbers
    "x": {
        "abs": (jnp.abs,),
        "add": (with_unused_noise,),
        "asinh": (jnp.arcsinh,),
        "atan": (jnp.arctan,),
        "cbrt": (lax.cbrt,),
        "ceil": (jnp.ceil,),
        "cos": (jnp.cos,),
        "cosh": (jnp.cosh,),
        "erf": (lax.erf,),
        "erfc": (lax.erfc,),
        "exp": (jnp.exp, jax.nn.softmax),
        "exp2": (jnp.exp2,),
        "expm1": (jnp.expm1,),
        "floor": (jnp.floor,),
        "integer_pow": (
            lambda x: [lax.integer_pow(x, power) for power in (0, 1, 2, 3, 4)],
            lambda x: [lax.integer_pow(1 + jnp.abs(x), power) for power in (-1, -2)],
        ),
        "is_finite": (jnp.isfinite,),
        "logistic": (jax.nn.sigmoid, jax.nn.silu),
        "neg": (jnp.negative,),
        "round": (jnp.round, lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)),
        "sign": (jnp.sign,),
        "sin": (jnp.sin, with_own_gradient, jax.checkpoint(lambda x: jnp.sin(x) * 2)),
        "sinh": (jnp.sinh,),
        "square": (jnp.square,),
        "tan": (lambda x: jnp.tan(x / 4),),
        "tanh": (jnp.tanh, jax.nn.gelu, jax.jit(lambda x: jnp.tanh(x) + 1)),
        "convert_element_type": (
            lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
            lambda x: [x.astype(dtype) for dtype in (jnp.int32, jnp.int8, jnp.uint8)],
            lambda x: x.astype(jnp.float16).astype(jnp.int32),
            lambda x: (x > 0).astype(x.dtype),
        ),
        "reduce_precision": (lambda x: [lax.reduce_precision(x, 8, bits) for bits in (7, 23)],),
        "clamp": (lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(1)),),
        "stop_gradient": (lax.stop_gradient,),
        "copy": (lambda x: jnp.array(x, copy=True),),
        "name": (lambda x: checkpoint_name(x, "hidden"),),
        "optimization_barrier": (lambda x: lax.optimization_barrier((x, x + 1)),),
        "sharding_constraint": (lambda x: lax.with_sharding_constraint(x, ON_ONE_DEVICE),),
        "pvary": (in_one_shard,),
        "argmax": (lambda x: jnp.argmax(x, 1), lambda x: for_each(x, jnp.argmax(x, 0))),
        "argmin": (lambda x: jnp.argmin(x, axis=-1),),
        "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, axis=1),),
        "cumprod": (lambda x: jnp.cumprod(x, axis=2),),
        "cumsum": (
            lambda x: jnp.cumsum(x, axis=1),
            lambda x: lax.cumsum(x, axis=2, reverse=True),
        ),
        "reduce_and": (lambda x: jnp.all(x > 0, axis=1),),
        "reduce_or": (lambda x: jnp.any(x > 1, axis=(1, 2)),),
        "reduce_max": (lambda x: x.max(axis=2), lambda x: jax.nn.logsumexp(x, axis=-1)),
        "reduce_min": (lambda x: x.min(axis=(1, 2)),),
        "reduce_prod": (
            lambda x: jnp.prod(x, axis=1),
            lambda x: jnp.broadcast_to(x[:, :1], x.shape).prod(1),
        ),
        "reduce_sum": (
            lambda x: (x.mean(1), x.std(1), jnp.sum(x, axis=())),
            lambda x: for_each(x, x.mean(0)),
            lambda x: jnp.broadcast_to(x[:, :1], x.shape).sum(1),
            lambda x: for_each(x, jnp.broadcast_to(x[:1], (7, 3, 4)).sum(0)),
        ),
        "sort": (
            lambda x: [jnp.sort(x, axis=axis) for axis in (1, 2)],
            lambda x: [jnp.argsort(x, axis=axis) for axis in (1, 2)],
            lambda x: lax.sort((x, x * 2, -x), dimension=1, num_keys=1),
        ),
        "top_k": (lambda x: [lax.top_k(x, 2, axis=axis) for axis in (1, -1)],),
        "broadcast_in_dim": (
            lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 2, *x.shape[1:])),
            lambda x: jnp.ones((x.shape[0], 2)),
            lambda x: x[:, None] * jnp.arange(1.0, 3.0)[:, None, None],
            lambda x: x + jnp.arange(3.0)[:, None],
            lambda x: (x[:, 0] @ x[:, 0].T)[None, :, None].sum((0, 3)),
        ),
        "concatenate": (
            lambda x: jnp.concatenate([x, x * 2], axis=-1),
            lambda x: jnp.concatenate([x, x]).reshape(2, x.shape[0], 12).sum(0),
        ),
        "dim_as_value": (lambda x: x * x.shape[0] + (x.shape[0] * 2 + 1),),
        "iota": (
            lambda x: jnp.arange(x.shape[0], dtype=x.dtype),
            lambda x: lax.broadcasted_iota(jnp.int32, (x.shape[0], 3, 4), 1),
        ),
        "pad": (
            lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=7),
            lambda x: lax.pad(x, x.dtype.type(7), ((0, 0, 0), (-1, 2, 1), (1, -2, 2))),
            lambda x: lax.pad(x, x.dtype.type(7), ((1, -1, 0), (0, 0, 0), (0, 0, 0))),
        ),
        "reshape": (
            lambda x: x.reshape(x.shape[0], 2, 6),
            lambda x: x.reshape(-1, 2).reshape(x.shape[0], -1),
            lambda x: (x[:, 0] @ x[:, 0].T).reshape(-1).reshape(x.shape[0], 1, -1).sum(2),
            lambda x: x[:, :0].reshape(x.shape[0], 0, 3).sum((1, 2)),
        ),
        "rev": (lambda x: jnp.flip(x, 1), lambda x: jnp.flip(x, (1, 2))),
        "slice": (
            lambda x: [lax.slice_in_dim(x, 1, 4, step, axis=2) for step in (1, 2)],
            lambda x: lax.associative_scan(jnp.add, x, axis=1),
        ),
        "split": (lambda x: jnp.split(x, [1, 2], axis=2), lambda x: jnp.split(x, [1], 1)),
        "squeeze": (lambda x: jnp.squeeze(x[:, :1, None, :1], (1, 2)),),
        "stack": (lambda x: jnp.stack([x, -x], axis=1),),
        "tile": (
            lambda x: jnp.tile(x, (1, 2, 1)),
            lambda x: jnp.tile(jnp.arange(3.0), x.shape[0]).reshape(x.shape[0], 3),
        ),
        "transpose": (
            lambda x: jnp.transpose(x, (0, 2, 1)),
            lambda x: jnp.broadcast_to(x[:, :1], x.shape).swapaxes(1, 2),
        ),
        "unstack": (lambda x: jnp.unstack(x, axis=1), lambda x: jnp.unstack(x, axis=2)[3]),
        "dynamic_slice": (
            lambda x: lax.dynamic_slice_in_dim(x, x[0, 0, 0].astype(int), 2, axis=2),
            lambda x: lax.dynamic_slice_in_dim(x, -x[0, 0, 1].astype(int), 2, axis=1),
        ),
        "dynamic_update_slice": (
            lambda x: lax.dynamic_update_slice_in_dim(x, x[:, :1] * 2, 1, axis=1),
            lambda x: lax.dynamic_update_slice_in_dim(x, x[:, :1], 9, 1),
            lambda x: lax.dynamic_update_slice_in_dim(
                x, x[:, :, :2] * 2, x[0, 0, 0].astype(int), 2
            ),
            lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] * 2, 1, 0),
        ),
        "dot_general": (
            *map(product, ("bij,jk->bik", "bij,kj->bik", "bij,ij->b", "bij,ji->b", "bij,ik->bjk")),
            *map(product, ("bij,jkl->bikl", "bij,j->bi", "bij,i->bj", "bij,ijk->bk")),
            lambda x: for_each(x, x[0] @ ROW[0].astype(x.dtype)),
            attention,
            lambda x: jnp.matmul(
                x.astype(jnp.bfloat16),
                jnp.asarray(TABLE[:4], jnp.bfloat16),
                preferred_element_type=jnp.float32,
            ),
        ),
        "conv_general_dilated": (
            lambda x: convolved(x, "SAME"),
            lambda x: convolved(x, "VALID", stride=2),
            lambda x: convolved(x, [(2, 0)], dilation=2),
            lambda x: lax.conv(x[:, None], FILTERS.astype(x.dtype), (1, 2), "SAME"),
            lambda x: (
                lax.conv_general_dilated(
                    x[..., None],
                    FILTERS.astype(x.dtype),
                    (1, 2),
                    [(1, 0), (0, 2)],
                    dimension_numbers=("NHWC", "OIHW", "HWCN"),
                ).T
            ),
        ),
        "scan": (
            lambda x: running_sums(x[:, 0]),
            lambda x: running_sums(x[:, 0], reverse=True),
            lambda x: lax.fori_loop(0, 4, lambda step, y: y * 0.5 + step, x),
            lambda x: lax.scan(lambda c, _: (c * 2, c.sum((1, 2))), x, None, length=3)[0],
        ),
        "while": (lambda x: [doubled(x, steps) for steps in (0, 1, 3)],),
        "cond": (
            lambda x: lax.cond(x[0, 0, 0] > 0, lambda y: y + 1, lambda y: -y, x),
            lambda x: [branch(x[0, 0, 0].astype(int) * sign, x) for sign in (-1, 0, 1)],
            lambda x: [branch(jnp.array(number), x) for number in (-2, 1, 7)],
        ),
        "gather": (
            lambda x: (x[:, 2], x[:, -1], x[:, :, jnp.array([3, 0, 0])]),
            lambda x: jnp.take(x, jnp.array([3, 4, -4, -5]), axis=2),
            lambda x: [x.at[:, 9].get(mode=mode) for mode in ("clip", "fill")],
            lambda x: x.at[:, -9].get(mode="fill", fill_value=3.0),
            lambda x: (for_each(x, x[0]), for_each(x, x[-1, 0, 1]), for_each(x, x[1:].sum(0))),
            lambda x: (x[:, 0, :, None] * x[:, 1, None])[:, *jnp.tril_indices(4, -1)],
            lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x[:, 0, 0]),
            lambda x: (x[:, 1:, ::2], x[:, :2], x[:, :, 1::2], x[:, :, :-1]),
        ),
        "scatter": (
            lambda x: (x.at[:, 1].set(7.0), x.at[:, -1].set(x[:, 0]), x.at[:, 9].set(7.0)),
            lambda x: (x.at[0].set(7.0), x.at[-1].set(x[0]), x.at[:, -9].set(7.0)),
            lambda x: x.at[:, 9].set(7.0, mode="clip"),
            lambda x: for_each(x, jnp.zeros((4, 2)).at[jnp.array([3, 1])].set(x[0, :2, :2])),
            lambda x: for_each(
                x, jnp.ones((6, 4)).at[jnp.array([2, 9])].set(x[0, :2], mode="clip")
            ),
            lambda x: for_each(
                x, jnp.ones((6, 4)).at[jnp.array([5, 5, 2]), jnp.array([0, 1, 3])].set(x[0, 0, :3])
            ),
            lambda x: for_each(x, jnp.ones((6, 4)).at[-1, -2].set(x[0, 0, 0])),
        ),
        "scatter-add": (lambda x: for_each(x, jnp.ones((6, 4)).at[1, 2].add(x[0, 0, 0])),),
    },
    # [N, 3, 4] positive numbers
    "positive": {
        "acosh": (lambda x: jnp.arccosh(1 + x),),
        "digamma": (lax.digamma,),
        "lgamma": (lax.lgamma,),
        "log": (jnp.log,),
        "log1p": (jnp.log1p,),
        "rsqrt": (lax.rsqrt,),
        "sqrt": (jnp.sqrt,),
    },
    # [N, 3, 4] numbers between -1 and 1
    "fraction": {
        "acos": (jnp.arccos,),
        "asin": (jnp.arcsin,),
        "atanh": (jnp.arctanh,),
        "erf_inv": (lax.erf_inv,),
    },
    # [N, 3, 4] numbers twice; the second is also one row that is repeated
    "x y": {
        "add": (jnp.add,),
        "atan2": (jnp.arctan2,),
        "div": (lambda x, y: x / (1 + jnp.abs(y)), lambda x, y: x // (1 + jnp.abs(y))),
        "eq": (lambda x, y: jnp.round(x) == jnp.round(y),),
        "ge": (jnp.greater_equal,),
        "gt": (jnp.greater,),
        "le": (jnp.less_equal,),
        "le_to": (lax.le_to_p.bind,),
        "lt": (jnp.less,),
        "lt_to": (lax.lt_to_p.bind,),
        "max": (jnp.maximum,),
        "min": (jnp.minimum,),
        "mul": (jnp.multiply, jax.vmap(lambda x, y: jnp.outer(x[0], y[0]))),
        "ne": (lambda x, y: jnp.round(x) != jnp.round(y),),
        "pow": (lambda x, y: jnp.power(1 + jnp.abs(x), y),),
        "rem": (lambda x, y: lax.rem(x, 1 + jnp.abs(y)), lambda x, y: x % (1 + jnp.abs(y))),
        "sub": (jnp.subtract,),
        "select_n": (
            lambda x, y: jnp.where(x > 0, x, y),
            lambda x, y: lax.select_n(jnp.abs(y).astype(int) % 3, x, y, x + y),
        ),
        "and": (lambda x, y: (x > 0) & (y > 0),),
        "or": (lambda x, y: (x > 0) | (y > 0),),
        "xor": (lambda x, y: (x > 0) ^ (y > 0),),
        "not": (lambda x, y: ~(x > y),),
        "dot_general": (
            lambda x, y: jnp.einsum("bij,bkj->bik", x, y),
            lambda x, y: jnp.einsum("bij,bij->bi", x, y),
            lambda x, y: jnp.einsum("bij,bkl->bijkl", x, y),
        ),
    },
    # [N, 3, 4] integers twice
    "i j": {
        "and": (jnp.bitwise_and,),
        "or": (jnp.bitwise_or,),
        "xor": (jnp.bitwise_xor,),
        "not": (lambda i, j: ~i,),
        "div": (
            lax.div,
            lambda i, j: (i // 7, i // -3, i // j, i[:1] // j, jnp.where(j == 0, 9, i // j)),
            lambda i, j: i // jnp.array([0, 2, -2, 1]),
            lambda i, j: i.astype(jnp.uint32) // j.astype(jnp.uint32),
            lambda i, j: lax.div(i.astype(jnp.uint32), j.astype(jnp.uint32)),
        ),
        "rem": (
            lax.rem,
            lambda i, j: (i % 7, i % -7, i % j, i[:1] % j),
            lambda i, j: i.astype(jnp.uint32) % j.astype(jnp.uint32),
            remainder,
        ),
        "shift_left": (lambda i, j: i << 2,),
        "shift_right_arithmetic": (lambda i, j: i >> 1,),
        "convert_element_type": (lambda i, j: i.astype(jnp.float32) / 2,),
        "integer_pow": (lambda i, j: i**0 + j**2,),
        "select_n": (lambda i, j: lax.select_n(jnp.abs(i) % 3, i, j, i + j),),
        "sort": (lambda i, j: jnp.argsort(i % 3, axis=2),),
        "top_k": (lambda i, j: lax.top_k(i % 3, 3),),
    },
    # [N, 4] numbers, and [N, 4] ids inside and outside of six rows
    "row ids": {
        "gather": (
            lambda row, ids: [
                jnp.take(jnp.asarray(TABLE), ids, axis=0, mode=mode)
                for mode in ("fill", "clip", "wrap")
            ],
            lambda row, ids: jnp.asarray(TABLE).at[ids].get(mode="fill", fill_value=3.0),
            lambda row, ids: jnp.take(jnp.asarray(TABLE, jnp.bfloat16), ids, axis=0),
            lambda row, ids: [
                jnp.take(jnp.arange(6).astype(dtype), ids)
                for dtype in (bool, jnp.int8, jnp.uint8, jnp.int32, jnp.float32)
            ],
            lambda row, ids: [
                jnp.moveaxis(jnp.take(jnp.asarray(CUBE), ids, axis=axis), axis, 0)
                for axis in (1, 2)
            ],
            lambda row, ids: jnp.asarray(TABLE)[ids, None],
            lambda row, ids: jnp.asarray(TABLE)[ids, ids % 3],
            lambda row, ids: jnp.asarray(CUBE)[ids % 2, :, ids % 4],
            lambda row, ids: jnp.moveaxis(jnp.asarray(CUBE)[:, ids % 3, ids % 4], 1, 0),
            lambda row, ids: jnp.moveaxis(jnp.asarray(CUBE)[:, ids], 1, 0),
            jax.vmap(lambda row, ids: jnp.asarray(TABLE)[ids]),
            lambda row, ids: slices_of_each((1, 3))(ids),
            lambda row, ids: slices_of_each((6, 1))(ids),
            jax.vmap(jnp.take),
            lambda row, ids: jnp.take_along_axis(row, ids, axis=1),
            lambda row, ids: jnp.take_along_axis(
                row[:, None] * jnp.ones((1, 2, 1)), ids[:, None] % 4, axis=2
            ),
            lambda row, ids: row[jnp.arange(row.shape[0]), ids[:, 0]],
            lambda row, ids: [
                row.at[:, ids[0, 0]].get(mode=mode)
                for mode in ("clip", "fill", "promise_in_bounds")
            ],
            lambda row, ids: row.at[:, ids[1, 1]].get(mode="fill", fill_value=3.0),
            lambda row, ids: for_each(
                row, jnp.asarray(TABLE).at[ids[0, :1], ids[0, 1:2]].get(mode="fill")
            ),
        ),
        "eq": (lambda row, ids: jax.nn.one_hot(ids, 6),),
        "scatter-add": (
            lambda row, ids: for_each(
                row, jax.ops.segment_sum(row, jnp.abs(ids[:, 0]), num_segments=6)
            ),
            lambda row, ids: for_each(row, jnp.ones((6, 4)).at[ids[:, 1]].add(row)),
            lambda row, ids: for_each(
                row, jnp.ones((6, 4)).at[ids[:, 1], ids[:, 2]].add(row[:, 0])
            ),
            lambda row, ids: for_each(row, jnp.ones(6).at[ids].add(row)),
        ),
        "scatter": (
            lambda row, ids: for_each(
                row,
                jnp.ones((6, 2))
                .at[ids[:, 0] * 0 + 2 * jnp.arange(row.shape[0])]
                .set(5.0, unique_indices=True, mode="drop"),
            ),
            lambda row, ids: [
                row.at[:, ids[0, 0]].set(row[:, 0], mode=mode) for mode in ("clip", "drop")
            ],
            lambda row, ids: row.at[ids[0, 0]].set(5.0),
            lambda row, ids: for_each(
                row, jnp.ones((6, 4)).at[ids[0, 1], ids[1, 3]].set(row[0, 0])
            ),
        ),
    },
}
"""Arguments -> primitive -> calls."""


def as_floats(array: Any) -> Any:
    """Returns an array as a row of float32 for each example, which is what towers return."""
    if array.dtype in (jnp.int32, jnp.uint32):
        # float32 does not hold all of 32 bits.
        bits = array.astype(jnp.int32)
        array = jnp.stack([bits >> 16, bits & 0xFFFF], 1)
    return array.astype(jnp.float32).reshape(array.shape[0], -1)


def named_calls(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yields the name of each call's output, its primitive, and the call of these inputs.

    Each call is there in float32, with a second array that has a row for each example or one row
    for all; and the first call of each primitive in bfloat16.
    """
    for dtype in DTYPES:
        arrays = dict(inputs)
        for name, array in inputs.items():
            if array.dtype == np.float32:
                arrays[name] = array.astype(dtype)
        x = arrays["x"]
        arrays["same"] = jnp.broadcast_to(jnp.asarray(ROW, x.dtype), x.shape)
        groups = {**CALLS, "x same": CALLS["x y"]}
        if dtype == "bfloat16":
            del groups["x same"], groups["i j"]
        for group, primitives in groups.items():
            for primitive, calls in primitives.items():
                for number, call in enumerate(calls):
                    if dtype == "bfloat16" and number:
                        continue
                    arguments = [arrays[name] for name in group.split()]
                    name = f"{primitive}_{number}_of_{group.replace(' ', '_')}_{dtype}"
                    yield name, primitive, functools.partial(call, *arguments)


def every_call(_parameters: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Computes every call."""
    return {
        name: jnp.concatenate([as_floats(array) for array in jax.tree.leaves(call())], 1)
        for name, _, call in named_calls(inputs)
    }


def build() -> Any:
    return {"unread": jax.ShapeDtypeStruct((1,), jnp.float32)}, every_call


def ordinary_inputs() -> dict[str, NDArray[Any]]:
    """Returns examples such as models see."""
    random = np.random.default_rng(4)
    shape = (N, 3, 4)
    x, y, z = random.normal(0, 2, (3, *shape)).astype(np.float32)
    i, j = random.integers(-50, 50, (2, *shape)).astype(np.int32)
    ids = random.integers(-9, 9, (N, 4)).astype(np.int32)
    ids[0] = [6, 5, -7, -6]
    return {
        "x": x,
        "y": y,
        "positive": np.abs(z) + np.float32(0.1),
        "fraction": np.tanh(z) * np.float32(0.9),
        "i": i,
        "j": j,
        "row": x[:, 0],
        "ids": ids,
    }


def hostile_inputs() -> dict[str, NDArray[Any]]:
    """Returns examples at the limits of numbers and ids, in the shapes of ordinary ones."""
    halves = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -0.49999997, 3.0, 8.0, -8.0, 7.9]
    zeros = [0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6, 1.0, -1.0, 2.0, -2.0, 1e-3, 255.9]
    large = [100.0, -100.0, 1e4, -1e4, 8388609, -8388611, 1e10, -1e10, 1e20, -1e20, 256, 127.5]
    limits = [2**31, 2**31 - 128, -(2**31), -(2**31) - 256, 2**24 + 2, 3e38, -3e38, 1, 2, 3, 4, 5]
    lost = [np.inf, -np.inf, np.nan, 1, np.nan, 2, np.inf, np.inf, 0, -np.inf, 4, np.nan]
    x = np.array([halves, zeros, large, limits, lost], np.float32).reshape(N, 3, 4)
    integers = np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 2**30, -3, 3, 2, -2], np.int32)
    i = np.resize(integers, (N, 3, 4)).astype(np.int32)
    ids = np.array([0, 5, 6, -1, -6, -7, 99, -99, 1 << 30, -(1 << 30)], np.int32)
    return {
        "x": x,
        "y": x[:, ::-1, ::-1],
        "positive": np.abs(x),
        "fraction": np.clip(x, -1, 1),
        "i": i,
        "j": i[:, ::-1, ::-1],
        "row": x[:, 0],
        "ids": np.resize(ids, (N, 4)),
    }
