"""Elementwise operations that other frameworks have too, by the names that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.loading import tf


def function_of(path: str) -> Callable[..., Any]:
    """Returns a function of TensorFlow by its name; TensorFlow is imported when it is called."""

    def call(*tensors: Any, **options: Any) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(getattr(tf, module), name)(*tensors, **options)

    return call


_PATHS = {
    "abs": "math.abs",
    "acos": "math.acos",
    "acosh": "math.acosh",
    "add": "math.add",
    "asin": "math.asin",
    "asinh": "math.asinh",
    "atan": "math.atan",
    "atan2": "math.atan2",
    "atanh": "math.atanh",
    "ceil": "math.ceil",
    "cos": "math.cos",
    "cosh": "math.cosh",
    "eq": "math.equal",
    "erf": "math.erf",
    "erfc": "math.erfc",
    "exp": "math.exp",
    "expm1": "math.expm1",
    "floor": "math.floor",
    "ge": "math.greater_equal",
    "gt": "math.greater",
    "is_finite": "math.is_finite",
    "le": "math.less_equal",
    "le_to": "math.less_equal",
    "log": "math.log",
    "log1p": "math.log1p",
    "logistic": "math.sigmoid",
    "lt": "math.less",
    "lt_to": "math.less",
    "max": "math.maximum",
    "min": "math.minimum",
    "mul": "math.multiply",
    "ne": "math.not_equal",
    "neg": "math.negative",
    "rsqrt": "math.rsqrt",
    "shift_left": "bitwise.left_shift",
    "shift_right_arithmetic": "bitwise.right_shift",
    "sign": "math.sign",
    "sin": "math.sin",
    "sinh": "math.sinh",
    "sqrt": "math.sqrt",
    "square": "math.square",
    "sub": "math.subtract",
    "tan": "math.tan",
    "tanh": "math.tanh",
}

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    name: function_of(path) for name, path in _PATHS.items()
}
"""Name of a primitive of JAX, or of an operation of PyTorch -> the function of TensorFlow that does
the same.
"""
