"""Loops and branches. Loops are unrolled, as converters need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler
from export.jax_models.values import Value, constant

STEPS_MAX = 512
"""Maximum number of steps of a loop in a tower: each step is a copy of the loop's operations."""


def _scan(equation: Equation, *arguments: Value) -> list[Value]:
    params = equation.params
    consts_end, carry_end = _ends_of_groups(equation)
    consts = arguments[:consts_end]
    carry = list(arguments[consts_end:carry_end])
    sequences = arguments[carry_end:]
    length = params["length"]
    if not isinstance(length, int) or length > STEPS_MAX:
        raise equation.rejected(
            f"a loop of {length} steps; loops of up to {STEPS_MAX} steps have a counterpart"
        )

    body = params["jaxpr"]
    inputs_by_sequence = [_unstack(equation, sequence, length) for sequence in sequences]
    outputs_by_step: list[list[Value]] = [[] for _ in range(length)]
    steps = list(range(length))
    if params["reverse"]:
        steps.reverse()
    for step in steps:
        inputs = [step_inputs[step] for step_inputs in inputs_by_sequence]
        results = equation.evaluate(body.jaxpr, body.consts, [*consts, *carry, *inputs])
        carry = results[: len(carry)]
        # A reversed loop, too, has its outputs in the order of its inputs.
        outputs_by_step[step] = results[len(carry) :]

    outputs = [_stack(equation, list(values)) for values in zip(*outputs_by_step, strict=True)]
    return [*carry, *outputs]


def _ends_of_groups(equation: Equation) -> tuple[int, int]:
    """Returns where the constants of a loop end among its arguments, and where its carry ends."""
    params = equation.params
    # JAX 0.10 states two numbers, later releases the structure of the arguments.
    if "num_consts" in params:
        return params["num_consts"], params["num_consts"] + params["num_carry"]
    consts, carry, _sequences = params["ft_in"].unpack()
    return len(consts), len(consts) + len(carry)


def _unstack(equation: Equation, sequence: Value, length: int) -> list[Value]:
    """Returns the entries of a sequence; they stay constants, which JAX can fold in each step."""
    if sequence.constant is not None:
        return [constant(entry) for entry in sequence.constant]
    tensors = tf.unstack(equation.sizes.full(sequence), num=length, axis=0)
    return [Value(sequence.shape[1:], tensor) for tensor in tensors]


def _stack(equation: Equation, values: list[Value]) -> Value:
    shape = (len(values), *values[0].shape)
    constants = [value.constant for value in values if value.constant is not None]
    if len(constants) == len(values):
        return constant(np.stack(constants))
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
    # The condition of the last step that is allowed is evaluated, too.
    for _ in range(STEPS_MAX + 1):
        (continues,) = equation.evaluate(
            condition.jaxpr, condition.consts, [*condition_consts, *carry]
        )
        if continues.constant is None:
            raise equation.rejected(
                "the number of steps of the loop depends on inputs; use jax.lax.fori_loop with a "
                "fixed number of steps, and jnp.where inside"
            )
        if not continues.constant:
            return carry
        carry = equation.evaluate(body.jaxpr, body.consts, [*body_consts, *carry])
    raise equation.rejected(f"a loop of more than {STEPS_MAX} steps has no counterpart")


def _cond(equation: Equation, index: Value, *arguments: Value) -> list[Any]:
    """Evaluates one of several branches; as in JAX, an index outside reads the nearest branch."""
    branches = equation.params["branches"]
    last = len(branches) - 1
    if index.constant is not None:
        selected = branches[int(np.clip(index.constant, 0, last))]
        return list(equation.evaluate(selected.jaxpr, selected.consts, arguments))

    def branch_function(branch: Any) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            results = equation.evaluate(branch.jaxpr, branch.consts, arguments)
            return [tf.identity(equation.sizes.full(result)) for result in results]

        return run

    functions = [branch_function(branch) for branch in branches]
    branch_index = tf.clip_by_value(tf.cast(index.tensor, tf.int32), 0, last)
    if len(functions) == 2:
        return list(tf.cond(tf.equal(branch_index, 1), functions[1], functions[0]))
    return list(tf.switch_case(branch_index, functions))


OPERATIONS: dict[str, Handler] = {"cond": _cond, "scan": _scan, "while": _while}
