"""Products and convolutions against JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.units.export.jax_models.evaluated import (
    DTYPES,
    EXAMPLES,
    check_all,
    check_same,
    evaluated,
)

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax

FORMULAS = {
    "bi,ij->bj": ((5,), (5, 3)),
    "bni,ij->bnj": ((2, 5), (5, 3)),
    "bnhd,hde->bne": ((2, 3, 4), (3, 4, 5)),
    "bij,jk->bik": ((2, 3), (3, 4)),
    "bi,i->b": ((4,), (4,)),
    "bi,ji->bj": ((4,), (3, 4)),
}
OF_BATCHES = {
    "bid,bjd->bij": ((3, 4), (2, 4)),
    "bi,bi->b": ((4,), (4,)),
    "bi,bj->bij": ((4,), (3,)),
    "bnhd,bmhd->bhnm": ((2, 3, 4), (5, 3, 4)),
    "bhnm,bmhd->bnhd": ((3, 2, 5), (5, 3, 4)),
}


def numbers(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def convolved(
    x: Any, kernel: Any, stride: int = 1, padding: object = "SAME", dilation: int = 1
) -> Any:
    """Convolves sequences: [batch, length, channels]."""
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride,),
        padding,
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_product_with_weights(dtype: str, batch: int, seed: int) -> None:
    for formula, (first_shape, right) in FORMULAS.items():
        weights = numbers(right, seed + 1).astype(dtype)
        values = numbers((batch, *first_shape), seed).astype(dtype)
        product = partial(jnp.einsum, formula)
        check_same(lambda x, f=product, w=weights: f(x, w), values)


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_product_of_batches(dtype: str, batch: int, seed: int) -> None:
    for formula, (first_shape, right) in OF_BATCHES.items():
        first = numbers((batch, *first_shape), seed).astype(dtype)
        second = numbers((batch, *right), seed + 1).astype(dtype)
        check_same(partial(jnp.einsum, formula), first, second)


@EXAMPLES
@given(seed=st.integers(0, 2**16))
def test_product_of_bfloat16_summed_in_float32(seed: int) -> None:
    weights = numbers((4, 3), seed + 1).astype(jnp.bfloat16)
    values = numbers((2, 4), seed).astype(jnp.bfloat16)
    check_same(lambda x: jnp.matmul(x, weights, preferred_element_type=jnp.float32), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, "SAME", 1), (2, "VALID", 1), (1, [(2, 0)], 2)]
)
@EXAMPLES
@given(batch=st.integers(1, 4), length=st.integers(5, 9), seed=st.integers(0, 2**16))
def test_convolution_of_sequences(
    stride: int, padding: object, dilation: int, dtype: str, batch: int, length: int, seed: int
) -> None:
    kernel = numbers((3, 4, 5), seed).astype(dtype)  # width, in, out
    function = partial(convolved, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    check_same(function, numbers((batch, length, 4), seed + 1).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_convolution_of_images_in_jax_order(dtype: str, batch: int, seed: int) -> None:
    kernel = numbers((5, 3, 2, 2), seed).astype(dtype)  # out, in, height, width
    images = numbers((batch, 3, 6, 5), seed + 1).astype(dtype)
    check_same(lambda x: lax.conv(x, kernel, (1, 2), "SAME"), images)


def test_convolution_in_groups_is_rejected() -> None:
    kernel = numbers((3, 1, 4), 2)
    with pytest.raises(Exception, match=r"conv_general_dilated.*feature_group_count=1"):
        evaluated(
            lambda x: lax.conv_general_dilated(
                x,
                kernel,
                (1,),
                "SAME",
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=4,
            ),
            numbers((2, 8, 4), 1),
        )


AXES = {
    "bij,jk->bik": ((3, 4), (4, 2)),
    "bij,kj->bik": ((3, 4), (2, 4)),
    "bij,ij->b": ((3, 4), (3, 4)),
    "bij,ji->b": ((3, 4), (4, 3)),
    "bij,ik->bjk": ((3, 4), (3, 2)),
    "bij,jkl->bikl": ((3, 4), (4, 2, 5)),
    "bij,j->bi": ((3, 4), (4,)),
    "bij,i->bj": ((3, 4), (3,)),
    "bi,bi->i": ((4,), None),
    "bi,bj->ij": ((4,), None),
    "bij,bkj->bik": ((3, 4), None),
    "bij,bij->bi": ((3, 4), None),
    "bij,bkl->bijkl": ((3, 4), None),
}
"""Formulas, and the sizes of an example and of weights; None: two batches."""


def product_of(formula: str, seed: int) -> Any:
    """Returns a function of two arrays that writes the formula both ways round."""
    first_shape, right = AXES[formula]
    first, remainder = formula.split(",")
    second, result = remainder.split("->")
    turned = f"{second},{first}->{result}"
    weights = None if right is None else numbers(right, seed)

    def product(x: Any, y: Any) -> Any:
        size = int(np.prod(first_shape))
        a = x[:, :size].reshape(-1, *first_shape)
        b = y[:, :size].reshape(-1, *first_shape) if weights is None else weights
        return jnp.einsum(formula, a, b), jnp.einsum(turned, b, a)

    return product


def test_products_over_any_axes() -> None:
    functions = {formula: product_of(formula, position) for position, formula in enumerate(AXES)}
    functions["a vector by a matrix"] = lambda x, y: x[0, :4] @ numbers((4, 3), 1)
    functions["a matrix by a vector"] = lambda x, y: numbers((3, 4), 1) @ x[0, :4]
    functions["two vectors"] = lambda x, y: x[0] @ y[0]
    check_all(functions, numbers((3, 12), 8), numbers((3, 12), 9))


REJECTED: dict[str, dict[str, Any]] = {
    "inputs with holes": {"lhs_dilation": (2,), "padding": [(0, 0)]},
    "groups of the batch": {"batch_group_count": 2},
    "padding below nothing": {"padding": [(-1, 0)]},
}


@pytest.mark.parametrize("case", REJECTED)
def test_convolution_without_a_counterpart_is_rejected(case: str) -> None:
    options = {"padding": "VALID", **REJECTED[case]}
    kernel = numbers((3, 4, 6), 2)
    remedy = "slice the inputs instead" if "nothing" in case else "feature_group_count=1"

    def function(x: Any) -> Any:
        order = ("WNC", "WIO", "WNC") if "batch" in case else ("NWC", "WIO", "NWC")
        inputs = jnp.broadcast_to(x[0, :, None], (8, 2, 4)) if "batch" in case else x
        return lax.conv_general_dilated(inputs, kernel, (1,), dimension_numbers=order, **options)

    with pytest.raises(Exception, match=rf"conv_general_dilated.*{remedy}"):
        evaluated(function, numbers((2, 8, 4), 1))


def test_convolution_over_three_axes_is_rejected() -> None:
    kernel = numbers((2, 2, 2, 4, 5), 2)
    order = ("NDHWC", "DHWIO", "NDHWC")
    with pytest.raises(Exception, match=r"conv_general_dilated.*over one or two axes"):
        evaluated(
            lambda x: lax.conv_general_dilated(
                x, kernel, (1, 1, 1), "VALID", dimension_numbers=order
            ),
            numbers((2, 3, 3, 3, 4), 1),
        )


def test_convolution_of_images_with_the_batch_last() -> None:
    kernel = numbers((2, 3, 4, 5), 3)
    order = ("NHWC", "HWIO", "HWNC")
    check_same(
        lambda x: lax.conv_general_dilated(
            x, kernel, (1, 2), [(1, 0), (0, 2)], dimension_numbers=order
        ),
        numbers((2, 6, 5, 4), 4),
    )
