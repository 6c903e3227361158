"""Loops and branches. Loops are unrolled, as converters need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Value, constant

STEPS_MAX = 512
"""How many steps of a loop a tower may hold."""


def _scan(equation: Equation, *arguments: Value) -> list[Value]:
    params = equation.params
    consts_end = params["num_consts"]
    carry_end = consts_end + params["num_carry"]
    consts = arguments[:consts_end]
    carry = list(arguments[consts_end:carry_end])
    sequences = arguments[carry_end:]
    length = params["length"]
    if not isinstance(length, int) or length > STEPS_MAX:
        raise equation.rejected(
            f"a loop of {length} steps; loops of up to {STEPS_MAX} steps have a counterpart"
        )

    body = params["jaxpr"]
    steps = [_steps(equation, sequence, length) for sequence in sequences]
    order = range(length)
    emitted: list[list[Value]] = [[] for _ in range(length)]
    for step in reversed(order) if params["reverse"] else order:
        inputs = [values[step] for values in steps]
        results = equation.evaluate(body.jaxpr, body.consts, [*consts, *carry, *inputs])
        carry = results[: len(carry)]
        emitted[step] = results[len(carry) :]

    stacked = [_stacked(equation, list(values)) for values in zip(*emitted, strict=True)]
    return [*carry, *stacked]


def _steps(equation: Equation, sequence: Value, length: int) -> list[Value]:
    if sequence.known is not None:
        return [constant(each) for each in sequence.known]
    tensors = tf.unstack(equation.sizes.full(sequence), num=length, axis=0)
    return [Value(sequence.shape[1:], tensor) for tensor in tensors]


def _stacked(equation: Equation, values: list[Value]) -> Value:
    shape = (len(values), *values[0].shape)
    known = [value.known for value in values if value.known is not None]
    if len(known) == len(values):
        return constant(np.stack(known))
    return Value(shape, tf.stack([equation.sizes.full(value) for value in values], axis=0))


def _while(equation: Equation, *arguments: Value) -> list[Value]:
    """Unrolls a loop whose number of steps depends on constants alone."""
    params = equation.params
    body_begin = params["cond_nconsts"]
    carry_begin = body_begin + params["body_nconsts"]
    condition_consts = arguments[:body_begin]
    body_consts = arguments[body_begin:carry_begin]
    carry = list(arguments[carry_begin:])
    condition = params["cond_jaxpr"]
    body = params["body_jaxpr"]
    for _ in range(STEPS_MAX + 1):
        (goes_on,) = equation.evaluate(
            condition.jaxpr, condition.consts, [*condition_consts, *carry]
        )
        if goes_on.known is None:
            raise equation.rejected(
                "how many steps the loop takes depends on inputs; use jax.lax.fori_loop with a "
                "fixed number of steps, and jnp.where inside"
            )
        if not goes_on.known:
            return carry
        carry = equation.evaluate(body.jaxpr, body.consts, [*body_consts, *carry])
    raise equation.rejected(f"a loop of more than {STEPS_MAX} steps has no counterpart")


def _cond(equation: Equation, index: Value, *arguments: Value) -> list[Any]:
    branches = equation.params["branches"]
    last = len(branches) - 1
    if index.known is not None:
        chosen = branches[int(np.clip(index.known, 0, last))]
        return list(equation.evaluate(chosen.jaxpr, chosen.consts, arguments))

    def branch(closed: Any) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results = equation.evaluate(closed.jaxpr, closed.consts, arguments)
            return [tf.identity(equation.sizes.full(result)) for result in results]

        return run

    runs = [branch(closed) for closed in branches]
    number = tf.clip_by_value(tf.cast(index.tensor, tf.int32), 0, last)
    if len(runs) == 2:
        return list(tf.cond(tf.equal(number, 1), runs[1], runs[0]))
    return list(tf.switch_case(number, runs))


OPERATIONS: dict[str, Handler] = {"cond": _cond, "scan": _scan, "while": _while}
