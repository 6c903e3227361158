"""Traces functions of JAX for any batch, with parameters of which only shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from export.errors import NotConvertible
from export.graphs.loading import tf
from export.jax_models.loading import jax
from export.user_lines import at_line, line_of_exception

BATCH = "b"
"""The name of the batch in symbolic sizes."""


_WITHOUT_VALUES = {
    "ConcretizationTypeError",
    "TracerArrayConversionError",
    "TracerBoolConversionError",
    "TracerIntegerConversionError",
}
"""JAX's errors where code needs values while it is traced."""


@dataclass(frozen=True)
class TracedFunction:
    """A function of parameters and inputs, as a computation.

    Attributes:
      jaxpr: the computation; takes the leaves of the parameters, then the inputs by name.
      structure: of its result.
    """

    jaxpr: Any
    structure: Any


def trace(
    function: Callable[..., Any], parameters: Any, inputs: Mapping[str, Any], where: str
) -> TracedFunction:
    """Traces `function(parameters, inputs)`; allocates nothing.

    Args:
      function: the user's.
      parameters: a tree of `jax.ShapeDtypeStruct`.
      inputs: a tensor, or its TensorSpec, of each input; its first axis is the batch.
      where: what is traced, for messages.

    Raises:
      NotConvertible: an input has a dtype that JAX would change; the code fixes the batch, or
        raises: names the user's line.
    """
    (batch,) = jax.export.symbolic_shape(BATCH)
    specs = {}
    for name, tensor in inputs.items():
        check_dtype(name, tensor.dtype)
        shape = (batch, *tensor.shape.as_list()[1:])
        specs[name] = jax.ShapeDtypeStruct(shape, tensor.dtype.as_numpy_dtype)
    try:
        traced = jax.jit(function).trace(parameters, specs)
    except Exception as problem:
        message = " ".join(str(problem).split())
        raise NotConvertible(
            f"{where} raised {type(problem).__name__}{at_line(line_of_exception(problem))}: "
            f"{message[:300]}{_remedy(problem)}"
        ) from problem
    return TracedFunction(traced.jaxpr, jax.tree.structure(traced.out_info))


def check_dtype(name: str, dtype: Any) -> None:
    """Checks that JAX keeps the dtype of an input.

    Raises:
      NotConvertible: it is text, or has 64 bits, which JAX would cut to 32: ids would wrap.
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


def _remedy(problem: Exception) -> str:
    kind = type(problem).__name__
    if kind == "InconclusiveDimensionOperation" or "symbolic" in str(problem):
        return (
            "; the batch has no fixed size: let sizes come from the inputs (x.shape[0], or -1 in "
            "a reshape) and not from a constant"
        )
    if kind in _WITHOUT_VALUES:
        return "; a function is traced without values: use jnp.where or jax.lax.cond"
    if kind == "KeyError":
        return "; it is given the inputs that the recipe declares"
    if kind == "OverflowError":
        return (
            "; a table of more than 2**31 - 1 rows needs int64 ids: begin the model file with "
            'jax.config.update("jax_enable_x64", True)'
        )
    return ""
