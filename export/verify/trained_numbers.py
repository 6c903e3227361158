"""Towers on hostile numbers beside the model in the framework that trained it.

TensorFlow computes some numbers otherwise than JAX does: logarithms differ by a bit, which a step
makes a whole number, and casts of large numbers end at other integers. A tower that gives another
number than the model gave in training must not be published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.features.reader import FeatureReader
from bundle.format.manifest import Tower
from export.errors import VerificationFailed
from export.front_end.interface import ForeignModel, TracedTower
from export.front_end.specs import FeatureSpec
from export.user_lines import at_line
from export.verify.differing_operations import differing_position
from export.verify.examples import Examples, chosen, joined
from export.verify.form_differences import ComparedOutputs, NotFinite, RoundedTower
from export.verify.forms import Values
from export.verify.hostile_examples import (
    HostileExamples,
    batches,
    hostile_examples,
    number_text,
)
from export.verify.reference_form import ReferenceForm
from export.verify.reference_inputs import Reference
from export.verify.reference_model import model_inputs, reference_results

_ROWS_MAX = 1 << 12
"""The number of examples that hold hostile numbers in one input, over all inputs of a tower."""
_COPIES = 16
"""The number of times that an example is computed together to find what differs."""
_REMEDY = (
    "clip numbers in the model to those that callers mean, compute a step of a number by "
    "comparisons, such as jnp.searchsorted of its limits, or compute it before the model and pass "
    "it as an input"
)


def compare_with_training(
    reference: Reference,
    trained: FeatureReader,
    root: Path,
    towers: Mapping[str, Tower],
    values: Values,
    traced: Sequence[TracedTower],
) -> list[str]:
    """Compares each tower's SavedModel in f32 with the original model on hostile numbers, where
    another framework than TensorFlow runs that. Ids are those of the examples.

    Args:
      reference: The model, its examples and how a service reads them.
      trained: Reads features, with rows as they were trained.
      root: The directory of the staged bundle.
      towers: The towers' entries in the manifest.
      values: [n, ...] values of each feature of the examples.
      traced: The towers, whose variables have their values.

    Returns:
      Notes about numbers of which only one of the two makes NaN or an infinity, and about towers
      that are not compared.

    Raises:
      VerificationFailed: They differ; names the tower, the number and both results.
    """
    original = reference.original
    if not isinstance(original, ForeignModel):
        return []
    notes = []
    for tower in traced:
        name = tower.spec.name
        if tower.spec.half:
            notes.append(
                f"tower {name!r} computes in half precision, so it is compared with "
                f"{original.framework} on the examples alone, and not on hostile numbers"
            )
            continue
        form = ReferenceForm(reference, root, tower.spec, towers[name], values)
        notes += _compare(reference, original, trained, tower, form)
    return notes


def _compare(
    reference: Reference,
    original: ForeignModel,
    trained: FeatureReader,
    traced: TracedTower,
    form: ReferenceForm,
) -> list[str]:
    """Compares one tower."""
    name = traced.spec.name
    base = reference.examples
    groups = [_completed(base, group) for group in _groups(reference, traced, form) if group.n]
    if not groups:
        return []
    counts = [group.n for group in groups]
    columns = {
        input_name: joined([group.columns[input_name] for group in groups], counts)
        for input_name in base.columns
    }
    examples = Examples(sum(counts), columns)
    expected = reference_results(replace(reference, examples=examples), only=name)[name]
    features = {source for tensor in form.tower.inputs for source in tensor.sources}
    activations = trained.activations(sorted(features), examples.columns, examples.n)

    not_finite = NotFinite()
    rounded = RoundedTower(traced, "f32")
    differing: list[ComparedOutputs] = []
    first = 0
    for group in groups:
        rows = slice(first, first + group.n)
        first += group.n
        values = {feature: activation.values[rows] for feature, activation in activations.items()}
        compared = _outputs(
            form,
            replace(group, values=values),
            {output: array[rows] for output, array in expected.items()},
        )
        not_finite.add(compared)
        compared = _with_numbers(compared)
        (suspects,) = compared.differences(form.typical, None).nonzero()
        if not suspects.size:
            continue
        compared = compared.chosen(suspects)
        spreads = rounded.spreads(compared.examples)
        differences = compared.differences(form.typical, None, spreads)
        (wrong,) = not_finite.without_meaningless(compared, differences).nonzero()
        differing += [compared.chosen(wrong[[position]]) for position in range(wrong.size)]
    if differing:
        clearest = min(differing, key=lambda compared: compared.examples.rank(0))
        output, result, trained_result = clearest.worst()
        framework = original.framework
        # TensorFlow computes a single number otherwise than several.
        copies = clearest.chosen(np.zeros(_COPIES, np.int64)).examples
        example = replace(reference, examples=Examples(_COPIES, copies.columns))
        cause = _cause(original, example, name)
        raise VerificationFailed(
            f"tower {name!r}, output {output!r}: for {clearest.examples.text(0)}, {framework}, "
            f"which trained the model, gives {number_text(trained_result)}, and TensorFlow, which "
            f"computes the tower, {number_text(result)}{cause}; {len(differing)} of {examples.n} "
            f"examples with hostile numbers differ: {_REMEDY}"
        )
    return [f"tower {name!r}, in TensorFlow: {note}" for note in not_finite.notes()]


def _groups(
    reference: Reference, traced: TracedTower, form: ReferenceForm
) -> Iterator[HostileExamples]:
    """Yields examples with hostile numbers in the order of their magnitudes, of some inputs each:
    those that hold neither ids nor their weights.
    """
    inputs = [
        number_input
        for number_input in form.inputs
        if not number_input.are_weights
        and number_input.name in reference.examples.columns
        and not any(
            isinstance(spec, FeatureSpec) for spec in reference.model.inputs[number_input.name]
        )
    ]
    yield from hostile_examples(traced.spec, inputs, form.values, _ROWS_MAX)
    for number_input in inputs:
        around = form.numbers_around_steps(number_input)[: _ROWS_MAX // len(inputs), np.newaxis]
        for rows in batches(len(around), form.values):
            yield number_input.examples(around[rows])


def _completed(base: Examples, group: HostileExamples) -> HostileExamples:
    """Returns examples with the columns of all inputs: the recipe's examples, in turn."""
    rows = np.arange(group.n) % base.n
    columns = {name: chosen(column, rows, base.n) for name, column in base.columns.items()}
    return replace(group, columns={**columns, **group.columns})


