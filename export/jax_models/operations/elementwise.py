"""Elementwise operations. They repeat axes of size 1 by themselves, as TensorFlow's do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.elementwise import ELEMENTWISE, function_of
from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Computation, Value

_RECORDED_PRIMITIVES = {"lt", "add", "select_n"}
"""Primitives by which JAX wraps negative ids, which count from the end. A lookup recognizes such
ids by the record of these primitives' arguments.
"""


def _elementwise(operation: Callable[..., Any]) -> Handler:
    """Returns the handler of an operation on tensors."""

    def handle(equation: Equation, *arguments: Value) -> Value:
        tensor = operation(*(argument.tensor for argument in arguments))
        computation = None
        if equation.primitive in _RECORDED_PRIMITIVES:
            computation = Computation(equation.primitive, arguments)
        return Value(equation.shape, tensor, computation=computation)

    return handle


def _logical_or_bitwise(boolean_name: str, integer_name: str) -> Callable[..., Any]:
    """Returns an operation that is one function for booleans, and another for integers."""

    def operation(*tensors: Any) -> Any:
        if tensors[0].dtype == tf.bool:
            return getattr(tf.math, boolean_name)(*tensors)
        return getattr(tf.bitwise, integer_name)(*tensors)

    return operation


def _divide_integers(
    operation: Callable[..., Any], dividend: Any, divisor: Any, by_zero: Callable[[Any], Any]
) -> Any:
    """Divides integers as JAX does also where the divisor is 0, which TensorFlow rejects.

    Args:
      operation: A division by integers that are not 0.
      dividend, divisor: The integers.
      by_zero: A function that computes JAX's result for a dividend where the divisor is 0.
    """
    static_divisor = tf.get_static_value(divisor)
    if static_divisor is not None and np.all(static_divisor):
        return operation(dividend, divisor)
    is_zero = tf.equal(divisor, 0)
    result = operation(dividend, tf.where(is_zero, tf.ones_like(divisor), divisor))
    return tf.where(is_zero, by_zero(dividend), result)


def _quotient_by_zero(dividend: Any) -> Any:
    """Returns JAX's quotient of a division by 0: a number whose bits are all set."""
    dtype = dividend.dtype
    quotient = dtype.max if dtype.is_unsigned else -1
    return tf.constant(quotient, dtype)


def _divide(dividend: Any, divisor: Any) -> Any:
    if dividend.dtype.is_floating:
        return tf.truediv(dividend, divisor)
    return _divide_integers(tf.truncatediv, dividend, divisor, _quotient_by_zero)


def _remainder(dividend: Any, divisor: Any) -> Any:
    if dividend.dtype.is_integer:
        return _divide_integers(tf.truncatemod, dividend, divisor, tf.identity)
    # TensorFlow has this remainder for float32 and float64 only.
    if dividend.dtype not in (tf.bfloat16, tf.float16):
        return tf.truncatemod(dividend, divisor)
    remainder = tf.truncatemod(tf.cast(dividend, tf.float32), tf.cast(divisor, tf.float32))
    return tf.cast(remainder, dividend.dtype)


def _power(base: Any, exponent: Any) -> Any:
    return tf.pow(base, tf.cast(exponent, base.dtype))


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
    # JAX rounds halves to even numbers (1), or away from 0 (0).
    to_even = int(equation.params["rounding_method"]) == 1
    tensor = operand.tensor
    if to_even:
        return Value(equation.shape, tf.round(tensor))
    magnitude = tf.abs(tensor)
    below = tf.floor(magnitude)
    # Not the floor of `magnitude + 0.5`, which is itself rounded.
    round_up = tf.cast(magnitude - below >= 0.5, tensor.dtype)
    return Value(equation.shape, tf.sign(tensor) * (below + round_up))


def _select(index: Any, *cases: Any) -> Any:
    """Selects from cases by a boolean, whose True is case 1, or by an integer."""
    if not index.shape.rank:
        rank = max(case.shape.rank for case in cases)
        index = tf.reshape(index, [1] * rank)
    if index.dtype == tf.bool:
        return tf.where(index, cases[1], cases[0])
    # TensorFlow selects between two cases at a time.
    result = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        result = tf.where(tf.equal(index, number), cases[number], result)
    return result


def _clamp(low: Any, operand: Any, high: Any) -> Any:
    return tf.minimum(tf.maximum(operand, low), high)


