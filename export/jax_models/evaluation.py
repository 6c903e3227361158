"""Evaluates a computation in JAX (a jaxpr) as TensorFlow operations: a graph in, a graph out.

What depends on constants alone, such as masks and positions, JAX itself computes during the
evaluation. Every other primitive has a counterpart in `operations`, or is rejected with the user's
line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from export.errors import ExportError
from export.graphs.loading import tf
from export.jax_models.equations import Equation, Handler, dtype_of, line_of, run_at_line
from export.jax_models.loading import jax
from export.jax_models.operations import (
    control_flow,
    elementwise,
    gathers,
    products,
    reductions,
    shapes,
)
from export.jax_models.primitives import Parameters, attributes_of_this_release
from export.jax_models.values import Shape, Sizes, Value, constant, is_static
from export.raised_errors import call_model, failure

OPERATIONS: dict[str, Handler] = {
    **elementwise.OPERATIONS,
    **shapes.OPERATIONS,
    **reductions.OPERATIONS,
    **products.OPERATIONS,
    **gathers.OPERATIONS,
    **control_flow.OPERATIONS,
}
"""Primitive -> its counterpart."""

CALLS = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that only call another computation -> the parameter that holds it."""


@dataclass(frozen=True)
class InnerCall:
    """A computation that an equation only calls, and its constants."""

    jaxpr: Any
    consts: Sequence[Any]


_WHOLE_CALLS: dict[str, Handler] = {
    "remainder": elementwise.floor_mod,
    "floor_divide": elementwise.floor_divide,
}
"""Functions of `jax.numpy` that are one operation of TensorFlow."""

_NEVER_FOLDED = {*control_flow.OPERATIONS, "dim_as_value", "pvary"}
"""Primitives that may depend on the batch, or draw random numbers inside, without an argument; and
`pvary`, which JAX computes only inside jax.shard_map.
"""

_RANDOM = (
    "it draws random numbers, so the model would return something else each time; call it for "
    "inference: train=False, deterministic=True, model.eval()"
)
_ON_TPU = (
    "it is written for one kind of accelerator; give the function that the factory returns the "
    "plain computation"
)
_IN_PYTHON = "it calls Python code while the model runs; remove it for inference"
_FREQUENCIES = (
    "there is no Fourier transform in a tower; compute it before the model and pass its result "
    "as an input"
)
_SHARDED = (
    "it is divided among devices; give the model a mesh of one, "
    "jax.sharding.Mesh(jax.devices()[:1], axis_names), or call the function without jax.shard_map"
)

REJECTED = {
    "fft": _FREQUENCIES,
    "shard_map": _SHARDED,
    "all_gather": _SHARDED,
    "all_to_all": _SHARDED,
    "axis_index": _SHARDED,
    "ppermute": _SHARDED,
    "psum": _SHARDED,
    "pallas_call": _ON_TPU,
    "custom_call": _ON_TPU,
    "ffi_call": _ON_TPU,
    "tpu_custom_call": _ON_TPU,
    "debug_callback": _IN_PYTHON,
    "debug_print": _IN_PYTHON,
    "io_callback": _IN_PYTHON,
    "pure_callback": _IN_PYTHON,
    "random_bits": _RANDOM,
    "random_gamma": _RANDOM,
    "rng_bit_generator": _RANDOM,
    "rng_uniform": _RANDOM,
    "threefry2x32": _RANDOM,
}
"""Primitives without a counterpart that users meet -> the reason, and a remedy."""


