"""Operations on shapes against JAX."""

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
    "broadcast to a new axis": lambda x: jnp.broadcast_to(
        x[:, None], (x.shape[0], 3, *x.shape[1:])
    ),
    "broadcast, then reduce": lambda x: jnp.broadcast_to(x[:, :1], x.shape).sum(axis=1),
    "ones as large as the batch": lambda x: jnp.ones((x.shape[0], 2)),
    "concatenate": lambda x: jnp.concatenate([x, x * 2], axis=-1),
    "concatenate batches": lambda x: jnp.concatenate([x, x], axis=0),
    "dynamic slice": lambda x: lax.dynamic_slice_in_dim(x, x[0, 0, 0].astype(int), 2, axis=2),
    "dynamic update": lambda x: lax.dynamic_update_slice_in_dim(x, x[:, :1] * 2, 1, axis=1),
    "dynamic update beyond the end": lambda x: lax.dynamic_update_slice_in_dim(x, x[:, :1], 9, 1),
    "dynamic update of all": lambda x: lax.dynamic_update_slice(x, x + 1, (0, 0, 0)),
    "expand": lambda x: jnp.expand_dims(x, (0, 2)),
    "flatten": lambda x: x.reshape(x.shape[0], -1),
    "flatten the batch too": lambda x: x.reshape(-1),
    "iota": lambda x: lax.broadcasted_iota(jnp.int32, (3, 4), 1) + x[:, :1, :1].astype(int),
    "iota over the batch": lambda x: jnp.arange(x.shape[0]),
    "iota of floats over the batch": lambda x: jnp.arange(x.shape[0], dtype=x.dtype),
    "pad": lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=7),
    "pad by less than nothing": lambda x: lax.pad(
        x, x.dtype.type(0), ((0, 0, 0), (0, -1, 0), (-1, 1, 0))
    ),
    "pad between values": lambda x: lax.pad(x, x.dtype.type(1), ((0, 0, 0), (1, 0, 2), (0, -1, 1))),
    "reverse": lambda x: jnp.flip(x, 1),
    "mean by the size of the batch": lambda x: x.sum() / x.shape[0],
    "slice": lambda x: x[:, 1:, ::2],
    "slice of the batch": lambda x: x[:-1],
    "split": lambda x: jnp.split(x, [1, 2], axis=2),
    "squeeze": lambda x: jnp.squeeze(x[:, :1], 1),
    "stack": lambda x: jnp.stack([x, -x], axis=1),
    "transpose": lambda x: jnp.transpose(x, (0, 2, 1)),
    "transpose of a repeated array": lambda x: jnp.broadcast_to(x[:, :1], x.shape).swapaxes(1, 2),
    "tile": lambda x: jnp.tile(x, (1, 2, 1)),
    "repeat": lambda x: jnp.repeat(x, 2, axis=1),
    "unstack": lambda x: jnp.unstack(x, axis=1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(3, 5)),
    seed=st.integers(0, 2**16),
)
def test_same_as_jax(dtype: str, shape: tuple[int, ...], seed: int) -> None:
    check_all(FUNCTIONS, np.random.default_rng(seed).integers(0, 6, shape).astype(dtype))


def test_update_of_part_of_rows_is_rejected() -> None:
    values = np.ones((2, 3, 4), np.float32)
    with pytest.raises(Exception, match=r"dynamic_update_slice.*part of a row.*jnp\.where"):
        evaluated(lambda x: lax.dynamic_update_slice(x, x[:, :1, :1], (0, 1, 1)), values)


def test_reshape_of_examples_without_values() -> None:
    check_same(
        lambda x: x[:, :0].reshape(x.shape[0], 0, 3).sum((1, 2)), np.ones((2, 4), np.float32)
    )


def pairs(x: Any) -> Any:
    """Returns a number for each pair of examples."""
    return x[:, 0] @ x[:, 0].T


def start_of(x: Any) -> Any:
    return x[0, 0, 0].astype(int)


