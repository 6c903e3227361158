"""Elementwise operations. They repeat sizes of 1 by themselves, as TensorFlow's do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.elementwise import ELEMENTWISE, function_of
from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import MadeBy, Value

_KEPT = {"lt", "add", "select_n"}
"""Primitives by which JAX writes ids that count from the end."""


def _elementwise(operation: Callable[..., Any]) -> Handler:
    """Returns the handler of an operation on tensors."""

    def handle(equation: Equation, *arguments: Value) -> Value:
        tensor = operation(*(argument.tensor for argument in arguments))
        made_by = None
        if equation.primitive in _KEPT:
            made_by = MadeBy(equation.primitive, arguments)
        return Value(equation.shape, tensor, made_by=made_by)

    return handle


def _for_booleans(of_booleans: str, of_integers: str) -> Callable[..., Any]:
    """Returns an operation that is another one for booleans than for integers."""

    def operation(*tensors: Any) -> Any:
        if tensors[0].dtype == tf.bool:
            return getattr(tf.math, of_booleans)(*tensors)
        return getattr(tf.bitwise, of_integers)(*tensors)

    return operation


def _with_zeros(
    operation: Callable[..., Any], left: Any, right: Any, by_zero: Callable[[Any], Any]
) -> Any:
    """Divides integers as JAX does also where the divisor is 0, which TensorFlow rejects.

    Args:
      operation: of integers and divisors that are not 0.
      left, right: integers.
      by_zero: what JAX makes of `left` where the divisor is 0.
    """
    known = tf.get_static_value(right)
    if known is not None and np.all(known):
        return operation(left, right)
    is_zero = tf.equal(right, 0)
    found = operation(left, tf.where(is_zero, tf.ones_like(right), right))
    return tf.where(is_zero, by_zero(left), found)


def _quotient_by_zero(left: Any) -> Any:
    dtype = left.dtype
    return tf.constant(dtype.max if dtype.is_unsigned else -1, dtype)  # every bit is set


def _divide(left: Any, right: Any) -> Any:
    if left.dtype.is_floating:
        return tf.truediv(left, right)
    return _with_zeros(tf.truncatediv, left, right, _quotient_by_zero)


def _remainder(left: Any, right: Any) -> Any:
    if left.dtype.is_integer:
        return _with_zeros(tf.truncatemod, left, right, tf.identity)
    # TensorFlow has it for float32 and float64 only.
    if left.dtype not in (tf.bfloat16, tf.float16):
        return tf.truncatemod(left, right)
    wide = tf.truncatemod(tf.cast(left, tf.float32), tf.cast(right, tf.float32))
    return tf.cast(wide, left.dtype)


def _power(left: Any, right: Any) -> Any:
    return tf.pow(left, tf.cast(right, left.dtype))


def _integer_power(equation: Equation, operand: Value) -> Value:
    exponent = equation.params["y"]
    tensor = operand.tensor
    if exponent == 0:
        result = tf.ones_like(tensor)
    elif exponent == 2:
        result = tf.square(tensor)
    else:
        result = functools.reduce(tf.multiply, [tensor] * abs(exponent))
    if exponent < 0:
        result = tf.math.reciprocal(result)
    return Value(equation.shape, result)


def _round(equation: Equation, operand: Value) -> Value:
    to_even = int(equation.params["rounding_method"]) == 1
    tensor = operand.tensor
    if to_even:
        return Value(equation.shape, tf.round(tensor))
    size = tf.abs(tensor)
    below = tf.floor(size)
    # Not the floor of `size + 0.5`, which is itself rounded.
    from_half = tf.cast(size - below >= 0.5, tensor.dtype)
    return Value(equation.shape, tf.sign(tensor) * (below + from_half))


def _select(which: Any, *cases: Any) -> Any:
    if not which.shape.rank:
        rank = max(case.shape.rank for case in cases)
        which = tf.reshape(which, [1] * rank)
    if which.dtype == tf.bool:
        return tf.where(which, cases[1], cases[0])
    result = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        result = tf.where(tf.equal(which, number), cases[number], result)
    return result


def _clamp(low: Any, operand: Any, high: Any) -> Any:
    return tf.minimum(tf.maximum(operand, low), high)


def _at_least_float32(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation that TensorFlow has for wider numbers only, for all floats."""

    def of_floats(operand: Any) -> Any:
        wide = operand.dtype if operand.dtype.size > 2 else tf.float32
        return tf.cast(operation(tf.cast(operand, wide)), operand.dtype)

    return of_floats


