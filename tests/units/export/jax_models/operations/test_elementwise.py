"""Elementwise operations against JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from export.graphs.loading import tf
from tests.units.export.jax_models.evaluated import (
    DTYPES,
    EXAMPLES,
    check_all,
    evaluated,
    graph_of,
)

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax
checkpoint_name = pytest.importorskip("jax.ad_checkpoint").checkpoint_name

ON_ONE_DEVICE = jax.sharding.NamedSharding(
    jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,)),
    jax.sharding.PartitionSpec(),
)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
SEEDS = st.integers(0, 2**16)


def in_one_shard(x: Any) -> Any:
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("devices",))
    part = jax.sharding.PartitionSpec("devices")

    def add_one(y: Any) -> Any:
        return jnp.tanh(y) + jnp.ones((), y.dtype)

    return jax.shard_map(add_one, mesh=mesh, in_specs=part, out_specs=part)(x)


OF_ANY_NUMBER: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "cbrt": lax.cbrt,
    "ceil": jnp.ceil,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "integer_pow": lambda x: x**3,
    "is_finite": jnp.isfinite,
    "logistic": jax.nn.sigmoid,
    "neg": jnp.negative,
    "only shard": in_one_shard,
    "round": jnp.round,
    "round away from zero": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "sign": jnp.sign,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "square": jnp.square,
    "tan": lambda x: jnp.tan(x / 4),
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "bfloat16 and back": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "integers": lambda x: x.astype(jnp.int32),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
    "clip": lambda x: jnp.clip(x, -1, 1),
    "stop_gradient": lax.stop_gradient,
    "clamp": lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(1)),
    "copy": lambda x: jnp.array(x, copy=True),
    "name": lambda x: checkpoint_name(x, "hidden"),
    "optimization_barrier": lambda x: lax.optimization_barrier((x, x + 1)),
    "sharding_constraint": lambda x: lax.with_sharding_constraint(x, ON_ONE_DEVICE),
}
OF_POSITIVE: dict[str, Callable[..., Any]] = {
    "digamma": lax.digamma,
    "lgamma": lax.lgamma,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "rsqrt": lax.rsqrt,
    "sqrt": jnp.sqrt,
    "acosh": lambda x: jnp.arccosh(1 + x),
    "negative powers": lambda x: x**-2,
}
OF_FRACTIONS: dict[str, Callable[..., Any]] = {
    "acos": jnp.arccos,
    "asin": jnp.arcsin,
    "atanh": jnp.arctanh,
    "erf_inv": lax.erf_inv,
}
OF_TWO: dict[str, Callable[..., Any]] = {
    "add": jnp.add,
    "atan2": jnp.arctan2,
    "div": lambda x, y: x / (1 + jnp.abs(y)),
    "eq": lambda x, y: x == jnp.round(y),
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "le_to": lax.le_to_p.bind,
    "lt": jnp.less,
    "lt_to": lax.lt_to_p.bind,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "mul": jnp.multiply,
    "ne": jnp.not_equal,
    "pow": lambda x, y: jnp.power(1 + jnp.abs(x), y),
    "rem": lambda x, y: lax.rem(x, 1 + jnp.abs(y)),
    "sub": jnp.subtract,
    "where": lambda x, y: jnp.where(x > 0, x, y),
    "and, or, xor, not": lambda x, y: ((x > 0) & (y > 0)) | ((x > 1) ^ ~(y > 1)),
}
OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "bits": lambda x, y: (x & y) | (x ^ ~y),
    "div": lambda x, y: lax.div(x, jnp.where(y == 0, 1, y)),
    "floor_divide": lambda x, y: x // 7,
    "remainder": lambda x, y: x % 7,
    "remainder by a negative number": lambda x, y: x % -7,
    "rem": lambda x, y: lax.rem(x, jnp.where(y == 0, 1, y)),
    "shifts": lambda x, y: (x << 2) + (x >> 1),
    "to floats": lambda x, y: x.astype(jnp.float32) / 2,
    "several cases": lambda x, y: lax.select_n(jnp.abs(x) % 3, x, y, x + y),
    "integer_pow 0 and 2": lambda x, y: x**0 + y**2,
}


def numbers(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_one_array(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    check_all(OF_ANY_NUMBER, numbers(shape, seed).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_positive_numbers(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    check_all(OF_POSITIVE, (np.abs(numbers(shape, seed)) + 0.1).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_fractions(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    check_all(OF_FRACTIONS, (np.tanh(numbers(shape, seed)) * 0.9).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_two_arrays(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    first = numbers(shape, seed).astype(dtype)
    right = numbers(shape, seed + 1).astype(dtype)
    check_all(OF_TWO, first, right)


def test_of_an_array_and_a_row_that_is_repeated() -> None:
    row = numbers((5,), 1)
    functions = {name: partial(_with_row, function, row) for name, function in OF_TWO.items()}
    check_all(functions, numbers((2, 3, 5), 2))


def _with_row(function: Callable[..., Any], row: NDArray[np.float32], x: Any) -> Any:
    return function(x, jnp.broadcast_to(row, x.shape))


@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_integers(shape: tuple[int, ...], seed: int) -> None:
    first, right = np.random.default_rng(seed).integers(-50, 50, (2, *shape)).astype(np.int32)
    check_all(OF_INTEGERS, first, right)


OF_BFLOAT16: dict[str, Callable[..., Any]] = {
    "exp": jnp.exp,
    "gelu": jax.nn.gelu,
    "softmax": jax.nn.softmax,
    "sums": lambda x: x * 3 + 1,
    "where": lambda x: jnp.where(x > 0, x, -x),
    "rem": lambda x: lax.rem(x, jnp.bfloat16(3)),
    "powers": lambda x: x**2 - x**3,
}


@EXAMPLES
@given(shape=SHAPES, seed=SEEDS)
def test_of_bfloat16(shape: tuple[int, ...], seed: int) -> None:
    check_all(OF_BFLOAT16, numbers(shape, seed).astype(jnp.bfloat16))


BEYOND_INTEGERS = np.array(
    [1e20, -1e20, np.inf, -np.inf, np.nan, 7.9, -7.9, 2**31, 2**31 - 128, -(2**31), 255.9, 256],
    np.float32,
)


def test_numbers_beyond_integers_become_the_nearest_ones() -> None:
    check_all(
        {
            "int32": lambda x: x.astype(jnp.int32),
            "int8": lambda x: x.astype(jnp.int8),
            "uint8": lambda x: x.astype(jnp.uint8),
            "of bfloat16": lambda x: x.astype(jnp.bfloat16).astype(jnp.int32),
            "of float16": lambda x: x.astype(jnp.float16).astype(jnp.int32),
        },
        BEYOND_INTEGERS,
    )


def test_numbers_beyond_integers_become_the_nearest_ones_in_litert() -> None:
    graph = graph_of(lambda x: x.astype(jnp.int32), BEYOND_INTEGERS).get_concrete_function()
    model = tf.lite.TFLiteConverter.from_concrete_functions([graph]).convert()
    interpreter = Interpreter(model_content=model)
    position = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(position, BEYOND_INTEGERS.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(position, BEYOND_INTEGERS)
    interpreter.invoke()
    actual = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(actual, jnp.asarray(BEYOND_INTEGERS).astype(jnp.int32))


def test_a_row_that_is_added_is_not_repeated_in_the_graph() -> None:
    values = numbers((3, 2, 4), 1)
    row = np.ones((4,), np.float32)
    (actual,) = evaluated(lambda x: x + jnp.broadcast_to(row, (2, 4)), values)
    np.testing.assert_array_equal(actual, values + row)


HALVES = np.array([[-2.5, -1.5, -0.5, 0.5], [1.5, 2.5, 3.0, 8.0]], np.float32)
OF_HALVES: dict[str, Callable[..., Any]] = {
    "round to even": jnp.round,
    "round away from zero": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "remainder": lambda x: x % 2.0,
    "floor_divide": lambda x: x // 2.0,
    "remainder of integers": lambda x: x.astype(int) % 3,
    "floor_divide of integers": lambda x: x.astype(int) // -3,
    "powers": lambda x: [lax.integer_pow(x, exponent) for exponent in (0, 1, 2, 3, 4, -1, -2)],
    "cube root": lax.cbrt,
    "exp2": jnp.exp2,
    "where one condition": lambda x: jnp.where(x[0, 0] > 0, x, -x),
    "where one other condition": lambda x: jnp.where(x[1, 0] > 0, x, -x),
    "one case of three": lambda x: lax.select_n(x[1, 3].astype(int) // 4, x, -x, x * 2),
    "cases of three": lambda x: lax.select_n(abs(x.astype(int)) % 3, x, -x, x * 2),
    "float32 as it is": lambda x: lax.reduce_precision(x + 0.001, 8, 23),
    "as bfloat16": lambda x: lax.reduce_precision(x + 0.001, 8, 7),
    "integers of numbers": lambda x: x.astype(jnp.int8),
    "integers beyond their range": lambda x: (x * 100).astype(jnp.int8),
    "unsigned integers": lambda x: x.astype(jnp.uint8),
    "numbers of booleans": lambda x: (x > 0).astype(jnp.float32),
    "booleans": lambda x: ~(x > 0),
    "bits": lambda x: ~x.astype(int),
    "quotients of integers": lambda x: lax.div(x.astype(int) * 7, 2),
    "remainders of integers": lambda x: lax.rem(x.astype(int) * 7, 4),
    "clamp": lambda x: lax.clamp(jnp.float32(-1), x, jnp.float32(2)),
}


def test_halves_and_whole_numbers() -> None:
    check_all(OF_HALVES, HALVES)


def test_rounding_away_from_zero_next_to_halves_and_of_large_numbers() -> None:
    values = [[0.49999997, -0.49999997], [8388609, -8388611], [np.inf, -np.inf], [1.5, np.nan]]
    away = OF_HALVES["round away from zero"]
    np.testing.assert_array_equal(
        evaluated(away, np.array(values, np.float32))[0],
        [[0, 0], [8388609, -8388611], [np.inf, -np.inf], [2, np.nan]],
    )


BY_ZERO: dict[str, Callable[[Any, Any], Any]] = {
    "remainder": lambda x, y: x % y,
    "floor_divide": lambda x, y: x // y,
    "quotient": lax.div,
    "rest": lax.rem,
    "guarded": lambda x, y: jnp.where(y == 0, 9, x // y),
    "of all by one": lambda x, y: x // y[:1],
    "of one by all": lambda x, y: x[:1] % y,
    "by a constant": lambda x, y: x // jnp.array([0, 2, -2]),
    "by zero": lambda x, y: lax.div(x, jnp.zeros_like(x)),
}


def test_integers_are_divided_by_zero_as_jax_does() -> None:
    dividends = np.array([[7, 0, 5], [-7, 0, -5], [1, 2, 3]], np.int32)
    right = np.array([[0, 0, 2], [0, 3, -2], [1, 0, 3]], np.int32)
    check_all(BY_ZERO, dividends, right)
    of_unsigned = {name: BY_ZERO[name] for name in ("remainder", "floor_divide", "quotient")}
    check_all(of_unsigned, abs(dividends).astype(np.uint32), abs(right).astype(np.uint32))


def test_rounding_to_other_numbers_of_bits_is_rejected() -> None:
    with pytest.raises(Exception, match=r"reduce_precision.*rounds to \(5, 10\); use the dtypes"):
        evaluated(lambda x: lax.reduce_precision(x, 5, 10), HALVES)
