"""Reductions, sorting and cumulative operations against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "all and any": lambda x: (jnp.all(x > 0, axis=1), jnp.any(x > 0, axis=(1, 2))),
    "argmax": lambda x: jnp.argmax(x, axis=1),
    "argmin": lambda x: jnp.argmin(x, axis=-1),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis=1),
    "cumprod": lambda x: jnp.cumprod(x, axis=2),
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "cumsum from the end": lambda x: lax.cumsum(x, axis=2, reverse=True),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1),
    "max": lambda x: jnp.max(x, axis=2),
    "mean": lambda x: jnp.mean(x, axis=1),
    "mean of the batch": lambda x: jnp.mean(x, axis=0),
    "min": lambda x: jnp.min(x, axis=(1, 2)),
    "prod": lambda x: jnp.prod(x, axis=1),
    "prod without wider numbers": lambda x: lax.reduce_prod(x, (1,)),
    "std": lambda x: jnp.std(x, axis=1),
    "sum of a repeated array": lambda x: jnp.broadcast_to(x[:, :1], x.shape).sum(1),
    "sum of nothing": lambda x: jnp.sum(x, axis=()),
    "sum without wider numbers": lambda x: lax.reduce_sum(x, (1,)),
    "argsort": lambda x: jnp.argsort(x, axis=-1),
    "sort": lambda x: jnp.sort(x, axis=1),
    "sort with a second array": lambda x: lax.sort((x, x * 2), dimension=1, num_keys=1),
    "top_k": lambda x: lax.top_k(x, 2),
}


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 5)),
    seed=st.integers(0, 2**16),
)
def test_same_as_jax(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    check_all(FUNCTIONS, np.random.default_rng(seed).normal(0, 2, shape).astype(dtype))


def test_top_k_along_another_axis() -> None:
    values = np.random.default_rng(1).normal(0, 1, (3, 5, 2)).astype(np.float32)
    check_same(lambda x: lax.top_k(x, 2, axis=1), values)


def test_equal_values_keep_their_order() -> None:
    values = np.random.default_rng(1).integers(0, 3, (4, 20)).astype(np.int32)
    check_same(lambda x: (jnp.argsort(x, axis=1), lax.top_k(x, 7)), values)


def test_sort_by_several_keys_is_rejected() -> None:
    values = np.ones((2, 3), np.float32)
    with pytest.raises(Exception, match=r"JAX operation sort.*several keys; sort by one"):
        evaluated(lambda x: lax.sort((x, x), num_keys=2), values)


EDGES: dict[str, Callable[[Any], Any]] = {
    "sum of a repeated row": lambda x: jnp.broadcast_to(x[:1], (5, *x.shape[1:])).sum(0),
    "sum of repeated columns": lambda x: jnp.broadcast_to(x[:, :1], (x.shape[0], 3, 4)).sum(1),
    "sum of an axis of one": lambda x: x[:, :1].sum(1),
    "product of a repeated row": lambda x: jnp.broadcast_to(x[:, :1], x.shape).prod(1),
    "sum over two axes": lambda x: x.sum((0, 2)),
    "cumsum": lambda x: jnp.cumsum(x, axis=2),
    "cumsum from the end": lambda x: lax.cumsum(x, axis=1, reverse=True),
    "argmax of the first axis": lambda x: jnp.argmax(x, axis=0),
    "top_k of the middle axis": lambda x: lax.top_k(x, 2, axis=1),
    "top_k of the last axis": lambda x: lax.top_k(x, 3, axis=-1),
    "sort of the middle axis": lambda x: jnp.sort(x, axis=1),
    "argsort of the middle axis": lambda x: jnp.argsort(x, axis=1),
    "sort of two by the middle axis": lambda x: lax.sort((x, -x), dimension=1, num_keys=1),
}


def test_axes_of_reductions() -> None:
    values = np.array(
        [[[3, 1, 2, 0], [9, 8, 7, 6], [1, 1, 5, 4]], [[0, 2, 4, 6], [5, 3, 1, 7], [2, 9, 8, 1]]],
        np.float32,
    )
    check_all(EDGES, values)