EDGES: dict[str, Callable[[Any], Any]] = {
    "a new last axis beside two of the batch": lambda x: pairs(x)[..., None] * jnp.arange(3.0),
    "new axes around two of the batch": lambda x: (
        pairs(x)[None, :, None, :] * jnp.ones((2, 1, 2, 1))
    ),
    "a new axis between": lambda x: x[:, None] * jnp.arange(1.0, 3.0)[:, None, None],
    "a row beside the batch": lambda x: x + jnp.arange(4.0),
    "a column beside the batch": lambda x: x + jnp.arange(3.0)[:, None],
    "all but the first": lambda x: x[:, 1:],
    "all but the last": lambda x: x[:, :, :-1],
    "the first two": lambda x: x[:, :2],
    "every second": lambda x: x[:, ::2],
    "every second from the second": lambda x: x[:, :, 1::2],
    "the last example": lambda x: x[-1:],
    "a part from a start": lambda x: lax.dynamic_slice(x, (0, 1, 2), (1, 2, 2)),
    "a part from a start beyond the end": lambda x: lax.dynamic_slice(x, (0, 2, 3), (1, 2, 2)),
    "a part from a computed start": lambda x: lax.dynamic_slice_in_dim(x, start_of(x), 2, axis=1),
    "a part from a start below 0": lambda x: lax.dynamic_slice_in_dim(x, -start_of(x), 2, axis=2),
    "another part at a computed start": lambda x: lax.dynamic_update_slice_in_dim(
        x, x[:, :, :2] * 2, start_of(x), 2
    ),
    "another part below 0": lambda x: lax.dynamic_update_slice_in_dim(
        x, x[:, :, :2] * 2, -start_of(x) - 9, 2
    ),
    "another example": lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] * 2, 1, 0),
    "stack in front": lambda x: jnp.stack([x, -x]),
    "unstack of examples' parts": lambda x: jnp.unstack(x, axis=2)[3],
    "split at a place": lambda x: jnp.split(x, [1], axis=1)[1],
    "padding between examples": lambda x: lax.pad(
        x, x.dtype.type(7), ((0, 0, 1), (0, 0, 0), (0, 0, 0))
    ),
    "padding between and cut": lambda x: lax.pad(
        x, x.dtype.type(7), ((0, 0, 0), (-1, 2, 1), (1, -2, 2))
    ),
    "padding less in front": lambda x: lax.pad(
        x, x.dtype.type(7), ((0, 0, 0), (-1, 0, 0), (0, 0, 0))
    ),
    "places over several axes": lambda x: (
        lax.broadcasted_iota(jnp.int32, (*x.shape[:1], 3, 4), 0) + x.astype(int)
    ),
    "places over the middle axis": lambda x: (
        lax.broadcasted_iota(jnp.int32, (*x.shape[:1], 3, 4), 1) + x.astype(int)
    ),
    "joined in the middle": lambda x: x.reshape(x.shape[0], 2, 6),
    "joined with the batch": lambda x: x.reshape(-1, 2),
    "pairs in a row": lambda x: pairs(x).reshape(-1),
    "pairs with an axis of one": lambda x: pairs(x).reshape(x.shape[0], 1, x.shape[0]),
    "twice the batch": lambda x: jnp.concatenate([x, x]).reshape(2, x.shape[0], 12),
    "turned twice": lambda x: jnp.flip(x, (1, 2)),
    "tiles of examples": lambda x: jnp.tile(x, (2, 1, 2)),
    "without axes of one": lambda x: jnp.squeeze(x[:, :1, None, :1], (1, 2)),
    "the first example for each": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "the first example five times": lambda x: jnp.repeat(x[:1], 5, axis=0),
    "the first example beside each": lambda x: jnp.concatenate(
        [x, jnp.broadcast_to(x[:1], x.shape)], axis=1
    ),
    "the size of the batch": lambda x: x * x.shape[0] + (x.shape[0] * 2 + 1),
}


def test_ends_and_starts_of_arrays() -> None:
    values = np.arange(2, 38, dtype=np.float32).reshape(3, 3, 4)
    check_all(EDGES, values)