def _at_least_float32(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an operation for all floats that TensorFlow has for float32 and wider types only."""

    def run(operand: Any) -> Any:
        dtype = operand.dtype if operand.dtype.size > 2 else tf.float32
        return tf.cast(operation(tf.cast(operand, dtype)), operand.dtype)

    return run


def _cube_root(operand: Any) -> Any:
    # In bfloat16, a third is off by so much that a root of large numbers would be off by 5 %.
    third = tf.constant(1 / 3, operand.dtype)
    return tf.sign(operand) * tf.pow(tf.abs(operand), third)


def _exp2(operand: Any) -> Any:
    return tf.exp(operand * tf.constant(math.log(2), operand.dtype))


def _not(operand: Any) -> Any:
    if operand.dtype == tf.bool:
        return tf.logical_not(operand)
    return tf.bitwise.invert(operand)


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
    float_type = tensor.dtype.as_numpy_dtype
    above = float_type(dtype.max + 1)
    clipped = tf.minimum(tensor, np.nextafter(above, float_type(0)))
    clipped = tf.maximum(clipped, float_type(dtype.min))
    finite = tf.where(tf.math.is_nan(tensor), tf.zeros_like(tensor), clipped)
    integers = tf.cast(finite, dtype)
    return tf.where(tensor >= above, tf.constant(dtype.max, dtype), integers)


def _pass_on(_equation: Equation, operand: Value) -> Value:
    return operand


def _reduce_precision(equation: Equation, operand: Value) -> Value:
    # float32 has 8 bits of exponent and 23 of mantissa, bfloat16 8 and 7.
    bits = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
    if bits == (8, 23):
        return operand
    if bits != (8, 7):
        raise equation.rejected(f"rounds to {bits}; use the dtypes float32 and bfloat16")
    rounded = tf.cast(tf.cast(operand.tensor, tf.bfloat16), equation.dtype)
    return Value(equation.shape, rounded)


_COMPOSED_OPERATIONS: dict[str, Callable[..., Any]] = {
    "and": _logical_or_bitwise("logical_and", "bitwise_and"),
    "cbrt": _at_least_float32(_cube_root),
    "clamp": _clamp,
    "div": _divide,
    "digamma": _at_least_float32(function_of("math.digamma")),
    "erf_inv": _at_least_float32(function_of("math.erfinv")),
    "exp2": _exp2,
    "lgamma": _at_least_float32(function_of("math.lgamma")),
    "not": _not,
    "or": _logical_or_bitwise("logical_or", "bitwise_or"),
    "pow": _power,
    "rem": _remainder,
    "select_n": _select,
    "xor": _logical_or_bitwise("logical_xor", "bitwise_xor"),
}
"""Primitives that no single function of TensorFlow computes for all dtypes."""

OPERATIONS: dict[str, Handler] = {
    **{name: _elementwise(function) for name, function in ELEMENTWISE.items()},
    **{name: _elementwise(function) for name, function in _COMPOSED_OPERATIONS.items()},
    "convert_element_type": _convert,
    "integer_pow": _integer_power,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "copy": _pass_on,
    "name": _pass_on,
    "pvary": _pass_on,
    "optimization_barrier": lambda _equation, *operands: list(operands),
    "sharding_constraint": _pass_on,
    "stop_gradient": _pass_on,
}


def floor_mod(equation: Equation, dividend: Value, divisor: Value) -> Value:
    """Computes `%` of integers, which JAX writes with seven primitives and rules of ids need as
    one.
    """
    divisor_tensor = tf.cast(divisor.tensor, equation.dtype)
    remainder = _divide_integers(tf.math.floormod, dividend.tensor, divisor_tensor, tf.zeros_like)
    return Value(equation.shape, remainder)


def floor_divide(equation: Equation, dividend: Value, divisor: Value) -> Value:
    """Computes `//` of integers as one operation, for the same reason as `floor_mod`."""
    divisor_tensor = tf.cast(divisor.tensor, equation.dtype)

    def by_zero(number: Any) -> Any:
        quotient = _quotient_by_zero(number)
        if number.dtype.is_unsigned:
            return quotient
        # JAX rounds -1 down where the remainder, which is the dividend, is not 0.
        return quotient - tf.cast(tf.not_equal(number, 0), number.dtype)

    quotient = _divide_integers(tf.math.floordiv, dividend.tensor, divisor_tensor, by_zero)
    return Value(equation.shape, quotient)
