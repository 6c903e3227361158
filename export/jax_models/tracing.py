"""Traces functions of JAX for any batch, with the shapes of parameters instead of values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from export.errors import ExportError, NotConvertible, UsageError
from export.graphs.loading import tf
from export.jax_models.equations import line_of
from export.jax_models.evaluation import without_unused
from export.jax_models.loading import jax
from export.jax_models.values import is_static
from export.model_code.definition_modules import explained
from export.raised_errors import is_own
from export.user_lines import at_line, line_of_exception

BATCH = "b"
"""The name of the batch in symbolic sizes."""

SIZES_FROM_INPUTS = (
    "let sizes come from the inputs (x.shape[0], or -1 in a reshape), not from a constant. Where "
    "the constant is an attribute of the model, set it in the function that the factory returns: "
    "model.clone(global_batch_size=inputs[NAME].shape[0]) of Flax linen, or "
    "model.global_batch_size = inputs[NAME].shape[0] of nnx"
)
"""The remedy for code that fixes the batch."""
_OPEN_SHAPE = re.compile(rf"symbolic|\((\d+\*)?{BATCH}[,)]")
"""A pattern in the messages of JAX's errors about an open batch that meets a number."""

_VALUE_ERRORS = {
    "ConcretizationTypeError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
}
"""JAX's errors about code that needs values while it is traced."""


class FixedBatch(NotConvertible):
    """The code runs in batches of one size only."""


@dataclass(frozen=True)
class TracedFunction:
    """A function of parameters and inputs, as a computation.

    Attributes:
      jaxpr: The computation of the leaves of the parameters, and then the inputs in the order of
        their names.
      structure: The structure of its result.
    """

    jaxpr: Any
    structure: Any


def trace(
    function: Callable[..., Any],
    parameters: Any,
    inputs: Mapping[str, Any],
    where: str,
    *,
    positions: Mapping[str, int] = MappingProxyType({}),
    batch: int | None = None,
) -> TracedFunction:
    """Traces `function(parameters, inputs)`; allocates nothing.

    Args:
      function: The user's function.
      parameters: A tree of `jax.ShapeDtypeStruct`.
      inputs: A tensor, or its TensorSpec, for each input; its first axis is the batch.
      where: The name of the call, for messages.
      positions: The number of entries of an input's first axis that belong to one example; 1 for
        inputs that are left out.
      batch: The number of examples; None for any number.

    Raises:
      UsageError: The code needs a name that was left out of its definitions.
      FixedBatch: The code fixes the batch; the message names the user's line.
      NotConvertible: An input has a dtype that JAX would change, or the code raises an error; the
        message names the user's line.
    """
    (any_batch,) = jax.export.symbolic_shape(BATCH)
    examples = any_batch if batch is None else batch
    specs = {}
    for name, tensor in inputs.items():
        check_dtype(name, tensor.dtype)
        shape = (examples * positions.get(name, 1), *tensor.shape.as_list()[1:])
        specs[name] = jax.ShapeDtypeStruct(shape, tensor.dtype.as_numpy_dtype)
    try:
        traced = jax.jit(function).trace(parameters, specs).lojax
    except ExportError:
        raise
    except Exception as problem:
        if is_own(problem):
            raise
        line = at_line(line_of_exception(problem))
        # A name that was left out of the definitions is missing in the recipe, not a limit of the
        # exporter.
        explanation = explained(problem)
        if explanation:
            raise UsageError(f"{where} raised {explanation}{line}") from problem
        text = " ".join(str(problem).split())
        message = f"{where} raised {type(problem).__name__}{line}: {text[:300]}"
        if batch is None and _meets_open_batch(problem):
            message = f"{message}; the batch has no fixed size: {SIZES_FROM_INPUTS}"
            raise FixedBatch(message) from problem
        raise NotConvertible(f"{message}{_remedy(problem)}") from problem
    if batch is None:
        _check_open(without_unused(traced.jaxpr.jaxpr), "")
    return TracedFunction(traced.jaxpr, jax.tree.structure(traced.out_info))


def _check_open(jaxpr: Any, outer: str) -> None:
    """Checks that no equation gives the open batch a fixed size: JAX itself would reject the
    equation only when it runs.

    Args:
      jaxpr: The computation.
      outer: The user's line of the equation around the computation.
    """
    for eqn in jaxpr.eqns:
        line = line_of(eqn.source_info, outer)
        if eqn.primitive.name == "reshape":
            operand = eqn.invars[0].aval.shape
            result = eqn.outvars[0].aval.shape
            if not all(map(is_static, operand)) and all(map(is_static, result)):
                raise FixedBatch(
                    f"JAX operation reshape{at_line(line)}: it gives the batch a fixed size, "
                    f"{list(result)}: {SIZES_FROM_INPUTS}"
                )
        for inner in _inner_jaxprs(eqn.params):
            _check_open(inner, line)


def _inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for param in params.values():
        # A condition holds a list of computations, one for each branch.
        values = param if isinstance(param, list | tuple) else (param,)
        for value in values:
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield inner


def check_dtype(name: str, dtype: Any) -> None:
    """Checks that JAX keeps the dtype of an input.

    Raises:
      NotConvertible: The input is text, or has 64 bits, which JAX would cut to 32: ids would wrap.
    """
    if dtype == tf.string:
        raise NotConvertible(
            f"input {name!r} is text, which JAX does not have; state a rule for its ids, "
            "or map it to ids before the model"
        )
    if dtype.size == 8 and not jax.config.jax_enable_x64:
        narrow = dtype.name.replace("64", "32")
        raise NotConvertible(
            f"input {name!r} is {dtype.name}, which JAX would cut to {narrow}: write {narrow} as "
            f"inputs.{name}.dtype, or begin the model file with "
            'jax.config.update("jax_enable_x64", True), as in training'
        )


def _meets_open_batch(problem: Exception) -> bool:
    if isinstance(problem, jax.errors.InconclusiveDimensionOperation):
        return True
    return _OPEN_SHAPE.search(str(problem)) is not None


def _remedy(problem: Exception) -> str:
    kind = type(problem).__name__
    if kind in _VALUE_ERRORS:
        return "; a function is traced without values: use jnp.where or jax.lax.cond"
    if kind == "KeyError":
        return "; the function gets the inputs that the recipe declares"
    if kind == "OverflowError":
        return (
            "; a table of more than 2**31 - 1 rows needs int64 ids: begin the model file with "
            'jax.config.update("jax_enable_x64", True)'
        )
    return ""