def _cube_root(operand: Any) -> Any:
    third = tf.constant(1 / 3, operand.dtype)
    return tf.sign(operand) * tf.pow(tf.abs(operand), third)


def _exp2(operand: Any) -> Any:
    return tf.exp(operand * tf.constant(math.log(2), operand.dtype))


def _not(operand: Any) -> Any:
    return tf.logical_not(operand) if operand.dtype == tf.bool else tf.bitwise.invert(operand)


def _convert(equation: Equation, operand: Value) -> Value:
    tensor = operand.tensor
    if tensor.dtype == equation.dtype:
        return operand
    if tensor.dtype.is_floating and equation.dtype.is_integer:
        return Value(equation.shape, _nearest_integers(tensor, equation.dtype))
    return Value(equation.shape, tf.cast(tensor, equation.dtype))


def _nearest_integers(tensor: Any, dtype: Any) -> Any:
    """Truncates numbers as JAX does: NaN becomes 0, and a number beyond the range the nearest
    integer, where TensorFlow's result is undefined.
    """
    if tensor.dtype in (tf.bfloat16, tf.float16):
        tensor = tf.cast(tensor, tf.float32)
    # LiteRT has no limits of float64, and float32 does not hold the largest integer, but the next.
    as_float = tensor.dtype.as_numpy_dtype
    above = as_float(dtype.max + 1)
    inside = tf.minimum(tensor, np.nextafter(above, as_float(0)))
    inside = tf.maximum(inside, as_float(dtype.min))
    finite = tf.where(tf.math.is_nan(tensor), tf.zeros_like(tensor), inside)
    integers = tf.cast(finite, dtype)
    return tf.where(tensor >= above, tf.constant(dtype.max, dtype), integers)


def _same(_equation: Equation, operand: Value) -> Value:
    return operand


def _reduce_precision(equation: Equation, operand: Value) -> Value:
    kept = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    if kept == (8, 23):
        return operand
    if kept != (8, 7):
        raise equation.rejected(f"rounds to {kept}; use the dtypes float32 and bfloat16")
    rounded = tf.cast(tf.cast(operand.tensor, tf.bfloat16), equation.dtype)
    return Value(equation.shape, rounded)


_OWN: dict[str, Callable[..., Any]] = {
    "and": _for_booleans("logical_and", "bitwise_and"),
    "cbrt": _cube_root,
    "clamp": _clamp,
    "div": _divide,
    "digamma": _at_least_float32(function_of("math.digamma")),
    "erf_inv": _at_least_float32(function_of("math.erfinv")),
    "exp2": _exp2,
    "lgamma": _at_least_float32(function_of("math.lgamma")),
    "not": _not,
    "or": _for_booleans("logical_or", "bitwise_or"),
    "pow": _power,
    "rem": _remainder,
    "select_n": _select,
    "xor": _for_booleans("logical_xor", "bitwise_xor"),
}

OPERATIONS: dict[str, Handler] = {
    **{name: _elementwise(function) for name, function in ELEMENTWISE.items()},
    **{name: _elementwise(function) for name, function in _OWN.items()},
    "convert_element_type": _convert,
    "integer_pow": _integer_power,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "copy": _same,
    "name": _same,
    "pvary": _same,
    "optimization_barrier": lambda _equation, *operands: list(operands),
    "sharding_constraint": _same,
    "stop_gradient": _same,
}


def floor_mod(equation: Equation, left: Value, right: Value) -> Value:
    """Computes `%` of integers, which JAX writes with seven primitives and rules of ids need as
    one.
    """
    divisor = tf.cast(right.tensor, equation.dtype)
    found = _with_zeros(tf.math.floormod, left.tensor, divisor, tf.zeros_like)
    return Value(equation.shape, found)


def floor_divide(equation: Equation, left: Value, right: Value) -> Value:
    """Computes `//` of integers, as `floor_mod`."""
    divisor = tf.cast(right.tensor, equation.dtype)

    def by_zero(each: Any) -> Any:
        quotient = _quotient_by_zero(each)
        if each.dtype.is_unsigned:
            return quotient
        # JAX rounds -1 down where the remainder, which is `each`, is not 0.
        return quotient - tf.cast(tf.not_equal(each, 0), each.dtype)

    found = _with_zeros(tf.math.floordiv, left.tensor, divisor, by_zero)
    return Value(equation.shape, found)
