"""Products and convolutions against JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.export.jax_models.evaluated import DTYPES, EXAMPLES, check_same, evaluated

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
    for formula, (left, right) in FORMULAS.items():
        weights = numbers(right, seed + 1).astype(dtype)
        values = numbers((batch, *left), seed).astype(dtype)
        product = partial(jnp.einsum, formula)
        check_same(lambda x, f=product, w=weights: f(x, w), values)


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_product_of_batches(dtype: str, batch: int, seed: int) -> None:
    for formula, (left, right) in OF_BATCHES.items():
        first = numbers((batch, *left), seed).astype(dtype)
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


def test_convolution_in_groups_is_refused() -> None:
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