class Evaluator:
    """Evaluates computations with the symbolic sizes of one trace.

    Args:
      sizes: The scalar int32 tensor of each symbol, such as the batch size.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        self._sizes = Sizes(sizes)

    def results(self, closed: Any, arguments: Sequence[Value]) -> list[Any]:
        """Returns the tensors of a computation's results, in their whole shapes.

        Args:
          closed: The computation, a ClosedJaxpr.
          arguments: Values of its inputs.

        Raises:
          NotConvertible: An operation has no counterpart; the message names the user's line and a
            remedy.
        """
        # An unused operation without a counterpart does not matter.
        jaxpr = without_unused(closed.jaxpr)
        results = self._evaluate(jaxpr, closed.consts, arguments, "")
        return [self._sizes.full(value) for value in results]

    def _evaluate(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Value], outer: str
    ) -> list[Value]:
        from jax.extend.core import Literal

        values: dict[Any, Value] = {}

        def read(atom: Any) -> Value:
            if isinstance(atom, Literal):
                return constant(np.asarray(atom.val, atom.aval.dtype))
            return values[atom]

        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            values[variable] = value if isinstance(value, Value) else _constant(value)
        values.update(zip(jaxpr.invars, arguments, strict=True))
        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            line = line_of(eqn.source_info, outer)
            with attributes_of_this_release(eqn.primitive.name, line):
                results = run_at_line(eqn.source_info, partial(self.apply, eqn, inputs, line))
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def apply(self, eqn: Any, arguments: list[Value], line: str) -> list[Value]:
        """Evaluates one equation."""
        equation = self._equation(eqn, line)
        name = equation.primitive
        inner = inner_call(name, equation.params)
        if inner is not None:
            equation.params.check_known()
            return self._call(equation, inner, arguments)
        # Random draws are rejected even if their key is a constant: they mean that dropout was
        # left on.
        if name in REJECTED:
            raise equation.rejected(REJECTED[name])
        constants = [value.constant for value in arguments if value.constant is not None]
        # An array of ones for each example has no argument, but depends on the batch by its shape.
        has_open_size = not all(is_static(size) for shape in equation.shapes for size in shape)
        is_foldable = name not in _NEVER_FOLDED and not has_open_size
        if is_foldable and len(constants) == len(arguments):
            return _fold(eqn, constants)

        handler = OPERATIONS.get(name)
        if handler is None:
            raise equation.rejected("it has no counterpart; write it with other functions of JAX")
        equation.params.check_known()
        return self._handle(handler, equation, arguments)

    def _handle(
        self, handler: Handler, equation: Equation, arguments: Sequence[Value]
    ) -> list[Value]:
        try:
            results = call_model(handler, equation, *arguments)
        except ExportError:
            raise
        except (ValueError, TypeError, NotImplementedError, tf.errors.OpError) as problem:
            raise equation.rejected(failure(problem, "TensorFlow rejects it")) from problem
        if not isinstance(results, list):
            results = [results]

        # A handler returns a Value only where it keeps a repetition or how the value was computed.
        values = []
        for result, shape in zip(results, equation.shapes, strict=True):
            if isinstance(result, Value):
                values.append(result)
            else:
                values.append(Value(shape, _set_sizes(result, shape)))
        return values

    def _call(
        self, equation: Equation, inner: InnerCall, arguments: Sequence[Value]
    ) -> list[Value]:
        whole_handler = whole_call(equation.params.get("name", ""), inner.jaxpr)
        all_constant = all(value.constant is not None for value in arguments)
        # Rules of ids need `%` and `//` of integers as one operation. JAX folds constants, and
        # floats have no such rules.
        if whole_handler is not None and not all_constant and equation.dtype.is_integer:
            return self._handle(whole_handler, equation, arguments)
        return equation.evaluate(inner.jaxpr, inner.consts, arguments)

    def _equation(self, eqn: Any, line: str) -> Equation:
        def evaluate(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
            return self._evaluate(jaxpr, consts, inputs, line)

        avals: list[Any] = [variable.aval for variable in eqn.outvars]
        return Equation(
            eqn.primitive.name,
            Parameters(eqn.primitive.name, eqn.params, line),
            tuple(tuple(getattr(aval, "shape", ())) for aval in avals),
            tuple(dtype_of(aval) for aval in avals),
            self._sizes,
            line,
            evaluate,
        )


def inner_call(primitive: str, params: Mapping[str, Any]) -> InnerCall | None:
    """Returns the computation that an equation only calls; None if it does anything else."""
    holder = CALLS.get(primitive)
    # On a mesh of one device, the only part is the whole.
    if primitive == "shard_map" and params["mesh"].size == 1:
        holder = "jaxpr"
    if holder is None:
        return None
    inner = params[holder]
    return InnerCall(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()))


def whole_call(name: str, jaxpr: Any) -> Handler | None:
    """Returns the handler of a called function of `jax.numpy` that is one operation; None for any
    other function, such as one of the user's with the same name.
    """
    handler = _WHOLE_CALLS.get(name)
    if handler is None:
        return None
    # JAX records the name of a called function and its file, but not its module.
    function = inspect.unwrap(getattr(jax.numpy, name))
    if jaxpr.debug_info.func_filename != function.__code__.co_filename:
        return None
    return handler


def _set_sizes(tensor: Any, shape: Shape) -> Any:
    """Sets the sizes that JAX has computed for a tensor, and returns it: an axis of size 1 may be
    repeated, which TensorFlow does not know of `x[:1]`.
    """
    tensor.set_shape([int(size) if is_static(size) else None for size in shape])
    return tensor


def _constant(value: Any) -> Value:
    # Keys of random numbers have no NumPy dtype; only draws read them, which are rejected.
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return Value(value.shape, constant=value)
    return constant(value)


def _fold(eqn: Any, constants: list[Any]) -> list[Value]:
    """Lets JAX compute what depends on constants alone."""
    # On the CPU, as towers and the reference run.
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        results = eqn.primitive.bind(*constants, **eqn.params)
    if not eqn.primitive.multiple_results:
        results = [results]
    return [_constant(result) for result in results]


def without_unused(jaxpr: Any) -> Any:
    """Returns a computation without the equations that its results do not need, with the same
    inputs.

    Source: JAX 0.10, jax/_src/interpreters/partial_eval.py.
    """
    from jax.interpreters import partial_eval

    used = [True] * len(jaxpr.outvars)
    return partial_eval.dce_jaxpr(jaxpr, used, instantiate=True)[0]
