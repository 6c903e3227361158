"""Products of matrices, and convolutions."""

from __future__ import annotations

import string
from typing import Any

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Value, with_shape


def _dot_general(equation: Equation, left: Value, right: Value) -> Any:
    contracted, batch = equation.params["dimension_numbers"]
    a = equation.sizes.full(left)
    b = equation.sizes.full(right)
    if a.dtype != equation.dtype:  # bfloat16 with sums in float32
        a = tf.cast(a, equation.dtype)
    if b.dtype != equation.dtype:
        b = tf.cast(b, equation.dtype)

    rank = len(left.shape)
    by_matrix = len(right.shape) == 2 and contracted == ((rank - 1,), (0,)) and not batch[0]
    if by_matrix and rank >= 2:
        return tf.matmul(a, b)  # LiteRT's fully connected layer, whatever the rank

    formula = _formula(contracted, batch, rank, len(right.shape))
    return with_shape(tf.einsum(formula, a, b), equation.shape)


def _formula(contracted: Any, batch: Any, left_rank: int, right_rank: int) -> str:
    """Returns the formula of `tf.einsum`: shared axes have one letter."""
    letters = iter(string.ascii_lowercase)
    left = [""] * left_rank
    right = [""] * right_rank
    shared = [*zip(*batch, strict=True), *zip(*contracted, strict=True)]
    for left_axis, right_axis in shared:
        letter = next(letters)
        left[left_axis] = letter
        right[right_axis] = letter
    left = [letter or next(letters) for letter in left]
    right = [letter or next(letters) for letter in right]

    gone = {left[axis] for axis in contracted[0]}
    first = [left[axis] for axis in batch[0]]
    kept_left = [letter for letter in left if letter not in gone and letter not in first]
    kept_right = [letter for letter in right if letter not in gone and letter not in first]
    result = "".join(first + kept_left + kept_right)
    return f"{''.join(left)},{''.join(right)}->{result}"


def _convolution(equation: Equation, left: Value, right: Value) -> Any:
    params = equation.params
    numbers = params["dimension_numbers"]
    spatial = len(left.shape) - 2
    plain = set(params["lhs_dilation"]) <= {1} and params["batch_group_count"] == 1
    if not plain or spatial not in (1, 2) or params["feature_group_count"] != 1:
        raise equation.rejected(
            "only convolutions over one or two axes without groups and without dilation of the "
            "inputs have a counterpart; use nn.Conv with feature_group_count=1"
        )
    if any(size < 0 for pair in params["padding"] for size in pair):
        raise equation.rejected("its padding is negative; slice the inputs instead")

    batch_axis, channel_axis, *spatial_axes = numbers.lhs_spec
    inputs = tf.transpose(equation.sizes.full(left), [batch_axis, *spatial_axes, channel_axis])
    out_axis, in_axis, *kernel_axes = numbers.rhs_spec
    kernel = tf.transpose(equation.sizes.full(right), [*kernel_axes, in_axis, out_axis])
    inputs = tf.pad(inputs, [(0, 0), *params["padding"], (0, 0)])
    found = tf.nn.convolution(
        inputs,
        kernel,
        strides=list(params["window_strides"]),
        padding="VALID",
        dilations=list(params["rhs_dilation"]),
    )

    out_batch, out_channel, *out_spatial = numbers.out_spec
    order = [0] * len(left.shape)
    order[out_batch] = 0
    order[out_channel] = spatial + 1
    for position, axis in enumerate(out_spatial):
        order[axis] = position + 1
    return with_shape(tf.cast(tf.transpose(found, order), equation.dtype), equation.shape)


OPERATIONS: dict[str, Handler] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
}
