"""Loops and branches against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.units.export.jax_models.evaluated import DTYPES, EXAMPLES, check_all, evaluated

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


def test_long_loop_is_rejected() -> None:
    with pytest.raises(Exception, match=r"scan.*test_control_flow\.py:\d+.*a loop of 600 steps"):
        evaluated(
            lambda x: lax.fori_loop(0, 600, lambda i, y: y + 1, x), np.ones((2, 3), np.float32)
        )


def test_loop_whose_steps_depend_on_inputs_is_rejected() -> None:
    with pytest.raises(Exception, match=r"while.*depends on inputs; use jax\.lax\.fori_loop"):
        evaluated(
            lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x),
            np.ones((2, 3), np.float32),
        )


def counted(x: Any, steps: int) -> Any:
    return lax.fori_loop(0, steps, lambda i, y: y + 1, x)


def counted_while(x: Any, steps: int) -> Any:
    carry = lax.while_loop(
        lambda state: state[0] < steps, lambda state: (state[0] + 1, state[1] + 1), (0, x)
    )
    return carry[1]


BRANCHES = [lambda y: y, lambda y: y + 1, lambda y: y * 3]
EDGES: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: lax.map(lambda row: row * 2, x.T),
    "scan that emits constants": lambda x: lax.scan(
        lambda carry, y: (carry + x[:, 0], (y * 2, carry)), x[:, 1], jnp.arange(3.0)
    ),
    "scan of nothing but a number of steps": lambda x: lax.scan(
        lambda carry, _: (carry * 2, carry.sum()), x, None, length=3
    ),
    "scan of constants from the end": lambda x: lax.scan(
        lambda carry, y: (carry + y, y), x[:, 0], jnp.arange(3.0), reverse=True
    ),
    "switch of a constant below 0": lambda x: lax.switch(jnp.array(-2), BRANCHES, x),
    "switch of a constant": lambda x: lax.switch(jnp.array(1), BRANCHES, x),
    "switch of a constant beyond the last": lambda x: lax.switch(jnp.array(7), BRANCHES, x),
    "cond of a constant": lambda x: lax.cond(jnp.array(False), jnp.sin, jnp.cos, x),
    "while without a step": lambda x: counted_while(x, 0),
    "while of one step": lambda x: counted_while(x, 1),
}


def test_ends_of_loops_and_branches() -> None:
    check_all(EDGES, np.arange(1, 11, dtype=np.float32).reshape(2, 5))


@pytest.mark.parametrize("first", [-3.0, 0.0, 1.0, 2.0, 9.0])
def test_branch_is_chosen_by_a_computed_number(first: float) -> None:
    def branched(x: Any) -> Any:
        number = x[0, 0].astype(int)
        return {
            "three": lax.switch(number, BRANCHES, x),
            "two": lax.switch(number, BRANCHES[1:], x),
            "one": lax.switch(number, BRANCHES[2:], x),
            "cond": lax.cond(number > 0, *BRANCHES[1:], x),
        }

    check_all({"branched": branched}, np.array([[first, 5.0]], np.float32))


@pytest.mark.parametrize(("loop", "name"), [(counted, "scan"), (counted_while, "while")])
def test_loop_of_512_steps_is_the_longest(loop: Callable[[Any, int], Any], name: str) -> None:
    values = np.ones((2, 3), np.float32)
    (actual,) = evaluated(lambda x: loop(x, 512), values)
    np.testing.assert_array_equal(actual, values + 512)
    reason = "a loop of 513 steps; loops of up to 512" if name == "scan" else "more than 512 steps"
    with pytest.raises(Exception, match=f"{name} .*{reason}"):
        evaluated(lambda x: loop(x, 513), values)
