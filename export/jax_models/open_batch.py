"""Opens the batch of a computation that was traced in the one size that its code is written for, as
with `reshape(x, (global_batch_size, -1))`.

The operations are traced again with open sizes. No size is taken for the batch because it is the
same number: where the examples lie in a value is followed from the inputs on, operation by
operation. One that joins examples, takes some of them, or reads numbers by their positions is
rejected. So every example is computed from its own values, by the same operations in a batch of any
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import ExportError, NotConvertible
from export.jax_models.batch_rules import Followed, OpenSizes, Step, repeated, rule_of
from export.jax_models.equations import line_of
from export.jax_models.evaluation import REJECTED, inner_call, whole_call, without_unused
from export.jax_models.loading import jax
from export.jax_models.tracing import BATCH, FixedBatch, TracedFunction
from export.user_lines import at_line


def with_open_batch(traced: TracedFunction, batch: int, positions: Sequence[int]) -> TracedFunction:
    """Returns a function that was traced in a fixed batch as a function of any batch.

    Args:
      traced: it takes parameters first, then inputs.
      batch: the number of examples in the fixed batch, at least 2.
      positions: how many entries of each input's first axis belong to one example.

    Raises:
      FixedBatch: an operation does not compute each example from its own values, or is not known
        to; names the user's line and a remedy.
      NotConvertible: an operation has no counterpart in towers.
    """
    (open_batch,) = jax.export.symbolic_shape(BATCH)
    sizes = OpenSizes(batch, open_batch)
    avals = traced.jaxpr.in_avals
    first_input = len(avals) - len(positions)
    arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    for index in range(first_input, len(avals)):
        shape = sizes.opened(avals[index].shape, 0)
        arrays[index] = jax.ShapeDtypeStruct(shape, avals[index].dtype)

    def opened(*arguments: Any) -> list[Any]:
        values = [
            Followed(argument, aval.shape, axis=0 if index >= first_input else None)
            for index, (argument, aval) in enumerate(zip(arguments, avals, strict=True))
        ]
        jaxpr = without_unused(traced.jaxpr.jaxpr)
        results = _evaluate(sizes, jaxpr, traced.jaxpr.consts, values, _Origin())
        return [_result(value, sizes) for value in results]

    return TracedFunction(jax.jit(opened).trace(*arrays).jaxpr, traced.structure)


@dataclass(frozen=True)
class _Origin:
    """Where the user's code makes an equation.

    Attributes:
      line: the user's line; "": not known.
      traceback: JAX's.
    """

    line: str = ""
    traceback: Any = None

    def inside(self, source_info: Any) -> _Origin:
        """Returns the origin of an equation inside this one, which is this one if none is known."""
        line = line_of(source_info, "")
        return _Origin(line, source_info.traceback) if line else self


def _evaluate(
    sizes: OpenSizes,
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[Followed],
    outer: _Origin,
) -> list[Followed]:
    """Traces the equations of a computation again."""
    from jax.extend.core import Literal

    values: dict[Any, Followed] = {}

    def read(atom: Any) -> Followed:
        return Followed(atom.val, ()) if isinstance(atom, Literal) else values[atom]

    for variable, const in zip(jaxpr.constvars, consts, strict=True):
        values[variable] = Followed(const, variable.aval.shape)
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        results = _apply(sizes, eqn, inputs, outer.inside(eqn.source_info))
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(
    sizes: OpenSizes, eqn: Any, arguments: list[Followed], origin: _Origin
) -> list[Followed]:
    from jax.extend import source_info_util

    inner = inner_call(eqn.primitive.name, eqn.params)
    if inner is not None:
        whole = whole_call(eqn.params.get("name", ""), inner.jaxpr)
        ranks = {len(value.shape) for value in arguments} - {0}
        if whole is None or len(ranks) > 1:
            return _evaluate(sizes, inner.jaxpr, inner.consts, arguments, origin)

    step = Step(sizes, eqn, arguments, origin.line)
    if step.name in REJECTED:
        raise NotConvertible(
            f"JAX operation {step.name}{at_line(step.line)}: {REJECTED[step.name]}"
        )
    # What is traced here keeps the user's lines.
    with source_info_util.user_context(origin.traceback):
        try:
            return rule_of(step)(step)
        except ExportError:
            raise
        except Exception as problem:
            message = " ".join(str(problem).split())
            why = f"JAX rejects it in a batch of another size: {message[:200]}"
            raise step.rejected(why) from problem


def _result(value: Followed, sizes: OpenSizes) -> Any:
    """Returns an output of the function: one row for each example, if it depends on them."""
    is_alike = 0 in value.alike and value.shape[0] == sizes.batch
    if value.axis is None:
        return repeated(value, {0: sizes.open_batch} if is_alike else {})
    if value.axis == 0 and value.shape[0] == sizes.batch:
        return value.array
    raise FixedBatch(
        f"the call returns {list(value.shape)} for {sizes.batch} examples, the batch that "
        "feature_specs state: an output has one row for each example"
    )
