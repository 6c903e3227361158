"""Opens the batch of a computation that was traced in the one size that its code is written for, as
with `reshape(x, (global_batch_size, -1))`.

The operations are traced again with open sizes. A size does not become the batch because it is the
same number: the axis of the examples is followed from the inputs on, operation by operation. An
operation that joins examples, selects some of them, or reads numbers by their positions is
rejected. So every example is computed from its own values, by the same operations in a batch of any
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from export.errors import ExportError, NotConvertible
from export.jax_models.batch_rules import BatchedValue, OpenSizes, Step, repeated, rule_of
from export.jax_models.equations import line_of
from export.jax_models.evaluation import REJECTED, inner_call, whole_call, without_unused
from export.jax_models.loading import jax
from export.jax_models.primitives import attributes_of_this_release
from export.jax_models.tracing import BATCH, FixedBatch, TracedFunction
from export.raised_errors import call_model, failure
from export.user_lines import at_line


def with_open_batch(traced: TracedFunction, batch: int, positions: Sequence[int]) -> TracedFunction:
    """Returns a function that was traced in a fixed batch as a function of any batch.

    Args:
      traced: The function, whose parameters come first, then its inputs.
      batch: The number of examples in the fixed batch, at least 2.
      positions: The number of entries of each input's first axis that belong to one example.

    Raises:
      FixedBatch: An operation does not compute each example from its own values, or has no rule;
        the message names the user's line and a remedy.
      NotConvertible: An operation has no counterpart in towers.
    """
    (open_batch,) = jax.export.symbolic_shape(BATCH)
    sizes = OpenSizes(batch, open_batch)
    avals = traced.jaxpr.in_avals
    # The leaves of the parameters come first; they have no batch.
    first_input = len(avals) - len(positions)
    arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    for index in range(first_input, len(avals)):
        shape = sizes.opened(avals[index].shape, 0)
        arrays[index] = jax.ShapeDtypeStruct(shape, avals[index].dtype)

    def run_open_batch(*arguments: Any) -> list[Any]:
        values = []
        for index, (argument, aval) in enumerate(zip(arguments, avals, strict=True)):
            axis = 0 if index >= first_input else None
            values.append(BatchedValue(argument, aval.shape, axis))
        # An unused operation without a rule does not matter.
        jaxpr = without_unused(traced.jaxpr.jaxpr)
        results = _evaluate(sizes, jaxpr, traced.jaxpr.consts, values, _Origin())
        return [_result(value, sizes) for value in results]

    return TracedFunction(jax.jit(run_open_batch).trace(*arrays).lojax.jaxpr, traced.structure)


@dataclass(frozen=True)
class _Origin:
    """The origin of an equation in the user's code.

    Attributes:
      line: The user's line; "" if JAX recorded none.
      traceback: JAX's traceback.
    """

    line: str = ""
    traceback: Any = None

    def inside(self, source_info: Any) -> _Origin:
        """Returns the origin of an equation inside this one, or this one if JAX recorded none."""
        line = line_of(source_info, "")
        if not line:
            return self
        return _Origin(line, source_info.traceback)


def _evaluate(
    sizes: OpenSizes,
    jaxpr: Any,
    consts: Sequence[Any],
    arguments: Sequence[BatchedValue],
    outer: _Origin,
) -> list[BatchedValue]:
    """Traces the equations of a computation again."""
    from jax.extend.core import Literal

    values: dict[Any, BatchedValue] = {}

    def read(atom: Any) -> BatchedValue:
        if isinstance(atom, Literal):
            return BatchedValue(atom.val, ())
        return values[atom]

    for variable, const in zip(jaxpr.constvars, consts, strict=True):
        values[variable] = BatchedValue(const, variable.aval.shape)
    values.update(zip(jaxpr.invars, arguments, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        results = _apply(sizes, eqn, inputs, outer.inside(eqn.source_info))
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(
    sizes: OpenSizes, eqn: Any, arguments: list[BatchedValue], origin: _Origin
) -> list[BatchedValue]:
    from jax.extend import source_info_util

    step = Step(sizes, eqn, arguments, origin.line)
    inner = inner_call(step.name, step.params)
    if inner is not None:
        whole_handler = whole_call(step.params.get("name", ""), inner.jaxpr)
        # A call that stays whole has one axis of examples. With arguments of different ranks, the
        # axis of the examples would be another one in each of them.
        ranks = {len(value.shape) for value in arguments} - {0}
        if whole_handler is None or len(ranks) > 1:
            return _evaluate(sizes, inner.jaxpr, inner.consts, arguments, origin)

    if step.name in REJECTED:
        raise NotConvertible(
            f"JAX operation {step.name}{at_line(step.line)}: {REJECTED[step.name]}"
        )
    # Equations that are traced here keep the user's lines.
    with source_info_util.user_context(origin.traceback):
        try:
            with attributes_of_this_release(step.name, step.line):
                return call_model(rule_of(step), step)
        except ExportError:
            raise
        except Exception as problem:
            reason = failure(problem, "JAX rejects it in a batch of another size")
            raise step.rejected(reason) from problem


def _result(value: BatchedValue, sizes: OpenSizes) -> Any:
    """Returns an output of the function: one row for each example, if it depends on them."""
    # A constant output with equal rows can be extended to any number of examples.
    is_repeated = 0 in value.repeated_axes and value.shape[0] == sizes.batch
    if value.axis is None:
        open_sizes = {0: sizes.open_batch} if is_repeated else {}
        return repeated(value, open_sizes)
    if value.axis == 0 and value.shape[0] == sizes.batch:
        return value.array
    raise FixedBatch(
        f"the call returns {list(value.shape)} for {sizes.batch} examples, the batch that "
        "feature_specs state: an output has one row for each example"
    )
