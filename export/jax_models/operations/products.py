"""Products of matrices, and convolutions."""

from __future__ import annotations

import string
from typing import Any

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Value, with_shape


def _dot_general(equation: Equation, first: Value, second: Value) -> Any:
    contracted, batch = equation.params["dimension_numbers"]
    first_tensor = equation.sizes.full(first)
    second_tensor = equation.sizes.full(second)
    # JAX multiplies bfloat16 with sums in float32; TensorFlow needs one dtype.
    if first_tensor.dtype != equation.dtype:
        first_tensor = tf.cast(first_tensor, equation.dtype)
    if second_tensor.dtype != equation.dtype:
        second_tensor = tf.cast(second_tensor, equation.dtype)

    # A product with a matrix becomes LiteRT's fully connected layer, whatever the rank.
    first_rank = len(first.shape)
    second_rank = len(second.shape)
    contracts_last_axis = contracted == ((first_rank - 1,), (0,)) and not batch[0]
    if second_rank == 2 and contracts_last_axis and first_rank >= 2:
        return tf.matmul(first_tensor, second_tensor)

    formula = _formula(contracted, batch, first_rank, second_rank)
    return with_shape(tf.einsum(formula, first_tensor, second_tensor), equation.shape)


def _formula(contracted: Any, batch: Any, first_rank: int, second_rank: int) -> str:
    """Returns the formula for `tf.einsum`; an axis that the operands share has one letter."""
    letters = iter(string.ascii_lowercase)
    first = [""] * first_rank
    second = [""] * second_rank
    shared_axes = [*zip(*batch, strict=True), *zip(*contracted, strict=True)]
    for first_axis, second_axis in shared_axes:
        letter = next(letters)
        first[first_axis] = letter
        second[second_axis] = letter
    first = [letter or next(letters) for letter in first]
    second = [letter or next(letters) for letter in second]

    # The result has the axes of the batch, then those of each operand that are not summed.
    summed = {first[axis] for axis in contracted[0]}
    result = [first[axis] for axis in batch[0]]
    for operand in (first, second):
        result += [letter for letter in operand if letter not in summed and letter not in result]
    return f"{''.join(first)},{''.join(second)}->{''.join(result)}"


def _convolution(equation: Equation, images: Value, kernel: Value) -> Any:
    params = equation.params
    numbers = params["dimension_numbers"]
    spatial_rank = len(images.shape) - 2
    is_plain = set(params["lhs_dilation"]) <= {1} and params["batch_group_count"] == 1
    if not is_plain or spatial_rank not in (1, 2) or params["feature_group_count"] != 1:
        raise equation.rejected(
            "only convolutions over one or two axes without groups and without dilation of the "
            "inputs have a counterpart; use nn.Conv with feature_group_count=1"
        )
    if any(size < 0 for pair in params["padding"] for size in pair):
        raise equation.rejected("its padding is negative; slice the inputs instead")

    # TensorFlow's order of axes: batch, spatial axes, channels; spatial axes, inputs, outputs of
    # the kernel.
    batch_axis, channel_axis, *spatial_axes = numbers.lhs_spec
    inputs = tf.transpose(equation.sizes.full(images), [batch_axis, *spatial_axes, channel_axis])
    out_axis, in_axis, *kernel_axes = numbers.rhs_spec
    filters = tf.transpose(equation.sizes.full(kernel), [*kernel_axes, in_axis, out_axis])
    inputs = tf.pad(inputs, [(0, 0), *params["padding"], (0, 0)])
    outputs = tf.nn.convolution(
        inputs,
        filters,
        strides=list(params["window_strides"]),
        padding="VALID",
        dilations=list(params["rhs_dilation"]),
    )

    # JAX states where each of these axes is in its result.
    out_batch, out_channel, *out_spatial = numbers.out_spec
    order = [0] * len(images.shape)
    order[out_batch] = 0
    order[out_channel] = spatial_rank + 1
    for position, axis in enumerate(out_spatial):
        order[axis] = position + 1
    outputs = tf.cast(tf.transpose(outputs, order), equation.dtype)
    return with_shape(outputs, equation.shape)


OPERATIONS: dict[str, Handler] = {
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
}
