"""The operations of a computation as JAX computes them, beside their counterparts in TensorFlow:
where a tower gives another number than training did, the first that differs is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.errors import ExportError
from export.front_end.interface import ComparedOperation
from export.graphs.loading import tf
from export.jax_models.equations import line_of
from export.jax_models.evaluation import Evaluator, inner_call
from export.jax_models.values import Value, constant

Pair = tuple[Any, Value | None]
"""A value in JAX, and in TensorFlow; None: TensorFlow takes that of JAX."""


def compared_operations(
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Pair],
    run_equation: Callable[[Any, list[Any]], Sequence[Any]],
    outer: str = "",
) -> Generator[ComparedOperation, None, list[Pair]]:
    """Yields the operations of a computation in their order. Returns the results' pairs.

    Args:
      jaxpr: The computation, of arrays with fixed sizes.
      consts: Its constants.
      arguments: The values of its inputs.
      run_equation: Computes an equation of these inputs in JAX.
      outer: The user's line of the equation around the computation.
    """
    from jax.extend.core import Literal

    pairs: dict[Any, Pair] = {}
    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        pairs[variable] = (value, constant(np.asarray(value)))
    pairs.update(zip(jaxpr.invars, arguments, strict=True))

    def pair_of(atom: Any) -> Pair:
        if isinstance(atom, Literal):
            return atom.val, constant(np.asarray(atom.val, atom.aval.dtype))
        return pairs[atom]

    for eqn in jaxpr.eqns:
        inputs = [pair_of(atom) for atom in eqn.invars]
        line = line_of(eqn.source_info, outer)
        inner = inner_call(eqn.primitive.name, eqn.params)
        if inner is not None:
            results = yield from compared_operations(
                inner.jaxpr, inner.consts, inputs, run_equation, line
            )
        else:
            trained = run_equation(eqn, [value for value, _ in inputs])
            served = _in_tensorflow(eqn, inputs, trained, line)
            results = list(zip(trained, served, strict=True))
            if served[0] is not None:
                operand = next((np.asarray(value) for value, _ in inputs), None)
                yield ComparedOperation(
                    eqn.primitive.name,
                    line,
                    operand,
                    np.asarray(trained[0]),
                    _array(served[0]),
                )
        pairs.update(zip(eqn.outvars, results, strict=True))
    return [pair_of(atom) for atom in jaxpr.outvars]


def _in_tensorflow(
    eqn: Any, inputs: Sequence[Pair], trained: Sequence[Any], line: str
) -> Sequence[Value | None]:
    """Returns the results of an equation in TensorFlow; None where it has no counterpart by itself,
    such as a lookup.
    """
    arguments = []
    for value, served in inputs:
        if served is None and not hasattr(value, "shape"):
            return [None] * len(trained)
        arguments.append(served or Value(np.shape(value), tf.constant(np.asarray(value))))
    try:
        return Evaluator({}).apply(eqn, arguments, line)
    except (ExportError, ValueError, TypeError, tf.errors.OpError):
        return [None] * len(trained)


def _array(value: Value) -> NDArray[Any]:
    return np.broadcast_to(value.tensor.numpy(), value.shape)
