"""Gathers and scatters against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.export.jax_models.evaluated import DTYPES, EXAMPLES, check_all, check_same, evaluated

jax = pytest.importorskip("jax")
jnp = jax.numpy

TABLE = np.random.default_rng(0).normal(0, 1, (6, 3)).astype(np.float32)

BY_IDS: dict[str, Callable[[Any], Any]] = {
    "jnp.take": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0),
    "jnp.take, clipped": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0, mode="clip"),
    "jnp.take, wrapped": lambda ids: jnp.take(jnp.asarray(TABLE), ids, axis=0, mode="wrap"),
    "jnp.take of columns": lambda ids: jnp.take(jnp.asarray(TABLE.T), ids, axis=1),
    "indexing": lambda ids: jnp.asarray(TABLE)[ids],
    "indexing integers": lambda ids: jnp.arange(6)[ids],
    "indexing columns": lambda ids: jnp.asarray(TABLE)[:, ids % 3],
    "indexing rows and columns": lambda ids: jnp.asarray(TABLE)[ids, ids % 3],
    "filled with zeros": lambda ids: jnp.asarray(TABLE).at[ids].get(mode="fill", fill_value=0),
    "segment_sum": lambda ids: jax.ops.segment_sum(ids * 1.0, ids[:, 0], num_segments=5),
    "segment_sum of bfloat16": lambda ids: jax.ops.segment_sum(
        ids.astype(jnp.bfloat16), ids[:, 0], num_segments=5
    ),
    "jnp.take of bfloat16": lambda ids: jnp.take(jnp.asarray(TABLE, jnp.bfloat16), ids, axis=0),
    "add rows": lambda ids: jnp.zeros((6, 2)).at[ids[:, 0]].add(1.0),
    "vmap of indexing": jax.vmap(lambda i: jnp.asarray(TABLE)[i]),
    "one_hot": lambda ids: jax.nn.one_hot(ids, 6),
}
OF_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "take_along_axis": lambda x, ids: jnp.take_along_axis(x, ids, axis=1),
    "take_along_axis of vectors": lambda x, ids: jnp.take_along_axis(
        x[..., None], ids[..., None], axis=1
    ),
    "vmap of jnp.take": jax.vmap(jnp.take),
    "one id for each example": lambda x, ids: x[jnp.arange(x.shape[0]), ids[:, 0]],
    "one id for all": lambda x, ids: x[:, ids[0, 0]],
}
OF_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "a column": lambda x: x[:, 2],
    "the last column": lambda x: x[:, -1],
    "columns": lambda x: x[:, jnp.array([3, 0, 0])],
    "a window": lambda x: x[:, -3:-1],
    "steps": lambda x: x[:, 3::-2],
    "pairs": lambda x: (x[:, :, None] * x[:, None, :])[:, *jnp.tril_indices(4, -1)],
    "replace a column": lambda x: x.at[:, 1].set(7.0),
    "replace the last column": lambda x: x.at[:, -1].set(x[:, 0]),
    "replace rows": lambda x: jnp.zeros((4, 2)).at[jnp.array([3, 1])].set(x[:1, :2]),
    "searchsorted": lambda x: jnp.searchsorted(jnp.array([-1.0, 0.0, 1.0]), x[:, 0]),
    "roll": lambda x: jnp.roll(x, 1, axis=1),
}


def ids_of(seed: int, batch: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(-9, 9, (batch, 4)).astype(np.int32)


def numbers(seed: int, batch: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 1, (batch, 4)).astype(np.float32)


@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_by_ids_inside_and_outside(seed: int, batch: int) -> None:
    check_all(BY_IDS, ids_of(seed, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_of_values_by_ids(dtype: str, seed: int, batch: int) -> None:
    check_all(OF_VALUES, numbers(seed, batch).astype(dtype), ids_of(seed, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(seed=st.integers(0, 2**16), batch=st.integers(1, 4))
def test_of_constant_places(dtype: str, seed: int, batch: int) -> None:
    check_all(OF_CONSTANTS, numbers(seed, batch).astype(dtype))


def test_replacing_rows_by_ids_that_may_be_equal_is_refused() -> None:
    with pytest.raises(Exception, match=r"JAX operation scatter.*unique_indices=True"):
        evaluated(lambda ids: jnp.zeros((6, 2)).at[ids[:, 0]].set(1.0), ids_of(1, 3))


def test_replacing_rows_by_constant_ids_that_are_equal_is_refused() -> None:
    with pytest.raises(Exception, match=r"JAX operation scatter.*unique_indices=True"):
        evaluated(lambda x: jnp.zeros((6, 2)).at[jnp.array([3, 3])].set(x[:1, :2]), numbers(1, 3))


def test_replacing_rows_by_different_ids() -> None:
    ids = np.array([[4], [0], [9]], np.int32)  # the last is outside
    check_same(
        lambda ids: jnp.ones((6, 2)).at[ids[:, 0]].set(5.0, unique_indices=True, mode="drop"), ids
    )


def test_changing_parts_of_rows_is_refused() -> None:
    with pytest.raises(Exception, match=r"scatter-add.*whole rows of the first axis"):
        evaluated(lambda ids: jnp.zeros((6, 4)).at[:, ids[:, 0] % 4].add(1.0), ids_of(1, 3))