def _cause(original: ForeignModel, example: Reference, name: str) -> str:
    """Returns the operation of a tower that differs for an example, a clause of messages; "" if no
    single one does.
    """
    inputs = model_inputs(replace(example, model=example.model.of(name)))
    for operation in original.operations(example.model.towers[name], inputs):
        position = differing_position(operation.served, operation.trained)
        if position is None:
            continue
        operand = operation.operand
        argument = ""
        if operand is not None and operand.shape == operation.trained.shape:
            argument = f" of {number_text(operand.reshape(-1)[position])}"
        trained = number_text(operation.trained.reshape(-1)[position])
        served = number_text(operation.served.reshape(-1)[position])
        return (
            f" ({operation.name}{at_line(operation.line)}{argument} is {trained} in "
            f"{original.framework} and {served} in TensorFlow)"
        )
    return ""


def _outputs(form: ReferenceForm, examples: HostileExamples, expected: Values) -> ComparedOutputs:
    """Returns the outputs of the SavedModel for the examples that it takes beside the model's, in
    the order of the numbers' magnitudes.
    """
    rows: NDArray[np.int64] = np.argsort(examples.magnitudes, kind="stable")
    if form.failure_of(form.chain, examples):
        rows = rows[form.is_accepted(examples.chosen(rows))]
    examples = examples.chosen(rows)
    results = form.outputs_of(form.chain, examples)
    return ComparedOutputs(
        examples, {output: array[rows] for output, array in expected.items()}, results
    )


def _with_numbers(compared: ComparedOutputs) -> ComparedOutputs:
    """Returns the outputs with the model's where the SavedModel has no number: a service responds
    with an error there.
    """
    results = {
        output: np.where(np.isfinite(array), array, compared.expected[output])
        for output, array in compared.results.items()
    }
    return replace(compared, results=results)
