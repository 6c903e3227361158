"""Loops and branches against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.export.jax_models.evaluated import DTYPES, EXAMPLES, check_all, evaluated

jax = pytest.importorskip("jax")
jnp = jax.numpy
lax = jax.lax


def running_sums(x: Any, reverse: bool = False) -> Any:
    def step(carry: Any, column: Any) -> Any:
        total = 0.5 * carry + column
        return total, (total, column * 2)

    return lax.scan(step, jnp.zeros(x.shape[0], x.dtype), x.T, reverse=reverse)


with_own_gradient = jax.custom_vjp(jnp.sin)
with_own_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, gradient: (gradient,))

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "scan": running_sums,
    "scan from the end": lambda x: running_sums(x, reverse=True),
    "scan of constants": lambda x: lax.scan(
        lambda c, y: (c + y, c), x[:, 0], jnp.arange(3, dtype=x.dtype)
    ),
    "fori_loop": lambda x: lax.fori_loop(0, 4, lambda i, y: y * 0.5 + i, x),
    "while of a fixed number of steps": lambda x: lax.while_loop(
        lambda state: state[0] < 3, lambda state: (state[0] + 1, state[1] * 2), (0, x)
    ),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: y + 1, lambda y: -y, x),
    "switch": lambda x: lax.switch(
        x[0, 0].astype(int), [lambda y: y, lambda y: y + 1, lambda y: y * 3], x
    ),
    "cond of a constant": lambda x: lax.cond(jnp.array(True), jnp.sin, jnp.cos, x),
    "jit inside": jax.jit(lambda y: jnp.tanh(y) + 1),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(x) * 2),
    "custom_vjp": with_own_gradient,
    "custom gradients": lambda x: jax.nn.relu(x) + jax.nn.silu(x),
    "vmap": jax.vmap(lambda row: jnp.outer(row, row).sum()),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x, axis=1),
}


@pytest.mark.parametrize("dtype", DTYPES)
@EXAMPLES
@given(batch=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_same_as_jax(dtype: str, batch: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(0, 1, (batch, 5)).astype(dtype)
    check_all(FUNCTIONS, values)


def test_long_loop_is_refused() -> None:
    with pytest.raises(Exception, match=r"scan.*test_control_flow\.py:\d+.*a loop of 600 steps"):
        evaluated(
            lambda x: lax.fori_loop(0, 600, lambda i, y: y + 1, x), np.ones((2, 3), np.float32)
        )


def test_loop_whose_steps_depend_on_inputs_is_refused() -> None:
    with pytest.raises(Exception, match=r"while.*depends on inputs; use jax\.lax\.fori_loop"):
        evaluated(
            lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x),
            np.ones((2, 3), np.float32),
        )
